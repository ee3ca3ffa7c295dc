//! How much a sender may hold, and its errors. All transports of this crate share them.

use std::io;

use super::{Lane, TransportError, TransportErrorKind};
use crate::id::ExchangeId;

/// A sender that holds at most this many bytes takes a data frame, so that a usual frame still fits below [`MAX_HELD`].
const MAX_HELD_FOR_DATA: usize = 32 * 1024;
/// The most bytes that a sender holds without a flush, except one larger frame.
const MAX_HELD: usize = 64 * 1024;

/// Whether a sender that holds this many bytes may take a frame of this lane.
pub(super) const fn has_room(lane: Lane, held: usize) -> bool {
    match lane {
        Lane::Control => held < MAX_HELD,
        Lane::Data => held <= MAX_HELD_FOR_DATA,
    }
}

/// Whether a sender that had no room for this lane is woken. A sender that is woken for each frame that leaves would
/// write one frame and wait again.
pub(super) const fn is_half_empty(lane: Lane, held: usize) -> bool {
    match lane {
        Lane::Control => held <= MAX_HELD / 2,
        Lane::Data => held <= MAX_HELD_FOR_DATA / 2,
    }
}

/// Why nothing can be sent any more.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    /// This side closed the connection.
    Closed,
    /// The connection broke.
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

/// The error of a frame that is too large. It was not taken, and the connection continues.
pub(super) fn oversize(exchange: ExchangeId, limit: usize) -> TransportError {
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::TooLarge, text) }
}
