//! Notifications together with handlers that run as separate tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_core::{ArrivalOrder, CallContext, HandlerError, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn session_cancel_directly_after_a_prompt_cancels_it() {
    let prompts = Arc::new(AtomicU64::new(0));
    let (seen, mut cancels) = mpsc::unbounded_channel();
    let (begun, known) = (Arc::clone(&prompts), Arc::clone(&prompts));
    let router = Router::new()
        .method("session/prompt", move |ctx: CallContext, _: Value| {
            begun.fetch_add(1, Ordering::SeqCst);
            async move { Err::<(), _>(HandlerError::stopped(ctx.cancelled().await)) }
        })
        .notification("session/cancel", move |_, (number,): (u64,)| {
            let (seen, prompts) = (seen.clone(), known.load(Ordering::SeqCst));
            async move { seen.send((number, prompts)).unwrap() }
        });
    let (client, server) = memory_pair();
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    for number in 1..=500 {
        let call = peer.call::<_, ()>("session/prompt", &json!({})).start().unwrap();
        peer.try_notify("session/cancel", &(number,)).unwrap();
        let (cancel, prompts) = cancels.recv().await.unwrap();
        assert_eq!((cancel, prompts), (number, number), "the prompt was still to begin");
        drop(call);
    }
}

#[tokio::test]
async fn session_cancel_does_not_cancel_a_later_prompt() {
    let (begins, mut begun) = mpsc::unbounded_channel::<CallContext>();
    let (holds, held) = mpsc::unbounded_channel::<ArrivalOrder>();
    let held = Arc::new(tokio::sync::Mutex::new(held));
    let (reported, mut answers) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("session/prompt", move |ctx: CallContext, _: Value| {
            begins.send(ctx.clone()).unwrap();
            async move { Err::<(), _>(HandlerError::stopped(ctx.cancelled().await)) }
        })
        .placed_notification("session/cancel", move |_, place, _: Value| {
            let (held, reported) = (Arc::clone(&held), reported.clone());
            async move {
                reported.send(place).unwrap();
                // The prompt continues while the next one arrives and starts.
                held.lock().await.recv().await.unwrap();
            }
        });
    let (client, server) = memory_pair();
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server).unwrap();
    let peer = Peer::builder(dialect::ACP).attach(client).unwrap();
    let prompt = || peer.call::<_, ()>("session/prompt", &json!({})).start().unwrap();
    let mut earlier = Vec::new();
    for _ in 0..3 {
        let first = prompt();
        earlier.push(begun.recv().await.unwrap());
        peer.try_notify("session/cancel", &json!({})).unwrap();
        let second = prompt();
        let (place, later) = (answers.recv().await.unwrap(), begun.recv().await.unwrap());
        assert!(earlier.iter().all(|ctx| !place.is_before(ctx)), "they came before the cancel");
        assert!(place.is_before(&later), "it came after the cancel");
        earlier.push(later);
        holds.send(place).unwrap();
        drop((first, second));
    }
}
