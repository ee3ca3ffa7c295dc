//! What a server counts over all its connections, so that reconnecting does not reset it.

use std::time::Duration;

use super::request::Task;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// How many handlers may run over all connections of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Handlers running at once, draining ones included; at it a new request is refused. 4096. A request that waits for a
    /// permit of its connection takes over the place of the one that gives it the permit, so it never comes on top.
    pub running: usize,
    /// Handlers whose request is settled and that still run; over it new requests are refused. 100.
    pub draining: usize,
    /// Connections at once. 1024.
    pub sessions: usize,
    /// A connection on which no frame came or went for so long, and nothing is in flight, is shut down, which counts as
    /// [`Event::LimitReached`](crate::Event::LimitReached) with `idle`. `None` unless set: a connection that is open is in use, and what keeps a
    /// session without one (HTTP) has a limit of its own. Set it where strangers may hold connections for nothing. What a wire sends by
    /// itself, pings, is no frame; a wire whose one link is all of its clients (stateless HTTP) is left alone.
    pub idle: Option<Duration>,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { running: 4096, draining: 100, sessions: 1024, idle: None }
    }
}

/// The counts behind [`ServerLimits`]. A connection without a server has its own, without bounds.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) limits: ServerLimits,
    /// Places taken: each handler alive has one, and each request that is about to start.
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
        Self::new(ServerLimits {
            running: usize::MAX,
            draining: usize::MAX,
            sessions: usize::MAX,
            idle: None,
        })
    }

    /// Lets one more request in and takes a place for its handler; the error names the limit that is reached.
    pub(super) fn admit(&self) -> Result<(), &'static str> {
        // The limit is a threshold: at it, one more is still let in.
        if self.draining.load(Ordering::Relaxed) > self.limits.draining {
            return Err("server_draining");
        }
        let take = |alive: usize| (alive < self.limits.running).then_some(alive + 1);
        let taken = self.alive.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| "server_running")
    }

    /// A handler starts for which no place was taken.
    fn take_anyway(&self) {
        self.alive.fetch_add(1, Ordering::Relaxed);
    }

    fn give_back(&self, places: usize) {
        self.alive.fetch_sub(places, Ordering::Relaxed);
    }

    fn drains(&self) {
        self.draining.fetch_add(1, Ordering::Relaxed);
    }

    fn drained(&self) {
        self.draining.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a place for one more connection, if there is one.
    pub(super) fn open_session(&self) -> bool {
        let open = |open: usize| (open < self.limits.sessions).then_some(open + 1);
        self.sessions.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok()
    }

    pub(super) fn close_session(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    pub(super) fn draining(&self) -> usize {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }
}

/// Places that a step holds and no handler has: of the request it lets in, and of the handlers that end in it. What starts in
/// the same step has them, and the rest goes back at its end. So one who waited starts in the place of one who ended, and
/// nobody else comes in between.
#[derive(Debug, Default)]
pub(super) struct Places(usize);

impl Places {
    /// The place of a request that was let in.
    pub(super) const fn admitted(&mut self) {
        self.0 += 1;
    }

    /// A task moves on.
    pub(super) fn task_moved(&mut self, admission: &Admission, from: Task, to: Task) {
        match (is_alive(from), is_alive(to)) {
            (false, true) => match self.0.checked_sub(1) {
                Some(left) => self.0 = left,
                None => admission.take_anyway(),
            },
            (true, false) => self.0 += 1,
            (true, true) | (false, false) => {}
        }
        match (from == Task::Draining, to == Task::Draining) {
            (false, true) => admission.drains(),
            (true, false) => admission.drained(),
            (true, true) | (false, false) => {}
        }
    }

    /// The step is over.
    pub(super) fn give_back(&mut self, admission: &Admission) {
        if self.0 > 0 {
            admission.give_back(std::mem::take(&mut self.0));
        }
    }
}

const fn is_alive(task: Task) -> bool {
    match task {
        Task::NotStarted | Task::Ended => false,
        Task::Running | Task::Draining => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Admission {
        Admission::new(ServerLimits { running: 2, ..ServerLimits::default() })
    }

    #[test]
    fn requests_that_are_let_in_at_once_have_a_place_each() {
        let admission = two();
        // None of them has started: each connection takes its step when it gets the processor.
        let admitted = [admission.admit(), admission.admit(), admission.admit()];
        assert_eq!(
            admitted,
            [Ok(()), Ok(()), Err("server_running")],
            "I10: over the limit of all connections"
        );
    }

    #[test]
    fn one_who_waited_starts_in_the_place_of_one_who_ended() {
        let admission = two();
        let (mut here, mut there) = (Places::default(), Places::default());
        for places in [&mut here, &mut there] {
            assert_eq!(admission.admit(), Ok(()));
            places.admitted();
            places.task_moved(&admission, Task::NotStarted, Task::Running);
            places.give_back(&admission);
        }
        // Within one step here a handler ends and the next one starts; meanwhile a request comes elsewhere.
        here.task_moved(&admission, Task::Running, Task::Draining);
        here.task_moved(&admission, Task::Draining, Task::Ended);
        assert_eq!(admission.admit(), Err("server_running"), "I10: it took the place of one who waited");
        here.task_moved(&admission, Task::NotStarted, Task::Running);
        here.give_back(&admission);
        assert_eq!(admission.admit(), Err("server_running"));
        // With nobody waiting the place is free for all.
        here.task_moved(&admission, Task::Running, Task::Ended);
        here.give_back(&admission);
        assert_eq!(admission.admit(), Ok(()));
    }

    #[test]
    fn a_request_that_is_queued_or_refused_keeps_no_place() {
        let admission = two();
        let mut places = Places::default();
        for _ in 0..10 {
            assert_eq!(admission.admit(), Ok(()));
            places.admitted();
            places.give_back(&admission);
        }
        assert_eq!(admission.alive(), 0, "I3: a place is left");
    }

    #[test]
    fn draining_handlers_count_until_they_end() {
        let admission = Admission::new(ServerLimits { draining: 0, ..ServerLimits::default() });
        let mut places = Places::default();
        places.task_moved(&admission, Task::NotStarted, Task::Running);
        places.task_moved(&admission, Task::Running, Task::Draining);
        assert_eq!(admission.admit(), Err("server_draining"));
        places.task_moved(&admission, Task::Draining, Task::Ended);
        places.give_back(&admission);
        let left = (admission.alive(), admission.draining());
        assert_eq!((admission.admit(), left), (Ok(()), (0, 0)));
    }

    #[test]
    fn no_more_connections_are_open_than_may_be() {
        let admission = Admission::new(ServerLimits { sessions: 2, ..ServerLimits::default() });
        assert_eq!([(); 3].map(|()| admission.open_session()), [true, true, false]);
        admission.close_session();
        assert_eq!([(); 2].map(|()| admission.open_session()), [true, false], "one was closed");
    }
}
