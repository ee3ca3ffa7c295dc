//! A call of this side: each pair of events that can end it, at the same time, from two threads and the driver's
//! task.

mod far_end;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use far_end::{FarEnd, Way};
use rescind_core::{Call, CancelResult, Outcome, Peer, dialect, memory_pair};
use rescind_threads::pairs;
use rescind_threads::play::Threads;
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
