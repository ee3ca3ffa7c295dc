//! A call of this side: each pair of events that can end it, at the same time, from two threads and the driver's
//! task.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rescind_core::{Call, CancelResult, FrameKind, Lane, Link, Outcome, Peer, dialect, memory_pair};
use rescind_threads::{Threads, frame, next, pairs};
use serde_json::{Value, json};
use shuttle::future::block_on;
use shuttle::thread;

/// The events that end a call or use its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The peer answers.
    Finish,
    /// Another thread cancels.
    Cancel,
    /// Its handle is dropped.
    Drop,
    /// The connection is lost.
    Disconnect,
    /// Another call starts and may get its slot.
    Reuse,
}

use End::{Cancel, Disconnect, Drop, Finish, Reuse};

fn play(first: End, second: End) {
    let has = move |end| first == end || second == end;
    let (ours, theirs) = memory_pair();
    let Ok(peer) = Peer::builder(dialect::ACP).attach(ours) else { panic!("no connection") };
    let way = if has(Finish) { Way::Answer } else { Way::AnswerWhenCancelled };
    let far = thread::spawn(move || block_on(FarEnd::new(theirs, way, has(Disconnect)).run()));
    let call = started(&peer, "first");
    let canceller = call.canceller();
    let mut threads = Threads::default();
    for end in [first, second] {
        match end {
            // The far end does the first two, the caller the third.
            Finish | Disconnect | Drop => {}
            Cancel => {
                let canceller = canceller.clone();
                threads.spawn(move || assert_told(canceller.cancel("stop")));
            }
            Reuse => {
                let peer = peer.clone();
                threads.spawn(move || {
                    let call = started(&peer, "other");
                    let outcome = block_on(call.outcome());
                    let is_own = match &outcome {
                        Outcome::Completed(value) => *value == json!("other"),
                        Outcome::Disconnected { .. } => has(Disconnect),
                        _ => false,
                    };
                    assert!(is_own, "I4: the other call ended with {outcome:?}");
                });
            }
        }
    }
    if has(Drop) {
        // Polled once, so that it leaves a waker.
        block_on(async {
            let mut call = pin!(call);
            std::future::poll_fn(|cx| Poll::Ready(drop(call.as_mut().poll(cx)))).await;
        });
    } else {
        // No other event would end it.
        if !has(Finish) && !has(Cancel) && !has(Disconnect) {
            threads.spawn(move || assert_told(canceller.cancel("stop")));
        }
        let outcome = block_on(call.outcome());
        let may_be = match &outcome {
            Outcome::Completed(value) => has(Finish) && *value == json!("first"),
            Outcome::CompletedAfterCancel(value) => has(Finish) && *value == json!("first"),
            Outcome::Cancelled(_) => has(Cancel) || !has(Finish),
            Outcome::Disconnected { .. } => has(Disconnect),
            _ => false,
        };
        assert!(may_be, "I4, I13: {first:?} and {second:?} ended with {outcome:?}");
    }
    threads.join();
    // A dropped call keeps its slot until its cancel is written. The shutdown waits for this.
    block_on(peer.shutdown(Duration::ZERO));
    assert_eq!(peer.stats().calls, 0, "I3: {first:?} and {second:?} left a call");
    assert_eq!(peer.queue_stats().outbox_frames, 0, "I3: {first:?} and {second:?} left a frame");
    let Ok(seen) = far.join() else { panic!("the far end panicked") };
    seen.check();
}

/// Checks the result of a cancel: ACP's peers always accept cancels.
fn assert_told(result: CancelResult) {
    assert_ne!(result, CancelResult::NotSupported);
}

fn started(peer: &Peer, name: &str) -> Call<Value> {
    match peer.call::<_, Value>(Arc::from(name), &json!({})).start() {
        Ok(call) => call,
        Err(error) => panic!("{name} was not started: {error}"),
    }
}

pairs! {
    "I13";
    finish_and_finish: Finish, Finish;
    finish_and_cancel: Finish, Cancel;
    finish_and_drop: Finish, Drop;
    finish_and_disconnect: Finish, Disconnect;
    finish_and_reuse: Finish, Reuse;
    cancel_and_cancel: Cancel, Cancel;
    cancel_and_drop: Cancel, Drop;
    cancel_and_disconnect: Cancel, Disconnect;
    cancel_and_reuse: Cancel, Reuse;
    drop_and_drop: Drop, Drop;
    drop_and_disconnect: Drop, Disconnect;
    drop_and_reuse: Drop, Reuse;
    disconnect_and_disconnect: Disconnect, Disconnect;
    disconnect_and_reuse: Disconnect, Reuse;
    reuse_and_reuse: Reuse, Reuse;
}

// The far end of a transport, written by hand: it reads frames, answers, and counts.

/// When the call `first` is answered. Any other call is answered at once, with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// At once.
    Answer,
    /// As cancelled, when its cancel arrives.
    AnswerWhenCancelled,
}

/// The far end.
struct FarEnd {
    link: Link,
    way: Way,
    /// Whether it disconnects after it has read the first frame.
    leaves: bool,
    seen: Seen,
}

/// The received frames.
#[derive(Debug, Default)]
struct Seen {
    calls: BTreeMap<u64, String>,
    cancels: BTreeMap<u64, usize>,
}

impl Seen {
    /// Checks that no cancel arrived without its call, before it, or twice.
    fn check(&self) {
        for (id, cancels) in &self.cancels {
            assert_eq!(*cancels, 1, "I12: {id} was cancelled {cancels} times");
        }
    }
}

impl FarEnd {
    fn new(link: Link, way: Way, leaves: bool) -> Self {
        Self { link, way, leaves, seen: Seen::default() }
    }

    /// Reads until the input ends or until it disconnects.
    async fn run(mut self) -> Seen {
        while let Some(frame) = next(&mut self.link.rx).await {
            if self.leaves {
                break;
            }
            self.take(&frame).await;
        }
        self.seen
    }

    async fn take(&mut self, frame: &Value) {
        if let (Some(id), Some(method)) = (frame["id"].as_u64(), frame["method"].as_str()) {
            let before = self.seen.calls.insert(id, method.to_owned());
            assert_eq!(before, None, "the call {id} came twice");
            if method != "first" || self.way == Way::Answer {
                self.send(&json!({"jsonrpc": "2.0", "id": id, "result": method})).await;
            }
        } else if frame["method"] == "$/cancel_request" {
            let id = frame["params"]["requestId"].as_u64().unwrap_or_default();
            assert!(self.seen.calls.contains_key(&id), "I12: the cancel of {id} came before its call");
            *self.seen.cancels.entry(id).or_default() += 1;
            if self.way == Way::AnswerWhenCancelled {
                let error = json!({"code": -32800, "message": "Request cancelled"});
                self.send(&json!({"jsonrpc": "2.0", "id": id, "error": error})).await;
            }
        } else {
            panic!("nobody writes {frame}");
        }
    }

    async fn send(&mut self, body: &Value) {
        let tx = &mut self.link.tx;
        if poll_fn(|cx| tx.as_mut().poll_ready(Lane::Data, cx)).await.is_err() {
            return;
        }
        // The near end may be gone.
        let _: Result<(), _> = tx.as_mut().start_send(frame(FrameKind::Answer, body));
        let _: Result<(), _> = poll_fn(|cx| tx.as_mut().poll_flush(cx)).await;
    }
}
