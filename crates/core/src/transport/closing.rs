use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Reports to the receiving half that the sending half is closed. After the end of input the receiving half waits only
/// for this.
#[derive(Debug, Default)]
struct State {
    closed: bool,
    waiting: Option<Waker>,
}

/// The part of the sending half. Dropping it closes.
#[derive(Debug)]
pub(super) struct Closer(Arc<Mutex<State>>);

/// The part of the receiving half.
#[derive(Debug)]
pub(super) struct Closing(Arc<Mutex<State>>);

/// Both parts.
pub(super) fn closing() -> (Closer, Closing) {
    let state = Arc::<Mutex<State>>::default();
    (Closer(Arc::clone(&state)), Closing(state))
}

impl Closer {
    /// Reports that the output is closed or broken.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.closed = true;
            state.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Closing {
    /// Whether the output is closed, without waiting.
    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Waits for the output to close.
    pub(super) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}
