//! The operations of every library: this one, the floors and the others.
//!
//! A [`Competitor`] is one library in one configuration. It opens a [`Subject`], which is one connection with a
//! client and a server of that library. The harness uses only this interface: it requests a batch of work and gets a
//! time for each request in it, so that the cost of the call through the trait occurs once in a batch and not in
//! every request.
//!
//! Rules, so that the figures can be compared:
//! - Times come from [`clock`](crate::clock) and begin directly before the library's own call.
//! - A server echoes its params. A waiting handler waits for its cancel and then answers with the time on
//!   [`clock`](crate::clock) at its signal, if its library allows a cancelled handler to answer.
//! - An operation that a library does not have keeps its default, which shows as "none". An operation that it has and
//!   does not do in time is [`Told::Never`]; wait for it with [`or_never`].
//! - A subject is opened again for each workload, so that the remains of one do not affect the next.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::clock;

/// The result of an operation. It may be polled on any worker.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An answer that takes this long counts as never.
pub const NEVER: Duration = Duration::from_secs(2);

/// The same in a run that only checks that everything runs, in which many answers never come.
const NEVER_IN_SHORT: Duration = Duration::from_millis(500);

/// The same if instructions are counted, which is fifty times slower.
const NEVER_COUNTED: Duration = Duration::from_secs(60);

/// The mode of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It measures.
    Full,
    /// It only checks that everything runs.
    Short,
    /// Its instructions are counted.
    Counted,
}

static PACE: AtomicU8 = AtomicU8::new(Pace::Full as u8);

/// Sets the mode, which determines how long missing answers are awaited from now on.
pub fn set_pace(pace: Pace) {
    PACE.store(pace as u8, Ordering::Relaxed);
}

/// Whether this run only checks that everything runs.
pub fn is_short() -> bool {
    PACE.load(Ordering::Relaxed) == Pace::Short as u8
}

/// The waiting time for a library that is known to be silent in some workloads.
fn patience() -> Duration {
    match PACE.load(Ordering::Relaxed) {
        pace if pace == Pace::Short as u8 => NEVER_IN_SHORT,
        pace if pace == Pace::Counted as u8 => NEVER_COUNTED,
        _ => NEVER,
    }
}

/// How many requests [`Subject::pairs`] has in flight at once.
pub const BURST: usize = 100;

/// The name of a competitor in the table and on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name of its package.
    pub library: &'static str,
    /// The measured version.
    pub version: &'static str,
    /// "default", "best", or its difference in a few words.
    pub configuration: &'static str,
    /// What its transport in memory carries.
    pub carries: Carries,
}

/// What is passed between the sides in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Messages as the bytes of their JSON.
    Bytes,
    /// Values, passed without serializing or parsing them, which no transport between two programs can avoid.
    Values,
}

impl Carries {
    /// The note about it next to a figure in the tables.
    #[must_use]
    pub const fn note(self) -> &'static str {
        match self {
            Self::Bytes => "",
            Self::Values => "hands values over, writes no bytes",
        }
    }
}

/// One library in one configuration.
#[derive(Clone, Copy)]
pub struct Competitor {
    /// Its name.
    pub name: Name,
    /// Opens a connection: both sides in this process, or only the client of a server in a child process.
    pub open: fn(Setup) -> BoxFuture<'static, Box<dyn Subject>>,
    /// Serves in a child process until its input ends. `None`: it is measured in memory only.
    pub serve: Option<fn(Setup) -> BoxFuture<'static, ()>>,
}

impl std::fmt::Debug for Competitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Competitor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a connection is opened.
#[derive(Debug)]
pub struct Setup {
    /// The transport.
    pub ends: Ends,
    /// How many handlers may run at once, if the library has such a limit: a few for W4, otherwise more than the
    /// workload needs. A configuration called "default" keeps its default.
    pub slots: usize,
}

/// This process's end of the transport.
#[derive(Debug)]
pub enum Ends {
    /// The library's own transport in memory, or a duplex of 64 KiB if it has none.
    Memory,
    /// Pipes to the other process.
    Pipes {
        /// The input of this process.
        input: OwnedFd,
        /// The output of this process.
        output: OwnedFd,
        /// The process that serves: this one, or the other.
        server: u32,
    },
}

/// A number of echoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Bytes of the text in the params; see [`params`](crate::params).
    pub bytes: usize,
    /// Requests in flight at once.
    pub in_flight: usize,
    /// Requests in total.
    pub count: usize,
}

/// The times of cancels, in nanoseconds. An empty list shows as "none".
#[derive(Clone, Debug, Default)]
pub struct CancelSamples {
    /// From the cancel to the handler's signal.
    pub to_handler: Vec<u64>,
    /// From the cancel to the caller's return.
    pub to_caller: Vec<u64>,
    /// From a written cancel to the received answer, for a client that writes frames by hand.
    pub to_answer: Vec<u64>,
}

/// Whether an operation was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The samples were recorded.
    Measured,
    /// The library does not have this operation.
    None,
    /// It was not done within [`NEVER`]. The subject is not used again.
    Never,
}

impl Told {
    /// Its text in the tables. `None` if there are samples.
    #[must_use]
    pub const fn said(self) -> Option<&'static str> {
        match self {
            Self::Measured => None,
            Self::None => Some("none"),
            Self::Never => Some("never"),
        }
    }
}

/// The request that is cancelled while every slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// One whose handler runs.
    Running,
    /// One that waits for a slot.
    Queued,
}

