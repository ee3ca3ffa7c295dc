//! A request over ACP's streamable HTTP, which is answered on a stream that outlives it: each pair of events of the
//! request and of that stream, at the same time.

mod http_site;

use std::time::Duration;

use http::{Method, StatusCode};
use rescind_core::{CallContext, HandlerError, Peer, Router, dialect};
use rescind_http::Acp;
use rescind_threads::pairs;
use serde_json::{Value, json};
use shuttle::future::block_on;
use shuttle::thread;
use http_site::{Answered, HttpSite, accept, leave, read};
use tokio::sync::watch;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The handler ends.
    Finish,
    /// Another POST cancels the request.
    Cancel,
    /// The client closes the POST before it is answered.
    Leave,
    /// The client closes the stream after the first message, and opens it again.
    Return,
    /// The client ends the connection.
    Delete,
    /// The listener is dropped.
    Shut,
}

use Event::{Cancel, Delete, Finish, Leave, Return, Shut};

const HEADERS: &[(&str, &str)] =
    &[("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

fn play(first: Event, second: Event) {
    let has = move |event| first == event || second == event;
    let ends = has(Delete) || has(Shut);
    let (site, mut listener) = HttpSite::new(Acp::new(), HEADERS);
    let (open, gate) = watch::channel(false);
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok::<_, HandlerError>(json!({"protocolVersion": 1}))
        })
        .method("work", move |context: CallContext, _: Value| {
            let mut gate = gate.clone();
            async move {
                let _ = context.try_notify("tick", &json!({}));
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
    let Some(id) = opened.join().ok().and_then(|opened| opened.session) else { panic!("no connection") };

    let reading = {
        let (site, id) = (site.clone(), id.clone());
        thread::spawn(move || block_on(listen(&site, &id, has(Return))))
    };
    let mut threads = Vec::new();
    {
        let (site, id) = (site.clone(), id.clone());
        threads.push(thread::spawn(move || {
            let message = json!({"jsonrpc": "2.0", "id": 2, "method": "work", "params": {}});
            let known = [("acp-connection-id", id.as_str())];
            let posted = site.send(Method::POST, &known, Some(&message));
            let taken = block_on(async {
                if has(Leave) { leave(posted).await } else { Some(read(posted.await, 1).await) }
            });
            let is_taken = taken.as_ref().is_none_or(|taken| taken.status == StatusCode::ACCEPTED);
            assert!(is_taken || (ends && taken.as_ref().is_some_and(is_over)), "the request: {taken:?}");
        }));
    }
    let mut listener = Some(listener);
    for event in [first, second] {
        let (site, id) = (site.clone(), id.clone());
        match event {
            Cancel => threads.push(thread::spawn(move || {
                let cancel =
                    json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 2}});
                let answer = block_on(site.post(&[("acp-connection-id", &id)], &cancel));
                assert!(answer.status == StatusCode::ACCEPTED || (ends && is_over(&answer)), "{answer:?}");
            })),
            Delete => threads.push(thread::spawn(move || {
                let known = [("acp-connection-id", id.as_str())];
                let answer = block_on(async { read(site.send(Method::DELETE, &known, None).await, 1).await });
                assert!(answer.status == StatusCode::ACCEPTED || is_over(&answer), "the delete: {answer:?}");
            })),
            Shut => {
                let listener = listener.take();
                threads.push(thread::spawn(move || drop(listener)));
            }
            Finish | Leave | Return => {}
        }
    }
    // One of the events must end the request.
    if has(Finish) || !(has(Cancel) || ends) {
        threads.push(thread::spawn(move || {
            open.send_replace(true);
        }));
    }
    let Ok(messages) = reading.join() else { panic!("the stream's reader panicked") };
    for thread in threads {
        assert!(thread.join().is_ok(), "a thread panicked");
    }
    let answers: Vec<_> = messages.iter().filter(|message| message["id"] == 2).collect();
    match answers[..] {
        [answer] => {
            let is_answer = answer["result"] == "done" || answer["error"]["code"] == -32800;
            assert!(is_answer, "I1: {first:?} and {second:?} brought {answer}");
        }
        [] => assert!(ends, "I1: {first:?} and {second:?} brought {messages:?}"),
        _ => panic!("I1: {first:?} and {second:?} brought {answers:?}"),
    }
    block_on(peer.shutdown(Duration::ZERO));
    while peer.stats().slots > 0 {
        thread::yield_now();
    }
    site.until_held(|(connections, _)| connections == 0);
}

/// Reads the connection's stream until the answer has arrived, or the stream has permanently ended.
async fn listen(site: &HttpSite, id: &str, returns: bool) -> Vec<Value> {
    let known = [("acp-connection-id", id)];
    let mut messages = Vec::new();
    if returns {
        messages.extend(read(site.send(Method::GET, &known, None).await, 1).await.messages);
    }
    let is_answered = |messages: &[Value]| messages.iter().any(|message| message["id"] == 2);
    while !is_answered(&messages) {
        let answered = site.send(Method::GET, &known, None).await;
        let mut next = read(answered, 1).await;
        if next.status != StatusCode::OK || next.messages.is_empty() {
            break;
        }
        messages.append(&mut next.messages);
    }
    messages
}

/// Whether the connection or the server has ended.
fn is_over(answered: &Answered) -> bool {
    matches!(answered.status, StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE)
}

pairs! {
    "I1 or L3";
    lane_finish_and_cancel: Finish, Cancel;
    lane_finish_and_leave: Finish, Leave;
    lane_finish_and_return: Finish, Return;
    lane_finish_and_delete: Finish, Delete;
    lane_finish_and_shut: Finish, Shut;
    lane_cancel_and_cancel: Cancel, Cancel;
    lane_cancel_and_leave: Cancel, Leave;
    lane_cancel_and_return: Cancel, Return;
    lane_cancel_and_delete: Cancel, Delete;
    lane_cancel_and_shut: Cancel, Shut;
    lane_return_and_delete: Return, Delete;
    lane_return_and_shut: Return, Shut;
    lane_delete_and_delete: Delete, Delete;
    lane_delete_and_shut: Delete, Shut;
}
