//! The editor side of ACP: it starts `acp_agent`, shows the agent's output, and asks its user for permission. It stops
//! the second turn while the question is open, and the question ends with the turn.
//!
//! Run it with `cargo run -p rescind-examples --example acp_editor`, after `cargo build -p rescind-examples
//! --examples`. To use another agent: `acp_editor COMMAND ARG...`.

use std::error::Error;
use std::time::Duration;

use rescind::dialect::{self, Role};
use rescind::{CallContext, HandlerError, Peer, Router, stdio};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PromptResult {
    stop_reason: String,
}

/// A question from an agent to its user. An editor shows a dialog here; this example passes the question to `main`,
/// which answers it.
struct Question {
    title: String,
    answer: tokio::sync::oneshot::Sender<Value>,
}

async fn permission(
    ctx: CallContext,
    params: Value,
    ask: mpsc::UnboundedSender<Question>,
) -> Result<Value, HandlerError> {
    tokio::task::yield_now().await; // with one thread: the updates before the question are shown first
    let title = params.pointer("/toolCall/title").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (answer, chosen) = tokio::sync::oneshot::channel();
    ask.send(Question { title, answer })?;
    // The agent cancels the question with `$/cancel_request`. An editor then closes the dialog, and `?` returns the
    // answer that ACP requires.
    let chosen = ctx
        .run_until_cancelled(chosen)
        .await
        .inspect_err(|stopped| println!("  the question ends: {stopped}"));
    Ok(chosen?.unwrap_or_else(|_| json!({ "outcome": { "outcome": "cancelled" } })))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut command = std::env::args_os().skip(1);
    let beside =
        std::env::current_exe()?.with_file_name(format!("acp_agent{}", std::env::consts::EXE_SUFFIX));
    let agent = stdio::Command::new(command.next().unwrap_or_else(|| beside.into())).args(command);

    let (ask, mut questions) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("session/request_permission", move |ctx, params| permission(ctx, params, ask.clone()))
        .notification("session/update", async |_, params: Value| {
            println!("  agent: {}", params.pointer("/update/content/text").unwrap_or_default());
        });
    let peer = Peer::builder(dialect::ACP).role(Role::Client).serve(router).connect(agent).await?;
    peer.call::<_, Value>("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} })).await?;
    let opened = json!({ "cwd": std::env::current_dir()?, "mcpServers": [] });
    let Session { session_id } = peer.call("session/new", &opened).await?;

    for stops in [false, true] {
        let text = json!([{ "type": "text", "text": "Write a program" }]);
        let prompt = json!({ "sessionId": session_id, "prompt": text });
        let turn = peer.call::<_, PromptResult>("session/prompt", &prompt).start()?;
        let Question { title, answer } = questions.recv().await.ok_or("nothing is asked")?;
        println!("  may it: {title}?");
        if stops {
            peer.notify("session/cancel", &json!({ "sessionId": session_id })).await?;
        } else if answer.send(json!({ "outcome": { "outcome": "selected", "optionId": "allow" } })).is_err() {
            return Err("the question has ended".into());
        }
        let PromptResult { stop_reason } = turn.await?;
        println!("the turn ended: {stop_reason}");
        if stops != (stop_reason == "cancelled") {
            return Err("the turn ended otherwise".into());
        }
    }
    peer.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
