//! The flow the ACP page draws: a prompt with two nested requests, stopped by `session/cancel`.
//!
//! Every message is written down as it passes, and at the end the same messages are a Mermaid sequence diagram.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use rescind::dialect::{self, Role};
use rescind::{CallContext, Cause, CauseKind, HandlerError, Outcome, Peer, Router};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::Semaphore;

/// The prompt that runs, so that `session/cancel` finds it.
type Running = Arc<Mutex<Option<CallContext>>>;

async fn agent(wire: DuplexStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (from, to) = tokio::io::split(wire);
    let running = Running::default();
    let for_cancel = Arc::clone(&running);
    let router = Router::new()
        .method("initialize", |_ctx: CallContext, _: Value| async {
            Ok(json!({ "protocolVersion": 1, "agentCapabilities": {} }))
        })
        .method("session/prompt", move |ctx: CallContext, params: Value| {
            prompt(ctx, params, Arc::clone(&running))
        })
        .notification("session/cancel", move |_ctx, _: Value| {
            let prompt = for_cancel.lock().unwrap_or_else(PoisonError::into_inner).clone();
            async move {
                // The turn ends; everything the turn had asked for ends with it.
                if let Some(prompt) = prompt {
                    prompt.cancel_local(Cause::new(CauseKind::Local).with_reason("session/cancel"));
                }
            }
        });
    let wire = rescind::ByteStream::new(from, to);
    Peer::builder(dialect::ACP).role(Role::Server).serve(router).connect(wire).await?.closed().await?;
    Ok(())
}

async fn prompt(ctx: CallContext, params: Value, running: Running) -> Result<Value, HandlerError> {
    *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(ctx.clone());
    let session = params.get("sessionId").cloned().unwrap_or_default();
    let text =
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "Analysing" } });
    ctx.try_notify("session/update", &json!({ "sessionId": session, "update": text }))?;
    // Two requests to the client at once. They are children of the prompt and are cancelled with it.
    let terminal = json!({ "sessionId": session, "command": "grep", "args": ["pattern", "file.txt"] });
    let terminal = ctx.call::<_, Value>("terminal/create", &terminal).start()?;
    let permission =
        json!({ "sessionId": session, "toolCall": { "title": "read sensitive file" }, "options": [] });
    let permission = ctx.call::<_, Value>("session/request_permission", &permission).start()?;
    let (terminal, permission) = (terminal.outcome().await, permission.outcome().await);
    // A client may also answer the permission with the outcome "cancelled"; both are an end.
    let stopped = ctx.is_cancelled() && !matches!(terminal, Outcome::Completed(_));
    let stop_reason = if stopped || permission.is_cancelled() { "cancelled" } else { "end_turn" };
    Ok(json!({ "stopReason": stop_reason }))
}

#[tokio::test]
async fn a_cancelled_prompt_cascades_as_the_page_draws_it() -> Result<(), Box<dyn Error>> {
    // The messages go through a recorder, which keeps every line.
    let log = Log::default();
    let (for_agent, behind_it) = tokio::io::duplex(64 * 1024);
    let (near, far) = tokio::io::duplex(64 * 1024);
    let agent = tokio::spawn(agent(for_agent));
    let (from_agent, to_agent) = tokio::io::split(behind_it);
    let (from_us, to_us) = tokio::io::split(far);
    tokio::spawn(record(log.clone(), "Client", "Agent", from_us, to_agent));
    tokio::spawn(record(log.clone(), "Agent", "Client", from_agent, to_us));
    let (from, to) = tokio::io::split(near);
    let wire = rescind::ByteStream::new(from, to);

    let asked = Arc::new(Semaphore::new(0));
    let waits = |asked: &Arc<Semaphore>| {
        let asked = Arc::clone(asked);
        move |ctx: CallContext, _: Value| {
            let asked = Arc::clone(&asked);
            async move {
                asked.add_permits(1);
                let cause = ctx.cancelled().await;
                ctx.stopped::<Value>(cause)
            }
        }
    };
    let router = Router::new()
        .method("terminal/create", waits(&asked))
        .method("session/request_permission", waits(&asked))
        .notification("session/update", |_ctx, _: Value| async {});
    let peer = Peer::builder(dialect::ACP).serve(router).role(Role::Client).connect(wire).await?;
    let _: Value =
        peer.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} })).await?;
    log.begin();
    let question = json!({ "sessionId": "s1", "prompt": [{ "type": "text", "text": "Analyze file X" }] });
    let prompt = peer.call::<_, Value>("session/prompt", &question).start()?;
    let _both = asked.acquire_many(2).await?;
    peer.try_notify("session/cancel", &json!({ "sessionId": "s1" }))?;
    let outcome = prompt.outcome().await;
    let Outcome::Completed(answer) = outcome else {
        return Err(format!("the prompt did not end with a result: {outcome:?}").into());
    };
    println!("\nthe prompt ended with {answer}\n\n{}", log.mermaid());
    if !log.is_as_drawn() {
        return Err("the messages did not pass in the order of ACP's page on cancellation".into());
    }
    peer.shutdown(std::time::Duration::from_secs(1)).await;
    agent.await?.map_err(|error| error.to_string())?;
    Ok(())
}

