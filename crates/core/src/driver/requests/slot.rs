//! The driver's data of a request, in addition to the machine's slot. `R` is the request as its handler and its
//! contexts share it.

use std::sync::Arc;
use std::task::Waker;

use crate::driver::admission::permits::Task;
use crate::id::RequestId;
use crate::sync::AbortHandle;

/// The driver's data of a request, in addition to the machine's slot.
pub(crate) struct InboundSlot<R> {
    pub(crate) request: Arc<R>,
    /// The data that only few requests have.
    pub(crate) extras: Option<Box<InboundExtras>>,
    /// The bytes that it holds: its frame, or its answer if that waits for room and is larger.
    pub(crate) bytes: u32,
    /// The number of its frames in the outbox. At the largest `u16` it stays there.
    frames: u16,
    /// Whether it is answered without a handler.
    pub(crate) unserved: Unserved,
    /// Whether its task runs, and whether its request is settled.
    pub(crate) task: Task,
}

/// The data that only few requests have.
#[derive(Default)]
pub(crate) struct InboundExtras {
    /// Its handler waits for room in the outbox.
    pub(crate) waits_for_room: Option<Waker>,
    /// The progress tokens with which it reports, and by which the peer may cancel it.
    pub(crate) tokens: Vec<RequestId>,
    /// Tasks that end with it.
    pub(crate) watches: Vec<AbortHandle>,
}

impl<R> InboundSlot<R> {
    pub(crate) fn new(request: Arc<R>, bytes: u32) -> Self {
        Self { request, extras: None, bytes, frames: 0, unserved: Unserved::No, task: Task::NotStarted }
    }

    pub(crate) fn add_frame(&mut self) {
        self.frames = self.frames.saturating_add(1);
    }

    pub(crate) fn remove_frame(&mut self) {
        // A count at its largest may be too low. It stays, because it is not known when the last frame has left.
        if self.frames < u16::MAX {
            self.frames = self.frames.saturating_sub(1);
        }
    }

    /// Whether frames of it wait in the outbox. The count is reset.
    pub(crate) fn take_frames(&mut self) -> bool {
        std::mem::take(&mut self.frames) > 0
    }

    pub(crate) fn extras(&mut self) -> &mut InboundExtras {
        self.extras.get_or_insert_default()
    }
}

/// Whether a request is answered without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unserved {
    No,
    /// Its method is not served.
    NotFound,
    /// With the result that the dialect has for it.
    Shutdown,
}
