//! A posted request: each pair of its events, at the same time, from connections on separate threads.

mod http_site;

use std::time::Duration;

use http::StatusCode;
use http_site::{Answered, HttpSite, Session, check_answer, is_done_or_cancelled, leave, read};
use rescind_http::Streamable;
use rescind_threads::{Threads, gated, pairs, until_free};
use shuttle::future::block_on;
use shuttle::thread;
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
    let (streams, ends) = (has(Cut) || has(Return), has(Delete) || has(Shut));
    let (site, mut listener) = HttpSite::new(Streamable::new(), HEADERS);
    let (open, gate) = watch::channel(false);
    let (session, peer) = Session::open(&site, &mut listener, "mcp-session-id", gated(gate, streams));
    let asking = {
        let session = session.clone();
        thread::spawn(move || block_on(ask(&session, first, second)))
    };
    let mut threads = Threads::default();
    let mut listener = Some(listener);
    for event in [first, second] {
        let session = session.clone();
        match event {
            Cancel => threads.spawn(move || session.cancel(ends)),
            Delete => threads.spawn(move || session.delete(StatusCode::NO_CONTENT)),
            Shut => {
                let listener = listener.take();
                threads.spawn(move || drop(listener));
            }
            Finish | Leave | Cut | Return => {}
        }
    }
    // One of the events must end it.
    if has(Finish) || !(has(Cancel) || ends) {
        threads.open(open);
    }
    let Ok(answered) = asking.join() else { panic!("the client panicked") };
    threads.join();
    match answered {
        Some(answered) => {
            check_answer(&answered.messages, 2, ends, &(first, second), is_done_or_cancelled);
        }
        None => assert!(has(Leave) || has(Cut), "{first:?} and {second:?}: nobody left"),
    }
    // The session still exists, and nothing of the request is left.
    if !ends {
        until_free(&peer);
        site.until_held(|held| held == (1, 0));
    }
    block_on(peer.shutdown(Duration::ZERO));
    until_free(&peer);
    site.until_held(|held| held == (0, 0));
}

/// Posts the request, and does what its client does. `None`: the client closed it.
async fn ask(session: &Session, first: Event, second: Event) -> Option<Answered> {
    let has = |event| first == event || second == event;
    let answer = session.ask();
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
        Some(last) => Some(read(session.listen(Some(last)).await, usize::MAX).await),
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
