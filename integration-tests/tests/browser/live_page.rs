//! The live page in headless Chromium: a slow request is seen, stopped by a tap, gone from those in flight and among those
//! that ended. Its caller gets the answer that names an operator.

use std::path::Path;

use rescind::bridge::{Bridge, Upstream};
use rescind::dialect::LSP;
use rescind::page::Page;
use rescind::requests::RequestLog;
use rescind::transport::Transport;
use rescind::{CallContext, Outcome, Peer, Router, Server, memory_listener, memory_pair};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::browser::LIMIT;

/// A method that runs a script where it becomes HTML.
const HOSTILE: &str = "</td><img src=x onerror=alert(1)><script>alert(2)</script>";

#[tokio::test]
#[ignore = "it needs Node.js and headless Chromium: `integration-tests/interop/run`"]
async fn a_slow_request_is_seen_stopped_by_a_click_and_its_caller_learns_who_did_it() {
    let (listener, transport) = memory_listener();
    let server = Server::builder([LSP]).serve(router()).listen(listener);
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
        let serving = Peer::builder(LSP).serve(router()).attach(far);
        serving.map(|_| Upstream::new("the server", near))
    });
    tokio::spawn(server.listen(listener).run());
    stopped_on(Page::new(&log).expect("the system has random bytes"), transport).await;
}

fn router() -> Router {
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
