//! The bytes of a frame that is being read, in the budget of a server.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::byte_budget::{ByteBudget, HeldBytes};

/// So much of a frame, in bytes, is read without being counted: cancels, acknowledgements and usual answers pass although memory is full.
const FREE: usize = 16 * 1024;
/// How long a connection waits for memory that others hold, all its waits in the middle of one frame together: a frame that gets a little room
/// from time to time does not hold what it has for longer.
const WAIT: Duration = Duration::from_secs(10);

/// The frame that a connection is reading, as its server's budget counts it.
///
/// It counts beyond the connection's own budget, in what that belongs to: a frame that is whole is refused by its session, under its own id,
/// where the connection itself has no room, and until then a connection never waits for what it holds itself.
#[derive(Debug)]
pub struct PartialFrame {
    connection: ByteBudget,
    held: Option<HeldBytes>,
    /// Since the frame first had to wait.
    wait: Option<Box<Wait>>,
}

#[derive(Debug)]
struct Wait {
    /// When it waits: since when.
    since: Option<Instant>,
    /// For how long it may still wait, from then on.
    left: Duration,
    end: Pin<Box<Sleep>>,
}

impl Wait {
    fn new() -> Self {
        Self { since: None, left: WAIT, end: Box::pin(tokio::time::sleep(WAIT)) }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            self.end.as_mut().reset(now + self.left);
        }
        self.end.as_mut().poll(cx)
    }

    fn pause(&mut self) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }
}

/// A frame waited 10 s for memory, all in all: the frame is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFull;

impl PartialFrame {
    /// For the connection that counts in this budget.
    #[must_use]
    pub fn new(connection: &ByteBudget) -> Self {
        Self { connection: connection.clone(), held: None, wait: None }
    }

    /// The frame is whole, or is dropped: from here on it counts where it is handled.
    pub fn finish(&mut self) {
        self.held = None;
        self.wait = None;
    }

    /// Makes room to read `more` bytes beside the `partial` bytes of a frame that were read already. The first 16 KiB of a frame are not
    /// counted.
    ///
    /// # Errors
    /// [`MemoryFull`] once the waits of this frame are 10 s together.
    pub fn poll_grow(
        &mut self,
        partial: usize,
        more: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), MemoryFull>> {
        if partial < FREE {
            self.finish();
            return Poll::Ready(Ok(()));
        }
        let Some(shared) = self.connection.parent() else { return Poll::Ready(Ok(())) };
        let held = self.held.get_or_insert_with(|| shared.hold(0));
        let wanted = partial.saturating_add(more);
        if wanted <= held.bytes() {
            return Poll::Ready(Ok(()));
        }
        loop {
            if held.try_resize(wanted) {
                if let Some(wait) = &mut self.wait {
                    wait.pause();
                }
                return Poll::Ready(Ok(()));
            }
            if shared.poll_room(wanted - held.bytes(), cx).is_ready() {
                continue;
            }
            ready!(self.wait.get_or_insert_with(|| Box::new(Wait::new())).poll_end(cx));
            self.finish();
            return Poll::Ready(Err(MemoryFull));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_gets_a_little_room_now_and_then_waits_no_longer_than_another() {
        let server = ByteBudget::new(2 * FREE);
        let mut others = server.hold(FREE);
        let mut frame = PartialFrame::new(&server.child(usize::MAX));
        poll_fn(|cx| frame.poll_grow(FREE, 0, cx)).await.unwrap();
        let since = Instant::now();
        for read in 1..=3 {
            let mut grown = std::pin::pin!(poll_fn(|cx| frame.poll_grow(FREE + read - 1, 1, cx)));
            let waited = tokio::time::timeout(Duration::from_secs(3), grown.as_mut()).await;
            assert!(waited.is_err(), "there is no room");
            others.resize(FREE - read);
            grown.await.unwrap();
            // Time in which it does not wait is its own.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(poll_fn(|cx| frame.poll_grow(FREE + 3, 1, cx)).await, Err(MemoryFull));
        let waited = since.elapsed().as_secs() - 3 * 60;
        assert_eq!(waited, WAIT.as_secs());
        assert_eq!(server.used(), others.bytes(), "it holds nothing any more");
    }
}
