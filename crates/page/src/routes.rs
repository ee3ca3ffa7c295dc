//! The routes of the page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use rescind_core::{HostPolicy, RequestKey};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::feed::Feed;
use crate::guard::{check_host, is_same_origin};
use crate::metrics;
use crate::token::Token;

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
