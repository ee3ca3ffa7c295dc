//! When a response begins: with its answer, or as an event stream before it. The tests use virtual time and no sockets.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use rescind_core::dialect::{Dialect, MCP, MCP_2026};
use rescind_core::{CallContext, Limits, Router, Server};
use rescind_http::{HttpServer, HttpService, Stateless, Streamable};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower_service::Service;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The default delay for a request whose handler awaits nothing.
const LATEST: Duration = Duration::from_millis(10);
/// The default delay for a request whose handler awaits something, plus one tick of the timer.
const SOON: Duration = Duration::from_millis(2);

/// A server without sockets.
#[derive(Clone)]
struct Served {
    service: HttpService,
    session: Option<http::HeaderValue>,
}

impl Served {
    async fn new(service: HttpService, listener: rescind_http::HttpListener, dialect: Dialect) -> Self {
        let router = Router::new()
            .method("initialize", async |_: CallContext, _: Value| {
                Ok(json!({"protocolVersion": "2025-11-25", "capabilities": {}}))
            })
            .method("echo", async |_: CallContext, _: Value| Ok(1))
            .method("yields", |_: CallContext, _: Value| async {
                tokio::task::yield_now().await;
                Ok(1)
            })
            .method("sleeps", |_: CallContext, params: Value| async move {
                sleep(Duration::from_millis(params.get("ms").and_then(Value::as_u64).unwrap())).await;
                Ok(1)
            });
        let with_sessions = dialect.name() == "mcp";
        let mut limits = Limits::default();
        limits.max_running_handlers = 1;
        tokio::spawn(Server::builder([dialect]).serve(router).limits(limits).listen(listener).run());
        let mut served = Self { service, session: None };
        if with_sessions {
            let response = served.post(0, "initialize", 0).await;
            served.session = response.headers().get("mcp-session-id").cloned();
        }
        served
    }

    async fn streamable(binding: Streamable) -> Self {
        let (service, listener) = HttpServer::new(binding).mount();
        Self::new(service, listener, MCP).await
    }

    async fn stateless(binding: Stateless) -> Self {
        let (service, listener) = HttpServer::new(binding).mount();
        Self::new(service, listener, MCP_2026).await
    }

    async fn post(&mut self, id: u64, method: &str, ms: u64) -> http::Response<rescind_http::ResponseBody> {
        let params = json!({"ms": ms, "_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let request = http::Request::post("http://127.0.0.1/")
            .header("host", "127.0.0.1")
            .header("content-length", body.len())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        let request = match &self.session {
            Some(session) => request.header("mcp-session-id", session),
            None if method == "initialize" => request,
            None => request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method),
        };
        self.service.call(request.body(Full::from(body)).unwrap()).await.unwrap()
    }

    /// Which kind of response is sent, and when.
    async fn head(&self, id: u64, method: &str, ms: u64) -> (String, Duration) {
        let begun = Instant::now();
        let response = self.clone().post(id, method, ms).await;
        let after = begun.elapsed();
        let kind = response.headers().get("content-type").unwrap().to_str().unwrap().to_owned();
        let status = response.status();
        assert!(status == 200, "{status}: {:?}", response.into_body().collect().await);
        (kind, after)
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

async fn both() -> [Served; 2] {
    [Served::streamable(Streamable::new()).await, Served::stateless(Stateless::new()).await]
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_awaits_little_is_answered_in_one_piece() {
    for served in both().await {
        for (id, method) in [(1, "echo"), (2, "yields")] {
            assert_eq!(served.head(id, method, 0).await, (JSON.to_owned(), Duration::ZERO), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_handler_that_waits_does_not_wait_for_the_whole_delay() {
    for served in both().await {
        let (kind, after) = served.head(1, "sleeps", 600_000).await;
        assert_eq!(kind, EVENTS);
        assert!(after >= Duration::from_millis(1) && after <= SOON, "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_its_turn_keeps_the_usual_delay() {
    let [streamable, stateless] = both().await;
    for (served, wanted) in [(streamable, LATEST), (stateless, Duration::from_secs(1))] {
        let first = served.clone();
        let first = tokio::spawn(async move { first.clone().post(1, "sleeps", 1000).await });
        tokio::task::yield_now().await;
        let (_, after) = served.head(2, "sleeps", 1000).await;
        assert!(after >= wanted && after <= wanted + SOON, "{after:?}");
        first.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_that_was_set_is_kept_whatever_the_handler_does() {
    let delay = Duration::from_secs(2);
    let streamable = Served::streamable(Streamable::new().stream_after(delay)).await;
    let stateless = Served::stateless(Stateless::new().stream_after(delay)).await;
    for served in [streamable, stateless] {
        let (kind, after) = served.head(1, "sleeps", 1000).await;
        assert!(kind == JSON && after < delay, "{kind} {after:?}");
        let (kind, after) = served.head(2, "sleeps", 10_000).await;
        assert!(kind == EVENTS && after >= delay && after <= delay + SOON, "{kind} {after:?}");
    }
}
