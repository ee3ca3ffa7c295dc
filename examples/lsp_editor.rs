//! The editor side of LSP: it starts `lsp_server`, opens a document, and cancels a search because the user continues to
//! type.
//!
//! Run it with `cargo run -p rescind-examples --example lsp_editor`, after `cargo build -p rescind-examples
//! --examples`. To use another server: `lsp_editor COMMAND ARG...`.

use std::error::Error;
use std::time::Duration;

use rescind::lsp::Lsp;
use rescind::lsp::types as lsp;
use rescind::{Outcome, Peer, dialect, stdio};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut command = std::env::args_os().skip(1);
    let beside =
        std::env::current_exe()?.with_file_name(format!("lsp_server{}", std::env::consts::EXE_SUFFIX));
    let program = command.next().unwrap_or_else(|| beside.into());
    let editor = Peer::builder(dialect::LSP).connect(stdio::Command::new(program).args(command)).await?;

    let hello =
        lsp::InitializeParams { process_id: Some(std::process::id().try_into()?), ..Default::default() };
    let answer = editor.request::<Lsp<lsp::InitializeRequest>>(&hello).await?;
    println!("the server can hover: {}", answer.capabilities.hover_provider.is_some());
    editor.try_notify("initialized", &json!({}))?;

    let uri = lsp::Uri::from("file:///main.rs");
    let text = "let answer = 42;\n".repeat(60_000);
    let document = lsp::TextDocumentItem::new(uri.clone(), lsp::LanguageKind::Rust, 1, text);
    editor.notify("textDocument/didOpen", &lsp::DidOpenTextDocumentParams::new(document)).await?;

    // A search that takes a minute. The user does not wait for it.
    let document = lsp::TextDocumentIdentifier::new(uri);
    let place = lsp::TextDocumentPositionParams::new(document, lsp::Position::new(0, 5));
    let (progress, partial) = Default::default();
    let context = lsp::ReferenceContext::new(true);
    let search = lsp::ReferenceParams::new(context, progress, partial, place.clone());
    let search = editor.request::<Lsp<lsp::ReferencesRequest>>(&search).start()?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    search.canceller().cancel("the user typed on");
    match search.outcome().await {
        Outcome::Cancelled(cancelled) => {
            println!("the search is cancelled, confirmed: {}", cancelled.confirmed);
        }
        other => return Err(format!("the search was not cancelled: {other:?}").into()),
    }

    // The connection continues. A call that is dropped, here by a timeout, is cancelled too.
    let at = lsp::HoverParams::new(lsp::WorkDoneProgressParams::default(), place);
    let hover = editor.request::<Lsp<lsp::HoverRequest>>(&at).timeout(Duration::from_secs(10)).await?;
    println!("a hover: {:?}", hover.map(|hover| hover.contents));

    editor.request::<Lsp<lsp::ShutdownRequest>>(&()).await?;
    editor.try_notify("exit", &())?;
    editor.closed().await?;
    Ok(())
}
