//! A language server with the types of `gen-lsp-types`: it keeps the open documents, answers hovers, and searches for references until the
//! editor cancels the search. An editor starts it and speaks over its stdin and stdout. `lsp_editor.rs` is such an editor.
//! A handler may start before the notifications that came before its request. On one thread `yield_now` runs them first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gen_lsp_types::{
    DidChangeTextDocumentParams, DidOpenTextDocumentParams, Hover, HoverParams, InitializeParams,
    InitializeResult, Location, MarkupContent, MarkupKind, Position, Range, ReferenceParams,
    ServerCapabilities, TextDocumentContentChangeEvent::TextDocumentContentChangeWholeDocument as Whole,
    TextDocumentPositionParams, TextDocumentSyncKind, Uri,
};
use rescind::{CallContext, HandlerError, Peer, Router, dialect, stdio};
use tokio::task::yield_now;
use tokio::time::{Duration, sleep};

type Answer<T> = Result<T, HandlerError>;

/// The text of each open document.
#[derive(Clone, Default)]
struct Documents(Arc<Mutex<HashMap<Uri, Arc<str>>>>);

impl Documents {
    fn put(&self, uri: Uri, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uri, text.into());
    }

    fn text(&self, uri: &Uri) -> Arc<str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uri).cloned().unwrap_or_default()
    }

    /// The word at a position. For brevity columns count characters here; LSP counts UTF-16 units unless the server says otherwise.
    fn word(&self, at: &TextDocumentPositionParams) -> Option<String> {
        let text = self.text(&at.text_document.uri);
        let line = text.lines().nth(usize::try_from(at.position.line).ok()?)?;
        let column = line.char_indices().nth(usize::try_from(at.position.character).ok()?)?.0;
        let (before, after) = line.split_at(column);
        let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
        let word = before.rsplit(is_end).next()?.to_owned() + after.split(is_end).next()?;
        Some(word).filter(|word| !word.is_empty())
    }

    async fn hover(self, params: HoverParams) -> Answer<Option<Hover>> {
        yield_now().await;
        let Some(word) = self.word(&params.text_document_position_params) else { return Ok(None) };
        Ok(Some(Hover::new(MarkupContent::new(MarkupKind::Markdown, format!("`{word}`")).into(), None)))
    }

    /// `run_until_cancelled` drops the step that runs, and `?` answers with `RequestCancelled` (-32800).
    async fn references(self, ctx: CallContext, params: ReferenceParams) -> Answer<Vec<Location>> {
        yield_now().await;
        let place = &params.text_document_position_params;
        let Some(word) = self.word(place) else { return Ok(Vec::new()) };
        let uri = &place.text_document.uri;
        let mut found = Vec::new();
        for (line, text) in (0..).zip(self.text(uri).lines()) {
            ctx.run_until_cancelled(sleep(Duration::from_millis(1))).await?; // a real search takes its time
            for (column, _) in text.match_indices(&word) {
                let at = |column: usize| u32::try_from(column).map(|column| Position::new(line, column));
                found.push(Location::new(uri.clone(), Range::new(at(column)?, at(column + word.len())?)));
            }
        }
        Ok(found)
    }
}

async fn initialize(_: CallContext, _: InitializeParams) -> Answer<InitializeResult> {
    let capabilities = ServerCapabilities {
        text_document_sync: Some(TextDocumentSyncKind::Full.into()),
        hover_provider: Some(true.into()),
        references_provider: Some(true.into()),
        ..ServerCapabilities::default()
    };
    Ok(InitializeResult::new(capabilities, None))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), rescind::ConnectionError> {
    let documents = Documents::default();
    let [opened, changed, hovered, searched] = [(); 4].map(|()| documents.clone());
    let router = Router::new()
        .method("initialize", initialize)
        .notification("textDocument/didOpen", move |_, params: DidOpenTextDocumentParams| {
            opened.put(params.text_document.uri, params.text_document.text);
            async {}
        })
        .notification("textDocument/didChange", move |_, mut params: DidChangeTextDocumentParams| {
            if let Some(Whole(edit)) = params.content_changes.pop() {
                changed.put(params.text_document.text_document_identifier.uri, edit.text);
            }
            async {}
        })
        .method("textDocument/hover", move |_, params| hovered.clone().hover(params))
        .method("textDocument/references", move |ctx, params| searched.clone().references(ctx, params));
    let peer = Peer::builder(dialect::LSP).serve(router).connect(stdio::this_process()).await?;
    peer.closed().await?;
    std::process::exit(peer.exit_code().map_or(0, i32::from)) // `exit`: 0 after `shutdown`, else 1
}
