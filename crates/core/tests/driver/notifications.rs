//! The peer's notifications for a call, and their receivers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_core::dialect::{self, ABP, ACP, Dialect, LSP, MCP, MCP_2026};
use rescind_core::{ArrivalOrder, CallContext, HandlerError, Limits, Peer, Router, memory_pair};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::driver::wire::{self, TRAITS};

/// Sends the notification `step` with its argument as early as it can, and answers.
fn pair() -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, (number,): (u64,)| async move {
        ctx.try_notify("step", &[number])?;
        Ok(number)
    });
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    (Peer::builder(ACP).attach(near).unwrap(), server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_comes_at_once_is_not_missed() {
    let (client, _server) = pair();
    for number in 0..500_u64 {
        let call = client.call::<_, u64>("work", &[number]);
        let call = call.notifications_where(move |reported| {
            reported.params::<[u64; 1]>().is_ok_and(|[of]| of == number)
        });
        let call = call.start().unwrap();
        let mut steps = call.notifications();
        assert_eq!(call.await.unwrap(), number);
        let step = steps.next().await.unwrap_or_else(|| panic!("the step of call {number} was missed"));
        assert_eq!((step.method(), step.params::<[u64; 1]>().unwrap()), ("step", [number]));
        assert!(steps.next().await.is_none());
    }
}

#[tokio::test]
async fn a_reader_ends_with_its_call_and_nothing_of_it_is_left() {
    let (client, _server) = pair();
    let held = Arc::new(());
    let call = client.call::<_, u64>("work", &[1]).start().unwrap();
    let here = Arc::clone(&held);
    let mut late = call.notifications_where(move |_| Arc::strong_count(&here) > 0);
    let here = Arc::clone(&held);
    let early = client.call::<_, u64>("work", &[2]);
    let early = early.notifications_where(move |_| Arc::strong_count(&here) == 0).start().unwrap();
    let mut none = early.notifications();
    assert_eq!((call.await.unwrap(), early.await.unwrap()), (1, 2));
    assert!(late.next().await.is_some());
    while late.next().await.is_some() {}
    assert!(none.next().await.is_none());
    assert_eq!(Arc::strong_count(&held), 1, "I3: a matcher outlived its call");
}

#[tokio::test]
async fn progress_and_matching_notifications_go_to_one_reader() {
    let (near, far) = memory_pair();
    let router = Router::new().method("work", |ctx: CallContext, _: Value| async move {
        let token = ctx.progress_token().map(ToOwned::to_owned);
        ctx.try_notify("notifications/progress", &json!({"progressToken": token, "progress": 1}))?;
        ctx.try_notify("notifications/message", &json!({"level": "info"}))?;
        Ok(())
    });
    let _server = Peer::builder(MCP).serve(router).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let call = client.call::<_, Value>("work", &json!({})).progress();
    let call = call
        .notifications_where(|notification| notification.method() == "notifications/message")
        .start()
        .unwrap();
    let mut reported = call.notifications();
    call.await.unwrap();
    let mut methods = Vec::new();
    while let Some(notification) = reported.next().await {
        methods.push(notification.method().to_owned());
    }
    assert_eq!(methods, ["notifications/progress", "notifications/message"]);
}

/// A request in the dialect's form, with this progress token.
fn with_token(dialect: &Dialect, id: u64, token: &str) -> String {
    let params = match dialect.name() {
        "abp" => {
            let call = format!(r#"{{"callId":"c{id}","progressToken":{token}}}"#);
            let payload = format!(r#"{{"capability":"work","params":{{}},"options":{call}}}"#);
            return format!(r#"{{"type":"capabilities/call","id":"m{id}","payload":{payload}}}"#);
        }
        "lsp" => format!(r#"{{"workDoneToken":{token}}}"#),
        _ => format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#),
    };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{params}}}"#)
}

#[tokio::test]
async fn an_invalid_progress_token_is_ignored_and_counted() {
    let text = |length: usize| format!("\"{}\"", "x".repeat(length));
    let (longest, long, huge) = (text(256), text(257), text(1 << 20));
    let digits = "9".repeat(257);
    let ignored = ["1.5", "1e3", "true", "[1]", r#"{"a":1}"#, &*long, &*huge, &*digits];
    let kept = ["7", "-7", "12345678901234567890123", "\"\"", "\"a\"", &*longest];
    for dialect in [MCP, MCP_2026, LSP, ABP] {
        let name = dialect.name();
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        let router = Router::new().method("initialize", |_, _: Value| async { Ok(json!({})) }).method(
            "work",
            move |ctx: CallContext, _: Value| {
                let _ = say.send(ctx.progress_token().map(|token| token.get().to_owned()));
                async { Ok(json!({})) }
            },
        );
        let (peer, wire) = wire::serve(router, dialect.clone(), TRAITS, Limits::default());
        if name == "abp" {
            wire.says(1, &r#"{"type":"initialize","id":"i","payload":{}}"#);
            wire.recorded().await;
        }
        if name == "lsp" {
            wire.says(1, &wire::request(1, "initialize", &json!({})));
            wire.recorded().await;
        }
        for (id, token) in (2..).zip(ignored.into_iter().chain(kept)) {
            wire.says(id, &with_token(&dialect, id, token));
            let seen = said.recv().await.unwrap();
            let owed = kept.contains(&token).then(|| token.to_owned());
            assert_eq!(seen, owed, "{name}: {token:.60}");
        }
        assert_eq!(peer.stats().ignored_tokens, ignored.len() as u64, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn notifications_over_the_limit_are_dropped_and_counted() {
    let mut limits = Limits::default();
    limits.max_queued_notifications = 2;
    let router = Router::new().concurrent_notification("deaf", |_, _: Value| std::future::pending::<()>());
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits);
    for _ in 0..5 {
        wire.says(0, &json!({"jsonrpc": "2.0", "method": "deaf", "params": {}}));
    }
    wire.recorded().await;
    let load = peer.queue_stats();
    assert_eq!((load.notifications_waiting, load.notifications_dropped), (2, 3), "I11");
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_was_handled_takes_no_room_any_more() {
    let mut limits = Limits::default();
    (limits.max_queued_notifications, limits.max_notification_bytes) = (2, 100);
    let router = Router::new()
        .notification("kept", |_, _: Value| async {})
        .concurrent_notification("free", |_, _: Value| async {});
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits);
    for n in 0..50 {
        let method = if n % 2 == 0 { "kept" } else { "free" };
        wire.says(0, &json!({"jsonrpc": "2.0", "method": method, "params": {"of": "some length"}}));
        wire.recorded().await;
        let load = peer.queue_stats();
        assert_eq!((load.notifications_waiting, load.notifications_dropped), (0, 0), "I11: {method} {n}");
    }
}

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
