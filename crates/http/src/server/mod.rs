//! The server side that all bindings share.
//!
//! - S1 A request passes the checks of Host and Origin and the auth hook before its binding gets it. A browser's
//!   preflight passes Host and Origin, and no binding gets it.
//! - S2 No handler runs in a connection's task: a binding passes messages to the driver through an
//!   [`InboundQueue`](crate::inbound_queue::InboundQueue) and waits for the response.
//! - S3 When a connection drops a future or body, a guard informs its binding that the client has left the exchange.
//! - S4 When the listener ends, everything ends: sockets, connection tasks, links.

pub(crate) mod body;
mod builder;
pub(crate) mod checks;
mod connection;
pub(crate) mod exchange_table;
pub(crate) mod json_or_event_stream;
pub(crate) mod listener;
pub(crate) mod replay_buffer;
mod service;
pub(crate) mod sessions;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderName, Request, Response};
use rescind_core::{BoxFuture, Client, Principal};

pub use body::ResponseBody;
pub use body::Stalled;
pub use builder::{HalfClose, HttpServer};
pub use listener::{HttpCounts, HttpListener};
pub use service::HttpService;
pub(crate) use service::is_at;
pub use sessions::{RouteRefusal, RoutedAnswer, RoutedBody, SHARED_CANCEL_KEPT, SessionRoute, SessionRouter};

pub(crate) use body::RequestBody;
pub(crate) use builder::Settings;
pub(crate) use listener::AcceptQueue;

use crate::server::checks::{Field, PageAccess, Refused};

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The principal that the auth hook returned.
    pub(crate) principal: Option<Principal>,
    pub(crate) address: Option<IpAddr>,
    /// The client without its principal.
    anonymous: Arc<Client>,
}

impl Caller {
    pub(crate) fn client(&self, settings: &Settings) -> Arc<Client> {
        match &self.principal {
            None => Arc::clone(&self.anonymous),
            Some(principal) => settings.clients.client(Some(principal), self.address),
        }
    }
}

/// The server side of a binding, as the shared part uses it.
pub(crate) trait Responder: Send + Sync + 'static {
    /// Answers one request, which has passed the checks of S1.
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>>;

    /// The response to a request that is refused before the binding gets it, in the form of this binding.
    fn refuse(&self, refused: Refused) -> Response<ResponseBody> {
        refused.into_response()
    }

    /// The methods and headers that pages of other origins may use.
    fn page_access(&self) -> &'static PageAccess;

    /// The header that names the session of a request. `None`: there are no sessions.
    fn session_header(&self) -> Option<HeaderName> {
        None
    }

    /// The session that a request names, for the router of sessions.
    fn session_of(&self, request: &Request<RequestBody>) -> Result<Option<String>, Refused> {
        let Some(name) = self.session_header() else { return Ok(None) };
        let named = Field::named(request.headers(), &name).single(name.as_str())?;
        Ok(named.map(str::to_owned))
    }

    /// Called when the listener has ended: every link ends.
    fn shut(&self);

    /// The number of open sessions, and of POSTs whose exchange has not ended.
    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize);
}

/// A binding before it serves. Only the built-in bindings exist.
#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
pub trait ServerBinding: sealed::Sealed {
    /// Makes the binding ready to serve.
    #[doc(hidden)]
    fn responder(self, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Arc<dyn Responder>;
}

pub(crate) mod sealed {
    /// Implemented only in this crate.
    pub trait Sealed {}
}