/// What passed, in order, as the lines of the drawing.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

/// The parts of the drawing, each begun by the first message that holds these words.
const PARTS: [(&str, &str); 6] = [
    ("session/prompt", "1. A prompt runs"),
    ("terminal/create", "2. The agent has two requests open at once"),
    ("session/cancel", "3. The client cancels the turn"),
    ("$/cancel_request", "4. The agent cancels what the turn had asked for"),
    ("error -32800", "5. The client confirms each"),
    ("stopReason", "6. The prompt ends"),
];

/// The messages as ACP's page on cancellation draws them, without their ids.
const DRAWN: [&str; 9] = [
    "Client->>Agent: session/prompt",
    "Agent-->>Client: session/update",
    "Agent->>Client: terminal/create",
    "Agent->>Client: session/request_permission",
    "Client->>Agent: session/cancel",
    "Agent->>Client: $/cancel_request",
    "Agent->>Client: $/cancel_request",
    "Client->>Agent: response",
    "Client->>Agent: response",
];

impl Log {
    /// Forgets the handshake; the drawing starts with the prompt.
    fn begin(&self) {
        self.lines().clear();
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, from: &str, to: &str, line: &str) {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        println!("{from} -> {to}  {line}");
        let label = describe(&message);
        let arrow = if label.starts_with("session/update") { "-->>" } else { "->>" };
        self.lines().push(format!("{from}{arrow}{to}: {label}"));
    }

    /// Whether the messages passed in the order of the drawing.
    fn is_as_drawn(&self) -> bool {
        let lines = self.lines();
        let last = lines.last().is_some_and(|line| line.contains(r#""stopReason":"cancelled""#));
        last && lines.len() == DRAWN.len() + 1
            && lines.iter().zip(DRAWN).all(|(line, drawn)| line.starts_with(drawn))
    }

    fn mermaid(&self) -> String {
        let mut text = "sequenceDiagram\n    participant Client\n    participant Agent\n".to_owned();
        let mut parts = PARTS.iter().peekable();
        for line in self.lines().iter() {
            if let Some((_, title)) = parts.next_if(|(words, _)| line.contains(words)) {
                text.extend(["\n    Note over Client,Agent: ", title, "\n"]);
            }
            text.extend(["    ", line, "\n"]);
        }
        text
    }
}

/// A message in a few words. Each side numbers its own requests, so the prompt and a nested request may share a number.
fn describe(message: &Value) -> String {
    let id = message.get("id").map(|id| format!(" (id={id})")).unwrap_or_default();
    match message.get("method").and_then(Value::as_str) {
        Some("$/cancel_request") => {
            let names = message.pointer("/params/requestId").cloned().unwrap_or_default();
            format!("$/cancel_request (id={names})")
        }
        Some(method) => format!("{method}{id}"),
        None => match message.pointer("/error/code") {
            Some(code) => format!("response{id} error {code}"),
            None => format!("response{id} {}", message.get("result").cloned().unwrap_or_default()),
        },
    }
}

/// Passes lines on and writes them down.
async fn record(
    log: Log,
    from_name: &'static str,
    to_name: &'static str,
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        log.add(from_name, to_name, &line);
        if to.write_all(format!("{line}\n").as_bytes()).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    // The end of input is passed on too.
    drop(to.shutdown().await);
}
