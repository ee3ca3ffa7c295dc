//! The timer of idle connections.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// How long a connection may be idle, and since when it is.
pub(crate) struct Idle {
    after: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// `None`: no limit, or one that is never reached.
    pub(crate) fn new(after: Option<Duration>) -> Option<Self> {
        let after = after.filter(|after| Instant::now().checked_add(*after).is_some())?;
        Some(Self { after, timer: Box::pin(tokio::time::sleep(after)) })
    }

    /// Ready once the connection was idle for the whole time. `in_use`: it is in use, or was since the last call.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, in_use: bool) -> Poll<()> {
        if in_use {
            self.timer.as_mut().reset(Instant::now() + self.after);
        }
        self.timer.as_mut().poll(cx)
    }
}
