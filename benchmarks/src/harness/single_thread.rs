//! A connection whose two sides run only on this thread, so that the allocation counter sees everything. A competitor
//! with its own threads would show less than it uses.

use tokio::runtime::Runtime;

use super::competitors::{Bound, Place, attempt, enter};
use super::figures::Figure;
use crate::resources::{self, Heap, one_thread};
use crate::subject::{BoxFuture, Competitor, Echo, Subject, Told};

pub(super) const PLACE: &str = Place::OneThread.name();
pub(super) const NOT_COUNTED: Figure = Figure::Said("not counted");

/// One connection.
pub(super) struct Alone {
    runtime: Runtime,
    subject: Option<Box<dyn Subject>>,
    /// Why there is no subject.
    out: &'static str,
}

impl Alone {
    pub(super) fn new(competitor: &Competitor, slots: usize) -> Self {
        let runtime = one_thread();
        let entrant = runtime.block_on(enter(competitor, Place::OneThread, slots));
        let out = entrant.out.unwrap_or("none");
        let mut alone = Self { runtime, subject: entrant.subject, out };
        // One-time allocations do not belong to a request.
        alone.echo(2000);
        alone
    }

    pub(super) fn echo(&mut self, count: usize) -> Vec<u64> {
        let mut took = Vec::with_capacity(count);
        if let Some(subject) = &mut self.subject {
            let echo = Echo { bytes: 64, in_flight: 1, count };
            let echoes = attempt(Bound::Turn, subject.echo(echo, &mut took));
            if let Err(said) = self.runtime.block_on(echoes) {
                let _entered = self.runtime.enter();
                (self.subject, self.out) = (None, said);
            }
        }
        took
    }

    /// Runs an operation and counts, or returns why it was not done. `None`: it is not counted.
    pub(super) fn count<'a, T>(
        &'a mut self,
        bound: Bound,
        ask: impl FnOnce(&'a mut dyn Subject) -> BoxFuture<'a, T>,
    ) -> Result<(T, Option<Heap>), &'static str> {
        let Self { runtime, subject, out } = self;
        let Some(subject) = subject else { return Err(*out) };
        let mut done = Err(*out);
        let counted = resources::measure_heap(|| {
            done = runtime.block_on(async {
                let done = attempt(bound, ask(subject.as_mut())).await;
                // The last messages arrive.
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                done
            });
        });
        done.map(|done| (done, counted))
    }

    /// The same, for an operation that returns whether it was done.
    pub(super) fn count_told<'a>(
        &'a mut self,
        bound: Bound,
        ask: impl FnOnce(&'a mut dyn Subject) -> BoxFuture<'a, Told>,
    ) -> Result<Option<Heap>, &'static str> {
        let (told, counted) = self.count(bound, ask)?;
        told.said().map_or(Ok(counted), Err)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        drop(self.subject.take());
    }
}
