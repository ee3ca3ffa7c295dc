//! What every library is asked to do, ours, the floors and the others alike.
//!
//! A [`Competitor`] is one library in one configuration; it opens a [`Subject`], which is one connection with a client and a
//! server of that library. The harness never looks inside: it asks for a batch of work and gets a time for each request of it,
//! so that the call through the trait is paid once a batch and not once a request.
//!
//! Rules, so that the figures compare:
//! - Times come from [`clock`](crate::clock) and begin right before the library's own call.
//! - A server echoes its params. A parked handler waits for its cancel and then answers with the [`clock`](crate::clock) it
//!   saw at the signal, where its library lets a cancelled handler answer.
//! - What a library does not have is left to the default: it shows as "none". What it has and does not do in time is
//!   [`Told::Never`]; wait for it with [`or_never`].
//! - A subject is opened anew for each workload, so that what one leaves behind does not reach the next.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::clock;

/// What an operation returns: it may be polled on any worker.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// So long an answer is waited for before it counts as never.
pub const NEVER: Duration = Duration::from_secs(2);

/// The same in a run that only shows that all of it runs: what never comes is waited for often.
const NEVER_IN_SHORT: Duration = Duration::from_millis(500);

/// The same where instructions are counted, which is fifty times slower.
const NEVER_COUNTED: Duration = Duration::from_secs(60);

/// How the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It measures.
    Full,
    /// It only shows that all of it runs.
    Short,
    /// Its instructions are counted.
    Counted,
}

static PACE: AtomicU8 = AtomicU8::new(Pace::Full as u8);

/// From here on, who never answers is waited for as this wants it.
pub fn set_pace(pace: Pace) {
    PACE.store(pace as u8, Ordering::Relaxed);
}

/// Whether this run only shows that all of it runs.
pub fn is_short() -> bool {
    PACE.load(Ordering::Relaxed) == Pace::Short as u8
}

/// How long someone is waited for who is known to be silent now and then.
fn patience() -> Duration {
    match PACE.load(Ordering::Relaxed) {
        pace if pace == Pace::Short as u8 => NEVER_IN_SHORT,
        pace if pace == Pace::Counted as u8 => NEVER_COUNTED,
        _ => NEVER,
    }
}

/// How many requests [`Subject::pairs`] has in flight at once.
pub const BURST: usize = 100;

/// Who it is, in the table and on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// As its package is called.
    pub library: &'static str,
    /// As measured.
    pub version: &'static str,
    /// "default", "best", or what sets it apart in a few words.
    pub configuration: &'static str,
    /// What its wire in memory carries.
    pub carries: Carries,
}

/// What goes from one side to the other in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Messages as the bytes of their JSON.
    Bytes,
    /// Values, handed over as they are: nothing is written or parsed, which no wire between two programs can spare.
    Values,
}

impl Carries {
    /// What the tables say of it beside a figure.
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
    /// Who it is.
    pub name: Name,
    /// Opens a connection: both sides in this process, or only the client of a server in a child.
    pub open: fn(Setup) -> BoxFuture<'static, Box<dyn Subject>>,
    /// Serves in a child process until its input ends. `None`: it is measured in memory only.
    pub serve: Option<fn(Setup) -> BoxFuture<'static, ()>>,
}

impl std::fmt::Debug for Competitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Competitor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a connection is to be opened.
#[derive(Debug)]
pub struct Setup {
    /// The wire.
    pub ends: Ends,
    /// How many handlers are to run at once, where the library has such a limit: a few for W4, else more than the workload
    /// needs. A configuration called "default" keeps its default.
    pub slots: usize,
}

/// This process's end of the wire.
#[derive(Debug)]
pub enum Ends {
    /// The library's own wire in memory, or a duplex of 64 KiB where it has none.
    Memory,
    /// Pipes to the other process.
    Pipes {
        /// What this process reads.
        input: OwnedFd,
        /// What this process writes.
        output: OwnedFd,
        /// The process that serves: this one, or the other.
        server: u32,
    },
}

/// Echoes to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Bytes of the text in the params; see [`params`](crate::params).
    pub bytes: usize,
    /// Requests in flight at once.
    pub in_flight: usize,
    /// Requests in all.
    pub count: usize,
}

/// How long cancels took, in nanoseconds each. A list that stays empty shows as "none".
#[derive(Clone, Debug, Default)]
pub struct CancelSamples {
    /// From the cancel to the handler's signal.
    pub to_handler: Vec<u64>,
    /// From the cancel to the caller's return.
    pub to_caller: Vec<u64>,
    /// From a cancel written to the answer read, by a client that writes frames by hand.
    pub to_answer: Vec<u64>,
}

