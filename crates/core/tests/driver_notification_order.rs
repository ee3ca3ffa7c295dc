//! Notifications beside handlers that run as tasks of their own.
#![cfg(feature = "tokio")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_core::{CallContext, HandlerError, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn session_cancel_right_after_its_prompt_finds_the_prompt() {
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
        peer.notify("session/cancel", &(number,)).unwrap();
        let (cancel, prompts) = cancels.recv().await.unwrap();
        assert_eq!((cancel, prompts), (number, number), "the prompt was still to begin");
        drop(call);
    }
}
