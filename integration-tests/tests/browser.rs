//! Plain pages in headless Chromium that communicate with our servers without a library: `interop/page.html` over
//! WebSocket, and `interop/other-origin.html` over HTTP, from an origin other than the server's. And the live page of a
//! server.
//!
//! They need Node, so `cargo test` reports them as ignored, and `interop/run` runs them.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the test is made of is part of it")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::Router as Routes;
use axum::response::Html;
use axum::routing::{any, get, post};
use rescind::bridge::{Bridge, Upstream};
use rescind::dialect::{ABP, ACP, Dialect, LSP, MCP, MCP_2026, Role};
use rescind::http::{Acp, HttpServer, ServerBinding, Stateless, Streamable};
use rescind::page::Page;
use rescind::requests::RequestLog;
use rescind::transport::{Link, Listener, Transport};
use rescind::websocket::{MountedListener, UpgradeOptions, mount};
use rescind::{
    CallContext, CancelResult, Cause, CauseKind, Outcome, Peer, Router, Server, memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// Includes the time to unpack Chromium. A test that hangs fails.
const LIMIT: Duration = Duration::from_secs(120);

/// Chromium with this page open, until the child's input ends. It resolves these host names to loopback.
fn browse(url: &str, hosts: &[&str]) -> Child {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    assert!(folder.join("node_modules").is_dir(), "run `npm ci` in {}", folder.display());
    let mut node = Command::new("node");
    node.arg(folder.join("browser.mjs")).arg(url).args(hosts).stdin(Stdio::piped()).kill_on_drop(true);
    node.spawn().expect("node starts")
}

// A page that uses ABP over its own WebSocket: as the app that our agent calls, and as the agent that calls our app.
// In both roles: call, cancel, acknowledgement, result.

const PAGE: &str = include_str!("../interop/page.html");

/// The page in its browser, our agent's end of one socket, and the messages on the other.
struct Open {
    browser: Child,
    app: Link,
    reports: UnboundedReceiver<Value>,
    signals: UnboundedReceiver<CauseKind>,
}

async fn open() -> Open {
    let (app, app_listener) = mount(UpgradeOptions::new());
    let (agent, agent_listener) = mount(UpgradeOptions::new());
    let routes = Routes::new()
        .route("/", get(async || Html(PAGE)))
        .route("/app", any(app))
        .route("/agent", any(agent));
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback can be listened on");
    let url = format!("http://{}/", tcp.local_addr().expect("it has an address"));
    tokio::spawn(async { axum::serve(tcp, routes).await });
    let (report, reports) = unbounded_channel();
    let (signal, signals) = unbounded_channel();
    tokio::spawn(Server::builder([ABP]).serve(capabilities(report, signal)).listen(agent_listener).run());

    let browser = browse(&url, &[]);
    Open { browser, app: accept(app_listener).await, reports, signals }
}

async fn accept(mut listener: MountedListener) -> Link {
    let accepted = listener.accept().await;
    accepted.expect("the listener goes on").expect("the page is let in")
}

/// The capabilities that the page, as an agent, can call.
fn capabilities(report: UnboundedSender<Value>, signal: UnboundedSender<CauseKind>) -> Router {
    Router::new()
        .method("initialize", async |_: CallContext, _: Value| {
            Ok(json!({"protocolVersion": "0.1", "sessionId": "of-the-test"}))
        })
        .method("agent/echo", async |_: CallContext, params: Value| Ok(params))
        .method("agent/wait", move |ctx: CallContext, _: Value| {
            let signal = signal.clone();
            async move {
                ctx.try_notify("started", &json!({}))?;
                let cause = ctx.cancelled().await;
                signal.send(cause.kind())?;
                ctx.stopped::<Value>(cause)
            }
        })
        .method("agent/report", move |_: CallContext, reported: Value| {
            let report = report.clone();
            async move {
                report.send(reported)?;
                Ok(json!({}))
            }
        })
}

/// Our agent calls the page, cancels, and reads the acknowledgement and the result.
async fn agent_calls_the_page(app: Link) {
    let peer = Peer::builder(ABP).role(Role::Client).attach(app).expect("the connection opens");
    let opened = peer.call::<_, Value>("initialize", &json!({"protocolVersion": "0.1"})).await;
    assert_eq!(opened.map(|value| value["sessionId"] == "of-a-page"), Ok(true));

    let mut call = peer.call::<_, Value>("page/wait", &json!({})).start().expect("a call starts");
    let mut started = call.notifications_where(|reported| reported.method() == "started");
    assert!(started.next().await.is_some(), "the page says that it began");
    assert_eq!(call.canceller().cancel("the user pressed stop"), CancelResult::Sent);
    assert_eq!(call.acknowledged().await, Some(true));
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            assert!(cancelled.confirmed, "{cancelled:?}");
            assert_eq!(cancelled.cause.kind(), CauseKind::Caller);
        }
        other => panic!("expected a cancel, got {other:?}"),
    }
    let echo = peer.call::<_, Value>("page/echo", &json!({"n": 7})).await;
    assert_eq!(echo, Ok(json!({"n": 7})), "the session goes on");
    peer.shutdown(Duration::ZERO).await;
}

