//! Where the sessions of a server are, if several processes share them.

use std::error::Error;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use rescind_core::{BoxFuture, Principal, RequestId};

use super::refusal::Refused;
use super::{RequestBody, Responder, ResponseBody};

/// The body of a request or a response on its way between two processes.
pub type RoutedBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// The time for which a cancel of a server without sessions ([`Streamable::sessionless`](crate::Streamable::sessionless)) is
/// kept for a request that has not arrived yet: the time within which processes reorder two messages of one client. A
/// request that uses the id again within this time may be cancelled by it.
pub const SHARED_CANCEL_KEPT: Duration = Duration::from_secs(2);

/// Answers one request in place of this server.
pub type RoutedAnswer = Box<
    dyn FnOnce(Request<RoutedBody>) -> BoxFuture<'static, Result<Response<RoutedBody>, RouteRefusal>> + Send,
>;

/// Decides which process serves a request, for servers that share their sessions.
///
/// The crate `rescind-cluster` implements it. A server calls it for each request that has passed the checks of Host and
/// Origin, before the auth hook: the process that serves the request calls its own hook.
pub trait SessionRouter: Send + Sync + 'static {
    /// The id of a new session of this process. `None`: the operating system gave no random bytes.
    fn new_session_id(&self) -> Option<String>;

    /// Where a request is served. `session`: the session or connection that it names. The router may change the head,
    /// for example the [`PeerAddress`](rescind_core::PeerAddress) in its extensions.
    fn route(&self, head: &mut request::Parts, session: Option<&str>) -> SessionRoute;

    /// Passes a cancel of a request without a session to the other processes, which keep it for [`SHARED_CANCEL_KEPT`].
    /// `frame`: the message that cancels, at most 4 KiB of UTF-8. If it fails, the client of the cancel gets the refusal.
    ///
    /// Default: there are no other processes.
    fn cancel_shared(
        &self,
        _principal: &Principal,
        _id: &RequestId,
        _frame: Bytes,
    ) -> BoxFuture<'static, Result<(), RouteRefusal>> {
        Box::pin(ready(Ok(())))
    }

    /// Waits for a cancel of this request that another process passes on, and returns its message. The watch begins with
    /// the call and ends when the future is dropped. `None`: none can come.
    ///
    /// Default: there are no other processes.
    fn watch_shared(&self, _principal: &Principal, _id: &RequestId) -> Option<BoxFuture<'static, Bytes>> {
        None
    }
}

/// Where a request is served.
#[non_exhaustive]
pub enum SessionRoute {
    /// By this server.
    Here,
    /// By the router: it sends the request to another process, or it is a message between processes.
    Elsewhere(RoutedAnswer),
    /// By nobody.
    Refused(RouteRefusal),
}

/// The refusal of a request by a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRefusal {
    status: StatusCode,
    text: String,
    retry_after: Option<Duration>,
}

impl RouteRefusal {
    /// A refusal with this status and text.
    #[must_use]
    pub const fn new(status: StatusCode, text: String) -> Self {
        Self { status, text, retry_after: None }
    }

    /// The time after which the client may try again, in the header `Retry-After`. It is rounded up to whole seconds.
    #[must_use]
    pub const fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn refused(self) -> Refused {
        let refused = Refused::new(self.status, self.text);
        match self.retry_after {
            Some(wait) => refused.after(wait),
            None => refused,
        }
    }
}

impl fmt::Debug for SessionRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("Here"),
            Self::Elsewhere(_) => f.write_str("Elsewhere"),
            Self::Refused(refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}

/// A request after the router has seen it.
pub(super) struct Routed {
    pub(super) request: Request<RequestBody>,
    /// Answers it. `None`: this server does.
    pub(super) elsewhere: Option<RoutedAnswer>,
}

/// Marks the response of another process, which has all its headers already.
#[derive(Clone, Copy, Debug)]
pub(super) struct FromElsewhere;

impl Routed {
    /// Passes the head of a request to the router. `responder`: the binding that serves it here.
    pub(super) fn by(
        router: &dyn SessionRouter,
        responder: &dyn Responder,
        request: Request<RequestBody>,
    ) -> Result<Self, Refused> {
        let named = responder.session_of(&request)?;
        let (mut head, body) = request.into_parts();
        let elsewhere = match router.route(&mut head, named.as_deref()) {
            SessionRoute::Here => None,
            SessionRoute::Elsewhere(answer) => Some(answer),
            SessionRoute::Refused(refusal) => return Err(refusal.refused()),
        };
        Ok(Self { request: Request::from_parts(head, body), elsewhere })
    }
}

/// The answer of the router to a request.
pub(super) async fn answer(
    responder: Arc<dyn Responder>,
    elsewhere: RoutedAnswer,
    request: Request<RequestBody>,
) -> Response<ResponseBody> {
    let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
    match elsewhere(request).await {
        Ok(response) => {
            let mut response = response.map(ResponseBody::routed);
            response.extensions_mut().insert(FromElsewhere);
            response
        }
        Err(refusal) => responder.refuse(refusal.refused()),
    }
}
