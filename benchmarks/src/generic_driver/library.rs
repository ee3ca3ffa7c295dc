//! The trait that an adapter implements for its library. [`Driven`](super::Driven) makes a subject of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;

use crate::subject::{BoxFuture, Told, Tree};

/// The most handlers that run at once, and how a request above the limit is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// It waits for a slot.
    Wait(usize),
    /// It is refused immediately.
    Refuse(usize),
    /// There is no such limit.
    Unlimited,
}

/// The result of a caller whose request was cancelled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Returned {
    /// When a client that reads frames by hand received the answer.
    pub answer_read: Option<u64>,
}

/// The text of an echo. It is made once, so that a caller need not copy it for each request.
pub trait Text: Copy + Send + Sync + 'static {
    /// A text of this many bytes, which is never freed.
    fn new(bytes: usize) -> Self;

    /// Its length, which the answer must have too.
    fn length(self) -> usize;
}

type Made<T> = Mutex<BTreeMap<usize, T>>;

fn once<T: Copy>(made: &Made<T>, bytes: usize, make: impl FnOnce() -> T) -> T {
    *made.lock().unwrap_or_else(PoisonError::into_inner).entry(bytes).or_insert_with(make)
}

/// Serialized and parsed for each request.
impl Text for &'static str {
    fn new(bytes: usize) -> Self {
        static MADE: Made<&str> = Made::new(BTreeMap::new());
        once(&MADE, bytes, || "x".repeat(bytes).leak())
    }

    fn length(self) -> usize {
        self.len()
    }
}

/// Already JSON.
impl Text for &'static RawValue {
    fn new(bytes: usize) -> Self {
        static MADE: Made<&RawValue> = Made::new(BTreeMap::new());
        once(&MADE, bytes, || Box::leak(crate::params(bytes)))
    }

    fn length(self) -> usize {
        self.get().len()
    }
}

/// Completes when the caller of a request with an expired deadline returns.
pub struct Due(pub BoxFuture<'static, ()>);

/// A connected library: a client and its server.
pub trait Library: Send + Sync + 'static {
    /// The text of its echoes.
    type Text: Text;

    /// A request whose handler waits for its cancel, as the caller holds it. A future that must be polled is boxed:
    /// no smaller type can hold a future that has started.
    type Parked: Send + 'static;

    /// Whether a caller can cancel a request so that its handler gets a signal.
    const CANCELS: bool = true;

    /// The limit in force.
    fn slots(&self) -> Slots;

    /// Makes one round trip, and returns the length of the answered text.
    fn echo(&self, text: Self::Text) -> impl Future<Output = usize> + Send;

    /// Sends a request whose handler waits. Returns when the library has accepted it.
    fn park(&self) -> impl Future<Output = Self::Parked> + Send;

    /// Cancels it with the first poll. Returns when its caller does.
    fn cancel(&self, parked: Self::Parked) -> impl Future<Output = Returned> + Send;

    /// Ends waiting requests if [`CANCELS`](Self::CANCELS) is false: the handlers end, and their callers return.
    fn let_go(&self, parked: Vec<Self::Parked>) -> impl Future<Output = ()> + Send {
        drop(parked);
        async {}
    }

    /// The time from a cancel that is written by hand to the received answer, if [`cancel`](Self::cancel) does not
    /// return it.
    fn cancel_by_hand(&self) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Sends this many cancels of unknown requests, and waits until the server has read them.
    fn unknown_cancels(&self, count: usize) -> impl Future<Output = Told> + Send {
        let _ = count;
        async { Told::None }
    }

    /// Starts a request whose handler starts this tree of requests and then waits for its cancel, as all handlers in
    /// the tree do. `None` if the library does not pass a cancel on to the children.
    fn root(&self, tree: Tree) -> Option<impl Future<Output = Self::Parked> + Send> {
        let _ = tree;
        None::<std::future::Ready<Self::Parked>>
    }

    /// Starts a request that waits, with its own deadline. `None` if requests have no deadlines.
    fn deadline(&self, after: Duration) -> Option<impl Future<Output = Due> + Send> {
        let _ = after;
        None::<std::future::Ready<Due>>
    }
}

/// Sends these cancels of unknown requests one after another, with an echo after every few, so that the library's
/// queue does not grow because of the speed of the benchmark.
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

/// Polls a future once, because it starts with its first poll. The runtime makes a task yield after a number of
/// operations, which would leave the request unsent, and nothing polls it again before its cancel.
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
