//! Cancels single requests between two programs, from either side, with the same outcome on every transport.
//!
//! Agents, editors and tool servers use ACP, MCP, LSP or ABP. Each of these protocols has its own form of cancellation.
//! In this crate one state machine without I/O ([`machine::Session`]) defines what a cancel does. The rules of each
//! protocol are a value ([`dialect`]). A connection is a [`Peer`], on every transport.
//!
//! ```
//! use std::time::Duration;
//!
//! use rescind::{CallContext, Outcome, Peer, Router, dialect, memory_pair};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (client, server) = memory_pair();
//!
//! // The side that serves. A cancel drops the work, and `?` answers with the dialect's cancelled error.
//! let router = Router::new().method("work", async |ctx: CallContext, _: Value| {
//!     ctx.try_notify("started", &json!({}))?;
//!     ctx.run_until_cancelled(tokio::time::sleep(Duration::from_secs(10))).await?;
//!     Ok("done")
//! });
//! let _serving = Peer::builder(dialect::ACP).serve(router).attach(server)?;
//!
//! // The side that calls. A call is cancelled when it is dropped, or by its canceller.
//! let peer = Peer::builder(dialect::ACP).attach(client)?;
//! let call = peer.call::<_, Value>("work", &json!({}));
//! let call = call.notifications_where(|notification| notification.method() == "started").start()?;
//! let mut started = call.notifications();
//! let stop = call.canceller();
//! started.next().await;
//! stop.cancel("the user pressed stop");
//! match call.outcome().await {
//!     Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
//!     other => panic!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The [guide] explains what a cancel does on both sides.
//!
//! # Features
//! | feature | brings | dependencies |
//! |---|---|---|
//! | `stdio` (default) | this process's stdin and stdout, child processes: [`stdio`] | `rescind-stdio`, `rustix` |
//! | `websocket` | client and server over WebSocket: [`websocket`] | `rescind-websocket`, `tokio-tungstenite`, `hyper`, `hyper-util` |
//! | `axum` | the upgrade handler for a route of axum | `websocket`, `axum` |
//! | `http` | client and server over HTTP, in four bindings, alone or mounted in a server of your own: [`http`] | `rescind-http`, `hyper`, `hyper-util`, `http-body-util`, `getrandom`, `base64`, `tower-service` |
//! | `http` with `websocket` | ACP's endpoint, with both on one path: `AcpEndpoint` | no others |
//! | `named-pipe` | Unix domain sockets, Windows named pipes, listener and client: [`named_pipe`] | `rescind-named-pipe`, `interprocess`, `rustix` |
//! | `bridge` | two connections joined, of any transports: [`bridge`] | `rescind-bridge` |
//! | `page` | the live page of a server, with stop buttons and metrics: [`page`] | `rescind-page`, `axum`, `hyper`, `hyper-util`, `prometheus-client`, `getrandom`, `subtle` |
//! | `rustls` | `wss` and `https`, for the transports that are enabled: [`tls`] | `tokio-rustls`, `rustls-native-certs` |
//! | `tower` | handlers and peers as `tower::Service` | `tower-service` |
//! | `lsp-types` | LSP's methods with the types of `gen-lsp-types`: [`lsp`] | `gen-lsp-types` |
//! | `acp-types` | ACP's methods with the types of its own schema crate: [`acp`] | `agent-client-protocol-schema` |
//! | `mcp-types` | MCP's methods with the types of `rust-mcp-schema`: [`mcp`] | `rust-mcp-schema` |
//! | `full` | all of them except the three features of types | those of the features |

#[cfg(feature = "acp-types")]
pub mod acp;
#[cfg(all(feature = "http", feature = "websocket"))]
mod acp_endpoint;
#[doc = include_str!("guide.md")]
pub mod guide {}
#[cfg(feature = "lsp-types")]
pub mod lsp;
#[cfg(feature = "mcp-types")]
pub mod mcp;

pub use rescind_core::{
    ApiMisuse, ArrivalOrder, ByteStream, Call, CallBuilder, CallContext, CallError, CancelResult, Cancelled,
    Canceller, Cause, CauseKind, Client, ClientKey, ClientLimits, Clients, ConnectionError,
    DEFAULT_IPV6_PREFIX, Declaration, Deviation, DeviationReport, Endpoint, ErrorCode, ErrorObject, Event,
    FrameStream, Framing, HandlerError, Limits, ListedTask, LogText, MAX_REASON_BYTES, MemoryListener,
    MemoryTransport, Method, MethodHandler, NotATask, Notification, Notifications, Outcome, OwnTasks, Peer,
    PeerBuilder, Principal, ProtocolViolation, QueueStats, Registry, RequestId, Router, Server,
    ServerBuilder, ServerCounts, ServerHandle, ServerLimits, SessionId, Share, Starting, Stats, Stopped,
    TaskHandle, TaskLimits, TaskPosition, TaskRecord, TaskReport, TaskStore, Tasks, TraceContext,
    TracePropagator, dialect, memory_listener, memory_pair,
};
pub use rescind_net::{
    AuthHook, AuthRefusal, AuthRequest, ClientCertificates, Credential, HostPolicy, InvalidAllowEntry,
    OriginPolicy, PeerAddress,
};
/// The result of a handler. An error is the peer's answer; [`Stopped`] becomes the dialect's cancelled answer.
pub type HandlerResult<T> = Result<T, HandlerError>;

