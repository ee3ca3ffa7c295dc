//! The threads, the handler and the frames of every test of threads.

use std::future::poll_fn;
use std::pin::Pin;

use rescind_core::{
    CallContext, ExchangeId, FrameInfo, FrameKind, HandlerError, Lane, Outbound, Peer, Receiver, Router,
    TransportEvent,
};
use serde_json::{Value, json};
use shuttle::thread::{self, JoinHandle};
use tokio::sync::watch;

/// The threads of a test.
#[derive(Debug, Default)]
pub struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    /// Starts one more.
    pub fn spawn(&mut self, run: impl FnOnce() + Send + 'static) {
        self.0.push(thread::spawn(run));
    }

    /// Starts one that opens the gate.
    pub fn open(&mut self, gate: watch::Sender<bool>) {
        self.spawn(move || {
            gate.send_replace(true);
        });
    }

    /// Waits for all of them.
    ///
    /// # Panics
    /// If one of them did.
    pub fn join(self) {
        for thread in self.0 {
            assert!(thread.join().is_ok(), "a thread panicked");
        }
    }
}

/// A server whose method `work` waits until its gate is open, or for its cancel. It can send a notification first.
pub fn gated(gate: watch::Receiver<bool>, ticks: bool) -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok::<_, HandlerError>(json!({"protocolVersion": 1}))
        })
        .method("work", move |context: CallContext, _: Value| {
            let gate = gate.clone();
            async move {
                if ticks {
                    let _ = context.try_notify("tick", &json!({}));
                }
                until_open(context, gate, json!("done")).await
            }
        })
}

/// Waits until the gate is open, or for the cancel.
///
/// # Errors
/// If the request is cancelled first.
pub async fn until_open(
    context: CallContext,
    mut gate: watch::Receiver<bool>,
    done: Value,
) -> Result<Value, HandlerError> {
    tokio::select! {
        biased;
        cause = context.cancelled() => Err(HandlerError::stopped(cause)),
        _ = gate.wait_for(|open| *open) => Ok(done),
    }
}

/// Waits until nothing of a request is left at the peer. A hang is detected.
pub fn until_free(peer: &Peer) {
    while peer.stats().slots > 0 {
        thread::yield_now();
    }
}

/// A frame as a peer's driver would send it.
#[must_use]
pub fn frame(kind: FrameKind, body: &Value) -> Outbound {
    Outbound {
        body: body.to_string().into(),
        exchange: ExchangeId::NONE,
        lane: Lane::Data,
        head: FrameInfo { kind, id: None, method: None, trace: None },
        last: false,
    }
}

/// The next message. `None` at the end.
pub async fn next(rx: &mut Pin<Box<dyn Receiver>>) -> Option<Value> {
    loop {
        match poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
            Some(Ok(TransportEvent::Message(inbound))) => return serde_json::from_slice(&inbound.body).ok(),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}
