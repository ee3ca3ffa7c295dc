//! The serving side that all bindings share.
//!
//! - S1 A request passes Host, Origin and the auth hook before its binding sees it. A browser's preflight passes Host and
//!   Origin, and no binding sees it.
//! - S2 No handler runs in a connection's task: a binding hands messages to the driver through an
//!   [`InboundQueue`](crate::inbound_queue::InboundQueue) and waits for what comes back.
//! - S3 A future or body dropped by its connection tells its binding, through a guard, that the exchange was given up.
//! - S4 With the listener everything ends: sockets, connection tasks, links.

pub(crate) mod auth;
pub(crate) mod body;
mod builder;
pub(crate) mod checks;
mod connection;
pub(crate) mod cors;
mod counts;
pub(crate) mod events;
pub(crate) mod exchange_table;
mod full;
mod heads;
pub(crate) mod idle;
pub(crate) mod json_or_event_stream;
pub(crate) mod link;
mod listener;
pub(crate) mod refusal;
pub(crate) mod replay_buffer;
pub(crate) mod reply;
mod service;
pub(crate) mod sessions;
mod settings;
mod shutdown;
mod sockets;
pub(crate) mod stall_timer;
mod write_timeout;

use std::sync::Arc;

use http::{Request, Response};
use rescind_core::BoxFuture;

pub use builder::HttpServer;
pub use counts::HttpCounts;
pub use full::Stalled;
pub use listener::HttpListener;
pub use reply::ReplyBody;
pub use service::HttpService;
pub use settings::HalfClose;

pub(crate) use body::RequestBody;
pub(crate) use listener::AcceptQueue;
pub(crate) use settings::Settings;

use rescind_core::Principal;

use self::cors::PageAccess;
use self::refusal::Refused;

/// The serving side of a binding, as the shared part sees it.
pub(crate) trait Responder: Send + Sync + 'static {
    /// Answers one request, which passed the checks of S1.
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        principal: Option<Principal>,
    ) -> BoxFuture<'static, Response<ReplyBody>>;

    /// What a request is answered with that is refused before it comes here, in this binding's form.
    fn refuse(&self, refused: Refused) -> Response<ReplyBody> {
        refused.into_response()
    }

    /// What pages of other origins may use.
    fn page_access(&self) -> &'static PageAccess;

    /// The listener is gone: every link ends.
    fn shut(&self);

    /// Sessions there are, and POSTs whose exchange has not ended.
    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize);
}

/// A binding before it serves. The built-in ones are all there are.
#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
pub trait ServerBinding: sealed::Sealed {
    /// Makes the binding ready to serve.
    #[doc(hidden)]
    fn responder(self, settings: &Arc<Settings>, door: AcceptQueue) -> Arc<dyn Responder>;
}

pub(crate) mod sealed {
    /// Of this crate alone.
    pub trait Sealed {}
}