/// The result of a cancel while every slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saturated {
    /// Each was answered, and the samples were recorded.
    Answered,
    /// A request without a free slot is refused immediately, so there is none to cancel.
    Told,
    /// No answer within [`NEVER`].
    Never,
    /// There is no limit, so a slot is always free.
    NoLimit,
    /// It cannot cancel.
    None,
}

impl Saturated {
    /// Its text in the tables. `None` if there are samples.
    #[must_use]
    pub const fn said(self) -> Option<&'static str> {
        match self {
            Self::Answered => None,
            Self::Told => Some("told"),
            Self::Never => Some("never"),
            Self::NoLimit => Some("no limit"),
            Self::None => Some("none"),
        }
    }
}

/// A tree of requests under one root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Levels below the root.
    pub depth: usize,
    /// The number of children of each request that has any.
    pub fan_out: usize,
}

impl Tree {
    /// The number of requests in it, without the root.
    #[must_use]
    pub fn requests(self) -> usize {
        (1..=self.depth).map(|level| self.fan_out.pow(u32::try_from(level).unwrap_or(u32::MAX))).sum()
    }
}

/// The times of the cancel of a tree, in nanoseconds from the root's cancel.
#[derive(Clone, Debug, Default)]
pub struct Cascade {
    /// To the signal of the last handler in the tree.
    pub to_last: u64,
    /// To the return of the root's caller.
    pub to_caller: u64,
    /// Round trips of other requests on the connection at the same time.
    pub meanwhile: Vec<u64>,
}

/// One connection of one library, with its client and its server. Every operation except [`echo`](Self::echo) has a
/// default: the library does not have it.
pub trait Subject: Send {
    /// Makes round trips and records how long each took. [`in_flight`] repeats them.
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()>;

    /// W3: cancels this many requests, one at a time, each when its handler waits for the cancel.
    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        let _ = (count, took);
        Box::pin(async { Told::None })
    }

    /// W4: takes every slot with waiting requests (and queues some more), then cancels this many of the requested
    /// kind, one at a time. A time is from the cancel to the caller's return. [`Setup::slots`] was small.
    fn saturate<'a>(
        &'a mut self,
        which: Which,
        count: usize,
        took: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Saturated> {
        let _ = (which, count, took);
        Box::pin(async { Saturated::None })
    }

    /// W8: puts this many requests in flight and returns when all their handlers wait. They stay, and the connection
    /// continues to echo. The harness counts the heap bytes of this state, so the subject must keep only what an
    /// application has to keep: what the library gives its caller to wait with, in a `Vec` (or in `FuturesUnordered`
    /// if it must be polled), with params of one byte.
    fn park(&mut self, requests: usize) -> BoxFuture<'_, Told> {
        let _ = requests;
        Box::pin(async { Told::None })
    }

    /// Ends what [`park`](Self::park) started: every request is cancelled and every caller has returned.
    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// W6: this many requests, each cancelled. [`BURST`] requests are sent, an echo after them shows that they have
    /// reached their handlers, then each is cancelled, then every caller is awaited. `count` is a multiple of
    /// [`BURST`].
    fn pairs(&mut self, count: usize) -> BoxFuture<'_, Told> {
        let _ = count;
        Box::pin(async { Told::None })
    }

    /// W6: sends this many cancels of unknown requests, by hand if the library's client cannot, and waits for an echo
    /// after them. In memory only: the harness counts what they leave.
    fn unknown_cancels(&mut self, count: usize) -> BoxFuture<'_, Told> {
        let _ = count;
        Box::pin(async { Told::None })
    }

    /// W7: starts a tree of requests that all wait, then cancels its root. If `meanwhile` is set, echoes run at the
    /// same time from the cancel on.
    ///
    /// # Errors
    /// Why there are no times.
    fn cascade(&mut self, tree: Tree, meanwhile: bool) -> BoxFuture<'_, Result<Cascade, Told>> {
        let _ = (tree, meanwhile);
        Box::pin(async { Err(Told::None) })
    }

    /// W9: starts this many waiting requests, each with this deadline, and records how much later than its deadline
    /// each caller returned.
    fn deadlines<'a>(
        &'a mut self,
        count: usize,
        after: Duration,
        late: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Told> {
        let _ = (count, after, late);
        Box::pin(async { Told::None })
    }
}

/// Repeats a request `echo.count` times, `echo.in_flight` at once, and records how long each took. One at a time adds
/// no cost to the request.
pub async fn in_flight<F: Future<Output = ()>>(
    echo: Echo,
    took: &mut Vec<u64>,
    mut request: impl FnMut() -> F,
) {
    if echo.in_flight <= 1 {
        for _ in 0..echo.count {
            let begin = clock();
            request().await;
            took.push(clock() - begin);
        }
        return;
    }
    let mut timed = |begun: &mut usize| {
        *begun += 1;
        let request = request();
        async move {
            let begin = clock();
            request.await;
            clock() - begin
        }
    };
    let (mut open, mut begun) = (FuturesUnordered::new(), 0);
    while begun < echo.in_flight.min(echo.count) {
        open.push(timed(&mut begun));
    }
    while let Some(nanos) = open.next().await {
        took.push(nanos);
        if begun < echo.count {
            open.push(timed(&mut begun));
        }
    }
}

/// Waits for something that may never come. Returns `None` after [`NEVER`].
pub async fn or_never<T>(what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(NEVER, what).await.ok()
}

/// The same for another library, which is silent in some workloads. Returns `None` after [`NEVER`], or sooner in a
/// short run.
pub async fn or_silent<T>(what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(patience(), what).await.ok()
}
