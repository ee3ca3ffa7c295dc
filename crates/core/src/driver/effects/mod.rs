//! The effects of a step outside of its connection's lock (D2, D3).

pub(crate) mod log;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;
use tracing::Level;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::driver::call_table::entry::RemoteAction;
use crate::driver::effects::log::Entry;
use crate::driver::notifications::{Inbox, Matcher};
use crate::driver::request_log::recorder::Notified;
use crate::driver::state::{ConnectionInner, Request, Start};
use crate::machine::Event;
use crate::sync::AbortHandle;

/// Collected with the lock held, run without it: first signals, then starts, aborts, wakers, the rare effects, and last
/// the drops.
///
/// There is one for each step, so it is small: most steps have one effect or none.
#[derive(Default)]
pub(crate) struct Effects {
    /// The first request that is signalled. Further ones are among the rare effects.
    signal: Option<Arc<Request>>,
    pub(crate) starts: SmallVec<[Start; 1]>,
    pub(crate) wakers: SmallVec<[Waker; 1]>,
    pub(crate) driver: Option<Waker>,
    /// Requests whose slots were removed. Their contexts may still share them.
    pub(crate) gone: SmallVec<[Arc<Request>; 1]>,
    rare: Option<Box<Rare>>,
}

/// Effects that only few steps have. They run in the order of the fields.
#[derive(Default)]
pub(crate) struct Rare {
    signals: Vec<Arc<Request>>,
    pub(crate) aborts: Vec<Arc<Request>>,
    pub(crate) watches: Vec<AbortHandle>,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) matchers: Vec<Matcher>,
    /// Cancels of children on other connections.
    pub(crate) child_cancels: Vec<RemoteAction>,
    /// Parents on other connections whose children have ended.
    pub(crate) parent_releases: Vec<RemoteAction>,
    pub(crate) events: Vec<Event>,
    /// The request logs in which something was recorded.
    pub(crate) recorded: Notified,
    /// The connection has closed.
    pub(crate) closed: bool,
    pub(crate) log: Vec<Entry>,
}

impl Effects {
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Signals a request.
    pub(crate) fn signal(&mut self, request: Arc<Request>) {
        match self.signal {
            None => self.signal = Some(request),
            Some(_) => self.rare().signals.push(request),
        }
    }

    /// Adds an entry for the log, if its level is enabled. Only the level is checked, because a question to the
    /// subscriber would run code of the user.
    pub(crate) fn log(&mut self, level: Level, entry: impl FnOnce() -> Entry) {
        if level <= STATIC_MAX_LEVEL && level <= LevelFilter::current() {
            self.rare().log.push(entry());
        }
    }

    pub(crate) fn run(mut self, connection: &Arc<ConnectionInner>) {
        if let Some(request) = self.signal {
            request.data.wake_signalled();
        }
        if let Some(rare) = &mut self.rare {
            for request in rare.signals.drain(..) {
                request.data.wake_signalled();
            }
        }
        if !self.starts.is_empty() {
            start_all(self.starts);
        }
        if let Some(rare) = &mut self.rare {
            for request in rare.aborts.drain(..) {
                request.data.abort();
            }
        }
        if !self.wakers.is_empty() {
            for waker in self.wakers {
                waker.wake();
            }
        }
        if let Some(driver) = self.driver {
            driver.wake();
        }
        if let Some(rare) = self.rare {
            rare.run(connection);
        }
        drop(self.gone);
    }
}

impl Rare {
    /// Runs everything that follows the wakers.
    fn run(self, connection: &Arc<ConnectionInner>) {
        for watch in self.watches {
            watch.abort();
        }
        for inbox in self.inboxes {
            inbox.close();
        }
        for matcher in self.matchers {
            matcher.inbox.close();
        }
        for cancel in self.child_cancels {
            cancel();
        }
        for release in self.parent_releases {
            release();
        }
        if let Some(hook) = &connection.on_event {
            for event in &self.events {
                // A hook that panics must not end the connection.
                if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
                    tracing::warn!("the event hook panicked");
                }
            }
        }
        for log in self.recorded {
            log.changed.notify_waiters();
        }
        if self.closed {
            connection.closed.notify_waiters();
        }
        for entry in self.log {
            entry.write();
        }
    }
}

thread_local! {
    /// Handlers that start after the one that is starting on this thread.
    static STARTING: RefCell<Option<Vec<Start>>> = const { RefCell::new(None) };
}

/// Starts handlers one after another. A runtime that shuts down drops a task during its start, which ends its request
/// and may start the next one. Such starts run in turn and not inside each other.
fn start_all(starts: SmallVec<[Start; 1]>) {
    let first = STARTING.with_borrow_mut(|starting| {
        if let Some(later) = starting {
            later.extend(starts);
            return None;
        }
        *starting = Some(Vec::new());
        Some(starts)
    });
    let Some(first) = first else { return };
    first.into_iter().for_each(start_one);
    loop {
        let turn = STARTING.with_borrow_mut(|starting| match starting {
            Some(later) if !later.is_empty() => std::mem::take(later),
            _ => {
                *starting = None;
                Vec::new()
            }
        });
        if turn.is_empty() {
            return;
        }
        turn.into_iter().for_each(start_one);
    }
}

pub(crate) fn start_one(start: Start) {
    let Start { handler, request, params } = start;
    let abort = handler.start(Arc::clone(&request), params);
    request.data.set_abort(abort);
}
