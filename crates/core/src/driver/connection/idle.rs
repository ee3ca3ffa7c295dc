//! The end of a connection that nobody uses, where a server sets a time for that.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Since when nobody has used a connection.
pub(crate) struct Idle {
    after: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// `None`: without a time, or with one that never comes.
    pub(crate) fn new(after: Option<Duration>) -> Option<Self> {
        let after = after.filter(|after| Instant::now().checked_add(*after).is_some())?;
        Some(Self { after, timer: Box::pin(tokio::time::sleep(after)) })
    }

    /// Ready once the connection was out of use for the whole time; `in_use` says whether it is, or was since last asked.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, in_use: bool) -> Poll<()> {
        if in_use {
            self.timer.as_mut().reset(Instant::now() + self.after);
        }
        self.timer.as_mut().poll(cx)
    }
}
