//! What an adapter writes for its library; [`Driven`](super::Driven) makes a subject of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;

use crate::subject::{BoxFuture, Told, Tree};

/// The most handlers that run at once, and what becomes of a request beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// It waits.
    Wait(usize),
    /// It is refused at once.
    Refuse(usize),
    /// There is no such limit.
    Unlimited,
}

/// What a caller whose request was cancelled came back with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Returned {
    /// When the answer was read off the wire, by a client that reads it by hand.
    pub answer_read: Option<u64>,
}

/// What is echoed: made once, so that a caller who has it need not copy it for each request.
pub trait Text: Copy + Send + Sync + 'static {
    /// One of so many bytes, which lives as long as the program.
    fn new(bytes: usize) -> Self;

    /// How long it is, and what comes back must be.
    fn length(self) -> usize;
}

type Made<T> = Mutex<BTreeMap<usize, T>>;

fn once<T: Copy>(made: &Made<T>, bytes: usize, make: impl FnOnce() -> T) -> T {
    *made.lock().unwrap_or_else(PoisonError::into_inner).entry(bytes).or_insert_with(make)
}

/// Written and parsed for each request.
impl Text for &'static str {
    fn new(bytes: usize) -> Self {
        static MADE: Made<&str> = Made::new(BTreeMap::new());
        once(&MADE, bytes, || "x".repeat(bytes).leak())
    }

    fn length(self) -> usize {
        self.len()
    }
}

/// JSON already.
impl Text for &'static RawValue {
    fn new(bytes: usize) -> Self {
        static MADE: Made<&RawValue> = Made::new(BTreeMap::new());
        once(&MADE, bytes, || Box::leak(crate::params(bytes)))
    }

    fn length(self) -> usize {
        self.get().len()
    }
}

/// Ends when the caller of a request returns whose deadline passed.
pub struct Due(pub BoxFuture<'static, ()>);

/// One library, connected: a client and the server it talks to.
pub trait Library: Send + Sync + 'static {
    /// What its echoes carry.
    type Text: Text;

    /// A request whose handler waits for its cancel, as the library's caller holds it. What must be polled is in a box: no
    /// smaller thing can hold a future that has begun.
    type Parked: Send + 'static;

    /// Whether a caller can cancel a request so that its handler hears of it.
    const CANCELS: bool = true;

    /// The limit in force.
    fn slots(&self) -> Slots;

    /// Makes one round trip, and says how long the text was that came back.
    fn echo(&self, text: Self::Text) -> impl Future<Output = usize> + Send;

    /// Sends a request whose handler waits; returns once the library has it.
    fn park(&self) -> impl Future<Output = Self::Parked> + Send;

    /// Cancels it, on the first poll; returns when its caller does.
    fn cancel(&self, parked: Self::Parked) -> impl Future<Output = Returned> + Send;

    /// Ends parked requests where [`CANCELS`](Self::CANCELS) is false: the handlers are let go, and their callers return.
    fn let_go(&self, parked: Vec<Self::Parked>) -> impl Future<Output = ()> + Send {
        drop(parked);
        async {}
    }

    /// How long it takes from a cancel written by hand to the answer read so, where [`cancel`](Self::cancel) does not tell.
    fn cancel_by_hand(&self) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Sends so many cancels of requests that never were, and waits until the server has read them.
    fn unknown_cancels(&self, count: usize) -> impl Future<Output = Told> + Send {
        let _ = count;
        async { Told::None }
    }

    /// Starts a request whose handler starts this tree below it and then waits for the cancel, as all in the tree do. `None`
    /// where a cancel does not go down by itself.
    fn root(&self, tree: Tree) -> Option<impl Future<Output = Self::Parked> + Send> {
        let _ = tree;
        None::<std::future::Ready<Self::Parked>>
    }

    /// Starts a parked request with a deadline of its own. `None` where requests have none.
    fn deadline(&self, after: Duration) -> Option<impl Future<Output = Due> + Send> {
        let _ = after;
        None::<std::future::Ready<Due>>
    }
}

/// Sends these cancels of what never was one after another, and an echo behind each few: a queue of the library's must not grow
/// by our haste.
#[cfg(feature = "peers")]
pub(crate) async fn one_by_one<L: Library, F: Future<Output = ()>>(
    library: &L,
    count: usize,
    mut cancel: impl FnMut() -> F,
) -> Told {
    let text = L::Text::new(1);
    for sent in 1..=count {
        cancel().await;
        if sent.is_multiple_of(super::HASTE) {
            library.echo(text).await;
        }
    }
    library.echo(text).await;
    Told::Measured
}

/// Polls a future that must be polled to begin, once. The runtime has a task yield after so many operations, which would leave it
/// unsent, and nobody polls it again before its cancel.
#[cfg(feature = "peers")]
pub(crate) async fn begun<F: Future + Unpin>(mut future: F) -> F {
    std::future::poll_fn(|cx| {
        let polled = std::pin::pin!(tokio::task::unconstrained(&mut future)).poll(cx);
        assert!(polled.is_pending(), "a parked request is not answered by itself");
        std::task::Poll::Ready(())
    })
    .await;
    future
}
