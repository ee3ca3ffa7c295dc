//! A response of one message: it is sent in pieces, and dropped if its reader takes nothing for too long.
//!
//! Over HTTP/2 a client can leave one stream unread forever on a healthy connection. The HTTP library does not poll
//! the body of such a stream, so a separate task watches the time.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::response_body::piece;
use crate::sync::{AbortHandle, Mutex, MutexGuard, spawn};

/// A message of at most this many bytes is not watched: a connection has at most 1024 streams, and the bytes that they
/// hold are counted.
const UNWATCHED: usize = 4 * 1024;

/// The rest of a response was dropped: its reader took nothing for too long, or the process that sent it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response was dropped before its end")]
pub struct Stalled;

/// A message that is being sent.
pub(super) struct Full {
    /// The announced bytes that the reader has not received yet.
    left: usize,
    body: Body,
}

enum Body {
    Small(Bytes),
    Watched { shared: Arc<Mutex<Shared>>, watch: AbortHandle },
}

struct Shared {
    /// `None`: it was dropped.
    rest: Option<Bytes>,
    moved: Instant,
}

impl Full {
    pub(super) const fn empty() -> Self {
        Self { left: 0, body: Body::Small(Bytes::new()) }
    }

    pub(super) fn new(body: Bytes) -> Self {
        Self { left: body.len(), body: Body::Small(body) }
    }

    /// The bytes that are still to be sent.
    pub(super) const fn left(&self) -> usize {
        self.left
    }

    /// Drops the message if none of it is taken for this time.
    pub(super) fn cut_after(&mut self, stall_timeout: Duration) {
        let Body::Small(rest) = &mut self.body else { return };
        if rest.len() <= UNWATCHED {
            return;
        }
        let rest = Some(std::mem::take(rest));
        let shared = Arc::new(Mutex::new(Shared { rest, moved: Instant::now() }));
        let watched = Arc::clone(&shared);
        let watch = spawn(async move {
            loop {
                let moved = lock(&watched).moved;
                tokio::time::sleep_until(moved + stall_timeout).await;
                let mut shared = lock(&watched);
                if shared.moved == moved {
                    let rest = shared.rest.take();
                    drop(shared);
                    drop(rest);
                    return;
                }
            }
        });
        self.body = Body::Watched { shared, watch: watch.abort_handle() };
    }

    /// The next piece. `None`: all pieces were sent.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Stalled> {
        if self.left == 0 {
            return Ok(None);
        }
        let piece = match &mut self.body {
            Body::Small(rest) => piece(rest),
            Body::Watched { shared, .. } => {
                let mut shared = lock(shared);
                shared.moved = Instant::now();
                piece(shared.rest.as_mut().ok_or(Stalled)?)
            }
        };
        self.left -= piece.len();
        Ok(Some(piece))
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Full {
    fn drop(&mut self) {
        if let Body::Watched { watch, .. } = &self.body {
            watch.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::ByteBudget;

    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn an_unread_message_is_dropped_and_a_slowly_read_one_is_not() {
        let budget = ByteBudget::default();
        let full = || {
            let mut full = Full::new(budget.hold_frame(Bytes::from(vec![b'x'; 200_000])));
            full.cut_after(STALL);
            full
        };
        let (mut unread, mut slow) = (full(), full());
        assert_eq!(budget.used(), 400_000);
        for _ in 0..2 {
            tokio::time::sleep(STALL * 2 / 3).await;
            assert_eq!(slow.next().unwrap().unwrap().len(), 64 * 1024);
        }
        assert_eq!(budget.used(), 200_000, "the bytes of the unread one are given back");
        assert_eq!(unread.next(), Err(Stalled), "its reader gets an error");
        let mut left = slow.left();
        while let Some(piece) = slow.next().unwrap() {
            left -= piece.len();
        }
        assert_eq!((left, slow.left()), (0, 0));
        drop((unread, slow));
        tokio::task::yield_now().await;
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_small_message_goes_in_one_piece() {
        let mut full = Full::new(Bytes::from_static(b"{}"));
        full.cut_after(STALL);
        assert_eq!(full.next(), Ok(Some(Bytes::from_static(b"{}"))));
        assert_eq!(full.next(), Ok(None));
    }
}
