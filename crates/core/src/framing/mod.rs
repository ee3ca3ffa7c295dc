//! Splits bytes into frames, without I/O: bytes go in, frames or [`BadFrame`] items come out.
//!
//! Invariants of every decoder:
//! - A decoder holds at most twice the limit, whatever length the peer announces. Memory for an announced length is
//!   allocated as its bytes arrive: at most four times what has arrived, and 16 KiB.
//! - Each byte is examined a limited number of times, however small the pieces of the input are.
//! - A frame is reported once, as [`Decoded::Frame`] or as [`Decoded::Bad`]. It shares the memory of the read buffer.
//! - Output between frames is dropped and reported. Time only ends the wait for the rest of a text over several lines, and
//!   for the beginning of a refused frame.

mod content_length;
mod decoder;
mod newline;
mod printed_json;

pub use content_length::ContentLength;
pub use decoder::{Decoder, Framing};
pub use newline::Newline;

use std::time::Duration;

use bytes::{Bytes, BytesMut};

/// Why some bytes are not a frame. It is an item among frames and not an error: if the framing can find the next frame,
/// the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// The frame is larger than the limit. It was dropped.
    #[error("the frame is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// There was no memory for the rest of the frame. It was dropped.
    #[error("the limit `memory` is reached; the frame was dropped")]
    MemoryFull,
    /// A `Content-Length` header occurs twice, is negative, is too large or is not a number.
    #[error("the Content-Length header is missing or invalid")]
    BadLength,
    /// The header block is larger than 8 KiB or its lines end differently, more than 64 KiB of other output are before it, or
    /// a message has none.
    #[error("the header block is invalid")]
    BadHeader,
    /// `Content-Type` names a charset other than UTF-8.
    #[error("the Content-Type names a charset other than utf-8")]
    BadCharset,
    /// The input ended inside a frame.
    #[error("the input ended inside a frame")]
    Truncated,
    /// It is a binary message, on a transport whose frames are text.
    #[error("the message is binary, not text")]
    Binary,
    /// It is a text message that is not UTF-8, on a transport that must not continue after one.
    #[error("the message is not UTF-8")]
    NotUtf8,
    /// The transport's own framing is broken. No further frame can be found.
    #[error("the framing around the message is broken")]
    Broken,
    /// A line, or a text over several lines, is not JSON.
    #[error("the line is not JSON")]
    NotJson,
}

impl BadFrame {
    /// Whether the next frame can be found after this one in `Content-Length` framing. (In `Newline` framing it always
    /// can.) Output between two frames is not a bad frame: it is [`Decoded::Noise`] up to 64 KiB.
    #[must_use]
    pub const fn is_recoverable(self) -> bool {
        match self {
            Self::TooLarge { .. } | Self::MemoryFull | Self::BadCharset | Self::NotJson => true,
            Self::BadLength
            | Self::BadHeader
            | Self::Truncated
            | Self::Binary
            | Self::NotUtf8
            | Self::Broken => false,
        }
    }
}

/// One step of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decoded {
    /// A frame, without its framing.
    Frame(Bytes),
    /// A frame that went on over several lines, in `Newline` framing. It is JSON.
    SeveralLines(Bytes),
    /// Bytes that are not a frame, and their beginning: at most 1 KiB. Of [`BadFrame::NotJson`]: all of them.
    Bad(BadFrame, Bytes),
    /// Output that is not a message. It was dropped.
    Noise(Bytes),
    /// A byte order mark before a line or a header block. It was dropped. With the beginning of what follows it.
    ByteOrderMark(Bytes),
}

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How long the rest of a text over several lines is waited for, and the beginning of a refused frame.
const PART_TIME: Duration = Duration::from_secs(1);

/// How much of a refused frame is kept, in bytes.
const MAX_HEAD: usize = 1024;

/// The beginning of some bytes.
fn head(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes.get(..MAX_HEAD).unwrap_or(bytes))
}

/// The room that is made for reading, in bytes. Small frames share it.
pub(crate) const READ_BUFFER: usize = 16 * 1024;
/// The least room for a read, in bytes.
const MIN_READ_ROOM: usize = 2 * 1024;

/// Whether there is too little room in the buffer for a read.
fn lacks_room(buffer: &BytesMut) -> bool {
    buffer.capacity() - buffer.len() < MIN_READ_ROOM
}

/// The room for a frame of this length of which this much has arrived. The steps to the whole length are factors of
/// four, so the copies from one step to the next are a third of the frame, and nothing is left over at its end.
pub(crate) fn next_capacity(length: usize, have: usize) -> usize {
    let most = have.saturating_mul(4).saturating_add(READ_BUFFER);
    let mut room = length;
    while room > most {
        room = room.div_ceil(4);
    }
    room.max(have.saturating_mul(2)).min(length)
}

/// If at most this many bytes remain when a large frame leaves the buffer, they are copied to new memory. So an idle
/// connection does not keep the memory of its largest frame.
const MAX_MOVED_BYTES: usize = 64 * 1024;

/// Frees the memory that a frame of `taken` bytes needed. The total cost is linear: it never copies more bytes than the
/// frame had.
fn shed(buffer: &mut BytesMut, taken: usize) {
    if taken > MAX_MOVED_BYTES && buffer.len() <= MAX_MOVED_BYTES {
        *buffer = BytesMut::from(&buffer[..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_with_a_known_end_can_be_skipped() {
        for bad in
            [BadFrame::TooLarge { limit: 1 }, BadFrame::MemoryFull, BadFrame::BadCharset, BadFrame::NotJson]
        {
            assert!(bad.is_recoverable(), "{bad}");
        }
        for bad in [BadFrame::BadLength, BadFrame::BadHeader, BadFrame::Truncated, BadFrame::Broken] {
            assert!(!bad.is_recoverable(), "{bad}");
        }
    }

    #[test]
    fn the_buffer_of_a_large_frame_is_released_and_smaller_ones_are_kept() {
        for (taken, left, sheds) in [
            (MAX_MOVED_BYTES + 1, MAX_MOVED_BYTES, true),
            (MAX_MOVED_BYTES + 1, MAX_MOVED_BYTES + 1, false),
            (MAX_MOVED_BYTES, MAX_MOVED_BYTES, false),
            (1, 1, false),
        ] {
            let mut buffer = BytesMut::with_capacity(4 * MAX_MOVED_BYTES);
            buffer.resize(left, b'x');
            shed(&mut buffer, taken);
            assert_eq!(
                (buffer.len(), buffer.capacity() < 2 * MAX_MOVED_BYTES),
                (left, sheds),
                "{taken}, {left}"
            );
        }
    }
}
