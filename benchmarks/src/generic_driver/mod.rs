//! A [`Subject`] for any [`Library`], this one and the others: the operations are written once for all.

mod halves;
mod library;
mod signals;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::clock;
use crate::subject::{
    BURST, BoxFuture, CancelSamples, Cascade, Echo, Saturated, Subject, Told, Tree, Which, in_flight,
    or_silent,
};

pub use halves::{End, Halves, Tasks, open, serve};
pub use library::{Due, Library, Returned, Slots, Text};
#[cfg(feature = "peers")]
pub(crate) use library::{begun, one_by_one};
pub use signals::{Seen, Signals, Waiting, Watch};

/// How many requests are sent before they are awaited, so that the library's queue does not grow because of the speed
/// of the benchmark.
const HASTE: usize = 64;

/// How many requests wait for a slot in W4.
const QUEUED: usize = 4;

/// Makes the texts of an echo with this many bytes, which stay.
pub fn prepare_text(bytes: usize) {
    let _ = <&'static str>::new(bytes);
    let _ = <&'static serde_json::value::RawValue>::new(bytes);
}

/// A library as a subject.
pub struct Driven<L: Library> {
    driver: Driver<L>,
    parked: Vec<L::Parked>,
    _tasks: Tasks,
}

/// A library, and the signals of its handlers.
struct Driver<L> {
    library: L,
    watch: Watch,
}

impl<L: Library> Driven<L> {
    /// Boxed for the harness. `watch`: the signals that the server's handlers got.
    pub fn boxed(library: L, watch: Watch, tasks: Tasks) -> Box<dyn Subject> {
        Box::new(Self { driver: Driver { library, watch }, parked: Vec::new(), _tasks: tasks })
    }

    /// The same for a server in another process, which serves when it echoes. `client`: the signals of handlers on
    /// this side.
    pub async fn of_far(library: L, server: u32, client: Arc<Signals>, tasks: Tasks) -> Box<dyn Subject> {
        library.echo(L::Text::new(1)).await;
        Self::boxed(library, Watch::far(server, client), tasks)
    }
}

impl<L: Library> Driver<L> {
    async fn echoed(&self, text: L::Text) {
        assert_eq!(self.library.echo(text).await, text.length(), "an echo has the length of what was sent");
    }

    /// Returns when the server has read everything that was sent before.
    async fn heard(&self) {
        self.echoed(L::Text::new(1)).await;
    }

    /// Sends one request, and waits for its handler.
    async fn waiting(&self) -> L::Parked {
        let before = self.watch.seen().await.waiting;
        let parked = self.library.park().await;
        self.watch.until_waiting(before + 1).await;
        parked
    }

    async fn cancel_one(&self, took: &mut CancelSamples) {
        let parked = self.waiting().await;
        // The handler has reported that it waits, but on another worker it may not wait yet.
        tokio::task::yield_now().await;
        let signalled = self.watch.seen().await.signalled;
        let begin = clock();
        let returned = self.library.cancel(parked).await;
        let to_caller = clock() - begin;
        let seen = self.watch.until_signalled(signalled + 1).await;
        took.to_handler.push(seen.last - begin);
        took.to_caller.push(to_caller);
        took.to_answer.extend(returned.answer_read.map(|read| read - begin));
        // Nothing of this one is left when the next one begins.
        self.heard().await;
        took.to_answer.extend(self.library.cancel_by_hand().await);
    }

    async fn saturate_all(&self, which: Which, count: usize, took: &mut Vec<u64>) -> Saturated {
        let (slots, refuses) = match self.library.slots() {
            Slots::Unlimited => return Saturated::NoLimit,
            Slots::Wait(slots) => (slots, false),
            Slots::Refuse(slots) => (slots, true),
        };
        if refuses && which == Which::Queued {
            return Saturated::Told;
        }
        let answered = self.cancel_saturated(which, count, slots, refuses, took).await;
        answered.map_or(Saturated::Never, |()| Saturated::Answered)
    }

    /// Returns `None` if the library is silent.
    async fn cancel_saturated(
        &self,
        which: Which,
        count: usize,
        slots: usize,
        refuses: bool,
        took: &mut Vec<u64>,
    ) -> Option<()> {
        let mut running = VecDeque::with_capacity(slots + 1);
        for _ in 0..slots {
            let parked = or_silent(self.waiting()).await?;
            running.push_back(parked);
        }
        let mut queued = VecDeque::with_capacity(QUEUED + 1);
        while !refuses && queued.len() < QUEUED {
            let parked = or_silent(self.library.park()).await?;
            queued.push_back(parked);
        }
        // So that the server has read them, even if it does nothing with them.
        for _ in 0..HASTE {
            tokio::task::yield_now().await;
        }
        for _ in 0..count {
            let before = or_silent(self.watch.seen()).await?;
            let of = if which == Which::Running { &mut running } else { &mut queued };
            let parked = of.pop_front()?;
            let begin = clock();
            or_silent(self.library.cancel(parked)).await?;
            took.push(clock() - begin);
            // A slot is free when its handler has its signal. A request that is sent before may be refused.
            if which == Which::Running {
                or_silent(self.watch.until_signalled(before.signalled + 1)).await?;
            }
            // As many as before run or wait.
            if which == Which::Running && !refuses {
                running.extend(queued.pop_front());
                or_silent(self.watch.until_waiting(before.waiting + 1)).await?;
            } else if which == Which::Running {
                let parked = or_silent(self.waiting()).await?;
                running.push_back(parked);
            }
            if !refuses {
                let parked = or_silent(self.library.park()).await?;
                queued.push_back(parked);
            }
        }
        for parked in running.into_iter().chain(queued) {
            or_silent(self.library.cancel(parked)).await?;
        }
        // A caller may return before its handler has its signal. The next turn begins with every slot free.
        or_silent(self.settled()).await?;
        Some(())
    }

