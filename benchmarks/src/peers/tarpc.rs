//! tarpc. Its cancel is the drop of the caller's future: the caller has then returned, and the server gets the
//! cancel, drops the handler, and sends no answer.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ::tarpc::client::{self, RpcError};
use ::tarpc::server::{BaseChannel, Channel};
use ::tarpc::tokio_serde::formats::Json;
use ::tarpc::transport::channel;
use ::tarpc::{context, serde_transport};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::codec::LengthDelimitedCodec;

use crate::generic_driver::{
    Driven, Due, End, Halves, Library, Returned, Signals, Slots, Tasks, Watch, begun,
};
use crate::subject::{BoxFuture, Carries, Competitor, Name, Setup, Subject, Tree};

const fn name(configuration: &'static str, carries: Carries) -> Name {
    Name { library: "tarpc", version: "0.38.0", configuration, carries }
}

/// As its example `readme`: values are passed over a channel in memory and never serialized, with at most 1,000
/// requests in flight.
pub const DEFAULT: Competitor =
    Competitor { name: name("default", Carries::Values), open: open_default, serve: None };

/// The same channel, with as many requests as needed. The server's limit is `max_concurrent_requests`.
pub const BEST: Competitor = Competitor { name: name("best", Carries::Values), open: open_best, serve: None };

/// JSON in frames over a stream, with its `serde_transport`, as in the other libraries, which all write bytes.
pub const FRAMES: Competitor = halves!(name("best, JSON frames", Carries::Bytes), Frames);

fn open_default(_: Setup) -> BoxFuture<'static, Box<dyn Subject>> {
    Box::pin(async {
        let (near, far) = channel::unbounded();
        let (worker, mut tasks) = (Worker::default(), Tasks::default());
        let handlers = BaseChannel::with_defaults(far).execute(worker.clone().serve());
        tasks.spawn(handlers.for_each(spawned));
        let config = client::Config::default();
        let slots = Slots::Wait(config.max_in_flight_requests);
        boxed(WorkClient::new(config, near).spawn(), slots, worker, tasks)
    })
}

fn open_best(setup: Setup) -> BoxFuture<'static, Box<dyn Subject>> {
    Box::pin(async move {
        let (near, far) = channel::unbounded();
        let (worker, mut tasks) = (Worker::default(), Tasks::default());
        let limited = BaseChannel::with_defaults(far).max_concurrent_requests(setup.slots);
        tasks.spawn(limited.execute(worker.clone().serve()).for_each(spawned));
        boxed(WorkClient::new(roomy(), near).spawn(), Slots::Refuse(setup.slots), worker, tasks)
    })
}

fn boxed(client: WorkClient, slots: Slots, worker: Worker, tasks: Tasks) -> Box<dyn Subject> {
    let _ = worker.below.set(client.clone());
    Driven::boxed(Connected { client, slots, trees: true }, Watch::Here(worker.signals), tasks)
}

#[derive(Clone, Copy, Debug)]
struct Frames;

impl Halves for Frames {
    async fn serve<E: End>(self, end: E, slots: usize, signals: Arc<Signals>) {
        let framed = LengthDelimitedCodec::builder().new_framed(end);
        let far = serde_transport::new(framed, Json::default());
        let worker = Worker { signals, below: Arc::default() };
        let limited = BaseChannel::with_defaults(far).max_concurrent_requests(slots);
        limited.execute(worker.serve()).for_each(spawned).await;
    }

    async fn connect<E: End>(self, end: E, slots: usize) -> (impl Library, Tasks) {
        let framed = LengthDelimitedCodec::builder().new_framed(end);
        let near = serde_transport::new(framed, Json::default());
        let client = WorkClient::new(roomy(), near).spawn();
        (Connected { client, slots: Slots::Refuse(slots), trees: false }, Tasks::default())
    }
}

/// Its examples spawn what `execute` yields in this way.
async fn spawned(handler: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(handler);
}

/// More room in the client than the server's limit, so that the limit of the server applies.
fn roomy() -> client::Config {
    let mut config = client::Config::default();
    config.max_in_flight_requests = usize::MAX;
    config.pending_request_buffer = 1024;
    config
}

/// The interface of both sides.
#[::tarpc::service]
pub trait Work {
    /// Returns the text.
    async fn echo(text: Cow<'static, str>) -> Cow<'static, str>;
    /// Waits until it is dropped.
    async fn park(text: Cow<'static, str>);
    /// Starts this many of itself with one level less, and waits until it is dropped.
    async fn branch(depth: usize, fan_out: usize);
}

#[derive(Clone, Default)]
struct Worker {
    signals: Arc<Signals>,
    /// A client of this server: its handlers call no other server.
    below: Arc<OnceLock<WorkClient>>,
}

impl Work for Worker {
    async fn echo(self, _: context::Context, text: Cow<'static, str>) -> Cow<'static, str> {
        text
    }

    async fn park(self, _: context::Context, _: Cow<'static, str>) {
        // A cancelled handler is dropped.
        let _waiting = self.signals.wait();
        std::future::pending().await
    }

    async fn branch(self, _: context::Context, depth: usize, fan_out: usize) {
        let _waiting = self.signals.wait();
        // Its cancels cascade: the calls that this handler made are dropped with it.
        let mut below = FuturesUnordered::new();
        if let Some(client) = self.below.get().filter(|_| depth > 0) {
            below.extend((0..fan_out).map(|_| client.branch(context(), depth - 1, fan_out)));
        }
        while below.next().await.is_some() {}
        std::future::pending().await
    }
}

async fn branch(client: WorkClient, depth: usize, fan_out: usize) -> <Connected as Library>::Parked {
    begun(Box::pin(async move { client.branch(context(), depth, fan_out).await })).await
}

struct Connected {
    client: WorkClient,
    slots: Slots,
    /// Whether handlers have a client for their children.
    trees: bool,
}

/// Its default deadline, 10 s from now, would end requests that wait.
fn context() -> context::Context {
    let mut context = context::current();
    context.deadline = Instant::now() + Duration::from_secs(3600);
    context
}

impl Library for Connected {
    type Text = &'static str;
    type Parked = BoxFuture<'static, Result<(), RpcError>>;

    fn slots(&self) -> Slots {
        self.slots
    }

    async fn echo(&self, text: &'static str) -> usize {
        self.client.echo(context(), Cow::Borrowed(text)).await.expect("the server echoes").len()
    }

    async fn park(&self) -> Self::Parked {
        let client = self.client.clone();
        let call = async move { client.park(context(), Cow::Borrowed("x")).await };
        begun(Box::pin(call)).await
    }

    async fn cancel(&self, parked: Self::Parked) -> Returned {
        drop(parked);
        Returned::default()
    }
    fn root(&self, tree: Tree) -> Option<impl Future<Output = Self::Parked> + Send> {
        self.trees.then(|| branch(self.client.clone(), tree.depth, tree.fan_out))
    }

    fn deadline(&self, after: Duration) -> Option<impl Future<Output = Due> + Send> {
        let client = self.client.clone();
        let mut context = context();
        context.deadline = Instant::now() + after;
        Some(async move {
            let call = async move {
                let ended = client.park(context, Cow::Borrowed("x")).await;
                assert!(matches!(ended, Err(RpcError::DeadlineExceeded)), "it is too late: {ended:?}");
            };
            Due(begun(Box::pin(call) as BoxFuture<'static, ()>).await)
        })
    }
}
