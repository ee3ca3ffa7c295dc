//! An ACP agent: it answers a prompt in pieces, asks the user for permission, and ends the turn when the user stops it.
//!
//! An editor starts it and speaks over its stdin and stdout. `acp_editor.rs` is such an editor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rescind::{CallContext, Cause, CauseKind, HandlerError, Peer, Router, dialect, stdio};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    session_id: String,
    prompt: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    session_id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PromptResult {
    stop_reason: &'static str,
}

/// The prompt that runs in each session, so that `session/cancel` finds it.
#[derive(Clone, Default)]
struct Turns(Arc<Mutex<HashMap<String, CallContext>>>);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, CallContext>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn prompt(ctx: CallContext, params: Prompt, turns: Turns) -> Result<PromptResult, HandlerError> {
    turns.lock().insert(params.session_id.clone(), ctx.clone());
    let done = work(&ctx, &params).await;
    turns.lock().remove(&params.session_id);
    match done {
        Ok(()) => Ok(PromptResult { stop_reason: "end_turn" }),
        // After `session/cancel` ACP requires a result. After `$/cancel_request` the error below becomes -32800.
        Err(_) if ctx.cause().is_some_and(|cause| cause.kind() == CauseKind::Local) => {
            Ok(PromptResult { stop_reason: "cancelled" })
        }
        Err(error) => Err(error),
    }
}

/// One turn. When its request is cancelled, its own work and its calls to the editor end too.
async fn work(ctx: &CallContext, params: &Prompt) -> Result<(), HandlerError> {
    let words =
        params.prompt.iter().filter_map(|block| block.text.as_deref()).flat_map(str::split_whitespace);
    for word in words {
        ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(20))).await?;
        let chunk =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": word } });
        ctx.notify("session/update", &json!({ "sessionId": params.session_id, "update": chunk })).await?;
    }
    let allow = json!([{ "optionId": "allow", "name": "Allow", "kind": "allow_once" }]);
    let call = json!({ "toolCallId": "1", "title": "Write main.rs" });
    let request = json!({ "sessionId": params.session_id, "toolCall": call, "options": allow });
    // A call of the handler is a child of its request and is cancelled with it. ACP's answer is then the outcome
    // "cancelled".
    let _chosen: Value = ctx.call("session/request_permission", &request).await?;
    Ok(ctx.check()?)
}

#[tokio::main]
async fn main() -> Result<(), rescind::ConnectionError> {
    let turns = Turns::default();
    let cancelled = turns.clone();
    let router = Router::new()
        .method("initialize", async |_: CallContext, _: Value| {
            Ok(json!({ "protocolVersion": 1, "agentCapabilities": {} }))
        })
        .method("session/new", async |ctx: CallContext, _: Value| {
            Ok(json!({ "sessionId": format!("session-{}", ctx.request_id()) }))
        })
        .method("session/prompt", move |ctx, params| prompt(ctx, params, turns.clone()))
        .notification("session/cancel", move |_, session: Session| {
            let turn = cancelled.lock().remove(&session.session_id);
            if let Some(turn) = turn {
                turn.cancel_local(Cause::new(CauseKind::Local).with_reason("session/cancel"));
            }
            async {}
        });
    Peer::builder(dialect::ACP).serve(router).connect(stdio::this_process()).await?.closed().await
}
