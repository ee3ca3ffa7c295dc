use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::{ContentLength, Decoded, Newline, newline};

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
            Self::Newline => newline::is_one_line(body).then_some(b"\n"),
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

    /// Whether a part of the input is waited for: the rest of a text over several lines, or the beginning of a refused frame.
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
