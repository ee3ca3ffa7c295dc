//! The driver on tokio: connections, calls and handlers (feature `tokio`).
//!
//! One task drives one connection; see `task.rs` for its rules and `shared.rs` for those of the lock. Every handler is
//! a task of its own, and notifications of the peer run one at a time beside them.

mod admission;
mod apply;
mod builder;
mod call;
mod call_builder;
mod calls;
mod canceller;
mod context;
mod deferred;
mod few;
mod foreign;
mod guard;
mod handler;
mod idle;
mod incoming;
mod load;
mod log;
mod matchers;
mod methods;
mod notices;
mod notifiers;
mod notify;
mod opening;
mod outbox;
mod outgoing;
mod peer;
mod read;
mod request;
mod router;
mod server;
mod server_counts;
#[cfg(feature = "tower")]
mod service;
mod shared;
mod slots;
mod task;
mod write;

pub use admission::ServerLimits;
pub use builder::{Declaration, PeerBuilder};
pub use call::Call;
pub use call_builder::{CallBuilder, Starting};
pub use canceller::Canceller;
pub use context::CallContext;
pub use handler::{HandlerError, Stopped};
pub use incoming::{Notification, Notifications};
pub use load::Load;
pub use notices::NotificationPlace;
pub use peer::Peer;
pub use router::Router;
pub use server::{Server, ServerBuilder};
pub use server_counts::ServerCounts;
#[cfg(feature = "tower")]
pub use service::{CallRequest, RawParams, ServiceRequest};
