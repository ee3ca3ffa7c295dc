//! The binding `acp`: ACP's streamable HTTP. POSTs are taken with 202; answers, requests and notifications of the agent
//! come on event streams, one a connection and one for each session.
//!
//! - A1 `initialize` opens a connection and is answered on its own POST. Every other message belongs to its connection,
//!   whichever POST brought it, so that a cancel counts with or without a session's header.
//! - A2 An answer goes by the stream of the session its request named, and so does what its handler says before it; a
//!   message whose params name a session goes by that one's; a cancel goes by the stream of the request it names and
//!   cannot overtake it. All else goes by the connection's own stream, and so does the answer to `session/load`.
//! - A3 What waits for a stream is bounded: notifications give way, then its reader, then the connection.
//! - A4 A connection is unknown to anyone but the principal who opened it.
//! - A5 A stream that is lost is told as closed, for the requests whose answers go by it; one that comes back as resumed. A
//!   connection ends by DELETE, with its link, or when nobody used it or read a stream of it for too long.

mod client;
mod connection;
mod cookie_store;
mod lanes;
mod link;
mod message;
mod server;
mod sessions;
#[cfg(feature = "verify")]
pub(crate) mod verify;

use std::fmt;
use std::sync::Arc;

use http::{Request, Response};
use rescind_core::{ACP_BODIES, BoxFuture, Credential, SessionBodies};

pub use client::AcpTransport;

use self::server::AcpServer;
use crate::server::{AcceptQueue, HttpServer, Responder, ServerBinding, Settings, sealed};

/// Answers a request for a WebSocket.
pub(crate) type UpgradeHook =
    Arc<dyn Fn(Request<()>, Credential) -> BoxFuture<'static, Response<String>> + Send + Sync>;

/// The serving side of the binding `acp`, for an [`HttpServer`](crate::HttpServer). Its path is `/acp` by custom.
///
/// A request whose stream is lost, or that has none from the beginning, goes on for a while
/// ([`Limits::detach_grace`](rescind_core::Limits::detach_grace), 30 s) and is then cancelled, unless the client opens
/// the stream. The connection stays for as long as [`HttpServer::session_idle`](crate::HttpServer::session_idle) says.
///
/// A GET for a session its connection does not know gets 404, as the draft demands: a connection knows a session once a
/// message of either side has named it. See [`unknown_sessions`](Self::unknown_sessions).
///
/// The upgrade to a WebSocket under the same path is another wire's: the crate `rescind` joins the two, by
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

/// What a GET gets that asks for the event stream of a session its connection does not know.
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

    /// Which messages belong to a session, in a protocol of your own. Default: [`ACP_BODIES`].
    pub const fn bodies(mut self, bodies: &'static SessionBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// What a GET gets that asks for the event stream of a session its connection does not know. Default:
    /// [`Refused`](UnknownSessions::Refused).
    ///
    /// Some clients open the stream of a session before they post its `session/load` or `session/resume`, and give the
    /// connection up at a 404, as the TypeScript SDK (2.4.0) does. Set [`Opened`](UnknownSessions::Opened) for an agent
    /// that offers either.
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
    /// Lets this hook answer each GET that asks for the upgrade to a WebSocket, once Host, Origin and the auth hook
    /// were passed; without a hook such a GET is like any other. The credential is what the auth hook answered: the
    /// connection must end when it expires.
    ///
    /// The hook takes the connection out of the request (`hyper::upgrade::on`) and answers with status 101, to which an
    /// `Acp-Connection-Id` is added here; or it refuses. What comes of the connection is the hook's alone: this
    /// server's listener and limits know nothing of it, and it does not end with them. The hook must not block.
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
    fn responder(self, settings: &Arc<Settings>, door: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(AcpServer::new(self, settings, door))
    }
}
