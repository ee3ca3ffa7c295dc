//! The routes of the page, its updates, and its server at an address of its own.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rescind_core::{RequestKey, RequestLog};
use rescind_net::HostPolicy;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::guard::{Token, check_host, is_same_origin};
use crate::metrics;
use crate::view::{Clock, View};

/// The most viewers at the same time.
pub(crate) const MAX_VIEWERS: usize = 32;

/// The reason that the handler of a stopped request and the log see.
const REASON: &str = "stopped on the live page";

const HTML: &str = include_str!("page.html");

/// What the routes share.
pub(crate) struct Shared {
    pub(crate) feed: Feed,
    pub(crate) token: Token,
    viewers: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(feed: Feed, token: Token) -> Arc<Self> {
        Arc::new(Self { feed, token, viewers: Arc::new(Semaphore::new(MAX_VIEWERS)) })
    }
}

pub(crate) fn router(shared: Arc<Shared>, hosts: HostPolicy) -> Router {
    Router::new()
        .route("/{token}/", get(page))
        .route("/{token}/events", get(events))
        .route("/{token}/stop/{key}", post(stop))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(|| async { not_found() })
        .with_state(shared)
        .layer(from_fn_with_state(Arc::new(hosts), check_host))
}

/// The same answer for a wrong token as for any other path.
fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "There is nothing here.\n").into_response()
}

async fn page(State(shared): State<Arc<Shared>>, Path(token): Path<String>) -> Response {
    if !shared.token.is(&token) {
        return not_found();
    }
    let Ok(nonce) = Token::random() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let nonce = nonce.as_str();
    // Nothing from elsewhere, only this script and this style, and no text that becomes HTML.
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    );
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, &*policy)];
    (headers, HTML.replace("{nonce}", nonce)).into_response()
}

async fn events(State(shared): State<Arc<Shared>>, Path(token): Path<String>) -> Response {
    if !shared.token.is(&token) {
        return not_found();
    }
    let Ok(permit) = Arc::clone(&shared.viewers).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many viewers.\n").into_response();
    };
    // A view is made when the viewer has room for it. A slow viewer misses views in between.
    let views = stream::unfold((shared, None, permit), |(shared, known, permit)| async move {
        let view = shared.feed.newer(known.as_ref()).await;
        let now = shared.feed.clock.now();
        let event = Event::default().data(format!(r#"{{"now":{now},"view":{view}}}"#));
        Some((Ok::<_, Infallible>(event), (shared, Some(view), permit) as (_, _, OwnedSemaphorePermit)))
    });
    Sse::new(views).keep_alive(KeepAlive::default()).into_response()
}

async fn stop(
    State(shared): State<Arc<Shared>>,
    Path((token, key)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if !shared.token.is(&token) {
        return not_found();
    }
    if !is_same_origin(&headers) {
        return (StatusCode::FORBIDDEN, "Only this page may stop a request.\n").into_response();
    }
    let Ok(key) = key.parse::<RequestKey>() else { return not_found() };
    if !shared.feed.log.stop(key, REASON) {
        return (StatusCode::CONFLICT, "It has ended, is cancelled already, or cannot be stopped.\n")
            .into_response();
    }
    tracing::info!(request = %key, "an operator stopped a request on the live page");
    StatusCode::NO_CONTENT.into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let viewers = MAX_VIEWERS - shared.viewers.available_permits();
    match metrics::text(&shared.feed.log, viewers, shared.feed.is_draining()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if shared.feed.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    "ready\n".into_response()
}

/// The least time between two updates.
pub(crate) const INTERVAL: Duration = Duration::from_millis(300);

/// The updates of the page, made once for all viewers.
///
/// There is no task and no queue: a viewer that is ready looks for a newer view after [`INTERVAL`]. A view is made at
/// most once in an interval, whoever asks. A viewer that does not read holds one view and is not ahead of the others,
/// so viewers cost no more memory than their number allows.
pub(crate) struct Feed {
    pub(crate) log: RequestLog,
    pub(crate) clock: Clock,
    title: String,
    is_draining: Box<dyn Fn() -> bool + Send + Sync>,
    made: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Feed {
    pub(crate) fn new(
        log: RequestLog,
        title: String,
        is_draining: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Self {
        Self { log, clock: Clock::new(), title, is_draining, made: Mutex::new(None) }
    }

    pub(crate) fn is_draining(&self) -> bool {
        (self.is_draining)()
    }

    /// The view, at most an interval old. It is the same `Arc` until something has changed.
    pub(crate) fn view(&self) -> Arc<str> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((at, view)) = made.as_ref() {
            if now.saturating_duration_since(*at) < INTERVAL {
                return Arc::clone(view);
            }
        }
        let view = View::of(&self.log, self.clock, &self.title, self.is_draining());
        let text = serde_json::to_string(&view).unwrap_or_else(|_| "null".to_owned());
        let view = match made.as_ref() {
            Some((_, known)) if **known == *text => Arc::clone(known),
            Some(_) | None => Arc::from(text),
        };
        *made = Some((now, Arc::clone(&view)));
        view
    }

    /// Waits for a view that is not this one.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn newer(&self, than: Option<&Arc<str>>) -> Arc<str> {
        loop {
            let view = self.view();
            if than.is_none_or(|known| !Arc::ptr_eq(known, &view)) {
                return view;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// The most connections at the same time. Further ones wait until one ends.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// The longest time for the head of a request, also of the next one on a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The live page at an address. It is served while [`run`](Self::run) is polled.
#[must_use = "the page is served when `run` is awaited"]
pub struct PageServer {
    listener: TcpListener,
    address: SocketAddr,
    path: String,
    router: Router,
}

impl PageServer {
    pub(crate) const fn new(
        listener: TcpListener,
        address: SocketAddr,
        path: String,
        router: Router,
    ) -> Self {
        Self { listener, address, path, router }
    }

    /// The URL of the page, with its token, which is all that is needed to see the page and to stop requests.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the page, and never ends.
    ///
    /// # Cancel safety
    /// Dropping the future closes the address and all connections.
    pub async fn run(self) {
        let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = accepted else {
                // It is out of descriptors. Some may be free soon.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Updates are small and are read by a person.
            let _ = stream.set_nodelay(true);
            let service = TowerToHyperService::new(self.router.clone());
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_headers(64)
                .serve_connection(TokioIo::new(stream), service);
            connections.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection of the live page ended");
                }
                drop(permit);
            });
        }
    }
}

impl fmt::Debug for PageServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageServer").field("address", &self.address).finish_non_exhaustive()
    }
}
