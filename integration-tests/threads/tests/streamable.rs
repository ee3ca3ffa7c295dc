//! A posted request: each pair of its events, at the same time, from connections on separate threads.

mod http_site;

use std::time::Duration;

use http::{Method, StatusCode};
use rescind_core::{CallContext, HandlerError, Peer, Router, dialect};
use rescind_http::Streamable;
use rescind_threads::pairs;
use serde_json::{Value, json};
use shuttle::future::block_on;
use shuttle::thread;
use http_site::{Answered, HttpSite, accept, leave, read};
use tokio::sync::watch;

/// The events of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Its handler ends.
    Finish,
    /// Another POST cancels it.
    Cancel,
    /// Its client closes it before it is answered.
    Leave,
    /// Its client closes it after its stream has begun.
    Cut,
    /// Its client closes it after its stream has begun, and resumes it.
    Return,
    /// The client ends the session.
    Delete,
    /// The listener is dropped.
    Shut,
}

use Event::{Cancel, Cut, Delete, Finish, Leave, Return, Shut};

const HEADERS: &[(&str, &str)] = &[
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
    ("mcp-protocol-version", "2025-11-25"),
];

fn play(first: Event, second: Event) {
    let has = move |event| first == event || second == event;
    let streams = has(Cut) || has(Return);
    let (site, mut listener) = HttpSite::new(Streamable::new(), HEADERS);
    let (open, gate) = watch::channel(false);
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok::<_, HandlerError>(json!({"protocolVersion": 1}))
        })
        .method("work", move |context: CallContext, _: Value| {
            let mut gate = gate.clone();
            async move {
                if streams {
                    let _ = context.try_notify("tick", &json!({}));
                }
                tokio::select! {
                    biased;
                    cause = context.cancelled() => Err(HandlerError::stopped(cause)),
                    _ = gate.wait_for(|open| *open) => Ok(json!("done")),
                }
            }
        });
    let opened = {
        let site = site.clone();
        let message =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}});
        thread::spawn(move || block_on(site.post(&[], &message)))
    };
    let peer = block_on(accept(&mut listener, Peer::builder(dialect::ACP).serve(router)));
    let Some(session) = opened.join().ok().and_then(|opened| opened.session) else { panic!("no session") };

    let asking = {
        let (site, session) = (site.clone(), session.clone());
        thread::spawn(move || block_on(ask(&site, &session, first, second)))
    };
    let mut threads = Vec::new();
    let mut listener = Some(listener);
    for event in [first, second] {
        let (site, session) = (site.clone(), session.clone());
        match event {
            Cancel => threads.push(thread::spawn(move || {
                let cancel =
                    json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 2}});
                let answer = block_on(site.post(&[("mcp-session-id", &session)], &cancel));
                let is_accepted = answer.status == StatusCode::ACCEPTED;
                assert!(is_accepted || ((has(Delete) || has(Shut)) && is_over(&answer)), "the cancel: {answer:?}");
            })),
            Delete => threads.push(thread::spawn(move || {
                let named = [("mcp-session-id", session.as_str())];
                let answer = block_on(async { read(site.send(Method::DELETE, &named, None).await, 1).await });
                assert!(answer.status == StatusCode::NO_CONTENT || is_over(&answer), "the delete: {answer:?}");
            })),
            Shut => {
                let listener = listener.take();
                threads.push(thread::spawn(move || drop(listener)));
            }
            Finish | Leave | Cut | Return => {}
        }
    }
    // One of the events must end it.
    if !has(Cancel) && !has(Delete) && !has(Shut) || has(Finish) {
        threads.push(thread::spawn(move || {
            open.send_replace(true);
        }));
    }
    let Ok(answered) = asking.join() else { panic!("the client panicked") };
    for thread in threads {
        assert!(thread.join().is_ok(), "a thread panicked");
    }
    check(answered, first, second);
    // The session still exists, and nothing of the request is left.
    if !has(Delete) && !has(Shut) {
        while peer.stats().slots > 0 {
            thread::yield_now();
        }
        site.until_held(|held| held == (1, 0));
    }
    block_on(peer.shutdown(Duration::ZERO));
    while peer.stats().slots > 0 {
        thread::yield_now();
    }
    site.until_held(|held| held == (0, 0));
}

/// Posts the request, and does what its client does. `None`: the client closed it.
async fn ask(site: &HttpSite, session: &str, first: Event, second: Event) -> Option<Answered> {
    let has = |event| first == event || second == event;
    let named = [("mcp-session-id", session)];
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "work", "params": {}});
    let answer = site.send(Method::POST, &named, Some(&message));
    if has(Leave) {
        return leave(answer).await;
    }
    if !has(Cut) && !has(Return) {
        return Some(read(answer.await, usize::MAX).await);
    }
    let begun = read(answer.await, 1).await;
    if begun.messages.iter().any(|message| message["id"] == 2) {
        return Some(begun);
    }
    match &begun.last {
        _ if has(Cut) => None,
        None => Some(begun),
        Some(last) => {
            let again = [named[0], ("last-event-id", last)];
            Some(read(site.send(Method::GET, &again, None).await, usize::MAX).await)
        }
    }
}

/// Whether the session or the server has ended.
fn is_over(answered: &Answered) -> bool {
    matches!(answered.status, StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE)
}

fn check(answered: Option<Answered>, first: Event, second: Event) {
    let has = |event| first == event || second == event;
    let Some(answered) = answered else {
        assert!(has(Leave) || has(Cut), "{first:?} and {second:?}: nobody left");
        return;
    };
    let answers: Vec<_> = answered.messages.iter().filter(|message| message["id"] == 2).collect();
    let ends_early = has(Delete) || has(Shut);
    match answers[..] {
        [answer] => {
            let is_answer = answer["result"] == "done" || answer["error"]["code"] == -32800;
            assert!(is_answer, "I1: {first:?} and {second:?} brought {answer}");
        }
        [] => assert!(ends_early, "I1: {first:?} and {second:?} brought {answered:?}"),
        _ => panic!("I1: {first:?} and {second:?} brought {answers:?}"),
    }
}

pairs! {
    "I1 or L3";
    posted_finish_and_cancel: Finish, Cancel;
    posted_finish_and_leave: Finish, Leave;
    posted_finish_and_cut: Finish, Cut;
    posted_finish_and_return: Finish, Return;
    posted_finish_and_delete: Finish, Delete;
    posted_finish_and_shut: Finish, Shut;
    posted_cancel_and_cancel: Cancel, Cancel;
    posted_cancel_and_leave: Cancel, Leave;
    posted_cancel_and_cut: Cancel, Cut;
    posted_cancel_and_return: Cancel, Return;
    posted_cancel_and_delete: Cancel, Delete;
    posted_cancel_and_shut: Cancel, Shut;
    posted_leave_and_delete: Leave, Delete;
    posted_leave_and_shut: Leave, Shut;
    posted_return_and_delete: Return, Delete;
    posted_return_and_shut: Return, Shut;
    posted_delete_and_delete: Delete, Delete;
    posted_delete_and_shut: Delete, Shut;
}
