use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use rescind_core::BoxFuture;
use tower_service::Service;

use super::refusal::Refused;
use super::{ReplyBody, RequestBody, Responder, Settings, checks};

/// The binding as a `tower::Service`, to be mounted beside routes of your own, as with axum's `route_service`. Links come
/// out of the [`HttpListener`](super::HttpListener) made with it; once that is dropped, requests get 503.
///
/// Host, Origin and the auth hook are checked here, so that they hold however it is mounted. The body limit and timeout
/// hold too; the timeouts for heads and idle connections are those of whoever serves it.
#[derive(Clone)]
pub struct HttpService {
    responder: Arc<dyn Responder>,
    settings: Arc<Settings>,
}

impl HttpService {
    pub(super) fn new(responder: Arc<dyn Responder>, settings: Arc<Settings>) -> Self {
        Self { responder, settings }
    }

    pub(super) const fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(super) fn respond(&self, request: Request<RequestBody>) -> BoxFuture<'static, Response<ReplyBody>> {
        let principal = match self.checked(&request) {
            Ok(principal) => principal,
            Err(refused) => return Box::pin(std::future::ready(self.refuse(refused))),
        };
        Arc::clone(&self.responder).respond(request, principal)
    }

    /// Sessions there are, and POSTs whose exchange has not ended.
    #[cfg(feature = "verify")]
    #[doc(hidden)]
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        self.responder.held()
    }

    /// The answer to a request that no binding sees.
    pub(super) fn refuse(&self, refused: Refused) -> Response<ReplyBody> {
        self.responder.refuse(refused)
    }

    fn checked<B>(&self, request: &Request<B>) -> Result<Option<rescind_core::Principal>, Refused> {
        let settings = &self.settings;
        checks::host(request.uri(), request.headers(), &settings.hosts)?;
        checks::origin(request.uri(), request.headers(), &settings.origins)?;
        match &settings.auth {
            None => Ok(None),
            Some(auth) => auth(request.headers()).map(Some).ok_or_else(Refused::unauthorized),
        }
    }
}

impl<B> Service<Request<B>> for HttpService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<ReplyBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let response = self.respond(request.map(RequestBody::other));
        Box::pin(async move { Ok(response.await) })
    }
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").field("settings", &self.settings).finish_non_exhaustive()
    }
}
