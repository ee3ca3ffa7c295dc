//! The far end of a transport, written by hand: it reads frames, answers, and counts.

use std::collections::BTreeMap;
use std::future::poll_fn;

use rescind_core::{FrameKind, Lane, Link};
use rescind_threads::play::{frame, next};
use serde_json::{Value, json};

/// When the call `first` is answered. Any other call is answered at once, with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// At once.
    Answer,
    /// As cancelled, when its cancel arrives.
    AnswerWhenCancelled,
}

/// The far end.
pub struct FarEnd {
    link: Link,
    way: Way,
    /// Whether it disconnects after it has read the first frame.
    leaves: bool,
    seen: Seen,
}

/// The received frames.
#[derive(Debug, Default)]
pub struct Seen {
    calls: BTreeMap<u64, String>,
    cancels: BTreeMap<u64, usize>,
}

impl Seen {
    /// Checks that no cancel arrived without its call, before it, or twice.
    pub fn check(&self) {
        for (id, cancels) in &self.cancels {
            assert_eq!(*cancels, 1, "I12: {id} was cancelled {cancels} times");
        }
    }
}

impl FarEnd {
    pub fn new(link: Link, way: Way, leaves: bool) -> Self {
        Self { link, way, leaves, seen: Seen::default() }
    }

    /// Reads until the input ends or until it disconnects.
    pub async fn run(mut self) -> Seen {
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
