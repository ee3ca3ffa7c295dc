//! What the driver keeps for a request beside the machine's slot. `R` is the request as its handler and its contexts share it.

use std::sync::Arc;
use std::task::Waker;

use crate::driver::admission::permits::Task;
use crate::id::RequestId;
use crate::sync::AbortHandle;

/// What the driver keeps for a request beside the machine's slot.
pub(crate) struct InboundSlot<R> {
    pub(crate) request: Arc<R>,
    /// What few requests have.
    pub(crate) extras: Option<Box<InboundExtras>>,
    /// Bytes it holds: its frame, or its answer where that waits for room and is larger.
    pub(crate) bytes: u32,
    /// Frames of it that wait in the outbox. At the most a `u16` holds it stays there.
    frames: u16,
    /// Whether it is answered without a handler.
    pub(crate) unserved: Unserved,
    /// Its task runs, and whether its request is settled.
    pub(crate) task: Task,
}

/// What few requests have.
#[derive(Default)]
pub(crate) struct InboundExtras {
    /// Its handler waits for room in the outbox.
    pub(crate) waits_for_room: Option<Waker>,
    /// The progress tokens it reports under, by which the peer may cancel it.
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
        // One that was at its most may have been over it: it is not known any more when the last is gone.
        if self.frames < u16::MAX {
            self.frames = self.frames.saturating_sub(1);
        }
    }

    /// Whether frames of it wait in the outbox. From then on none do.
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
    /// As nobody serves its method.
    NotFound,
    /// By the result the dialect has for it.
    Shutdown,
}
