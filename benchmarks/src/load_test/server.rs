//! What the server of a load test serves.

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{CallContext, HandlerError, Router};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long `settled` waits for the handlers.
const SETTLING: Duration = Duration::from_secs(20);

/// The handlers that run, and those that were cancelled.
#[derive(Clone, Copy, Debug, Default)]
struct Handlers {
    running: u64,
    cancelled: u64,
}

pub(crate) fn router() -> Router {
    let handlers = Arc::new(watch::Sender::new(Handlers::default()));
    let waiting = Arc::clone(&handlers);
    Router::new()
        .method("initialize", |_: CallContext, asked: Value| async move {
            let version = asked["protocolVersion"].clone();
            Ok(json!({
                "protocolVersion": version, "capabilities": {}, "agentCapabilities": {},
                "serverInfo": { "name": "benchmark", "version": "1" },
            }))
        })
        .method("echo", |_: CallContext, params: Box<RawValue>| async move { Ok(params) })
        .method("wait", move |context: CallContext, _: Value| {
            let handlers = Arc::clone(&waiting);
            async move {
                handlers.send_modify(|handlers| handlers.running += 1);
                context.cancelled().await;
                handlers.send_modify(|handlers| {
                    handlers.running -= 1;
                    handlers.cancelled += 1;
                });
                Ok::<_, HandlerError>(json!({}))
            }
        })
        .method("settled", move |_: CallContext, _: Value| {
            let mut handlers = handlers.subscribe();
            async move {
                let settled = handlers.wait_for(|now| now.running == 0);
                let _ = timeout(SETTLING, settled).await;
                let Handlers { running, cancelled } = *handlers.borrow();
                Ok(json!({ "running": running, "cancelled": cancelled }))
            }
        })
}