#[cfg(feature = "tower")]
pub use rescind_core::{CallRequest, RawParams, ServiceRequest};

/// The state machine without I/O: its inputs, outputs and keys. For drivers other than [`Peer`], and for codecs of
/// dialects.
pub mod machine {
    pub use rescind_core::{
        AckStatus, AfterCancel, AnswerBody, AnswerKind, BadMessage, CallKey, CallNumber, CallRefused,
        CallSpec, CallState, CancelExemption, CancelKey, CloseCause, DisconnectPolicy, ForeignChild,
        HandlerResult, InboundKey, InboundRequest, Incoming, IncomingCancel, IncomingRequest, InvalidId,
        MAX_ID_BYTES, NoTask, Origin, OutboundKey, Output, Reply, ReplyBody, Scope, Session, SessionConfig,
        Settlement, Work,
    };
}

/// The requests of a connection or of a server as an operator sees them: snapshots, a watch of changes, and those that
/// have ended. It begins with [`Peer::requests`](crate::Peer::requests) or
/// [`ServerHandle::request_log`](crate::ServerHandle::request_log).
pub mod requests {
    pub use rescind_core::{
        AcceptedCancel, Direction, EndedRequest, InvalidRequestKey, MAX_ENDED_REQUESTS,
        MAX_RECORDED_METHOD_BYTES, OutcomeCounts, RequestCounts, RequestEvent, RequestInfo, RequestKey,
        RequestLog, RequestOutcome, RequestProgress, RequestStatus, RequestWatch, SessionInfo,
    };
}

/// The traits of a transport, and the types that they use: links, frames, listeners, byte budgets.
pub mod transport {
    pub use rescind_core::{
        BadFrame, BoxFuture, ByteBudget, Capabilities, ClientNumber, ClientPermit, CloseReason,
        ContentLength, Decoded, Decoder, ExchangeEnd, ExchangeId, FrameInfo, FrameKind, HeldBytes, Inbound,
        Lane, Link, Listener, MEMORY, MemoryFull, Newline, Outbound, PartialFrame, PeerInfo, Receiver,
        RejectReason, Resource, Sender, Transport, TransportError, TransportErrorKind, TransportEvent,
        Unsupported, UseMark,
    };
    pub use rescind_net::{HostRefusal, OriginRefused, PeerCertificates, RequestHost};
}

/// TLS of servers and clients, the same value for HTTP and WebSocket.
///
/// ```no_run
/// use rescind::ClientCertificates;
/// use rescind::tls::{ClientTls, Pem, ServerTls};
///
/// # fn main() -> Result<(), rescind::tls::TlsError> {
/// // The files are read again when they change.
/// let server = ServerTls::from_pem(Pem::file("server.pem"), Pem::file("server.key"))?
///     .client_certificates(Pem::file("clients.pem"), ClientCertificates::Required)?;
/// let client = ClientTls::system().identity(Pem::file("client.pem"), Pem::file("client.key"))?;
/// # let _ = (server, client);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "rustls")]
pub mod tls {
    #[doc(no_inline)]
    pub use rescind_net::rustls;
    pub use rescind_net::{ClientTls, Pem, ServerTls, TlsError};
}

#[cfg(all(feature = "http", feature = "websocket"))]
pub use acp_endpoint::{AcpEndpoint, AcpListener};

#[cfg(feature = "bridge")]
pub use rescind_bridge as bridge;
#[cfg(feature = "http")]
pub use rescind_http as http;
#[cfg(feature = "named-pipe")]
pub use rescind_named_pipe as named_pipe;
#[cfg(feature = "page")]
pub use rescind_page as page;
#[cfg(feature = "stdio")]
pub use rescind_stdio as stdio;
#[cfg(feature = "websocket")]
pub use rescind_websocket as websocket;

/// Runs the Rust code of the README as a test.
#[cfg(all(doctest, feature = "stdio"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the Rust code of the page as a test.
#[cfg(all(doctest, feature = "stdio"))]
#[doc = include_str!("../../../docs/language-server.md")]
struct LanguageServer;

/// Runs the Rust code of the page as a test.
#[cfg(all(doctest, feature = "page"))]
#[doc = include_str!("../../../docs/page.md")]
struct LivePage;
