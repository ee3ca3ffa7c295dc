use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::failpoint::{self, Failpoint};
use tokio::time::{Instant, Sleep};

/// So many pings without a sign of life, and the peer counts as gone.
const MISSED: u32 = 2;
/// So many bytes moved between two pings are a sign of life too: a pong cannot come before the end of a large message,
/// nor our ping before the end of ours. Fewer are not, or a byte a second would hold a connection for ever.
const MOVING: u64 = 64 * 1024;

/// When to ping, and when to give up.
#[derive(Debug)]
pub(super) struct Keepalive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
    /// A message came since the last ping.
    heard: bool,
    /// What had been moved at the last ping.
    moved: u64,
    /// Pings that are out without a sign of life.
    missed: Option<u32>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveEvent {
    Ping,
    Dead,
}

impl Keepalive {
    pub(super) fn new(every: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(every));
        Self { every, timer, heard: false, moved: 0, missed: None }
    }

    /// A message came, of whatever kind.
    pub(super) fn heard(&mut self) {
        self.heard = true;
    }

    /// Waits for the next thing that is due.
    pub(super) fn poll_beat(&mut self, moved: u64, cx: &mut Context<'_>) -> Poll<KeepaliveEvent> {
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(Instant::now() + self.every);
        let alive = std::mem::take(&mut self.heard) || moved.wrapping_sub(self.moved) >= MOVING;
        self.moved = moved;
        let missed = match self.missed {
            Some(missed) if !alive => missed + 1,
            Some(_) | None => 0,
        };
        self.missed = Some(missed);
        Poll::Ready(if missed >= MISSED && !failpoint::active(Failpoint::PongDeadlineIgnored) {
            KeepaliveEvent::Dead
        } else {
            KeepaliveEvent::Ping
        })
    }
}
