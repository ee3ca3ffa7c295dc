//! The end of a connection that nobody uses, where a server sets a time for that.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::task::ConnectionTask;

/// Since when nobody has used a connection.
pub(super) struct Idle {
    after: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// `None`: without a time, or with one that never comes.
    pub(super) fn new(after: Option<Duration>) -> Option<Self> {
        let after = after.filter(|after| Instant::now().checked_add(*after).is_some())?;
        Some(Self { after, timer: Box::pin(tokio::time::sleep(after)) })
    }

    /// Ready once the connection was out of use for the whole time; `in_use` says whether it is, or was since last asked.
    fn poll(&mut self, cx: &mut Context<'_>, in_use: bool) -> Poll<()> {
        if in_use {
            self.timer.as_mut().reset(Instant::now() + self.after);
        }
        self.timer.as_mut().poll(cx)
    }
}

impl ConnectionTask {
    /// Shuts the connection down if nobody has used it for too long: no frame came or went, and nothing is in flight either
    /// way. `true`: it does.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> bool {
        // A connection that is closing has deadlines of its own.
        let Some(idle) = self.idle.as_mut().filter(|_| self.rx.is_some()) else { return false };
        let moved = std::mem::take(&mut self.moved) || self.unflushed;
        let in_use = moved || self.shared.lock().session.has_requests_or_calls();
        if idle.poll(cx, in_use).is_pending() {
            return false;
        }
        self.idle = None;
        self.shared.step(|state, now, _| state.session.local_idle(now));
        true
    }
}
