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
/// hold a connection forever.
const MIN_PROGRESS_BYTES: u64 = 64 * 1024;

/// Decides when to ping, and when the peer counts as disconnected.
#[derive(Debug)]
pub(super) struct Keepalive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
    /// What the stream had carried at the last ping.
    carried: Carried,
    /// Pings that were sent since the last sign of life.
    missed: Option<u32>,
}

/// The amounts that a stream has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Messages of any kind that were received.
    pub(super) messages: u64,
    /// Bytes that were read and written.
    pub(super) bytes: u64,
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
        Self { every, timer, carried: Carried::default(), missed: None }
    }

    /// Waits for the next action.
    pub(super) fn poll_beat(&mut self, carried: Carried, cx: &mut Context<'_>) -> Poll<KeepaliveEvent> {
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(Instant::now() + self.every);
        let before = std::mem::replace(&mut self.carried, carried);
        let alive = carried.messages != before.messages
            || carried.bytes.wrapping_sub(before.bytes) >= MIN_PROGRESS_BYTES;
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
