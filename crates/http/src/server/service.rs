use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use rescind_core::{BoxFuture, HeldBytes, PeerAddress};
use tower_service::Service;

use super::cors::{self, Credentials, Page};
use super::refusal::Refused;
use super::session_router::{self, FromElsewhere, Routed, RoutedAnswer};
use super::{RequestBody, Responder, ResponseBody, Settings, auth, checks};

/// The approximate bytes that a request uses besides its head: its stream, its task, the entries of its fields.
const REQUEST: usize = 4 * 1024;
/// A head of at most this many bytes may belong to a cancel.
const SMALL_HEAD: usize = 4 * 1024;

/// The binding as a `tower::Service`, to mount beside your own routes, for example with axum's `route_service`. The
/// [`HttpListener`](super::HttpListener) that is created with it yields the links. After the listener is dropped,
/// requests get 503.
///
/// The service itself checks Host and Origin and calls the auth hook, so this applies wherever it is mounted. The body
/// limit and the body timeout apply too. The HTTP server that runs the service sets the timeouts for heads and idle
/// connections. A client without a principal is identified by the [`PeerAddress`] in the extensions of a request, which
/// that HTTP server adds. Without an address, each session counts as its own client, and so does each request without a
/// session. The auth hook receives the address and the [`PeerCertificates`](rescind_core::PeerCertificates) from the
/// extensions.
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

    /// Answers a request. If `path` is `/`, every path is served.
    pub(super) fn respond(
        &self,
        request: Request<RequestBody>,
        path: &str,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        let routed = match self.admitted(&request) {
            Ok(()) => self.route(request, path),
            Err(refused) => Err(refused),
        };
        let held = routed.and_then(|routed| Ok((self.hold_head(&routed.request)?, routed)));
        let (held, Routed { request, elsewhere }) = match held {
            Ok(held) => held,
            Err(refused) => {
                let mut response = self.refuse(refused);
                cors::vary(&mut response);
                return Box::pin(ready(response));
            }
        };
        let Some(page) = Page::of(request.headers(), self.credentials()) else {
            let answer = self.answer(request, elsewhere, path);
            return Box::pin(async move {
                let response = answer.await;
                drop(held);
                response
            });
        };
        let access = self.responder.page_access();
        if is_under(path, &request) && cors::is_preflight(request.method(), request.headers()) {
            return Box::pin(ready(page.preflight(request.headers(), access, &self.settings.pages)));
        }
        let answer = self.answer(request, elsewhere, path);
        Box::pin(async move {
            let mut response = answer.await;
            if response.extensions().get::<FromElsewhere>().is_none() {
                page.open(&mut response, access);
            }
            drop(held);
            response
        })
    }

    /// Counts a request and its head for its client until the response begins. If memory is full, a request with a
    /// small head uses a part of the client's reserve, because it may be a cancel.
    fn hold_head<B>(&self, request: &Request<B>) -> Result<HeldBytes, Refused> {
        let uri = request.uri();
        let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
        let head = uri.path().len() + uri.query().map_or(0, str::len) + fields.sum::<usize>();
        let client = self.settings.clients.client(None, PeerAddress::of(request));
        let bytes = head + REQUEST;
        let reserved = || client.reserve().try_hold(bytes).filter(|_| head <= SMALL_HEAD);
        client.budget().try_hold(bytes).or_else(reserved).ok_or_else(Refused::memory)
    }

    /// Asks the router of the sessions, if there is one.
    fn route(&self, request: Request<RequestBody>, path: &str) -> Result<Routed, Refused> {
        match &self.settings.session_router {
            Some(router) if is_under(path, &request) => {
                Routed::by(&**router, self.responder.session_header().as_ref(), request)
            }
            Some(_) | None => Ok(Routed { request, elsewhere: None }),
        }
    }

    fn answer(
        &self,
        request: Request<RequestBody>,
        elsewhere: Option<RoutedAnswer>,
        path: &str,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        if !is_under(path, &request) {
            let refused = Refused::not_found("nothing is served under this path");
            return Box::pin(ready(self.refuse(refused)));
        }
        let responder = Arc::clone(&self.responder);
        if let Some(elsewhere) = elsewhere {
            return Box::pin(session_router::answer(responder, elsewhere, request));
        }
        match &self.settings.auth {
            None => responder.respond(request, None),
            Some(hook) => {
                Box::pin(auth::answer(responder, hook.clone(), self.settings.header_timeout, request))
            }
        }
    }

    /// If every origin is allowed, pages must not send the credentials that the browser keeps for this server.
    fn credentials(&self) -> Credentials {
        if self.settings.origins.allows_any() {
            Credentials::Omitted
        } else {
            self.settings.pages.credentials
        }
    }

    /// The number of open sessions, and of POSTs whose exchange has not ended.
    #[cfg(feature = "verify")]
    #[doc(hidden)]
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        self.responder.held()
    }

    /// The response to a request that no binding gets.
    fn refuse(&self, refused: Refused) -> Response<ResponseBody> {
        self.responder.refuse(refused)
    }

    fn admitted<B>(&self, request: &Request<B>) -> Result<(), Refused> {
        let settings = &self.settings;
        let host = checks::host(request.uri(), request.headers(), &settings.hosts)?;
        settings.origins.check_head(request.headers(), &host).map(drop).map_err(|_| Refused::origin())
    }
}

fn is_under<B>(path: &str, request: &Request<B>) -> bool {
    path == "/" || request.uri().path() == path
}

impl<B> Service<Request<B>> for HttpService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let response = self.respond(request.map(RequestBody::other), "/");
        Box::pin(async move { Ok(response.await) })
    }
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").field("settings", &self.settings).finish_non_exhaustive()
    }
}
