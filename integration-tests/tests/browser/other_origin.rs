//! A page of another origin that uses our servers over HTTP with the browser's `fetch`. On each binding the browser
//! sends a preflight first (CORS). The page opens a session, whose id it reads from a header, makes a call and
//! cancels it. A page of an origin that is not allowed gets nothing.

use axum::routing::{get, post};
use axum::{Router as Routes, response::Html};
use rescind::dialect::{ACP, Dialect, MCP, MCP_2026};
use rescind::http::{Acp, HttpServer, ServerBinding, Stateless, Streamable};
use rescind::transport::Listener;
use rescind::{CallContext, Cause, CauseKind, Router, Server};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::browser::{LIMIT, browse};

const PAGE: &str = include_str!("../../interop/other-origin.html");

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
    let routes = Routes::new().route("/", get(async || Html(PAGE))).route("/report", take);
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
