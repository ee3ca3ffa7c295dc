//! This library.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use rescind_core::dialect::{ACP, LSP, Role};
use rescind_core::{
    ByteStream, Call, CallContext, CallError, Declaration, HandlerError, Limits, Link, Outcome, Peer, Router,
    memory_pair,
};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::floors::{self, Frames};
use crate::generic_driver::{
    self, Driven, Due, End, Halves, Library, Returned, Signals, Slots, Tasks, Text, Watch,
};
use crate::lsp_client::{self, SERVER_ALONE, SERVER_ALONE_QUICK};
use crate::subject::{Carries, Competitor, Ends, Name, Setup, Subject, Told, Tree};
use crate::{clock, params};

/// This library with default settings, except for the limits that a workload needs. Params are passed as JSON text,
/// as in the floor.
pub const COMPETITOR: Competitor = Competitor {
    name: Name {
        library: "rescind",
        version: env!("CARGO_PKG_VERSION"),
        configuration: "default",
        carries: Carries::Bytes,
    },
    open: |setup| Box::pin(open::<&'static RawValue>(setup, DEFAULT)),
    serve: Some(|setup| Box::pin(serve(setup, Handlers::Tasks))),
};

/// The same, with handlers that are quick on both sides: `Router::quick`.
pub const QUICK: Competitor = Competitor {
    name: Name { configuration: "quick handlers", ..COMPETITOR.name },
    open: |setup| {
        Box::pin(open::<&'static RawValue>(setup, Settings { handlers: Handlers::Quick, ..DEFAULT }))
    },
    serve: Some(|setup| Box::pin(serve(setup, Handlers::Quick))),
};

/// The default, with texts that are serialized and parsed on both sides, as in the other libraries.
pub const TYPED: Competitor = Competitor {
    name: Name { configuration: "typed texts", ..COMPETITOR.name },
    open: |setup| Box::pin(open::<&'static str>(setup, DEFAULT)),
    ..COMPETITOR
};

/// Such texts, and quick handlers: the other libraries poll every handler where they read its request.
pub const QUICK_TYPED: Competitor = Competitor {
    name: Name { configuration: "typed texts, quick handlers", ..COMPETITOR.name },
    open: |setup| Box::pin(open::<&'static str>(setup, Settings { handlers: Handlers::Quick, ..DEFAULT })),
    ..QUICK
};

/// Both sides declare that they do not handle cancels. W5 compares the default with it.
pub const WITHHELD: Competitor = Competitor {
    name: Name { configuration: "cancellation declared off", ..COMPETITOR.name },
    open: |setup| {
        Box::pin(open::<&'static RawValue>(setup, Settings { declare: Declaration::Withheld, ..DEFAULT }))
    },
    serve: None,
};

/// Each call is tied to a token of its caller, and each handler takes its request's token. Nothing is cancelled.
pub const TOKENS: Competitor = Competitor {
    name: Name { configuration: "a token on either side", ..COMPETITOR.name },
    open: |setup| Box::pin(open::<&'static RawValue>(setup, Settings { tokens: Tokens::Used, ..DEFAULT })),
    serve: None,
};

/// The server alone in the dialect of LSP, under a client that writes its frames by hand. It parses and writes texts.
pub const SERVER: Competitor = Competitor {
    name: Name { configuration: SERVER_ALONE, ..COMPETITOR.name },
    open: |setup| Box::pin(generic_driver::open(ServerAlone(Handlers::Tasks), setup)),
    serve: Some(|setup| Box::pin(generic_driver::serve(ServerAlone(Handlers::Tasks), setup))),
};

/// The same with quick handlers.
pub const QUICK_SERVER: Competitor = Competitor {
    name: Name { configuration: SERVER_ALONE_QUICK, ..COMPETITOR.name },
    open: |setup| Box::pin(generic_driver::open(ServerAlone(Handlers::Quick), setup)),
    serve: Some(|setup| Box::pin(generic_driver::serve(ServerAlone(Handlers::Quick), setup))),
};

#[derive(Clone, Copy, Debug)]
struct ServerAlone(Handlers);

impl Halves for ServerAlone {
    async fn serve<E: End>(self, end: E, slots: usize, signals: Arc<Signals>) {
        let (input, output) = end.split();
        let echo = |_: CallContext, [text]: [String; 1]| async move { Ok(text) };
        // The raw client asserts that a cancelled request is answered as cancelled.
        let park = move |context: CallContext, _: Box<RawValue>| {
            let signals = Arc::clone(&signals);
            async move {
                let _waiting = signals.wait();
                Ok(context.run_until_cancelled(std::future::pending::<()>()).await?)
            }
        };
        let initialize = |_: CallContext, _: Box<RawValue>| async { Ok(json!({"capabilities": {}})) };
        let router = Router::new().method("initialize", initialize);
        let router = match self.0 {
            Handlers::Tasks => router.method("echo", echo).method("park", park),
            Handlers::Quick => router.quick("echo", echo).quick("park", park),
        };
        let serving = Peer::builder(LSP).limits(limits(slots)).serve(router).role(Role::Server);
        let peer = serving.attach(ByteStream::new(input, output).into_link()).expect("the runtime runs");
        let _ = peer.closed().await;
    }

    async fn connect<E: End>(self, end: E, slots: usize) -> (impl Library, Tasks) {
        lsp_client::connect(end, slots).await
    }
}

/// Whether callers and handlers have tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    Unused,
    Used,
}

/// How the handlers are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handlers {
    Tasks,
    Quick,
}

/// The settings of a connection.
#[derive(Clone, Copy, Debug)]
struct Settings {
    declare: Declaration,
    tokens: Tokens,
    handlers: Handlers,
}

const DEFAULT: Settings =
    Settings { declare: Declaration::Declared, tokens: Tokens::Unused, handlers: Handlers::Tasks };

/// The client's side.
struct Rescind<T> {
    client: Peer,
    slots: usize,
    settings: Settings,
    /// A client that writes frames by hand, with a separate server. It is opened when it is needed, so that a
    /// connection is not counted as two.
    by_hand: Mutex<Option<Frames>>,
    /// The parameters of that server. In memory only.
    of_hand: Option<(Limits, Arc<Signals>)>,
    text: PhantomData<T>,
}

async fn open<T: Echoed>(setup: Setup, settings: Settings) -> Box<dyn Subject> {
    let (limits, signals) = (limits(setup.slots), Arc::new(Signals::default()));
    let (link, server) = match setup.ends {
        Ends::Memory => {
            let (client, server) = memory_pair();
            serving(server, &limits, &signals, settings);
            (client, None)
        }
        Ends::Pipes { input, output, server } => (floors::link(input, output).await, Some(server)),
    };
    // The client serves too: the children of a tree alternate between the sides.
    let client = Peer::builder(ACP)
        .limits(limits.clone())
        .serve(router(&signals, settings.handlers))
        .role(Role::Client)
        .declare_cancellation(settings.declare)
        .attach(link)
        .expect("the runtime runs");
    let of_hand = server.is_none().then(|| (limits, Arc::clone(&signals)));
    let (slots, by_hand, text) = (setup.slots, Mutex::new(None), PhantomData::<T>);
    let rescind = Rescind { client, slots, settings, by_hand, of_hand, text };
    match server {
        None => Driven::boxed(rescind, Watch::Here(signals), Tasks::default()),
        Some(server) => Driven::of_far(rescind, server, signals, Tasks::default()).await,
    }
}

async fn serve(setup: Setup, handlers: Handlers) {
    if let Ends::Pipes { input, output, .. } = setup.ends {
        let signals = Arc::new(Signals::default());
        Arc::clone(&signals).answer();
        let link = floors::link(input, output).await;
        let settings = Settings { handlers, ..DEFAULT };
        let _ = serving(link, &limits(setup.slots), &signals, settings).closed().await;
    }
}

fn serving(link: Link, limits: &Limits, signals: &Arc<Signals>, settings: Settings) -> Peer {
    let serving = Peer::builder(ACP)
        .limits(limits.clone())
        .serve(router(signals, settings.handlers))
        .role(Role::Server)
        .declare_cancellation(settings.declare);
    serving.attach(link).expect("the runtime runs")
}

/// Limits that allow exactly this many handlers at once.
fn limits(slots: usize) -> Limits {
    let mut limits = Limits::default();
    limits.max_running_handlers = slots;
    limits.max_calls = limits.max_calls.max(slots);
    limits.max_outbox_frames = limits.max_outbox_frames.max(slots);
    // A request counts as a few hundred bytes beside its text.
    limits.max_memory_bytes = limits.max_memory_bytes.max(slots.saturating_mul(2048));
    limits
}

/// The methods of both sides.
fn router(signals: &Arc<Signals>, handlers: Handlers) -> Router {
    let (parking, branching) = (Arc::clone(signals), Arc::clone(signals));
    let echo = |_: CallContext, params: Box<RawValue>| async move { Ok(params) };
    let echo_text = |_: CallContext, [text]: [String; 1]| async move { Ok(text) };
    let echo_with_token = |context: CallContext, params: Box<RawValue>| async move {
        let token = context.token();
        assert!(!token.is_cancelled(), "nobody cancels");
        Ok(params)
    };
    let park = move |context, _: Box<RawValue>| parked(context, Arc::clone(&parking));
    // `[depth, fan_out]`: this many children, each with one level less.
    let branch = move |context: CallContext, [depth, fan_out]: [usize; 2]| {
        branched(context, Arc::clone(&branching), depth, fan_out)
    };
    let router = Router::new();
    match handlers {
        Handlers::Tasks => router
            .method("echo", echo)
            .method("echo text", echo_text)
            .method("echo with token", echo_with_token)
            .method("park", park)
            .method("branch", branch),
        Handlers::Quick => router
            .quick("echo", echo)
            .quick("echo text", echo_text)
            .quick("echo with token", echo_with_token)
            .quick("park", park)
            .quick("branch", branch),
    }
}

async fn branched(
    context: CallContext,
    signals: Arc<Signals>,
    depth: usize,
    fan_out: usize,
) -> Result<(), HandlerError> {
    let children = if depth == 0 { 0 } else { fan_out };
    let mut open: Vec<Call<()>> = Vec::with_capacity(children);
    for number in 1..=children {
        let child = context.call("branch", &[depth - 1, fan_out]).start();
        open.push(child.map_err(too_many)?);
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    parked(context, signals).await?;
    // Each is dropped under the connection's lock, as each was started.
    while !open.is_empty() {
        open.truncate(open.len().saturating_sub(64));
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Not an `async` block: its size is part of a request's memory.
async fn parked(context: CallContext, signals: Arc<Signals>) -> Result<(), HandlerError> {
    let _waiting = signals.wait();
    context.cancelled().await;
    Ok(())
}

fn too_many(error: CallError) -> HandlerError {
    panic!("a child starts: {error}")
}

/// The type of a call's params.
trait Echoed: Text {
    fn echo(self, client: &Peer, tokens: Tokens) -> impl Future<Output = usize> + Send;
}

impl Echoed for &'static RawValue {
    async fn echo(self, client: &Peer, tokens: Tokens) -> usize {
        let echoed: Result<Box<RawValue>, _> = match tokens {
            Tokens::Unused => client.call("echo", self).await,
            Tokens::Used => client.call("echo with token", self).cancel_on(CancellationToken::new()).await,
        };
        echoed.expect("the server echoes").get().len()
    }
}

impl Echoed for &'static str {
    async fn echo(self, client: &Peer, _: Tokens) -> usize {
        client.call::<_, String>("echo text", &[self]).await.expect("the server echoes").len()
    }
}

impl<T> Rescind<T> {
    /// The client that writes by hand. In memory only.
    async fn hand(&self) -> Option<MutexGuard<'_, Option<Frames>>> {
        let (limits, signals) = self.of_hand.as_ref()?;
        let mut by_hand = self.by_hand.lock().await;
        by_hand.get_or_insert_with(|| {
            let (hand, server) = memory_pair();
            serving(server, limits, signals, self.settings);
            Frames::new(hand)
        });
        Some(by_hand)
    }
}

impl<T: Echoed> Library for Rescind<T> {
    type Text = T;
    type Parked = Call<()>;

    fn slots(&self) -> Slots {
        Slots::Wait(self.slots)
    }

    async fn echo(&self, text: T) -> usize {
        text.echo(&self.client, self.settings.tokens).await
    }

    async fn park(&self) -> Call<()> {
        self.client.call("park", &[0]).start().expect("a call starts")
    }

    async fn cancel(&self, parked: Call<()>) -> Returned {
        parked.canceller().cancel("");
        ended(parked).await;
        Returned::default()
    }

    async fn cancel_by_hand(&self) -> Option<u64> {
        let params = params(1);
        let mut by_hand = self.hand().await?;
        let hand = by_hand.as_mut()?;
        let parked = hand.ask("park", &params).await;
        hand.ask("echo", &params).await;
        hand.answer().await;
        let begin = clock();
        hand.send_cancel(parked).await;
        let (answered, _) = hand.answer().await;
        let took = clock() - begin;
        assert_eq!(answered, parked);
        Some(took)
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        let mut by_hand = self.hand().await;
        let Some(hand) = by_hand.as_deref_mut().and_then(Option::as_mut) else { return Told::None };
        hand.unknown_cancels(count).await;
        Told::Measured
    }

    fn root(&self, tree: Tree) -> Option<impl Future<Output = Call<()>> + Send> {
        let root = self.client.call("branch", &[tree.depth, tree.fan_out]).start();
        Some(std::future::ready(root.expect("a call starts")))
    }

    fn deadline(&self, after: Duration) -> Option<impl Future<Output = Due> + Send> {
        let call = self.client.call("park", &[0]).timeout(after).start().expect("a call starts");
        Some(std::future::ready(Due(Box::pin(ended(call)))))
    }
}

/// Waits for a cancelled call, which ran or waited for its slot.
async fn ended(call: Call<()>) {
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::CompletedAfterCancel(()) | Outcome::Cancelled(_)), "{outcome:?}");
}
