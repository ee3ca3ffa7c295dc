//! The binding `acp`: ACP's streamable HTTP. A POST gets 202. Answers, requests and notifications from the agent are
//! sent on event streams: one for the connection and one for each session.
//!
//! - A1 `initialize` opens a connection and is answered on its own POST. Every other message belongs to its connection,
//!   whichever POST carried it, so a cancel has effect with or without a session's header.
//! - A2 An answer is sent on the stream of the session that its request named. Messages that its handler sends before
//!   the answer use the same stream. A message whose params name a session is sent on that session's stream. A cancel
//!   is sent on the stream of the request that it names and cannot overtake it. Everything else is sent on the
//!   connection's own stream, and so is the answer to `session/load`.
//! - A3 The messages that wait for a stream are bounded. Above the limit, notifications are dropped first, then the
//!   reader is cut off, then the connection ends. The events that are kept for a client that resumes have bounds of
//!   their own, for each stream and for the connection.
//! - A4 Only the principal that opened a connection can find it.
//! - A5 A lost stream is reported as closed, for the requests whose answers use it. A stream that comes back is
//!   reported as resumed. A connection ends by DELETE, with its link, or when no client has used it or read one of its
//!   streams for too long.
//! - A6 Each event has an id of its stream and its number in it. A GET with `Last-Event-ID` gets the events after that
//!   one, if they are kept, and otherwise 400. An id of another stream gets 400 too. An empty value means that the client
//!   has received no event. A GET without the header gets the events that no reader has taken, after a block that has only
//!   the id before them. So a client that never sends the header gets no event twice. ACP's draft leaves resumption to a
//!   later revision: all this is ours, in the form of MCP's streamable HTTP.

mod client;
mod connection;
mod posts;
mod server;
mod sessions;

use std::fmt;
use std::sync::Arc;

use http::{Request, Response};
use rescind_core::{ACP_BODIES, BoxFuture, SessionBodies};
use rescind_net::Credential;

pub use client::AcpTransport;

use self::server::AcpServer;
#[cfg(feature = "verify")]
pub(crate) use crate::acp::sessions::verify;
use crate::server::{AcceptQueue, HttpServer, Responder, ServerBinding, Settings, sealed};

/// Answers a request for the upgrade to a WebSocket.
pub(crate) type UpgradeHook =
    Arc<dyn Fn(Request<()>, Credential) -> BoxFuture<'static, Response<String>> + Send + Sync>;

/// The server side of the binding `acp`, for an [`HttpServer`](crate::HttpServer). Its usual path is `/acp`.
///
/// A request whose stream is lost, or that has no stream from the beginning, continues for a while
/// ([`Limits::detach_grace`](rescind_core::Limits::detach_grace), 30 s). Then it is cancelled, unless the client has
/// opened the stream. An unused connection ends after [`HttpServer::session_idle`](crate::HttpServer::session_idle).
///
/// A lost stream is resumed with `Last-Event-ID`, also over another TCP connection: the events after that id are sent
/// again, up to [`HttpServer::resume_buffer`](crate::HttpServer::resume_buffer) for each stream and 8 MiB for all streams
/// of a connection. If they are not kept any more, the GET gets 400, and one without the header gets the messages that
/// wait. The draft does not define this yet. A proposal for a later revision uses the same header, with 409 instead of
/// 400; [`AcpTransport`] understands both.
///
/// A GET for a session that its connection does not know gets 404, as the draft requires. A connection knows a session
/// after a message of either side has named it. See [`unknown_sessions`](Self::unknown_sessions).
///
/// The upgrade to a WebSocket on the same path belongs to another transport. The crate `rescind` joins the two with
/// [`HttpServer::upgrades`].
#[derive(Clone)]
#[must_use = "a binding serves as part of a server"]
pub struct Acp {
    upgrade: Option<UpgradeHook>,
    unknown_sessions: UnknownSessions,
    bodies: &'static SessionBodies,
}

impl Default for Acp {
    fn default() -> Self {
        Self::new()
    }
}

/// The response to a GET for the event stream of a session that its connection does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownSessions {
    /// 404.
    #[default]
    Refused,
    /// The stream.
    Opened,
}

impl Acp {
    /// Serves ACP's draft of June 2026.
    pub const fn new() -> Self {
        Self { upgrade: None, unknown_sessions: UnknownSessions::Refused, bodies: &ACP_BODIES }
    }

    /// Sets which messages belong to a session, for a protocol of your own. Default: [`ACP_BODIES`].
    pub const fn bodies(mut self, bodies: &'static SessionBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Sets the response to a GET for the event stream of a session that its connection does not know. Default:
    /// [`Refused`](UnknownSessions::Refused).
    ///
    /// Some clients, such as the TypeScript SDK (2.4.0), open the stream of a session before they post its
    /// `session/load` or `session/resume`, and close the connection after a 404. Set
    /// [`Opened`](UnknownSessions::Opened) for an agent that offers either method.
    pub const fn unknown_sessions(mut self, unknown: UnknownSessions) -> Self {
        self.unknown_sessions = unknown;
        self
    }
}

impl fmt::Debug for Acp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acp")
            .field("upgrades", &self.upgrade.is_some())
            .field("unknown_sessions", &self.unknown_sessions)
            .finish_non_exhaustive()
    }
}

impl HttpServer<Acp> {
    /// Sets the hook that answers each GET for the upgrade to a WebSocket, after the checks of Host and Origin and the
    /// auth hook. Without a hook, such a GET is handled like any other. The credential is the result of the auth hook:
    /// the connection must end when the credential expires.
    ///
    /// The hook takes the connection out of the request (`hyper::upgrade::on`) and answers with status 101, or it
    /// refuses. The server adds an `Acp-Connection-Id` to an answer with status 101. Only the hook is responsible for
    /// the upgraded connection: this server's listener and limits do not include it, and it does not end with them. The
    /// hook must not block.
    pub fn upgrades<F, A>(self, hook: F) -> Self
    where
        F: Fn(Request<()>, Credential) -> A + Send + Sync + 'static,
        A: Future<Output = Response<String>> + Send + 'static,
    {
        let hook: UpgradeHook = Arc::new(move |request, credential| Box::pin(hook(request, credential)));
        self.map_binding(|binding| Acp { upgrade: Some(hook), ..binding })
    }
}

impl sealed::Sealed for Acp {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for Acp {
    fn responder(self, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(AcpServer::new(self, settings, accept_queue))
    }
}
