//! tower-lsp-server. It has no client: a client of this benchmark writes the frames ([`RawClient`](super::raw_client::RawClient)).

use std::sync::Arc;

use serde_json::json;
use tokio::io::AsyncWrite;
use tower_lsp_server::jsonrpc::Result;
use tower_lsp_server::ls_types::{InitializeParams, InitializeResult};
use tower_lsp_server::{LanguageServer, LspService, Server};

use super::raw_client::{self, Asked, RawClient};
use crate::generic_driver::{End, Halves, Library, Returned, Signals, Slots, Tasks, one_by_one};
use crate::subject::{Carries, Competitor, Name, Told};

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
        let (client, tasks) = raw_client::client(end);
        let initialized = client.ask("initialize", json!({"capabilities": {}})).await.answered().await;
        assert!(initialized.result.is_some(), "the server is initialized: {initialized:?}");
        let slots = match self {
            Self::Default => DEFAULT_LEVEL,
            Self::Needed => slots,
        };
        (Connected { client, slots }, tasks)
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

struct Connected<O> {
    client: RawClient<O>,
    slots: usize,
}

impl<O: AsyncWrite + Send + Unpin + 'static> Library for Connected<O> {
    type Text = &'static str;
    type Parked = Asked;

    fn slots(&self) -> Slots {
        Slots::Wait(self.slots)
    }

    async fn echo(&self, text: &'static str) -> usize {
        let answer = self.client.ask("echo", [text]).await.answered().await;
        let text = answer.result.expect("the server echoes");
        serde_json::from_str::<String>(text.get()).expect("an echo is a text").len()
    }

    async fn park(&self) -> Asked {
        self.client.ask("park", ["x"]).await
    }

    async fn cancel(&self, parked: Asked) -> Returned {
        self.client.notify("$/cancelRequest", json!({"id": parked.id})).await;
        let answer = parked.answered().await;
        assert_eq!(answer.code, Some(-32_800), "a cancelled request is answered so: {answer:?}");
        Returned { answer_read: Some(answer.read) }
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        one_by_one(self, count, || self.client.notify("$/cancelRequest", json!({"id": "unknown"}))).await
    }
}