/// Whether it did what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The samples are there.
    Measured,
    /// The library has no such thing.
    None,
    /// It was not done within [`NEVER`]. The subject is not asked again.
    Never,
}

impl Told {
    /// What the tables say of it; `None` where there are samples.
    #[must_use]
    pub const fn said(self) -> Option<&'static str> {
        match self {
            Self::Measured => None,
            Self::None => Some("none"),
            Self::Never => Some("never"),
        }
    }
}

/// Which request is cancelled while every slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// One whose handler runs.
    Running,
    /// One that waits for a slot.
    Queued,
}

/// What came of a cancel while every slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saturated {
    /// Each was answered; the samples are there.
    Answered,
    /// A request that finds no slot is refused at once, so there is none to cancel.
    Told,
    /// No answer within [`NEVER`].
    Never,
    /// There is no limit, so no slot is ever missing.
    NoLimit,
    /// It cannot cancel.
    None,
}

impl Saturated {
    /// What the tables say of it; `None` where there are samples.
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
    /// Children of each request that has some.
    pub fan_out: usize,
}

impl Tree {
    /// Requests in it, the root not counted.
    #[must_use]
    pub fn requests(self) -> usize {
        (1..=self.depth).map(|level| self.fan_out.pow(u32::try_from(level).unwrap_or(u32::MAX))).sum()
    }
}

/// How a tree went down, in nanoseconds from the root's cancel.
#[derive(Clone, Debug, Default)]
pub struct Cascade {
    /// To the signal of the last handler in the tree.
    pub to_last: u64,
    /// To the return of the root's caller.
    pub to_caller: u64,
    /// Round trips of other requests on the connection meanwhile.
    pub meanwhile: Vec<u64>,
}

/// One connection of one library, with its client and its server. Every operation but [`echo`](Self::echo) has a default:
/// the library does not have it.
pub trait Subject: Send {
    /// Makes round trips and adds how long each took. [`in_flight`] does the repeating.
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()>;

    /// W3: cancels so many requests, one at a time, each after its handler waits for the cancel.
    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        let _ = (count, took);
        Box::pin(async { Told::None })
    }

    /// W4: takes every slot with parked requests (and queues some more), then cancels so many of those asked for, one at a
    /// time; a time is from the cancel to the caller's return. [`Setup::slots`] was small.
    fn saturate<'a>(
        &'a mut self,
        which: Which,
        count: usize,
        took: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Saturated> {
        let _ = (which, count, took);
        Box::pin(async { Saturated::None })
    }

    /// W8: puts so many requests in flight and returns once all their handlers wait. They stay, and the connection goes on
    /// echoing. The harness counts the bytes of heap this leaves, so nothing may be kept that a user need not keep: what the
    /// library gives its caller to wait with, in a `Vec` (or in `FuturesUnordered` where it must be polled), with params of one
    /// byte.
    fn park(&mut self, requests: usize) -> BoxFuture<'_, Told> {
        let _ = requests;
        Box::pin(async { Told::None })
    }

    /// Ends what [`park`](Self::park) left: every request is cancelled and every caller has returned.
    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// W6: so many requests, each cancelled: [`BURST`] are sent, an echo behind them shows that they are at their handlers, then
    /// each is cancelled, then every caller is waited for. `count` is a multiple of [`BURST`].
    fn pairs(&mut self, count: usize) -> BoxFuture<'_, Told> {
        let _ = count;
        Box::pin(async { Told::None })
    }

    /// W6: sends so many cancels of requests that never were, by hand where the library's client cannot, and waits for an
    /// echo behind them. Memory only: the harness counts what they leave.
    fn unknown_cancels(&mut self, count: usize) -> BoxFuture<'_, Told> {
        let _ = count;
        Box::pin(async { Told::None })
    }

    /// W7: raises a tree of requests that all wait, then cancels its root. `meanwhile` echoes go on beside it from the cancel on.
    ///
    /// # Errors
    /// Why there are no times.
    fn cascade(&mut self, tree: Tree, meanwhile: bool) -> BoxFuture<'_, Result<Cascade, Told>> {
        let _ = (tree, meanwhile);
        Box::pin(async { Err(Told::None) })
    }

    /// W9: starts so many parked requests with this deadline each, and adds how much later than its deadline each caller
    /// returned.
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

/// Repeats a request `echo.count` times, `echo.in_flight` at once, and adds how long each took. One at a time costs nothing
/// beside the request.
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

/// Waits for what may never come; `None` after [`NEVER`].
pub async fn or_never<T>(what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(NEVER, what).await.ok()
}

/// The same for someone else's library, which some workloads do silence: `None` after [`NEVER`], or sooner in a short run.
pub async fn or_silent<T>(what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(patience(), what).await.ok()
}
