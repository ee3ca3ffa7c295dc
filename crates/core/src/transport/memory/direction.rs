use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::sync::{Mutex, MutexGuard};
use crate::transport::Lane;
use crate::transport::send_buffer::{has_room, is_half_empty};

/// The bytes that each frame counts in addition to its own, so that the number of empty frames is limited too.
const FRAME_COST: usize = 64;

/// One direction of a connection within this process. Wakers are called after the lock is released.
#[derive(Debug, Default)]
pub(super) struct Direction(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Bytes>,
    /// In bytes, with the cost of each frame.
    held: usize,
    /// No frame comes in any more: the sender closed it or was dropped.
    ended: bool,
    /// No frame goes out any more: the reader was dropped.
    forsaken: bool,
    /// The reader was dropped with frames unread.
    frames_lost: bool,
    reader: Option<Waker>,
    /// The sender waits for room for this lane.
    writer: Option<(Lane, Waker)>,
    /// The sender's receiving half, which waits for the end of this direction.
    sibling: Option<Waker>,
}

/// The result of a read.
#[derive(Debug)]
pub(super) enum Popped {
    Frame(Bytes),
    End,
}

impl Direction {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next frame.
    pub(super) fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Popped> {
        let (body, writer) = {
            let mut state = self.state();
            let Some(body) = state.frames.pop_front() else {
                if state.ended {
                    return Poll::Ready(Popped::End);
                }
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            state.held -= body.len() + FRAME_COST;
            let held = state.held;
            (body, state.writer.take_if(|(lane, _)| is_half_empty(*lane, held)))
        };
        if let Some((_, waker)) = writer {
            waker.wake();
        }
        Poll::Ready(Popped::Frame(body))
    }

    /// Waits until a frame of this lane may be pushed. `false`: no frame may be pushed any more.
    pub(super) fn poll_room(&self, lane: Lane, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state();
        if state.ended || state.forsaken {
            return Poll::Ready(false);
        }
        if has_room(lane, state.held) {
            return Poll::Ready(true);
        }
        // One task may wait for both lanes. The control lane gets room first.
        let waits_for = match &state.writer {
            Some((Lane::Control, _)) => Lane::Control,
            Some((Lane::Data, _)) | None => lane,
        };
        state.writer = Some((waits_for, cx.waker().clone()));
        Poll::Pending
    }

    /// Takes a frame. `false`: it was not taken, because the direction has ended.
    pub(super) fn push(&self, body: Bytes) -> bool {
        let reader = {
            let mut state = self.state();
            if state.ended || state.forsaken {
                return false;
            }
            state.held += body.len() + FRAME_COST;
            state.frames.push_back(body);
            state.reader.take()
        };
        if let Some(waker) = reader {
            waker.wake();
        }
        true
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.ended || state.forsaken
    }

    /// Whether the sender ended, or the reader was dropped with frames unread. A reader that read everything before
    /// lost nothing: the last frame may have asked it to leave.
    pub(super) fn has_lost_frames(&self) -> bool {
        let state = self.state();
        state.ended || state.frames_lost
    }

    /// Waits until nothing can be sent any more.
    pub(super) fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.ended || state.forsaken {
            return Poll::Ready(());
        }
        state.sibling = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The sender sends nothing more.
    pub(super) fn end(&self) {
        self.over(|state| state.ended = true);
    }

    /// The reader is gone. Its unread frames are dropped.
    pub(super) fn close_reader(&self) {
        let unread = self.over(|state| {
            state.forsaken = true;
            state.frames_lost = !state.frames.is_empty();
            state.held = 0;
            std::mem::take(&mut state.frames)
        });
        drop(unread);
    }

    fn over<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, reader, writer, sibling) = {
            let mut state = self.state();
            (change(&mut state), state.reader.take(), state.writer.take(), state.sibling.take())
        };
        for waker in [reader, writer.map(|(_, waker)| waker), sibling].into_iter().flatten() {
            waker.wake();
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fills it for one lane, and reads until it is empty. Returns how many frames it held, and how many were left when
    /// its sender was woken.
    fn filled_and_read(lane: Lane) -> (usize, usize) {
        let (direction, woken) = (Direction::default(), Arc::<Woken>::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut held = 0;
        while direction.poll_room(lane, &mut cx).is_ready() {
            assert!(direction.push(Bytes::from_static(&[b' '; 1024 - FRAME_COST])));
            held += 1;
        }
        let mut left = held;
        let mut left_when_woken = None;
        while left > 0 {
            assert!(matches!(direction.poll_pop(&mut cx), Poll::Ready(Popped::Frame(_))));
            left -= 1;
            if woken.0.load(Ordering::Relaxed) > 0 {
                left_when_woken.get_or_insert(left);
            }
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "a sender that waits is woken once");
        (held, left_when_woken.unwrap())
    }

    #[test]
    fn a_waiting_sender_is_woken_when_half_of_the_buffer_is_free() {
        assert_eq!(filled_and_read(Lane::Data), (33, 16));
        assert_eq!(filled_and_read(Lane::Control), (64, 32));
    }
}
