//! Two requests with one id, each on a separate POST: each pair of events of the first, at the same time, together
//! with the second, whose handler simply ends.

mod http_site;

use std::time::Duration;

use http::{Method, StatusCode};
use http_site::{Answered, HttpSite, accept, check_answer, leave, read};
use rescind_core::{CallContext, Cause, CauseKind, Peer, Router, dialect};
use rescind_http::Stateless;
use rescind_threads::{Threads, pairs, until_free, until_open};
use serde_json::{Value, json};
use shuttle::future::block_on;
use shuttle::thread;
use tokio::sync::watch;

/// The events of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Its handler ends.
    Finish,
    /// Its client closes it before it is answered, which is a cancel.
    Leave,
    /// Its client closes it after its stream has begun, which is a cancel too.
    Cut,
    /// The serving side cancels it.
    Local,
    /// The listener is dropped.
    Shut,
}

use Event::{Cut, Finish, Leave, Local, Shut};

const HEADERS: &[(&str, &str)] = &[
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
    ("mcp-protocol-version", "2026-07-28"),
    ("mcp-method", "work"),
];

fn message(name: &str) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": "work", "params": {"name": name, "_meta": meta}})
}

fn play(first: Event, second: Event) {
    let has = move |event| first == event || second == event;
    let (site, mut listener) = HttpSite::new(Stateless::new(), HEADERS);
    let (open, gate) = watch::channel(false);
    let router = Router::new().method("work", move |context: CallContext, params: Value| {
        let gate = gate.clone();
        async move {
            if params["name"] == "other" {
                return Ok(json!("other"));
            }
            if has(Cut) {
                let _ = context.try_notify("tick", &json!({}));
            }
            if has(Local) {
                let context = context.clone();
                thread::spawn(move || context.cancel_local(Cause::new(CauseKind::Local)));
            }
            until_open(context, gate, json!("first")).await
        }
    });
    let peer = block_on(accept(&mut listener, Peer::builder(dialect::MCP_2026).serve(router)));
    let asking = {
        let site = site.clone();
        thread::spawn(move || block_on(ask(&site, first, second)))
    };
    let beside = {
        let site = site.clone();
        thread::spawn(move || block_on(site.post(&[], &message("other"))))
    };
    let mut threads = Threads::default();
    if has(Shut) {
        threads.spawn(move || drop(listener));
    }
    if has(Finish) {
        threads.open(open);
    }
    let (Ok(answered), Ok(other)) = (asking.join(), beside.join()) else { panic!("a client panicked") };
    threads.join();
    // 503: it has not begun. 500: it may have.
    let is_refused =
        matches!(other.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::INTERNAL_SERVER_ERROR);
    let is_ended = has(Shut) && (is_refused || other.messages.is_empty());
    let is_own = matches!(&other.messages[..], [answer] if answer["result"] == "other");
    assert!(is_own || is_ended, "I4: the other request was answered with {other:?}");
    match answered {
        Some(answered) => check_answer(&answered.messages, 1, has(Shut), &(first, second), |answer| {
            let may_fail = has(Local) || has(Shut);
            answer["result"] == "first" || (may_fail && answer["error"].is_object())
        }),
        None => assert!(has(Leave) || has(Cut), "{first:?} and {second:?}: nobody left"),
    }
    until_free(&peer);
    if !has(Shut) {
        site.until_held(|(_, posts)| posts == 0);
    }
    block_on(peer.shutdown(Duration::ZERO));
}

/// Posts the first request, and does what its client does. `None`: the client closed it.
async fn ask(site: &HttpSite, first: Event, second: Event) -> Option<Answered> {
    let has = |event| first == event || second == event;
    let answer = site.send(Method::POST, &[], Some(&message("first")));
    if has(Leave) {
        return leave(answer).await;
    }
    let most = if has(Cut) { 1 } else { usize::MAX };
    let answered = read(answer.await, most).await;
    let is_whole = answered.messages.iter().any(|message| message["id"] == 1);
    (!has(Cut) || is_whole).then_some(answered)
}

pairs! {
    "I1 or L3";
    sent_finish_and_finish: Finish, Finish;
    sent_finish_and_leave: Finish, Leave;
    sent_finish_and_cut: Finish, Cut;
    sent_finish_and_local_cancel: Finish, Local;
    sent_finish_and_shut: Finish, Shut;
    sent_leave_and_local_cancel: Leave, Local;
    sent_leave_and_shut: Leave, Shut;
    sent_cut_and_local_cancel: Cut, Local;
    sent_cut_and_shut: Cut, Shut;
    sent_local_cancel_and_shut: Local, Shut;
}
