//! An ACP agent: it answers a prompt in pieces, asks the user for permission, and ends the turn when the user stops it.
//!
//! An editor starts it and uses its stdin and stdout. `acp_editor.rs` is such an editor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rescind::acp::{Initialize, NewSession, Prompt, ProtocolVersion, RequestPermission, types as acp};
use rescind::{CallContext, Cause, CauseKind, HandlerResult, Peer, Router, dialect, stdio};

/// The prompt that runs in each session, so that `session/cancel` finds it.
#[derive(Clone, Default)]
struct Turns(Arc<Mutex<HashMap<acp::SessionId, CallContext>>>);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, HashMap<acp::SessionId, CallContext>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn prompt(
    ctx: CallContext,
    params: acp::PromptRequest,
    turns: Turns,
) -> HandlerResult<acp::PromptResponse> {
    turns.lock().insert(params.session_id.clone(), ctx.clone());
    let done = work(&ctx, &params).await;
    turns.lock().remove(&params.session_id);
    match done {
        Ok(()) => Ok(acp::PromptResponse::new(acp::StopReason::EndTurn)),
        // After `session/cancel` ACP requires a result. After `$/cancel_request` the error below becomes -32800.
        Err(_) if ctx.cause().is_some_and(|cause| cause.kind() == CauseKind::Local) => {
            Ok(acp::PromptResponse::new(acp::StopReason::Cancelled))
        }
        Err(error) => Err(error),
    }
}

/// One turn. When its request is cancelled, its own work and its calls to the editor end too.
async fn work(ctx: &CallContext, params: &acp::PromptRequest) -> HandlerResult<()> {
    let texts = params.prompt.iter().filter_map(|block| match block {
        acp::ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    for word in texts.flat_map(str::split_whitespace) {
        ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(20))).await?;
        let update = acp::SessionUpdate::AgentMessageChunk(acp::ContentChunk::new(word.into()));
        let update = acp::SessionNotification::new(params.session_id.clone(), update);
        ctx.notify("session/update", &update).await?;
    }
    let allow = acp::PermissionOption::new("allow", "Allow", acp::PermissionOptionKind::AllowOnce);
    let call = acp::ToolCallUpdate::new("1", acp::ToolCallUpdateFields::new().title("Write main.rs"));
    let question = acp::RequestPermissionRequest::new(params.session_id.clone(), call, vec![allow]);
    // A call of the handler is a child of its request and is cancelled with it. ACP's answer is then the outcome
    // "cancelled".
    let _chosen = ctx.request::<RequestPermission>(&question).await?;
    Ok(ctx.check()?)
}

async fn initialize(_: CallContext, _: acp::InitializeRequest) -> HandlerResult<acp::InitializeResponse> {
    Ok(acp::InitializeResponse::new(ProtocolVersion::V1))
}

async fn new_session(ctx: CallContext, _: acp::NewSessionRequest) -> HandlerResult<acp::NewSessionResponse> {
    Ok(acp::NewSessionResponse::new(format!("session-{}", ctx.request_id())))
}

#[tokio::main]
async fn main() -> Result<(), rescind::ConnectionError> {
    let turns = Turns::default();
    let cancelled = turns.clone();
    let router = Router::new()
        .serve::<Initialize>(initialize)
        .serve::<NewSession>(new_session)
        .serve::<Prompt>(move |ctx, params| prompt(ctx, params, turns.clone()))
        .notification("session/cancel", move |_, session: acp::CancelNotification| {
            let turn = cancelled.lock().remove(&session.session_id);
            if let Some(turn) = turn {
                turn.cancel_local(Cause::new(CauseKind::Local).with_reason("session/cancel"));
            }
            async {}
        });
    Peer::builder(dialect::ACP).serve(router).connect(stdio::this_process()).await?.closed().await
}
