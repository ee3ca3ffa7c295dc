//! A request of the peer: each pair of its events, at the same time, from threads of the far end and of the handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::{
    CallContext, Cause, CauseKind, FrameKind, Peer, Registry, RequestId, Router, Sender, SessionId, dialect,
    memory_pair,
};
use rescind_threads::{Threads, frame, next, pairs, until_free, until_open};
use serde_json::{Value, json};
use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::thread;
use tokio::sync::watch;

/// The events of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Its handler ends.
    Finish,
    /// The peer cancels it.
    Cancel,
    /// This side cancels it.
    Local,
    /// The connection is lost.
    Disconnect,
    /// The peer uses its id again.
    Reuse,
    /// Other code queries the registry for its cancel.
    Ask,
}

use Event::{Ask, Cancel, Disconnect, Finish, Local, Reuse};

type Tx = Arc<Mutex<std::pin::Pin<Box<dyn Sender>>>>;

fn play(first: Event, second: Event) {
    let has = move |event| first == event || second == event;
    let (ours, theirs) = memory_pair();
    let (open, gate) = watch::channel(false);
    let ended = Arc::new(AtomicUsize::new(0));
    let router = {
        let ended = Arc::clone(&ended);
        Router::new().method("work", move |context: CallContext, params: Value| {
            let (gate, ended) = (gate.clone(), Ended(Arc::clone(&ended)));
            async move {
                let _ended = ended;
                if params["turn"] == 2 {
                    return Ok(json!(2));
                }
                if has(Local) {
                    let context = context.clone();
                    thread::spawn(move || context.cancel_local(Cause::new(CauseKind::Local)));
                }
                until_open(context, gate, json!(1)).await
            }
        })
    };
    let registry = Registry::new();
    let peer = Peer::builder(dialect::ACP).serve(router).registry(&registry).session("s").attach(ours);
    let Ok(peer) = peer else { panic!("no connection") };
    let tx: Tx = Arc::new(Mutex::new(theirs.tx));
    let mut rx = theirs.rx;
    send(&tx, &json!({"jsonrpc": "2.0", "id": 1, "method": "work", "params": {"turn": 1}}));
    let mut threads = Threads::default();
    for event in [first, second] {
        let tx = Arc::clone(&tx);
        match event {
            Cancel => threads.spawn(move || {
                let cancel = json!({"requestId": 1});
                send(&tx, &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": cancel}));
            }),
            Reuse => threads.spawn(move || {
                send(&tx, &json!({"jsonrpc": "2.0", "id": 1, "method": "work", "params": {"turn": 2}}));
            }),
            Ask => {
                let registry = registry.clone();
                threads.spawn(move || {
                    let is_cancelled = registry.is_cancelled(&SessionId::from("s"), &RequestId::number(1));
                    assert!(!is_cancelled || has(Cancel) || has(Local) || has(Disconnect), "I4: nobody did");
                });
            }
            Finish | Local | Disconnect => {}
        }
    }
    // One of the events must end it.
    if has(Finish) || !(has(Cancel) || has(Local) || has(Disconnect)) {
        threads.open(open);
    }
    let requests = 1 + [first, second].iter().filter(|event| **event == Reuse).count();
    let mut answers = Vec::new();
    while !has(Disconnect) && answers.len() < requests {
        match block_on(next(&mut rx)) {
            Some(answer) => answers.push(answer),
            None => panic!("I1: the connection ended after {answers:?}"),
        }
    }
    if has(Disconnect) {
        drop(rx);
        std::mem::take(&mut threads).join();
        drop(tx);
        assert!(block_on(peer.closed()).is_ok() || peer.is_closed(), "L3: it goes on without a wire");
    }
    let count = |turn: u64| answers.iter().filter(|answer| answer["result"] == turn).count();
    assert!(
        count(1) <= 1 && count(2) <= requests - 1,
        "I1, I4: {first:?} and {second:?} brought {answers:?}"
    );
    for answer in &answers {
        let is_refusal = answer["id"].is_null() && answer["error"]["code"] == -32600;
        let is_answer = answer["id"] == 1 && (answer["result"].is_u64() || answer["error"]["code"] == -32800);
        assert!(is_answer || (is_refusal && has(Reuse)), "I1: {first:?} and {second:?} brought {answer}");
    }
    threads.join();
    block_on(peer.shutdown(Duration::ZERO));
    // On a lost connection, handlers still have their grace.
    until_free(&peer);
    let stats = peer.stats();
    assert_eq!(
        (stats.slots, stats.running, stats.draining),
        (0, 0, 0),
        "I3: {first:?} and {second:?}: {stats:?}"
    );
    assert_eq!(ended.load(Ordering::SeqCst) as u64, stats.started, "I10: a handler was lost: {stats:?}");
    assert!(registry.is_empty(), "I3: a request that has ended stands in the registry");
}

/// A handler's future was dropped.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn send(tx: &Tx, body: &Value) {
    let Ok(mut tx) = tx.lock() else { panic!("a sender panicked") };
    // The transport has room for these few frames. The near end may be gone.
    let _: Result<(), _> = tx.as_mut().start_send(frame(FrameKind::Request, body));
}

pairs! {
    "I1 or L3";
    finish_and_cancel: Finish, Cancel;
    finish_and_local_cancel: Finish, Local;
    finish_and_disconnect: Finish, Disconnect;
    finish_and_reuse: Finish, Reuse;
    cancel_and_cancel: Cancel, Cancel;
    cancel_and_local_cancel: Cancel, Local;
    cancel_and_disconnect: Cancel, Disconnect;
    cancel_and_reuse: Cancel, Reuse;
    local_cancel_and_disconnect: Local, Disconnect;
    local_cancel_and_reuse: Local, Reuse;
    disconnect_and_reuse: Disconnect, Reuse;
    reuse_and_reuse: Reuse, Reuse;
    ask_and_finish: Ask, Finish;
    ask_and_cancel: Ask, Cancel;
    ask_and_local_cancel: Ask, Local;
    ask_and_disconnect: Ask, Disconnect;
    ask_and_reuse: Ask, Reuse;
}
