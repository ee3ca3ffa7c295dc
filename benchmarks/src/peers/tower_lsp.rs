//! tower-lsp-server. It has no client: a client of this benchmark writes the frames ([`lsp_client`](crate::lsp_client)).

use std::sync::Arc;

use tower_lsp_server::jsonrpc::Result;
use tower_lsp_server::ls_types::{InitializeParams, InitializeResult};
use tower_lsp_server::{LanguageServer, LspService, Server};

use crate::generic_driver::{End, Halves, Library, Signals, Tasks};
use crate::lsp_client;
use crate::subject::{Carries, Competitor, Name};

const fn name(configuration: &'static str) -> Name {
    Name { library: "tower-lsp-server", version: "0.23.0", configuration, carries: Carries::Bytes }
}

/// The default of `Server::new`.
const DEFAULT_LEVEL: usize = 4;

/// As the example in its README: `LspService` and `Server::new`, with four handlers at once.
pub const DEFAULT: Competitor = halves!(name("default"), Level::Default);

/// `Server::concurrency_level` as high as needed.
pub const BEST: Competitor = halves!(name("best"), Level::Needed);

/// The limit of handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Default,
    Needed,
}

impl Halves for Level {
    async fn serve<E: End>(self, end: E, slots: usize, signals: Arc<Signals>) {
        let backend = Backend(signals);
        // Custom methods are added with `LspService::build`, as its docs show.
        let (service, socket) = LspService::build(|_| backend)
            .custom_method("echo", Backend::echo)
            .custom_method("park", Backend::park)
            .finish();
        let (input, output) = end.split();
        let server = Server::new(input, output, socket);
        match self {
            Self::Default => server.serve(service).await,
            Self::Needed => server.concurrency_level(slots).serve(service).await,
        }
    }

    async fn connect<E: End>(self, end: E, slots: usize) -> (impl Library, Tasks) {
        let slots = match self {
            Self::Default => DEFAULT_LEVEL,
            Self::Needed => slots,
        };
        lsp_client::connect(end, slots).await
    }
}

struct Backend(Arc<Signals>);

impl LanguageServer for Backend {
    async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult> {
        Ok(InitializeResult::default())
    }

    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }
}

impl Backend {
    #[expect(clippy::unused_async, reason = "a method's handler is an async function")]
    async fn echo(&self, (text,): (String,)) -> Result<String> {
        Ok(text)
    }

    async fn park(&self, _: (String,)) -> Result<()> {
        // A cancelled handler is dropped.
        let _waiting = self.0.wait();
        std::future::pending().await
    }
}
