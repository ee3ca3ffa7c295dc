//! The driver on tokio: connections, calls and handlers (feature `tokio`).
//!
//! One task drives one connection; see `connection` for its rules and `state` for those of the lock. Every handler is
//! a task of its own. Notifications of the peer run one at a time, in a separate task.

mod admission;
mod builder;
mod call;
mod call_table;
mod connection;
mod context;
mod effects;
mod handler;
mod json_text;
mod notifications;
mod outbox;
mod peer;
mod request_log;
mod requests;
mod router;
mod server;
mod state;
mod task;
mod task_handle;
mod task_methods;
mod task_store;
mod tasks;
#[cfg(feature = "tower")]
mod tower;

pub use admission::ServerCounts;
pub use admission::ServerLimits;
pub use builder::{Declaration, PeerBuilder};
pub use call::Call;
pub use call::Canceller;
pub use call::Starting;
pub use call::builder::CallBuilder;
pub use context::{CallContext, HandlerError, Stopped};
pub use notifications::tasks::ArrivalOrder;
pub use notifications::{Notification, Notifications};
pub use peer::{Peer, QueueStats};
pub use request_log::{
    Direction, EndedRequest, InvalidRequestKey, MAX_ENDED_REQUESTS, MAX_RECORDED_METHOD_BYTES, OutcomeCounts,
    RequestCounts, RequestEvent, RequestInfo, RequestKey, RequestLog, RequestOutcome, RequestProgress,
    RequestWatch, SessionInfo,
};
pub use requests::{ClusterKeys, KeyedRequest, TracePropagator};
pub use router::Router;
pub use router::{Method, MethodHandler};
pub use server::{Server, ServerBuilder, ServerHandle};
pub use task_handle::{TaskHandle, TaskReport};
pub use task_store::{ListedTask, OwnTasks, TaskPosition, TaskRecord, TaskStore};
pub use tasks::{NotATask, TaskLimits, Tasks};
#[cfg(feature = "tower")]
pub use tower::{CallRequest, RawParams, ServiceRequest};
