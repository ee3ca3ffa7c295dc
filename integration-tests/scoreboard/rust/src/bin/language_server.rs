//! A language server made with tower-lsp-server, as its examples show: a request's future is dropped when it is cancelled.

use std::time::Duration;

use tower_lsp_server::jsonrpc::Result;
use tower_lsp_server::ls_types::{
    DocumentSymbolParams, DocumentSymbolResponse, Hover, HoverContents, HoverParams, InitializeParams,
    InitializeResult, Location, MarkedString, OneOf, ReferenceParams, ServerCapabilities,
};
use tower_lsp_server::{LanguageServer, LspService, Server};

struct Backend;

impl LanguageServer for Backend {
    async fn initialize(&self, _params: InitializeParams) -> Result<InitializeResult> {
        Ok(InitializeResult {
            capabilities: ServerCapabilities {
                references_provider: Some(OneOf::Left(true)),
                document_symbol_provider: Some(OneOf::Left(true)),
                ..ServerCapabilities::default()
            },
            ..InitializeResult::default()
        })
    }

    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }

    /// Runs for five seconds.
    async fn references(&self, _params: ReferenceParams) -> Result<Option<Vec<Location>>> {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(None)
    }

    async fn hover(&self, _params: HoverParams) -> Result<Option<Hover>> {
        let contents = HoverContents::Scalar(MarkedString::String("a word".to_owned()));
        Ok(Some(Hover { contents, range: None }))
    }

    async fn document_symbol(&self, _params: DocumentSymbolParams) -> Result<Option<DocumentSymbolResponse>> {
        Ok(Some(DocumentSymbolResponse::Nested(Vec::new())))
    }
}

#[tokio::main]
async fn main() {
    let (service, socket) = LspService::new(|_client| Backend);
    Server::new(tokio::io::stdin(), tokio::io::stdout(), socket).serve(service).await;
}
