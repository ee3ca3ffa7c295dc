//! The service that answers each request: the checks that come before every binding, the auth hook, and the paths of
//! the bindings (S1).
//!
//! # What a connection remembers
//!
//! `ConnectionMemo` keeps the host and the client of a connection, so that they are checked and looked up once for all
//! its requests.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body::Body;
use rescind_core::{BoxFuture, Client, HeldBytes};
use rescind_net::PeerAddress;
use tower_service::Service;

use crate::server::checks::{self, Credentials, Field, HeadFields, Page, PageAccess, Refused};
use crate::server::sessions::{self, FromElsewhere, Routed, RoutedAnswer};
use crate::server::{Caller, RequestBody, Responder, ResponseBody, Settings, body};

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
/// session. The auth hook receives the address and the [`PeerCertificates`](rescind_net::PeerCertificates) from the
/// extensions.
#[derive(Clone)]
pub struct HttpService {
    responder: Arc<dyn Responder>,
    beside: Option<Arc<Beside>>,
    settings: Arc<Settings>,
}

/// A binding on paths of its own, beside that of the server.
pub(super) struct Beside {
    pub(super) paths: [String; 2],
    pub(super) responder: Arc<dyn Responder>,
}

impl HttpService {
    pub(super) fn new(
        responder: Arc<dyn Responder>,
        beside: Option<Arc<Beside>>,
        settings: Arc<Settings>,
    ) -> Self {
        Self { responder, beside, settings }
    }

    /// The binding that serves this request. `None`: nothing is served under its path.
    fn serving<B>(&self, path: &str, request: &Request<B>) -> Option<&Arc<dyn Responder>> {
        match &self.beside {
            Some(beside) if beside.paths.iter().any(|own| is_at(own, request)) => Some(&beside.responder),
            Some(_) | None => is_under(path, request).then_some(&self.responder),
        }
    }

    pub(super) const fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Answers a request. If `path` is `/`, every path is served.
    pub(super) fn respond(
        &self,
        request: Request<RequestBody>,
        path: &str,
        address: Option<IpAddr>,
        memo: &ConnectionMemo,
    ) -> Responding {
        match self.accept(request, path, address, memo) {
            Ok(responding) => responding,
            Err(refused) => {
                let mut response = self.refuse(refused);
                checks::vary(&mut response);
                Responding::now(response)
            }
        }
    }

    fn accept(
        &self,
        request: Request<RequestBody>,
        path: &str,
        address: Option<IpAddr>,
        memo: &ConnectionMemo,
    ) -> Result<Responding, Refused> {
        let fields = HeadFields::of(request.headers());
        self.admit(request.uri(), &fields, memo)?;
        let is_of_page = !fields.origin.is_absent();
        let target = request.uri();
        let size = target.path().len() + target.query().map_or(0, str::len) + fields.bytes;
        let Routed { request, elsewhere } = self.route(request, path)?;
        let (client, address) = match &self.settings.session_router {
            // The requests of one connection are of many clients, if another process passes them on.
            Some(_) => {
                let address = PeerAddress::of(&request);
                (self.settings.clients.client(None, address), address)
            }
            None => (memo.client(&self.settings, address), address),
        };
        let held = Some(hold_head(&client, size)?);
        let page = if is_of_page { Page::of(request.headers(), self.credentials()) } else { None };
        let serving = self.serving(path, &request);
        let access = serving.unwrap_or(&self.responder).page_access();
        if serving.is_some() && checks::is_preflight(request.method(), request.headers()) {
            if let Some(page) = &page {
                let answer = page.preflight(request.headers(), access, &self.settings.pages);
                return Ok(Responding::now(answer));
            }
        }
        let caller = Caller { principal: None, address, anonymous: client };
        let answer = self.answer(request, elsewhere, path, caller);
        Ok(Responding { answer, page: page.map(|page| (page, access)), _held: held })
    }

    /// Asks the router of the sessions, if there is one.
    fn route(&self, request: Request<RequestBody>, path: &str) -> Result<Routed, Refused> {
        match (&self.settings.session_router, self.serving(path, &request)) {
            (Some(router), Some(responder)) => Routed::by(&**router, &**responder, request),
            (_, _) => Ok(Routed { request, elsewhere: None }),
        }
    }

