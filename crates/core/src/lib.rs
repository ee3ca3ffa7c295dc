//! The cancellation machine of Rescind and all that stands around it without a wire of its own.

mod cause;
pub mod dialect;
#[cfg(feature = "tokio")]
mod driver;
mod error;
mod framing;
mod id;
mod index;
mod machine;
mod message;
mod pages;
#[doc(hidden)]
pub mod plant;
mod registry;
mod spares;
mod sync;
mod transport;

pub use cause::{Cancelled, Cause, CauseKind, MAX_REASON_BYTES, Outcome};
#[cfg(feature = "tokio")]
pub use driver::{
    Call, CallBuilder, CallContext, Canceller, Declaration, HandlerError, Load, Notification,
    NotificationPlace, Notifications, Peer, PeerBuilder, Router, Server, ServerBuilder, ServerCounts,
    ServerLimits, Starting, Stopped,
};
#[cfg(feature = "tower")]
pub use driver::{CallRequest, RawParams, ServiceRequest};
pub use error::{ApiMisuse, CallError, ConnectionError, ProtocolViolation};
pub use framing::{BadFrame, ContentLength, Decoded, Decoder, Framing, Newline};
pub use id::{
    CallKey, CallNumber, ExchangeId, InboundKey, InvalidId, MAX_ID_BYTES, OutboundKey, Principal, RequestId,
    Scope,
};
#[cfg(feature = "verify")]
pub use machine::inspect;
pub use machine::{
    AckStatus, AfterCancel, AnswerKind, Arrival, CallRefused, CallSpec, CancelResult, CloseCause, Event,
    ForeignChild, HandlerEnd, Limits, Lost, Origin, Output, Reply, ReplyBody, Session, SessionConfig,
    Settlement, Stats, Work,
};
pub use message::{
    AnswerBody, BadMessage, CancelKey, ErrorCode, ErrorObject, Exempt, Incoming, IncomingCancel,
    IncomingRequest,
};
pub use registry::{Registry, SessionId};
pub use transport::{
    BoxFuture, CloseReason, Endpoint, Fault, Finish, FrameKind, Head, Inbound, Lane, Link, LinkTraits,
    Listener, Meta, Outbound, Receiver, Sender, Transport, TransportError, TransportErrorKind,
    TransportEvent, Unsupported,
};
#[cfg(feature = "tokio")]
pub use transport::{ByteStream, FrameStream, MemoryListener, MemoryTransport, memory_listener, memory_pair};
