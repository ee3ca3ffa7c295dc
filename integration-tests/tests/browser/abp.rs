//! A page that uses ABP over its own WebSocket: as the app that our agent calls, and as the agent that calls our app.
//! In both roles: call, cancel, acknowledgement, result.

use std::time::Duration;

use axum::routing::{any, get};
use axum::{Router as Routes, response::Html};
use rescind::dialect::{ABP, Role};
use rescind::transport::{Link, Listener};
use rescind::websocket::{MountedListener, UpgradeOptions, mount};
use rescind::{CallContext, CancelResult, CauseKind, Outcome, Peer, Router, Server};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::browser::{LIMIT, browse};

const PAGE: &str = include_str!("../../interop/page.html");

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
