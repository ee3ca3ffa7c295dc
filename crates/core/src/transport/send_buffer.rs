//! How much a sender may hold, and how it says what is wrong: the same for every wire of this crate.

use std::io;

use super::{Lane, TransportError, TransportErrorKind};
use crate::id::ExchangeId;

/// Bulk is taken while no more than this is held, so that a usual frame still fits below [`HELD`].
const HELD_FOR_BULK: usize = 32 * 1024;
/// The most a sender holds unflushed, in bytes, one larger frame aside.
const HELD: usize = 64 * 1024;

/// Whether a frame of this lane may be taken by a sender that holds so many bytes.
pub(super) const fn has_room(lane: Lane, held: usize) -> bool {
    match lane {
        Lane::Control => held < HELD,
        Lane::Data => held <= HELD_FOR_BULK,
    }
}

/// Whether a sender that found no room for this lane is to be woken: one that is woken for each frame that leaves would write one
/// and wait again.
pub(super) const fn is_half_empty(lane: Lane, held: usize) -> bool {
    match lane {
        Lane::Control => held <= HELD / 2,
        Lane::Data => held <= HELD_FOR_BULK / 2,
    }
}

/// Why nothing can be sent any more.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    /// We closed.
    Closed,
    /// It broke.
    By(TransportError),
}

impl Broken {
    pub(super) fn by(error: io::Error) -> Self {
        Self::By(TransportError::from(error))
    }

    pub(super) fn error(&self) -> TransportError {
        match self {
            Self::Closed => TransportError::new(TransportErrorKind::Closed, "this side closed it"),
            Self::By(error) => error.clone(),
        }
    }
}

/// The frame was not taken; the connection goes on.
pub(super) fn oversize(exchange: ExchangeId, limit: usize) -> TransportError {
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::TooLarge, text) }
}
