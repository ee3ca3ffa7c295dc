//! An editor and a language server that use LSP over a named pipe, with `Content-Length` headers. The user continues
//! to type while a completion is computed, and the editor cancels it. As editors do, this one listens and passes the
//! path of its pipe to the server.
//!
//! Run it with `cargo run -p rescind-examples --example named_pipe_editor`.

use std::error::Error;

use rescind::dialect::{self, Role};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind::transport::{Listener, Transport};
use rescind::{CallContext, HandlerError, Outcome, Peer, Router};
use serde_json::{Value, json};

type Failure = Box<dyn Error + Send + Sync>;

/// Reports that it has started, then waits for its cancel, in place of a long computation.
async fn complete(ctx: CallContext, params: Value) -> Result<Value, HandlerError> {
    println!("server: completing at {}", params.get("position").unwrap_or_default());
    let token = params.get("workDoneToken").cloned();
    ctx.try_notify(
        "$/progress",
        &json!({ "token": token, "value": { "kind": "begin", "title": "completing" } }),
    )?;
    let cause = ctx.cancelled().await;
    println!("server: stopped, because {:?}", cause.kind());
    // LSP: the request still gets an answer, with the code RequestCancelled (-32800).
    ctx.stopped::<Value>(cause)
}

/// The language server: connects to the given pipe, and serves until the editor disconnects.
async fn language_server(pipe: PipeAddress) -> Result<(), Failure> {
    let link = Box::new(NamedPipeTransport::new(pipe)).open().await?;
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({ "capabilities": { "completionProvider": {} } }))
        })
        .method("shutdown", |_: CallContext, _: Value| async { Ok(Value::Null) })
        .method("textDocument/hover", |_: CallContext, _: Value| async {
            Ok(json!({ "contents": "fn main()" }))
        })
        .method("textDocument/completion", complete);
    let server = Peer::builder(dialect::LSP).role(Role::Server).serve(router).attach(link)?;
    server.closed().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let pipe = PipeAddress::name(&format!("rescind-editor-{}", std::process::id()))?;
    let mut listener = NamedPipeListener::bind(&pipe).await?;
    println!("editor: listening on {}", listener.endpoint());
    let server = tokio::spawn(language_server(pipe));

    let link = listener.accept().await.ok_or("the pipe is closed")??;
    let editor = Peer::builder(dialect::LSP).role(Role::Client).attach(link)?;
    let hello = json!({ "processId": null, "rootUri": null, "capabilities": {} });
    editor.call::<_, Value>("initialize", &hello).await?;
    editor.try_notify("initialized", &json!({}))?;

    let place = json!({
        "textDocument": { "uri": "file:///main.rs" },
        "position": { "line": 3, "character": 7 },
        "workDoneToken": "completion-1",
    });
    let completion = editor.call::<_, Value>("textDocument/completion", &place);
    let completion =
        completion.notifications_where(|notification| notification.method() == "$/progress").start()?;
    let mut progress = completion.notifications();
    let stop = completion.canceller();
    progress.next().await.ok_or("the server never began")?;
    println!("editor: the user types on: {:?}", stop.cancel("the user typed on"));
    match completion.outcome().await {
        Outcome::Cancelled(cancelled) if cancelled.confirmed => {
            println!("editor: the completion is cancelled");
        }
        other => return Err(format!("the completion was not cancelled: {other:?}").into()),
    }
    // Only one request is cancelled. The connection continues.
    let hover = editor.call::<_, Value>("textDocument/hover", &place).await?;
    println!("editor: and a hover still works: {}", hover.get("contents").unwrap_or_default());

    editor.call::<_, Value>("shutdown", &Value::Null).await?;
    editor.try_notify("exit", &Value::Null)?;
    editor.shutdown(std::time::Duration::from_secs(1)).await;
    server.await??;
    Ok(())
}