async fn both_ways() {
    let mut open = open().await;
    agent_calls_the_page(open.app).await;
    let reported = open.reports.recv().await;
    let expected = json!({
        "opened": "initialize-result",
        "ack": true,
        "result": {"success": false, "cancelled": true},
        "again": true,
        "echo": {"success": true, "data": {"n": 7}},
        "late": false,
        "unknown": false,
    });
    assert_eq!(reported, Some(expected));
    assert_eq!(
        open.signals.recv().await,
        Some(CauseKind::Peer),
        "the handler was signalled by the page's cancel"
    );
    drop(open.browser.stdin.take());
    let ended = open.browser.wait().await;
    assert!(ended.is_ok_and(|status| status.success()), "the browser ends by itself");
}

#[tokio::test]
#[ignore = "needs node and `npm ci` in integration-tests/interop; .ci/interop runs it"]
async fn a_page_in_a_browser_cancels_and_is_cancelled() {
    assert!(timeout(LIMIT, both_ways()).await.is_ok(), "the page hangs");
}

// A page of another origin that uses our servers over HTTP with the browser's `fetch`. On each binding the browser
// sends a preflight first (CORS). The page opens a session, whose id it reads from a header, makes a call and
// cancels it. A page of an origin that is not allowed gets nothing.

const OTHER_ORIGIN_PAGE: &str = include_str!("../interop/other-origin.html");

fn methods(signal: UnboundedSender<CauseKind>) -> Router {
    Router::new()
        .method("initialize", async |_: CallContext, params: Value| {
            Ok(json!({"protocolVersion": params["protocolVersion"], "capabilities": {}}))
        })
        .method("echo", async |_: CallContext, params: Value| Ok(params))
        .method("wait", move |ctx: CallContext, _: Value| {
            let signal = signal.clone();
            async move {
                let cause: Cause = ctx.cancelled().await;
                signal.send(cause.kind())?;
                ctx.stopped::<Value>(cause)
            }
        })
}

/// A server that pages of this origin may use: its address, and the causes with which its handlers were cancelled.
async fn serve<B: ServerBinding>(
    binding: B,
    dialect: Dialect,
    origin: &str,
) -> (String, UnboundedReceiver<CauseKind>) {
    let http = HttpServer::new(binding).path("/agent").allow_origin(origin).expect("it is an origin");
    let listener = http.bind("127.0.0.1:0").await.expect("loopback can be listened on");
    let url = listener.endpoint().to_string();
    let (signal, signals) = unbounded_channel();
    tokio::spawn(Server::builder([dialect]).serve(methods(signal)).listen(listener).run());
    (url, signals)
}

/// Opens the page under this host name and returns its report.
async fn visit(host: &str, port: u16, query: &str, reports: &mut UnboundedReceiver<Value>) -> Value {
    let mut browser = browse(&format!("http://{host}:{port}/?{query}"), &[host]);
    let reported = reports.recv().await.expect("the page reports");
    drop(browser.stdin.take());
    let ended = browser.wait().await;
    assert!(ended.is_ok_and(|status| status.success()), "the browser ends by itself");
    reported
}

