//! async-lsp, with its own client (`MainLoop::new_client`). The two are connected as in its test `unit_test`.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::available_parallelism;

use ::async_lsp::concurrency::ConcurrencyLayer;
use ::async_lsp::lsp_types::notification::{Cancel, Notification};
use ::async_lsp::lsp_types::request::{Initialize, Request};
use ::async_lsp::lsp_types::{CancelParams, InitializeParams, InitializeResult, NumberOrString};
use ::async_lsp::panic::CatchUnwindLayer;
use ::async_lsp::router::Router;
use ::async_lsp::server::LifecycleLayer;
use ::async_lsp::{Error, ErrorCode, LspService, MainLoop, ResponseError, ServerSocket};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};
use tower::ServiceBuilder;

use crate::generic_driver::{End, Halves, Library, Returned, Signals, Slots, Tasks, begun, one_by_one};
use crate::lsp_client::{self, SERVER_ALONE};
use crate::subject::{BoxFuture, Carries, Competitor, Name, Told};

const fn name(configuration: &'static str) -> Name {
    Name { library: "async-lsp", version: "0.2.4", configuration, carries: Carries::Bytes }
}

/// The layers of its example `server_builder` (without its log and its monitor of the editor's process), with the
/// limit of `ConcurrencyLayer::default`: as many handlers as there are cores.
pub const DEFAULT: Competitor = halves!(name("default"), Layers::Default);

/// Only the layer that cancelling needs: `ConcurrencyLayer`, with as many slots as needed.
pub const BEST: Competitor = halves!(name("best"), Layers::Needed);

/// The server of [`BEST`] under a client that writes its frames by hand.
pub const SERVER: Competitor = halves!(name(SERVER_ALONE), ServerAlone);

#[derive(Clone, Copy, Debug)]
struct ServerAlone;

impl Halves for ServerAlone {
    const BUFFER: usize = <Layers as Halves>::BUFFER;

    async fn serve<E: End>(self, end: E, slots: usize, signals: Arc<Signals>) {
        let slots = NonZeroUsize::new(slots).expect("a slot at least");
        let layers = ServiceBuilder::new().layer(ConcurrencyLayer::new(slots));
        serving(layers.service(router::<InList>(&signals)), end).await;
    }

    async fn connect<E: End>(self, end: E, slots: usize) -> (impl Library, Tasks) {
        lsp_client::connect(end, slots).await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layers {
    Default,
    Needed,
}

impl Halves for Layers {
    /// Its loop does not read while it writes. If more is in flight than the buffers hold in both directions (64
    /// echoes of 4 KiB over 64 KiB), both loops wait forever for the other to read. In memory the buffers hold
    /// everything that a workload has in flight.
    const BUFFER: usize = 8 << 20;

    async fn serve<E: End>(self, end: E, slots: usize, signals: Arc<Signals>) {
        let router = router::<Alone>(&signals);
        match self {
            Self::Default => {
                let layers = ServiceBuilder::new()
                    .layer(LifecycleLayer::default())
                    .layer(CatchUnwindLayer::default())
                    .layer(ConcurrencyLayer::default());
                serving(layers.service(router), end).await;
            }
            Self::Needed => {
                let slots = NonZeroUsize::new(slots).expect("a slot at least");
                let layers = ServiceBuilder::new().layer(ConcurrencyLayer::new(slots));
                serving(layers.service(router), end).await;
            }
        }
    }

    async fn connect<E: End>(self, end: E, slots: usize) -> (impl Library, Tasks) {
        let (main, server) = MainLoop::new_client(|_| Router::<(), ResponseError>::new(()));
        let (input, output) = end.split();
        let mut tasks = Tasks::default();
        tasks.spawn(beside(server.clone(), main.run_buffered(input.compat(), output.compat_write())));
        let slots = match self {
            Self::Default => available_parallelism().map_or(1, NonZeroUsize::get),
            Self::Needed => slots,
        };
        let connected = Connected { server, next_id: AtomicI32::new(0), slots };
        if self == Self::Default {
            let params = InitializeParams::default();
            connected.server.request::<Initialize>(params).await.expect("the server is initialized");
            connected.next_id.fetch_add(1, Ordering::Relaxed);
            connected.server.notify::<Initialized>(()).expect("the loop runs");
        }
        (connected, tasks)
    }
}

/// How a text is passed in params: alone, or in a list.
trait Params: Send + 'static {
    type Params: DeserializeOwned + Serialize + Send + Sync + 'static;

    fn text(params: Self::Params) -> String;
}

enum Alone {}

impl Params for Alone {
    type Params = Cow<'static, str>;

