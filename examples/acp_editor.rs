//! The editor side of ACP: it starts `acp_agent`, shows the agent's output, and asks its user for permission. It stops
//! the second turn while the question is open, and the question ends with the turn.
//!
//! Run it with `cargo run -p rescind-examples --example acp_editor`, after `cargo build -p rescind-examples
//! --examples`. To use another agent: `acp_editor COMMAND ARG...`.

use std::error::Error;
use std::time::Duration;

use rescind::acp::{Initialize, NewSession, Prompt, ProtocolVersion, RequestPermission, types as acp};
use rescind::dialect::{self, Role};
use rescind::{CallContext, HandlerResult, Peer, Router, stdio};
use tokio::sync::{mpsc, oneshot};

/// A question from an agent to its user. An editor shows a dialog here; this example passes the question to `main`,
/// which answers it.
struct Question {
    title: String,
    answer: oneshot::Sender<acp::RequestPermissionOutcome>,
}

async fn permission(
    ctx: CallContext,
    params: acp::RequestPermissionRequest,
    ask: mpsc::UnboundedSender<Question>,
) -> HandlerResult<acp::RequestPermissionResponse> {
    tokio::task::yield_now().await; // with one thread: the updates before the question are shown first
    let (answer, chosen) = oneshot::channel();
    ask.send(Question { title: params.tool_call.fields.title.unwrap_or_default(), answer })?;
    // The agent cancels the question with `$/cancel_request`. An editor then closes the dialog, and `?` returns the
    // answer that ACP requires.
    let chosen = ctx
        .run_until_cancelled(chosen)
        .await
        .inspect_err(|stopped| println!("  the question ends: {stopped}"));
    let outcome = chosen?.unwrap_or(acp::RequestPermissionOutcome::Cancelled);
    Ok(acp::RequestPermissionResponse::new(outcome))
}

async fn show(_: Peer, params: acp::SessionNotification) {
    if let acp::SessionUpdate::AgentMessageChunk(chunk) = params.update
        && let acp::ContentBlock::Text(text) = chunk.content
    {
        println!("  agent: {}", text.text);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut command = std::env::args_os().skip(1);
    let beside =
        std::env::current_exe()?.with_file_name(format!("acp_agent{}", std::env::consts::EXE_SUFFIX));
    let agent = stdio::Command::new(command.next().unwrap_or_else(|| beside.into())).args(command);

    let (ask, mut questions) = mpsc::unbounded_channel();
    let router = Router::new()
        .serve::<RequestPermission>(move |ctx, params| permission(ctx, params, ask.clone()))
        .notification("session/update", show);
    let peer = Peer::builder(dialect::ACP).role(Role::Client).serve(router).connect(agent).await?;
    peer.request::<Initialize>(&acp::InitializeRequest::new(ProtocolVersion::V1)).await?;
    let opened = acp::NewSessionRequest::new(std::env::current_dir()?);
    let session = peer.request::<NewSession>(&opened).await?.session_id;

    for stops in [false, true] {
        let prompt = acp::PromptRequest::new(session.clone(), vec!["Write a program".into()]);
        let turn = peer.request::<Prompt>(&prompt).start()?;
        let Question { title, answer } = questions.recv().await.ok_or("nothing is asked")?;
        println!("  may it: {title}?");
        if stops {
            peer.notify("session/cancel", &acp::CancelNotification::new(session.clone())).await?;
        } else {
            let allow = acp::SelectedPermissionOutcome::new("allow");
            let sent = answer.send(acp::RequestPermissionOutcome::Selected(allow));
            sent.map_err(|_| "the question has ended")?;
        }
        let stop_reason = turn.await?.stop_reason;
        println!("the turn ended: {stop_reason:?}");
        if stops != (stop_reason == acp::StopReason::Cancelled) {
            return Err("the turn ended otherwise".into());
        }
    }
    peer.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
