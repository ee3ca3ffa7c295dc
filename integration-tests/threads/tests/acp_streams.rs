//! A request over ACP's streamable HTTP, which is answered on a stream that outlives it: each pair of events of the
//! request and of that stream, at the same time.

mod http_site;

use std::time::Duration;

use http::StatusCode;
use http_site::{Answered, HttpSite, Session, check_answer, is_done_or_cancelled, leave, read};
use rescind_http::Acp;
use rescind_threads::{Threads, gated, pairs, until_free};
use serde_json::Value;
use shuttle::future::block_on;
use shuttle::thread;
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
    /// The same, but it resumes the stream after the last message that it has received.
    Resume,
    /// The client ends the connection.
    Delete,
    /// The listener is dropped.
    Shut,
}

use Event::{Cancel, Delete, Finish, Leave, Resume, Return, Shut};

const HEADERS: &[(&str, &str)] =
    &[("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

fn play(first: Event, second: Event) {
    let has = move |event| first == event || second == event;
    let ends = has(Delete) || has(Shut);
    let (site, mut listener) = HttpSite::new(Acp::new(), HEADERS);
    let (open, gate) = watch::channel(false);
    let (session, peer) = Session::open(&site, &mut listener, "acp-connection-id", gated(gate, true));
    let reading = {
        let session = session.clone();
        thread::spawn(move || block_on(listen(&session, has(Return) || has(Resume), has(Resume))))
    };
    let mut threads = Threads::default();
    {
        let session = session.clone();
        threads.spawn(move || {
            let posted = session.ask();
            let taken = block_on(async {
                if has(Leave) { leave(posted).await } else { Some(read(posted.await, 1).await) }
            });
            let is_taken = taken.as_ref().is_none_or(|taken| taken.status == StatusCode::ACCEPTED);
            let is_over = ends && taken.as_ref().is_some_and(Answered::is_over);
            assert!(is_taken || is_over, "the request: {taken:?}");
        });
    }
    let mut listener = Some(listener);
    for event in [first, second] {
        let session = session.clone();
        match event {
            Cancel => threads.spawn(move || session.cancel(ends)),
            Delete => threads.spawn(move || session.delete(StatusCode::ACCEPTED)),
            Shut => {
                let listener = listener.take();
                threads.spawn(move || drop(listener));
            }
            Finish | Leave | Return | Resume => {}
        }
    }
    // One of the events must end the request.
    if has(Finish) || !(has(Cancel) || ends) {
        threads.open(open);
    }
    let Ok(messages) = reading.join() else { panic!("the stream's reader panicked") };
    threads.join();
    check_answer(&messages, 2, ends, &(first, second), is_done_or_cancelled);
    block_on(peer.shutdown(Duration::ZERO));
    until_free(&peer);
    site.until_held(|(connections, _)| connections == 0);
}

/// Reads the connection's stream until the answer has arrived, or the stream has permanently ended.
async fn listen(session: &Session, returns: bool, resumes: bool) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut last = None;
    if returns {
        let first = read(session.listen(None).await, 1).await;
        messages.extend(first.messages);
        last = first.last.filter(|_| resumes);
    }
    while !messages.iter().any(|message| message["id"] == 2) {
        let mut next = read(session.listen(last.as_deref()).await, 1).await;
        if next.status != StatusCode::OK || next.messages.is_empty() {
            break;
        }
        messages.append(&mut next.messages);
        last = next.last.filter(|_| resumes);
    }
    messages
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
    lane_finish_and_resume: Finish, Resume;
    lane_cancel_and_resume: Cancel, Resume;
    lane_resume_and_delete: Resume, Delete;
    lane_resume_and_shut: Resume, Shut;
    lane_delete_and_delete: Delete, Delete;
    lane_delete_and_shut: Delete, Shut;
}