    /// Returns when every cancelled handler has its signal, including those that started after their cancel.
    async fn settled(&self) {
        self.watch.until_all_signalled().await;
        self.heard().await;
        self.watch.until_all_signalled().await;
    }

    async fn cascade(&self, tree: Tree, meanwhile: bool) -> Result<Cascade, Told> {
        let before = self.watch.seen().await;
        let all = tree.requests() + 1;
        let root = self.library.root(tree).ok_or(Told::None)?.await;
        while self.watch.seen().await.waiting < before.waiting + all {
            // A library without room for all of it stops reading.
            or_silent(self.heard()).await.ok_or(Told::Never)?;
        }
        let begin = clock();
        let returned = async {
            self.library.cancel(root).await;
            clock() - begin
        };
        let beside = async {
            let mut took = Vec::new();
            while self.watch.seen().await.signalled < before.signalled + all {
                let asked = clock();
                if meanwhile {
                    self.heard().await;
                } else {
                    tokio::task::yield_now().await;
                }
                took.push(clock() - asked);
            }
            took
        };
        let (to_caller, meanwhile) = join(returned, beside).await;
        Ok(Cascade { to_last: self.watch.seen().await.last - begin, to_caller, meanwhile })
    }

    async fn cancel_all(&self, parked: impl IntoIterator<Item = L::Parked>) {
        let mut cancels: FuturesUnordered<_> =
            parked.into_iter().map(|parked| self.library.cancel(parked)).collect();
        while cancels.next().await.is_some() {}
    }
}

impl<L: Library> Subject for Driven<L> {
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        let (driver, text) = (&self.driver, L::Text::new(echo.bytes));
        Box::pin(in_flight(echo, took, move || driver.echoed(text)))
    }

    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        if !L::CANCELS {
            return Box::pin(async { Told::None });
        }
        Box::pin(async move {
            for _ in 0..count {
                if or_silent(self.driver.cancel_one(took)).await.is_none() {
                    return Told::Never;
                }
            }
            Told::Measured
        })
    }

    fn saturate<'a>(
        &'a mut self,
        which: Which,
        count: usize,
        took: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Saturated> {
        if !L::CANCELS {
            return Box::pin(async { Saturated::None });
        }
        Box::pin(self.driver.saturate_all(which, count, took))
    }

    fn park(&mut self, requests: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            let begin = self.driver.watch.seen().await.waiting;
            self.parked.reserve_exact(requests);
            for sent in 1..=requests {
                self.parked.push(self.driver.library.park().await);
                if (sent.is_multiple_of(HASTE) || sent == requests)
                    && or_silent(self.driver.watch.until_waiting(begin + sent)).await.is_none()
                {
                    return Told::Never;
                }
            }
            Told::Measured
        })
    }

    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let parked = std::mem::take(&mut self.parked);
            if !L::CANCELS {
                return self.driver.library.let_go(parked).await;
            }
            self.driver.cancel_all(parked).await;
            self.driver.watch.until_all_signalled().await;
        })
    }

    fn pairs(&mut self, count: usize) -> BoxFuture<'_, Told> {
        if !L::CANCELS {
            return Box::pin(async { Told::None });
        }
        Box::pin(async move {
            for _ in 0..count / BURST {
                let burst = or_silent(async {
                    let mut parked = Vec::with_capacity(BURST);
                    for _ in 0..BURST {
                        parked.push(self.driver.library.park().await);
                    }
                    self.driver.heard().await;
                    self.driver.cancel_all(parked).await;
                    self.driver.watch.until_all_signalled().await;
                });
                if burst.await.is_none() {
                    return Told::Never;
                }
            }
            Told::Measured
        })
    }

    fn unknown_cancels(&mut self, count: usize) -> BoxFuture<'_, Told> {
        Box::pin(self.driver.library.unknown_cancels(count))
    }

    fn cascade(&mut self, tree: Tree, meanwhile: bool) -> BoxFuture<'_, Result<Cascade, Told>> {
        Box::pin(self.driver.cascade(tree, meanwhile))
    }

    fn deadlines<'a>(
        &'a mut self,
        count: usize,
        after: Duration,
        late: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let allowed = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            let mut open = FuturesUnordered::new();
            for sent in 1..=count {
                let due = clock() + allowed;
                let Some(started) = self.driver.library.deadline(after) else { return Told::None };
                let Due(returned) = started.await;
                open.push(async move {
                    returned.await;
                    clock().saturating_sub(due)
                });
                if sent.is_multiple_of(HASTE) {
                    tokio::task::yield_now().await;
                }
            }
            while let Some(nanos) = open.next().await {
                late.push(nanos);
            }
            Told::Measured
        })
    }
}
