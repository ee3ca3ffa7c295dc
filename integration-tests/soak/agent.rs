//! The served methods: they end after a time, with their cancel, or in neither way.

use std::time::Duration;

use rescind::{CallContext, Limits, Router};
use serde_json::{Value, json};

use crate::heap::{HELD, Held};

/// Short limits, so that timeouts end soon.
pub(crate) fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_millis(50);
    limits.detach_grace = Duration::from_millis(200);
    limits.lost_stream_grace = Some(Duration::from_millis(200));
    limits.half_close_grace = Duration::from_millis(200);
    limits.flush_timeout = Duration::from_millis(200);
    limits.early_cancel_timeout = Duration::from_secs(2);
    // A lasting connection reaches the limits of what it remembers within seconds and uses no more later.
    limits.max_settled_ids = 64;
    limits.settled_id_lifetime = Duration::from_secs(1);
    limits
}

pub(crate) fn router() -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .method(HELD, |_: CallContext, _: Value| async { Ok(Held::now().reported()) })
        .method("sleep", |ctx: CallContext, value: Value| async move {
            let time = Duration::from_millis(number(&value, "ms"));
            tokio::select! {
                () = tokio::time::sleep(time) => Ok(value),
                cause = ctx.cancelled() => ctx.stopped(cause),
            }
        })
        .method("wait", |ctx: CallContext, _: Value| async move {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
        // It is aborted after its grace, and ends after a time if it is not cancelled.
        .method("deaf", |_: CallContext, value: Value| async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(value)
        })
        .method("tell", |ctx: CallContext, value: Value| async move {
            for n in 0..number(&value, "times") {
                ctx.notify("reported", &json!({ "n": n })).await?;
                tokio::task::yield_now().await;
            }
            Ok(value)
        })
        .method("ask", |ctx: CallContext, value: Value| async move {
            let answer: Value = ctx.call("echo", &value).await?;
            Ok(answer)
        })
        .blocking("block", |ctx: CallContext, value: Value| {
            for _ in 0..number(&value, "ms") {
                ctx.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(value)
        })
}

/// The methods of a client.
pub(crate) fn client_router() -> Router {
    Router::new().method("echo", |_: CallContext, value: Value| async { Ok(value) })
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Params with one additional member.
pub(crate) fn with(mut params: Value, name: &str, member: Value) -> Value {
    if let Some(members) = params.as_object_mut() {
        members.insert(name.to_owned(), member);
    }
    params
}
