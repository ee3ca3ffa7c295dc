//! What a server counts over all its connections, so that reconnecting does not reset it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::request::Task;

/// How many handlers may run over all connections of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Handlers running at once, draining ones included. 4096.
    pub running: usize,
    /// Handlers whose request is settled and that still run; over it new requests are refused. 100.
    pub draining: usize,
    /// Connections at once. 1024.
    pub sessions: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { running: 4096, draining: 100, sessions: 1024 }
    }
}

/// The counts behind [`ServerLimits`]. A connection without a server has its own, without bounds.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) limits: ServerLimits,
    alive: AtomicUsize,
    draining: AtomicUsize,
    sessions: AtomicUsize,
}

impl Admission {
    pub(super) const fn new(limits: ServerLimits) -> Self {
        Self {
            limits,
            alive: AtomicUsize::new(0),
            draining: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
        }
    }

    pub(super) const fn unbounded() -> Self {
        Self::new(ServerLimits { running: usize::MAX, draining: usize::MAX, sessions: usize::MAX })
    }

    /// Whether one more request is let in; the error names the limit that is reached.
    pub(super) fn admit(&self) -> Result<(), &'static str> {
        if self.alive.load(Ordering::Relaxed) >= self.limits.running {
            return Err("server_running");
        }
        // The limit is a threshold: at it, one more is still let in.
        if self.draining.load(Ordering::Relaxed) > self.limits.draining {
            return Err("server_draining");
        }
        Ok(())
    }

    pub(super) fn task_moved(&self, from: Task, to: Task) {
        let count = |task| match task {
            Task::NotStarted | Task::Ended => (0, 0),
            Task::Running => (1, 0),
            Task::Draining => (1, 1),
        };
        let ((alive, draining), (alive_then, draining_then)) = (count(from), count(to));
        shift(&self.alive, alive, alive_then);
        shift(&self.draining, draining, draining_then);
    }

    /// Takes a place for one more connection, if there is one.
    pub(super) fn open_session(&self) -> bool {
        let open = |open: usize| (open < self.limits.sessions).then_some(open + 1);
        self.sessions.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok()
    }

    pub(super) fn close_session(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

fn shift(count: &AtomicUsize, from: usize, to: usize) {
    if to > from {
        count.fetch_add(to - from, Ordering::Relaxed);
    } else if from > to {
        count.fetch_sub(from - to, Ordering::Relaxed);
    }
}
