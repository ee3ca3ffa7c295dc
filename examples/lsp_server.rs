//! A language server with typed methods (feature `lsp-types`). `lsp_editor.rs` is an editor for it. In LSP a handler starts
//! after the notifications before its request are handled, so it sees every change of the document.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, PoisonError};

use rescind::lsp::types::TextDocumentContentChangeEvent::TextDocumentContentChangeWholeDocument as Whole;
use rescind::lsp::{Lsp, types as lsp};
use rescind::{CallContext, HandlerError, Peer, Router, dialect, stdio};
use tokio::time::{Duration, sleep};

/// The text of each open document.
#[derive(Clone, Default)]
struct Documents(Arc<Mutex<HashMap<lsp::Uri, Arc<str>>>>);

impl Documents {
    fn put(&self, uri: lsp::Uri, text: String) -> Ready<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uri, text.into());
        ready(())
    }

    fn text(&self, uri: &lsp::Uri) -> Arc<str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uri).cloned().unwrap_or_default()
    }

    /// The word at a position. To keep the example short, columns count characters. In LSP they count UTF-16 units,
    /// unless the server negotiates another encoding.
    fn word(&self, at: &lsp::TextDocumentPositionParams) -> Option<String> {
        let text = self.text(&at.text_document.uri);
        let line = text.lines().nth(usize::try_from(at.position.line).ok()?)?;
        let column = line.char_indices().nth(usize::try_from(at.position.character).ok()?)?.0;
        let (before, after) = line.split_at(column);
        let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
        let word = before.rsplit(is_end).next()?.to_owned() + after.split(is_end).next()?;
        Some(word).filter(|word| !word.is_empty())
    }

    fn hover(&self, params: &lsp::HoverParams) -> Option<lsp::Hover> {
        let word = self.word(&params.text_document_position_params)?;
        let text = lsp::MarkupContent::new(lsp::MarkupKind::Markdown, format!("`{word}`"));
        Some(lsp::Hover::new(text.into(), None))
    }

    /// `run_until_cancelled` drops the current step, and `?` answers with `RequestCancelled` (-32800).
    async fn references(
        self,
        ctx: CallContext,
        params: lsp::ReferenceParams,
    ) -> Result<Option<Vec<lsp::Location>>, HandlerError> {
        let place = &params.text_document_position_params;
        let (uri, Some(word)) = (&place.text_document.uri, self.word(place)) else { return Ok(None) };
        let mut found = Vec::new();
        for (line, text) in (0..).zip(self.text(uri).lines()) {
            ctx.run_until_cancelled(sleep(Duration::from_millis(1))).await?; // a real search takes its time
            for (column, _) in text.match_indices(&word) {
                let at = |column: usize| u32::try_from(column).map(|column| lsp::Position::new(line, column));
                let range = lsp::Range::new(at(column)?, at(column + word.len())?);
                found.push(lsp::Location::new(uri.clone(), range));
            }
        }
        Ok(Some(found))
    }
}

async fn initialize(_: CallContext, _: lsp::InitializeParams) -> Result<lsp::InitializeResult, HandlerError> {
    let capabilities = lsp::ServerCapabilities {
        text_document_sync: Some(lsp::TextDocumentSyncKind::Full.into()),
        hover_provider: Some(true.into()),
        references_provider: Some(true.into()),
        ..lsp::ServerCapabilities::default()
    };
    Ok(lsp::InitializeResult::new(capabilities, None))
}

#[tokio::main]
async fn main() -> Result<(), rescind::ConnectionError> {
    let documents = Documents::default();
    let [opened, changed, hovered, searched] = [(); 4].map(|()| documents.clone());
    let router = Router::new()
        .serve::<Lsp<lsp::InitializeRequest>>(initialize)
        .notification("textDocument/didOpen", move |_, params: lsp::DidOpenTextDocumentParams| {
            opened.put(params.text_document.uri, params.text_document.text)
        })
        .notification("textDocument/didChange", move |_, mut params: lsp::DidChangeTextDocumentParams| {
            let Some(Whole(edit)) = params.content_changes.pop() else { return ready(()) };
            changed.put(params.text_document.text_document_identifier.uri, edit.text)
        })
        .serve::<Lsp<lsp::HoverRequest>>(move |_, params| ready(Ok(hovered.hover(&params))))
        .serve::<Lsp<lsp::ReferencesRequest>>(move |ctx, params| searched.clone().references(ctx, params));
    let peer = Peer::builder(dialect::LSP).serve(router).connect(stdio::this_process()).await?;
    peer.closed().await?;
    std::process::exit(peer.exit_code().map_or(0, i32::from)) // `exit`: 0 after `shutdown`, else 1
}
