//! Which handlers run, and which requests wait for a permit. A permit is held from the start of a handler to the end of
//! its task (I10).

use std::collections::VecDeque;

use super::input::Work;
use super::limits::Limits;
use crate::id::InboundKey;

/// How many handlers run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Permits {
    tasks: usize,
    blocking: usize,
}

impl Permits {
    pub(super) const fn has_room(self, limits: &Limits, work: Work) -> bool {
        let all = self.tasks + self.blocking;
        match work {
            Work::Task => all < limits.max_running_handlers,
            Work::Blocking => {
                all < limits.max_running_handlers && self.blocking < limits.max_blocking_handlers
            }
        }
    }

    pub(super) const fn take(&mut self, work: Work) {
        match work {
            Work::Task => self.tasks += 1,
            Work::Blocking => self.blocking += 1,
        }
    }

    pub(super) const fn give_back(&mut self, work: Work) {
        match work {
            Work::Task => self.tasks -= 1,
            Work::Blocking => self.blocking -= 1,
        }
    }

    pub(super) const fn held(self) -> usize {
        self.tasks + self.blocking
    }

    #[cfg(feature = "verify")]
    pub(super) const fn inspect(self) -> (usize, usize) {
        (self.tasks, self.blocking)
    }
}

/// The requests that wait for a permit. Each kind of work has its own line, so that neither delays the other. The
/// requests in a line have no room, of the connection or of their client: a handler that ends frees its permit and
/// gives it to the next request in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    tasks: VecDeque<InboundKey>,
    blocking: VecDeque<InboundKey>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.tasks.len() + self.blocking.len()
    }

    pub(super) fn push(&mut self, work: Work, key: InboundKey) {
        self.line(work).push_back(key);
    }

    /// Removes the first request that may start. All requests before it wait for permits of their own clients.
    pub(super) fn pop(&mut self, work: Work, may_start: impl Fn(InboundKey) -> bool) -> Option<InboundKey> {
        let line = self.line(work);
        let first = line.iter().position(|waiting| may_start(*waiting))?;
        line.remove(first)
    }

    pub(super) fn remove(&mut self, work: Work, key: InboundKey) {
        let line = self.line(work);
        if let Some(place) = line.iter().position(|waiting| *waiting == key) {
            line.remove(place);
        }
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = InboundKey> {
        self.tasks.iter().chain(&self.blocking).copied()
    }

    const fn line(&mut self, work: Work) -> &mut VecDeque<InboundKey> {
        match work {
            Work::Task => &mut self.tasks,
            Work::Blocking => &mut self.blocking,
        }
    }
}