async fn both_pages() {
    let (report, mut reports) = unbounded_channel();
    let take = post(move |reported: String| async move {
        let _ = report.send(serde_json::from_str(&reported).expect("the page reports in JSON"));
    });
    let routes = Routes::new().route("/", get(async || Html(OTHER_ORIGIN_PAGE))).route("/report", take);
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback can be listened on");
    let port = tcp.local_addr().expect("it has an address").port();
    tokio::spawn(async { axum::serve(tcp, routes).await });

    let origin = format!("http://app.example:{port}");
    let (streamable, mut cancelled) = serve(Streamable::new(), MCP, &origin).await;
    let (stateless, mut left) = serve(Stateless::new(), MCP_2026, &origin).await;
    let (acp, _acp) = serve(Acp::new(), ACP, &origin).await;
    let query = format!("streamable={streamable}&stateless={stateless}&acp={acp}");

    let reported = visit("app.example", port, &query, &mut reports).await;
    let expected = json!({
        "streamable": {
            "session": 32,
            "events": [200, "text/event-stream"],
            "cancel": 202,
            "cancelled": "silent",
            "echo": {"n": 7},
            "unknown": 404,
            "ended": 204,
        },
        "stateless": {"echo": 7, "waits": "text/event-stream"},
        "acp": {"connection": 32, "ended": 202},
    });
    assert_eq!(reported, expected);
    assert_eq!(cancelled.recv().await, Some(CauseKind::Peer), "cancelled by the page's message");
    assert_eq!(left.recv().await, Some(CauseKind::Peer), "cancelled by the page's abort");

    let reported = visit("evil.example", port, &query, &mut reports).await;
    let nothing = "TypeError";
    assert_eq!(reported, json!({"streamable": nothing, "stateless": nothing, "acp": nothing}));
}

#[tokio::test]
#[ignore = "needs node and `npm ci` in integration-tests/interop; .ci/interop runs it"]
async fn a_page_of_an_allowed_origin_calls_and_cancels_and_one_of_another_gets_nothing() {
    assert!(timeout(LIMIT, both_pages()).await.is_ok(), "the page hangs");
}

// The live page in headless Chromium: a slow request is seen, stopped by a tap, gone from those in flight and among those
// that ended. Its caller gets the answer that names an operator.

/// A method that runs a script where it becomes HTML.
const HOSTILE: &str = "</td><img src=x onerror=alert(1)><script>alert(2)</script>";

#[tokio::test]
#[ignore = "it needs Node.js and headless Chromium: `integration-tests/interop/run`"]
async fn a_slow_request_is_seen_stopped_by_a_click_and_its_caller_learns_who_did_it() {
    let (listener, transport) = memory_listener();
    let server = Server::builder([LSP]).serve(live_router()).listen(listener);
    let page = Page::of_server(&server.handle()).expect("the system has random bytes");
    tokio::spawn(server.run());
    stopped_on(page, transport).await;
}

#[tokio::test]
#[ignore = "it needs Node.js and headless Chromium: `integration-tests/interop/run`"]
async fn a_slow_request_that_a_bridge_passes_on_is_stopped_by_a_click() {
    let log = RequestLog::new();
    let bridge = Bridge::new(LSP).expect("LSP can be bridged").request_log(&log);
    let (listener, transport) = memory_listener();
    let server = bridge.serve(|| async {
        let (near, far) = memory_pair();
        let serving = Peer::builder(LSP).serve(live_router()).attach(far);
        serving.map(|_| Upstream::new("the server", near))
    });
    tokio::spawn(server.listen(listener).run());
    stopped_on(Page::new(&log).expect("the system has random bytes"), transport).await;
}

fn live_router() -> Router {
    Router::new()
        .method("initialize", async |_: CallContext, _: Value| Ok(json!({"capabilities": {}})))
        .method("slow/work", async |ctx: CallContext, _: Value| {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
}

/// A client makes a slow request, which the browser stops on the page.
async fn stopped_on(page: Page, transport: impl Transport) {
    let page = page.bind("127.0.0.1:0").await.expect("loopback can be listened on");
    let url = page.url();
    tokio::spawn(page.run());

    let client = Peer::builder(LSP).connect(transport).await.expect("it connects");
    let opened: Result<Value, _> = client.call("initialize", &json!({"capabilities": {}})).await;
    opened.expect("the session opens");
    assert!(client.call::<_, Value>(HOSTILE, &json!({})).await.is_err(), "it is not served");
    let slow = client.call::<_, Value>("slow/work", &json!({})).start().expect("it starts");

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    assert!(folder.join("node_modules").is_dir(), "run `npm ci` in {}", folder.display());
    let mut node = Command::new("node");
    node.arg(folder.join("live-page.mjs")).args([&url, "slow/work"]).kill_on_drop(true);
    let status = timeout(LIMIT, node.status()).await.expect("the browser ends").expect("node starts");
    assert!(status.success(), "the page is not as it must be (above)");

    let Ok(Outcome::Failed(error)) = timeout(LIMIT, slow.outcome()).await else { panic!("it was stopped") };
    assert_eq!(&*error.message, "Request cancelled by an operator");
    assert_eq!(error.data.map(|data| data.to_string()).as_deref(), Some(r#"{"reason":"operator"}"#));
}
