//! Splits bytes into frames, without I/O: bytes go in, frames or [`BadFrame`] items come out.
//!
//! Invariants of every decoder:
//! - A decoder holds at most twice the limit, whatever length the peer announces. Memory for an announced length is
//!   allocated as its bytes arrive: at most four times what has arrived, and 16 KiB.
//! - Each byte is examined a limited number of times, however small the pieces of the input are.
//! - A frame is reported once, as [`Decoded::Frame`] or as [`Decoded::Bad`]. It shares the memory of the read buffer.
//! - Output between frames is dropped and reported. Time only ends the wait for the rest of a text over several lines, for a
//!   line end after a whole message, and for the beginning of a refused frame.

mod content_length;
mod header_block;
mod newline;
mod printed_json;

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

pub use crate::framing::content_length::ContentLength;
pub use crate::framing::newline::Newline;

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
    /// A whole message whose line end, or whose last bytes by its `Content-Length`, did not come in time. It may have other output
    /// beside it.
    Unended(Bytes),
    /// Bytes that are not a frame, and their beginning: at most 1 KiB. Of [`BadFrame::NotJson`]: all of them.
    Bad(BadFrame, Bytes),
    /// Output that is not a message. It was dropped.
    Noise(Bytes),
    /// A byte order mark before a line or a header block. It was dropped. With the beginning of what follows it.
    ByteOrderMark(Bytes),
}

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How long a line end after a whole message is waited for, the rest of a text over several lines, and the beginning of a
/// refused frame.
const PART_TIME: Duration = Duration::from_secs(1);

/// How many bytes of other output may be behind a whole message whose end does not come.
const MAX_BEHIND: usize = 256;
/// How many times a part is asked about until it is twice as long.
const MAX_ASKED: u8 = 8;

/// Whether a part of a frame may have a whole message, with a few bytes behind it.
fn may_end_object(part: &[u8]) -> bool {
    let end = part.get(part.len().saturating_sub(MAX_BEHIND)..);
    memchr::memrchr(b'}', end.unwrap_or_default()).is_some()
}

/// The part of a frame that is here may have a whole message. If it has, its end is not waited for forever: it may never be
/// written.
#[derive(Debug)]
struct Unended {
    /// In bytes.
    length: usize,
    /// When it is taken if it is a message, once that is known.
    ends_at: Option<Instant>,
    /// It is not a message, or not a whole one.
    is_refused: bool,
    /// How many times it was refused since it had `first_length` bytes.
    asked: u8,
    first_length: usize,
}

impl Unended {
    /// Keeps what has `length` bytes now. One that was refused is asked about again when it is longer, and after `most` times when
    /// it is twice as long, so its bytes are read a limited number of times.
    fn note(kept: &mut Option<Self>, length: usize, may_be_whole: bool, most: u8) {
        let is_known = kept.as_ref().is_some_and(|part| {
            (part.is_refused && (part.length == length || (part.asked >= most && part.is_near(length))))
                || (may_be_whole && part.length == length)
        });
        if is_known {
            return;
        }
        let (asked, first_length) = match kept.take() {
            Some(part) if part.asked > 0 && part.is_near(length) => (part.asked, part.first_length),
            _ => (0, length),
        };
        // A part that was asked about is kept while it grows, also where it does not end as a message does.
        if may_be_whole || asked > 0 {
            let is_refused = !may_be_whole;
            *kept = Some(Self { length, ends_at: None, is_refused, asked, first_length });
        }
    }

    const fn is_near(&self, length: usize) -> bool {
        length < 2 * self.first_length
    }

    fn deadline(kept: &mut Option<Self>, now: Instant) -> Option<Instant> {
        let part = kept.as_mut().filter(|part| !part.is_refused)?;
        Some(*part.ends_at.get_or_insert(now + PART_TIME))
    }

    const fn is_awaited(kept: Option<&Self>) -> bool {
        matches!(kept, Some(Self { is_refused: false, .. }))
    }

    /// Its time is over, and nothing has come since. It is refused until its owner takes it.
    fn is_over(kept: &mut Option<Self>, length: usize) -> bool {
        kept.as_mut().is_some_and(|part| {
            part.is_refused = true;
            part.asked = part.asked.saturating_add(1);
            part.length == length
        })
    }
}

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

/// Whether a body is written as it is.
fn is_one_line(body: &[u8]) -> bool {
    memchr::memchr2(b'\n', b'\r', body).is_none()
}

/// Copies JSON without the white space between its tokens.
fn compact(body: &[u8], out: &mut BytesMut) {
    let mut in_string = false;
    let mut escaped = false;
    for &byte in body {
        match byte {
            b'\n' if in_string => out.extend_from_slice(b"\\n"),
            b'\r' if in_string => out.extend_from_slice(b"\\r"),
            b'\n' | b'\r' | b' ' | b'\t' if !in_string => continue,
            _ => out.extend_from_slice(&[byte]),
        }
        if in_string && !escaped && byte == b'\\' {
            escaped = true;
            continue;
        }
        if byte == b'"' && !escaped {
            in_string = !in_string;
        }
        escaped = false;
    }
}

/// How frames are delimited in a stream of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Framing {
    /// One message a line: ACP, MCP, ABP over stdio.
    #[default]
    Newline,
    /// A header block with `Content-Length`, then the message: LSP.
    ContentLength,
}

impl Framing {
    /// A decoder for frames of at most `limit` bytes.
    #[must_use]
    pub fn decoder(self, limit: usize) -> Decoder {
        match self {
            Self::Newline => Decoder::Newline(Newline::new(limit)),
            Self::ContentLength => Decoder::ContentLength(ContentLength::new(limit)),
        }
    }

