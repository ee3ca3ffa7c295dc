//! The driver on tokio: connections, calls and handlers (feature `tokio`).
//!
//! One task drives one connection; see `connection` for its rules and `state` for those of the lock. Every handler is
//! a task of its own. Notifications of the peer run one at a time, in a separate task.

mod admission;
mod builder;
mod call;
mod call_table;
mod cluster_keys;
mod connection;
mod context;
mod effects;
mod handler;
mod interner;
mod json_text;
mod memory;
mod notifications;
mod outbox;
mod peer;
mod request_log;
mod requests;
mod router;
mod server;
mod state;
mod timeouts;
#[cfg(feature = "tower")]
mod tower;
mod trace_propagator;

pub use admission::ServerCounts;
pub use admission::ServerLimits;
pub use builder::{Declaration, PeerBuilder};
pub use call::Call;
pub use call::Canceller;
pub use call::Starting;
pub use call::builder::CallBuilder;
pub use cluster_keys::{ClusterKeys, KeyedRequest};
pub use context::CallContext;
pub use handler::error::{HandlerError, Stopped};
pub use notifications::tasks::ArrivalOrder;
pub use notifications::{Notification, Notifications};
pub use peer::{Peer, QueueStats};
pub use request_log::info::{
    Direction, EndedRequest, InvalidRequestKey, MAX_RECORDED_METHOD_BYTES, RequestInfo, RequestKey,
    RequestOutcome, SessionInfo,
};
pub use request_log::shared::RequestEvent;
pub use request_log::shared::RequestLog;
pub use request_log::shared::RequestWatch;
pub use request_log::shared::{MAX_ENDED_REQUESTS, OutcomeCounts, RequestCounts};
pub use router::Router;
pub use router::{Method, MethodHandler};
pub use server::{Server, ServerBuilder, ServerHandle};
#[cfg(feature = "tower")]
pub use tower::{CallRequest, RawParams, ServiceRequest};
pub use trace_propagator::TracePropagator;
