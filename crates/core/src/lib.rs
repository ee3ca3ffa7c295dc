//! The cancellation machine of Rescind, its driver, its dialects, the traits of its transports, and the transports that
//! need no crate of their own.

// First: the modules below use its macro.
mod broken_json;
mod byte_budget;
mod cause;
mod clients;
mod collections;
pub mod dialect;
#[cfg(feature = "tokio")]
mod driver;
mod error;
#[doc(hidden)]
pub mod failpoint;
mod framing;
mod id;
mod json_skip;
mod log_text;
mod machine;
#[doc(hidden)]
pub mod members;
mod message;
mod registry;
mod sync;
mod trace_context;
mod transport;

pub use byte_budget::{ByteBudget, HeldBytes, MEMORY};
pub use cause::{Cancelled, Cause, CauseKind, MAX_REASON_BYTES, Outcome};
pub use clients::{Client, ClientKey, ClientPermit, Clients, DEFAULT_IPV6_PREFIX, Resource, Share};
pub use dialect::{
    ACP_BODIES, CancelBodies, MCP_2026_BODIES, MCP_CANCEL, MCP_OPENING, MCP_RENEWAL, MirroredBodies,
    RenewalBodies, SessionBodies,
};
#[cfg(feature = "tokio")]
pub use driver::{
    ArrivalOrder, Call, CallBuilder, CallContext, Canceller, ClusterKeys, Declaration, HandlerError,
    KeyedRequest, ListedTask, Method, MethodHandler, NotATask, Notification, Notifications, OwnTasks, Peer,
    PeerBuilder, QueueStats, Router, Server, ServerBuilder, ServerCounts, ServerHandle, ServerLimits,
    Starting, Stopped, TaskHandle, TaskLimits, TaskPosition, TaskRecord, TaskReport, TaskStore, Tasks,
    TracePropagator,
};
#[cfg(feature = "tower")]
pub use driver::{CallRequest, RawParams, ServiceRequest};
#[cfg(feature = "tokio")]
pub use driver::{
    Direction, EndedRequest, InvalidRequestKey, MAX_ENDED_REQUESTS, MAX_RECORDED_METHOD_BYTES, OutcomeCounts,
    RequestCounts, RequestEvent, RequestInfo, RequestKey, RequestLog, RequestOutcome, RequestProgress,
    RequestWatch, SessionInfo,
};
pub use error::{ApiMisuse, CallError, ConnectionError, ProtocolViolation};
pub use framing::{BadFrame, ContentLength, Decoded, Decoder, Framing, Newline};
pub use id::{
    CallKey, CallNumber, ClientNumber, ExchangeId, InboundKey, InvalidId, MAX_ID_BYTES, OutboundKey,
    Principal, RequestId, Scope,
};
pub use log_text::LogText;
#[cfg(feature = "verify")]
pub use machine::inspect;
pub use machine::{
    AcceptedCancel, AfterCancel, AnswerKind, CallRefused, CallSpec, CallState, CancelResult, ClientLimits,
    CloseCause, DisconnectPolicy, Event, ForeignChild, HandlerResult, InboundRequest, Limits, NoTask, Origin,
    Output, Reply, ReplyBody, RequestStatus, Session, SessionConfig, Settlement, Stats, Work,
};
pub use message::{
    AckStatus, AnswerBody, AnswerFault, BadMessage, CancelExemption, CancelKey, Deviation, DeviationReport,
    ErrorCode, ErrorObject, Incoming, IncomingCancel, IncomingRequest,
};
pub use registry::{Registry, SessionId};
pub use trace_context::TraceContext;
pub use transport::{
    BoxFuture, Capabilities, CloseReason, Endpoint, ExchangeEnd, FrameInfo, FrameKind, Inbound, Lane, Link,
    Listener, Outbound, PeerInfo, Receiver, RejectReason, Sender, Transport, TransportError,
    TransportErrorKind, TransportEvent, Unsupported, UseMark,
};
#[cfg(feature = "tokio")]
pub use transport::{
    ByteStream, FrameStream, MemoryFull, MemoryListener, MemoryTransport, PartialFrame, WriteQueue,
    memory_listener, memory_pair,
};