    /// Appends `body` as one frame to `out`.
    pub fn encode(self, body: &[u8], out: &mut BytesMut) {
        match self {
            Self::Newline => Newline::encode(body, out),
            Self::ContentLength => ContentLength::encode(body, out),
        }
    }

    /// Appends what precedes `body` in its frame, and returns what follows it, for a writer that does not copy the body.
    /// `None`: this body is not written as it is, and nothing was appended. Then use [`encode`](Self::encode).
    #[must_use]
    pub fn encode_around(self, body: &[u8], out: &mut BytesMut) -> Option<&'static [u8]> {
        match self {
            Self::Newline => is_one_line(body).then_some(b"\n"),
            Self::ContentLength => {
                ContentLength::encode_header(body.len(), 0, out);
                Some(b"")
            }
        }
    }
}

/// A decoder of either framing.
#[derive(Debug)]
pub enum Decoder {
    /// One message a line.
    Newline(Newline),
    /// A header block, then the message.
    ContentLength(ContentLength),
}

impl Decoder {
    /// Appends input.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer_mut().extend_from_slice(bytes);
    }

    /// The buffer to which a reader appends input without a copy, after [`make_room`](Self::make_room). Only append to
    /// it.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        match self {
            Self::Newline(decoder) => decoder.buffer_mut(),
            Self::ContentLength(decoder) => decoder.buffer_mut(),
        }
    }

    /// Makes room in the buffer for a read. Call it after `next_frame` returned `None`.
    pub fn make_room(&mut self) {
        match self {
            Self::Newline(decoder) => decoder.make_room(),
            Self::ContentLength(decoder) => decoder.make_room(),
        }
    }

    /// The next frame or its refusal. `None`: more input is needed. Call it until it returns `None` after each piece of
    /// input.
    pub fn next_frame(&mut self) -> Option<Decoded> {
        match self {
            Self::Newline(decoder) => decoder.next_frame(),
            Self::ContentLength(decoder) => decoder.next_frame(),
        }
    }

    /// The results of the end of input: a last frame, a truncated one, output that is not a frame, or nothing. Call it after
    /// `next_frame` returned `None`, until it returns `None` too.
    pub fn finish(&mut self) -> Option<Decoded> {
        match self {
            Self::Newline(decoder) => decoder.finish(),
            Self::ContentLength(decoder) => decoder.finish(),
        }
    }

    /// When the time ends for a part of the input that is waited for. `None`: there is none. See [`Newline::deadline`] and
    /// [`ContentLength::deadline`].
    pub fn deadline(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Self::Newline(decoder) => decoder.deadline(now),
            Self::ContentLength(decoder) => decoder.deadline(now),
        }
    }

    /// Whether a part of the input is waited for for a time: the rest of a text over several lines, a line end, or the beginning of
    /// a refused frame.
    #[must_use]
    pub const fn is_collecting(&self) -> bool {
        match self {
            Self::Newline(decoder) => decoder.is_collecting(),
            Self::ContentLength(decoder) => decoder.is_collecting(),
        }
    }

    /// The time for a part of the input is over. Call `next_frame` again after it.
    pub fn give_up(&mut self) -> Option<Decoded> {
        match self {
            Self::Newline(decoder) => decoder.give_up(),
            Self::ContentLength(decoder) => decoder.give_up(),
        }
    }

    /// The number of bytes of a frame that is not complete. Call it after `next_frame` returned `None`.
    #[must_use]
    pub fn partial(&self) -> usize {
        match self {
            Self::Newline(decoder) => decoder.partial(),
            Self::ContentLength(decoder) => decoder.partial(),
        }
    }

    /// The beginning of a frame that is not complete: at most 1 KiB.
    #[must_use]
    pub fn beginning(&self) -> Bytes {
        match self {
            Self::Newline(decoder) => decoder.beginning(),
            Self::ContentLength(decoder) => decoder.beginning(),
        }
    }

    /// Drops the frame that has begun, and the rest of it when it arrives. Returns its beginning. `None`: no frame has
    /// begun, or its end is not known.
    pub fn skip_frame(&mut self) -> Option<Bytes> {
        match self {
            Self::Newline(decoder) => decoder.skip_frame(),
            Self::ContentLength(decoder) => decoder.skip_frame(),
        }
    }

    /// Whether no further frame can be found. All further input is dropped.
    #[must_use]
    pub const fn is_failed(&self) -> bool {
        match self {
            Self::Newline(_) => false,
            Self::ContentLength(decoder) => decoder.is_failed(),
        }
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

    fn encode(body: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        Newline::encode(body, &mut out);
        out.to_vec()
    }

    #[test]
    fn a_body_with_line_ends_is_written_as_one_compact_line() {
        assert_eq!(encode(b"{\r\n  \"a b\": [1,\n\t2]\n}"), b"{\"a b\":[1,2]}\n");
        assert_eq!(encode(b"{\"a\": \"\\\\\" ,\n\"b \\\" c\": 1}"), b"{\"a\":\"\\\\\",\"b \\\" c\":1}\n");
    }

    #[test]
    fn a_body_without_line_ends_is_written_as_it_is() {
        assert_eq!(encode(b"{ \"a\": 1 }"), b"{ \"a\": 1 }\n");
    }

    #[test]
    fn a_raw_line_end_in_a_string_never_breaks_the_line() {
        assert_eq!(encode(b"\"a\nb\r\""), b"\"a\\nb\\r\"\n");
        assert_eq!(memchr::memchr(b'\n', &encode(b"\"a\\\nb")), Some(6));
    }
}
