//! The driver on tokio: connections, calls and handlers (feature `tokio`).
//!
//! One task drives one connection; see `task.rs` for its rules and `shared.rs` for those of the lock. Every handler is
//! a task of its own, and notifications of the peer run one at a time beside them.

mod admission;
mod arrival_order;
mod builder;
mod call;
mod call_builder;
mod call_entry;
mod calls;
mod canceller;
mod context;
mod cross_connection;
mod effects;
mod few;
mod handler;
mod handler_error;
mod idle;
mod inbound_slot;
mod interner;
mod log;
mod memory;
mod negotiate;
mod notification_queue;
mod notification_tasks;
mod notifications;
mod notify;
mod outbox;
mod outgoing;
mod outputs;
mod params;
mod peer;
mod queue_stats;
mod read;
mod reported;
mod request;
mod router;
mod seats;
mod send_waiters;
mod server;
mod server_counts;
#[cfg(feature = "tower")]
mod service;
mod session_permit;
mod shared;
mod slots;
mod step;
mod subscriptions;
mod task;
mod task_guard;
mod timeouts;
mod write;

pub use admission::ServerLimits;
pub use arrival_order::ArrivalOrder;
pub use builder::{Declaration, PeerBuilder};
pub use call::Call;
pub use call_builder::{CallBuilder, Starting};
pub use canceller::Canceller;
pub use context::CallContext;
pub use handler_error::{HandlerError, Stopped};
pub use notifications::{Notification, Notifications};
pub use peer::Peer;
pub use queue_stats::QueueStats;
pub use router::Router;
pub use server::{Server, ServerBuilder};
pub use server_counts::ServerCounts;
#[cfg(feature = "tower")]
pub use service::{CallRequest, RawParams, ServiceRequest};
