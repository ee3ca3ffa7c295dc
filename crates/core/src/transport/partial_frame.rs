//! The bytes of a frame that is being read, in the budget of a server.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::byte_budget::{ByteBudget, HeldBytes};
use crate::framing::next_capacity;

/// The bytes of a frame that are read without being counted. So cancels, acknowledgements and usual answers are read
/// although memory is full.
const UNCOUNTED_BYTES: usize = 16 * 1024;
/// The longest time that a frame waits for memory that others hold, all its waits together. So a frame that gets a
/// little room from time to time does not hold its memory for longer.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The frame that a connection is reading, as the budget of its server counts it.
///
/// It counts in the parent of the connection's budget and not in that budget itself. A complete
/// frame for which the connection itself has no room is refused by its session, with the frame's id. So a connection
/// never waits here for memory that it holds itself.
#[derive(Debug)]
pub struct PartialFrame {
    connection: ByteBudget,
    held: Option<HeldBytes>,
    /// Set when the frame has to wait for the first time.
    wait: Option<Box<Wait>>,
}

#[derive(Debug)]
struct Wait {
    /// While it waits: the start of the wait.
    since: Option<Instant>,
    /// How long it may still wait, from that start.
    left: Duration,
    end: Pin<Box<Sleep>>,
}

impl Wait {
    fn new() -> Self {
        Self { since: None, left: MAX_WAIT, end: Box::pin(tokio::time::sleep(MAX_WAIT)) }
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

/// The frame waited for memory for 10 s in total. It must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFull;

impl PartialFrame {
    /// For the connection with this budget.
    #[must_use]
    pub fn new(connection: &ByteBudget) -> Self {
        Self { connection: connection.clone(), held: None, wait: None }
    }

    /// The frame is complete or dropped. From now on the code that handles it counts it.
    pub fn finish(&mut self) {
        self.held = None;
        self.wait = None;
    }

    /// The size of the buffer, in bytes, for a frame whose length was announced and of which `have` bytes have arrived,
    /// when it needs a larger buffer: at most four times what has arrived, and 16 KiB, and never more than the length.
    #[must_use]
    pub fn buffer_size(announced: usize, have: usize) -> usize {
        next_capacity(announced, have)
    }

    /// Makes room to read `more` bytes, in addition to the `partial` bytes of the frame that were read already. The
    /// first 16 KiB of a frame are not counted.
    ///
    /// # Errors
    /// [`MemoryFull`] when the waits of this frame are 10 s in total.
    pub fn poll_grow(
        &mut self,
        partial: usize,
        more: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), MemoryFull>> {
        if partial < UNCOUNTED_BYTES {
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
    async fn a_frame_that_gets_memory_in_small_amounts_has_the_same_total_wait_limit() {
        let server = ByteBudget::new(2 * UNCOUNTED_BYTES);
        let mut others = server.hold(UNCOUNTED_BYTES);
        let mut frame = PartialFrame::new(&server.child(usize::MAX));
        poll_fn(|cx| frame.poll_grow(UNCOUNTED_BYTES, 0, cx)).await.unwrap();
        let since = Instant::now();
        for read in 1..=3 {
            let mut grown = std::pin::pin!(poll_fn(|cx| frame.poll_grow(UNCOUNTED_BYTES + read - 1, 1, cx)));
            let waited = tokio::time::timeout(Duration::from_secs(3), grown.as_mut()).await;
            assert!(waited.is_err(), "there is no room");
            others.resize(UNCOUNTED_BYTES - read);
            grown.await.unwrap();
            // Time in which it does not wait is not counted.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(poll_fn(|cx| frame.poll_grow(UNCOUNTED_BYTES + 3, 1, cx)).await, Err(MemoryFull));
        let waited = since.elapsed().as_secs() - 3 * 60;
        assert_eq!(waited, MAX_WAIT.as_secs());
        assert_eq!(server.used(), others.bytes(), "it holds nothing any more");
    }
}