    fn answer(
        &self,
        request: Request<RequestBody>,
        elsewhere: Option<RoutedAnswer>,
        path: &str,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        let Some(responder) = self.serving(path, &request).cloned() else {
            let refused = Refused::not_found("nothing is served under this path");
            return Box::pin(ready(self.refuse(refused)));
        };
        if let Some(elsewhere) = elsewhere {
            return Box::pin(sessions::answer(responder, elsewhere, request));
        }
        match &self.settings.auth {
            None => responder.respond(request, caller),
            Some(hook) => {
                let within = self.settings.header_timeout;
                Box::pin(checks::answer(responder, hook.clone(), within, request, caller))
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
        let (sessions, posts) = self.responder.held();
        let beside = self.beside.as_ref().map_or((0, 0), |beside| beside.responder.held());
        (sessions + beside.0, posts + beside.1)
    }

    /// The response to a request that no binding gets.
    fn refuse(&self, refused: Refused) -> Response<ResponseBody> {
        self.responder.refuse(refused)
    }

    /// Checks Host and Origin (S1).
    fn admit(&self, target: &Uri, fields: &HeadFields<'_>, memo: &ConnectionMemo) -> Result<(), Refused> {
        let is_of_page = !fields.origin.is_absent();
        if !is_of_page && memo.is_known_host(target, fields) {
            return Ok(());
        }
        let settings = &self.settings;
        let host = checks::host(target, fields, &settings.hosts)?;
        if is_of_page {
            settings.origins.check_head(fields.headers, &host).map_err(|_| Refused::origin())?;
        }
        memo.note_host(target, fields);
        Ok(())
    }
}

/// Counts a request and its head for its client until the response begins. If memory is full, a request with a small
/// head uses a part of the client's reserve, because it may be a cancel.
fn hold_head(client: &Client, head: usize) -> Result<HeldBytes, Refused> {
    let bytes = head + REQUEST;
    let reserved = || client.reserve().try_hold(bytes).filter(|_| head <= SMALL_HEAD);
    client.budget().try_hold(bytes).or_else(reserved).ok_or_else(Refused::memory)
}

/// A response that is on its way.
pub(super) struct Responding {
    answer: BoxFuture<'static, Response<ResponseBody>>,
    /// The page that reads it.
    page: Option<(Page, &'static PageAccess)>,
    /// The bytes of the request's head.
    _held: Option<HeldBytes>,
}

impl Responding {
    /// A refusal that closes the connection.
    pub(super) fn closing(status: StatusCode) -> Self {
        Self::now(body::closing(status))
    }

    fn now(response: Response<ResponseBody>) -> Self {
        Self { answer: Box::pin(ready(response)), page: None, _held: None }
    }
}

impl Future for Responding {
    type Output = Response<ResponseBody>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response<ResponseBody>> {
        let mut response = ready!(self.answer.as_mut().poll(cx));
        if let Some((page, access)) = &self.page {
            if response.extensions().get::<FromElsewhere>().is_none() {
                page.open(&mut response, access);
            }
        }
        Poll::Ready(response)
    }
}

/// Whether a request is for this path, with or without a slash at its end.
fn is_under<B>(path: &str, request: &Request<B>) -> bool {
    path == "/" || is_at(path, request)
}

/// The same where `/` is a path like any other.
pub(crate) fn is_at<B>(path: &str, request: &Request<B>) -> bool {
    let without_slash = |path: &str| path.strip_suffix('/').map_or(path.len(), str::len);
    let asked = request.uri().path();
    asked.get(..without_slash(asked)) == path.get(..without_slash(path))
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
        let address = PeerAddress::of(&request);
        let response =
            self.respond(request.map(RequestBody::other), "/", address, &ConnectionMemo::default());
        Box::pin(async move { Ok(response.await) })
    }
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The longest host that is kept, in bytes. A longer one is checked each time.
const MAX_HOST_BYTES: usize = 256;

/// The memo of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionMemo(Mutex<Memo>);

#[derive(Debug, Default)]
struct Memo {
    /// The host of a request that was accepted, as it was sent.
    host: Option<Box<[u8]>>,
    /// The client, and the table in which it was found.
    client: Option<(usize, Arc<Client>)>,
}

impl ConnectionMemo {
    /// Whether an earlier request named the same host, in the same bytes, and was accepted.
    pub(super) fn is_known_host(&self, target: &Uri, fields: &HeadFields<'_>) -> bool {
        let memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memo.host.as_deref().is_some_and(|known| only_host(target, fields) == Some(known))
    }

    /// Notes the host of a request that is accepted.
    pub(super) fn note_host(&self, target: &Uri, fields: &HeadFields<'_>) {
        let mut memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memo.host = only_host(target, fields).filter(|host| host.len() <= MAX_HOST_BYTES).map(Into::into);
    }

    /// The client at this address, which is that of the connection.
    pub(super) fn client(&self, settings: &Settings, address: Option<IpAddr>) -> Arc<Client> {
        let mut memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let table = settings.clients.table();
        match &memo.client {
            Some((of, client)) if *of == table => Arc::clone(client),
            Some(_) | None => {
                let client = settings.clients.client(None, address);
                memo.client = Some((table, Arc::clone(&client)));
                client
            }
        }
    }
}

/// The host of a request that names one host in one place.
fn only_host<'a>(target: &'a Uri, fields: &HeadFields<'a>) -> Option<&'a [u8]> {
    match (target.authority(), fields.host) {
        (None, Field::Once(host)) => Some(host.as_bytes()),
        (Some(authority), Field::Absent) => Some(authority.as_str().as_bytes()),
        (None | Some(_), Field::Absent | Field::Once(_) | Field::Several(_)) => None,
    }
}