    fn text(params: Self::Params) -> String {
        params.into_owned()
    }
}

/// As the raw client sends it.
enum InList {}

impl Params for InList {
    type Params = [Cow<'static, str>; 1];

    fn text([text]: Self::Params) -> String {
        text.into_owned()
    }
}

struct Echo<P = Alone>(PhantomData<P>);

impl<P: Params> Request for Echo<P> {
    type Params = P::Params;
    type Result = String;
    const METHOD: &'static str = "echo";
}

struct Park<P = Alone>(PhantomData<P>);

impl<P: Params> Request for Park<P> {
    type Params = P::Params;
    type Result = ();
    const METHOD: &'static str = "park";
}

enum Initialized {}

impl Notification for Initialized {
    type Params = ();
    const METHOD: &'static str = "initialized";
}

fn router<P: Params>(signals: &Arc<Signals>) -> Router<Arc<Signals>> {
    let mut router = Router::new(Arc::clone(signals));
    router
        .request::<Initialize, _>(|_, _| async { Ok(InitializeResult::default()) })
        .notification::<Initialized>(|_, ()| ControlFlow::Continue(()))
        .request::<Echo<P>, _>(|_, params| async { Ok(P::text(params)) })
        .request::<Park<P>, _>(|signals, _| {
            let signals = Arc::clone(signals);
            async move {
                // A cancelled handler is dropped.
                let _waiting = signals.wait();
                std::future::pending().await
            }
        });
    router
}

async fn serving<S>(service: S, end: impl End)
where
    S: LspService<Response = Value, Error = ResponseError> + Send + 'static,
    S::Future: Send,
{
    let (main, client) = MainLoop::new_server(|_| service);
    let (input, output) = end.split();
    beside(client, main.run_buffered(input.compat(), output.compat_write())).await;
}

/// A loop that outlives its socket panics. Another worker could see that before the loop is aborted.
async fn beside<S>(socket: S, running: impl Future) {
    running.await;
    drop(socket);
}

struct Connected {
    server: ServerSocket,
    /// Its client does not report the id of a request and has no method to cancel. To send `$/cancelRequest`, a
    /// caller must count the requests from 0, as the loop does.
    next_id: AtomicI32,
    slots: usize,
}

struct Parked {
    id: i32,
    call: BoxFuture<'static, Result<(), Error>>,
}

impl Library for Connected {
    type Text = &'static str;
    type Parked = Parked;

    fn slots(&self) -> Slots {
        Slots::Wait(self.slots)
    }

    async fn echo(&self, text: &'static str) -> usize {
        self.next_id.fetch_add(1, Ordering::Relaxed);
        self.server.request::<Echo>(Cow::Borrowed(text)).await.expect("the server echoes").len()
    }

    async fn park(&self) -> Parked {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let server = self.server.clone();
        let call = async move { server.request::<Park>(Cow::Borrowed("x")).await };
        Parked { id, call: begun(Box::pin(call)).await }
    }

    async fn cancel(&self, parked: Parked) -> Returned {
        let id = NumberOrString::Number(parked.id);
        self.server.notify::<Cancel>(CancelParams { id }).expect("the loop runs");
        match parked.call.await {
            Err(Error::Response(error)) if error.code == ErrorCode::REQUEST_CANCELLED => Returned::default(),
            other => panic!("a cancelled request is answered so: {other:?}"),
        }
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        one_by_one(self, count, || async {
            let id = NumberOrString::Number(-1);
            self.server.notify::<Cancel>(CancelParams { id }).expect("the loop runs");
        })
        .await
    }
}
