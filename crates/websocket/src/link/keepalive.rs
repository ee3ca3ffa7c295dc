use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::failpoint::{self, Failpoint};
use tokio::time::{Instant, Sleep};

/// The pings in a row without a sign of life after which the peer counts as disconnected.
const MAX_MISSED_PINGS: u32 = 2;
/// At least this many bytes between two pings are a sign of life too, because a pong cannot arrive before the end of a
/// large message, and a ping cannot be sent before the end of one. Fewer bytes are not, because one byte a second would
/// hold a connection for ever.
const MIN_PROGRESS_BYTES: u64 = 64 * 1024;

/// Decides when to ping, and when the peer counts as disconnected.
#[derive(Debug)]
pub(super) struct Keepalive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
    /// A message was received since the last ping.
    heard: bool,
    /// The bytes that were moved until the last ping.
    moved: u64,
    /// Pings that were sent since the last sign of life.
    missed: Option<u32>,
}

/// The action that is due.
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

    /// A message of any kind was received.
    pub(super) fn heard(&mut self) {
        self.heard = true;
    }

    /// Waits for the next action.
    pub(super) fn poll_beat(&mut self, moved: u64, cx: &mut Context<'_>) -> Poll<KeepaliveEvent> {
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(Instant::now() + self.every);
        let alive = std::mem::take(&mut self.heard) || moved.wrapping_sub(self.moved) >= MIN_PROGRESS_BYTES;
        self.moved = moved;
        let missed = match self.missed {
            Some(missed) if !alive => missed + 1,
            Some(_) | None => 0,
        };
        self.missed = Some(missed);
        Poll::Ready(if missed >= MAX_MISSED_PINGS && !failpoint::active(Failpoint::PongDeadlineIgnored) {
            KeepaliveEvent::Dead
        } else {
            KeepaliveEvent::Ping
        })
    }
}
