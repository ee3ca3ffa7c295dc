mod header_block;

use bytes::{Buf, BytesMut};
use memchr::memchr;

use self::header_block::HeaderBlock;
use super::{BadFrame, Decoded, READ_BUFFER, lacks_room, next_capacity, shed};

/// The largest header block, in bytes, including line ends.
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// A header block with `Content-Length`, an empty line, then that many bytes.
///
/// Header lines end with `\r\n`. A block in which every line ends with `\n` alone is accepted too. A block that mixes
/// both contains output that a program printed, and is refused.
///
/// A body above the limit or in a charset other than UTF-8 is refused and skipped, and is not kept in memory. After
/// every other fault the next frame cannot be found, and the decoder stays failed.
///
/// ```
/// # use rescind_core::{ContentLength, Decoded};
/// let mut frames = ContentLength::new(1024);
/// frames.push(b"Content-Length: 2\r\n\r\n{}Content-");
/// assert_eq!(frames.next_frame(), Some(Decoded::Frame("{}".into())));
/// assert_eq!(frames.next_frame(), None);
/// ```
#[derive(Debug)]
pub struct ContentLength {
    buffer: BytesMut,
    /// The number of bytes at the head of the buffer that are known to contain no `\n`. Used in a header block only.
    scanned: usize,
    /// The largest body, in bytes.
    limit: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Header(HeaderBlock),
    Body { length: usize },
    Skipping { remaining: usize },
    Failed,
}

impl ContentLength {
    /// A decoder for bodies of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, limit, state: State::Header(HeaderBlock::default()) }
    }

    /// Appends input.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The buffer to which a reader appends input without a copy, after [`make_room`](Self::make_room). Only append to
    /// it.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Makes room in the buffer for a read. Call it after `next_frame` returned `None`.
    ///
    /// A large body gets memory of its own, in few steps: each is at most four times what has arrived of it, and 16 KiB.
    pub fn make_room(&mut self) {
        match self.state {
            State::Body { length } if length > READ_BUFFER => {
                let have = self.buffer.len();
                if lacks_room(&self.buffer) && self.buffer.capacity() < length {
                    let mut body = BytesMut::with_capacity(next_capacity(length, have));
                    body.extend_from_slice(&self.buffer);
                    self.buffer = body;
                }
            }
            _ if lacks_room(&self.buffer) => self.buffer.reserve(READ_BUFFER),
            _ => {}
        }
    }

    /// The next body, or its refusal. `None`: more input is needed. Call it until it returns `None` after each piece of
    /// input: otherwise the memory in use is not limited.
    pub fn next_frame(&mut self) -> Option<Decoded> {
        loop {
            match &mut self.state {
                State::Header(_) => match self.header_line() {
                    Step::Again => {}
                    Step::Wait => return None,
                    Step::Refuse(why) => return Some(Decoded::Bad(why)),
                },
                State::Body { length } => {
                    let length = *length;
                    if self.buffer.len() < length {
                        return None;
                    }
                    let body = self.buffer.split_to(length).freeze();
                    shed(&mut self.buffer, length);
                    self.state = State::Header(HeaderBlock::default());
                    return Some(Decoded::Frame(body));
                }
                State::Skipping { remaining } => {
                    let here = self.buffer.len().min(*remaining);
                    self.buffer.advance(here);
                    *remaining -= here;
                    if *remaining > 0 {
                        return None;
                    }
                    self.state = State::Header(HeaderBlock::default());
                }
                State::Failed => {
                    self.buffer.clear();
                    return None;
                }
            }
        }
    }

    /// The result of the end of input: [`BadFrame::Truncated`] inside a frame, else nothing. A refused frame is not
    /// reported again. Call it after `next_frame` returned `None`.
    pub fn finish(&mut self) -> Option<Decoded> {
        let cut = match &self.state {
            State::Header(block) => block.size > 0 || !self.buffer.is_empty(),
            State::Body { .. } => true,
            State::Skipping { .. } | State::Failed => false,
        };
        self.fail();
        cut.then_some(Decoded::Bad(BadFrame::Truncated))
    }

    /// Whether no further frame can be found. All further input is dropped.
    #[must_use]
    pub const fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Appends `body` as one frame to `out`.
    pub fn encode(body: &[u8], out: &mut BytesMut) {
        Self::encode_header(body.len(), body.len(), out);
        out.extend_from_slice(body);
    }

    /// Appends the header of a body of this length, and reserves room after it.
    pub(super) fn encode_header(length: usize, room: usize, out: &mut BytesMut) {
        let length = length.to_string();
        out.reserve(b"Content-Length: \r\n\r\n".len() + length.len() + room);
        out.extend_from_slice(b"Content-Length: ");
        out.extend_from_slice(length.as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// The number of bytes of a frame that is not complete. Call it after `next_frame` returned `None`.
    #[must_use]
    pub fn partial(&self) -> usize {
        self.buffer.len()
    }

    /// Drops the body that has begun, and the rest of it when it arrives. `false`: no body has begun.
    pub fn skip_frame(&mut self) -> bool {
        let State::Body { length } = self.state else { return false };
        self.state = State::Skipping { remaining: length.saturating_sub(self.buffer.len()) };
        self.buffer = BytesMut::new();
        true
    }

    fn fail(&mut self) {
        self.state = State::Failed;
        self.buffer = BytesMut::new();
    }

    /// Reads one line of the header block.
    fn header_line(&mut self) -> Step {
        let State::Header(block) = &mut self.state else {
            return Step::Again;
        };
        let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(offset) = memchr(b'\n', unseen) else {
            self.scanned = self.buffer.len();
            return if block.size + self.scanned > MAX_HEADER_BYTES {
                self.refuse(BadFrame::BadHeader)
            } else {
                Step::Wait
            };
        };
        let end = self.scanned + offset;
        let whole = self.buffer.get(..end).unwrap_or_default();
        let line = whole.strip_suffix(b"\r").unwrap_or(whole);
        let last = line.is_empty();
        block.size += end + 1;
        let bare = line.len() == whole.len();
        let read = if block.size > MAX_HEADER_BYTES || *block.bare.get_or_insert(bare) != bare {
            Err(BadFrame::BadHeader)
        } else if last {
            Ok(())
        } else {
            block.line(line)
        };
        self.buffer.advance(end + 1);
        self.scanned = 0;
        match read {
            Err(why) => self.refuse(why),
            Ok(()) if last => self.body(),
            Ok(()) => Step::Again,
        }
    }

    /// The header block is complete: a body follows, to read or to skip.
    fn body(&mut self) -> Step {
        let State::Header(HeaderBlock { length: Some(length), foreign_charset, .. }) = self.state else {
            return self.refuse(BadFrame::BadLength);
        };
        let why = if length > self.limit {
            BadFrame::TooLarge { limit: self.limit }
        } else if foreign_charset {
            BadFrame::BadCharset
        } else {
            self.state = State::Body { length };
            return Step::Again;
        };
        self.state = State::Skipping { remaining: length };
        Step::Refuse(why)
    }

    fn refuse(&mut self, why: BadFrame) -> Step {
        self.fail();
        Step::Refuse(why)
    }
}

enum Step {
    Again,
    Wait,
    Refuse(BadFrame),
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const TOO_LARGE: Decoded = Decoded::Bad(BadFrame::TooLarge { limit: 16 });

    fn frame(text: &'static [u8]) -> Decoded {
        Decoded::Frame(Bytes::from_static(text))
    }

    fn bad(why: BadFrame) -> Vec<Decoded> {
        vec![Decoded::Bad(why)]
    }

    fn decode_pieces(pieces: &[&[u8]]) -> Vec<Decoded> {
        let mut decoder = ContentLength::new(16);
        let mut all = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            all.extend(std::iter::from_fn(|| decoder.next_frame()));
        }
        all.extend(decoder.finish());
        assert_eq!(decoder.finish(), None);
        all
    }

    /// Input in one piece and byte by byte must give the same result.
    fn decode(input: &[u8]) -> Vec<Decoded> {
        let whole = decode_pieces(&[input]);
        assert_eq!(decode_pieces(&input.chunks(1).collect::<Vec<_>>()), whole);
        whole
    }

    #[test]
    fn bodies_are_decoded_with_header_names_in_any_case() {
        let input = b"CONTENT-length:  2 \r\nX-Other: a:b\r\n\r\n{}content-LENGTH:4\r\n\r\n[1]\n";
        assert_eq!(decode(input), [frame(b"{}"), frame(b"[1]\n")]);
    }

    #[test]
    fn an_empty_body_is_a_frame() {
        assert_eq!(decode(b"Content-Length: 0\r\n\r\n"), [frame(b"")]);
    }

    #[test]
    fn an_encoded_frame_is_decoded_unchanged() {
        let mut out = BytesMut::new();
        ContentLength::encode(b"{\n}", &mut out);
        ContentLength::encode(b"", &mut out);
        assert_eq!(&out[..], b"Content-Length: 3\r\n\r\n{\n}Content-Length: 0\r\n\r\n");
        assert_eq!(decode(&out), [frame(b"{\n}"), frame(b"")]);
    }

    #[test]
    fn a_missing_repeated_signed_or_overlong_length_fails_the_decoder() {
        for header in [
            "X: 1\r\n",
            "",
            "Content-Length: 2\r\nContent-Length: 2\r\n",
            "Content-Length: -2\r\n",
            "Content-Length: +2\r\n",
            "Content-Length: 2, 2\r\n",
            "Content-Length: 0x2\r\n",
            "Content-Length:\r\n",
            "Content-Length: \u{0662}\r\n",
            "Content-Length: 99999999999999999999999999\r\n",
        ] {
            let input = format!("{header}\r\n{{}}Content-Length: 2\r\n\r\n{{}}");
            assert_eq!(decode(input.as_bytes()), bad(BadFrame::BadLength), "{header:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_a_header_fails_the_decoder() {
        for line in ["panic at main.rs", ": 2", "Content Length: 2", "Content-Length : 2", r#"{"id":1}"#] {
            let input = format!("{line}\r\nContent-Length: 2\r\n\r\n{{}}");
            assert_eq!(decode(input.as_bytes()), bad(BadFrame::BadHeader), "{line:?}");
        }
    }

    #[test]
    fn a_printed_line_among_headers_fails_the_decoder() {
        let bare = b"Content-Length: 2\nX: y\n\n{}";
        assert_eq!(decode(bare), [frame(b"{}")]);
        for input in ["Warning: a feature\nContent-Length: 2\r\n\r\n{}", "Content-Length: 2\r\n\n{}"] {
            assert_eq!(decode(input.as_bytes()), bad(BadFrame::BadHeader), "{input:?}");
        }
        assert_eq!(decode(b"{\"jsonrpc\":\"2.0\",\"id\":1}\n"), bad(BadFrame::BadHeader));
    }

    #[test]
    fn a_header_block_over_eight_kibibytes_fails_the_decoder() {
        let long_line = vec![b'x'; MAX_HEADER_BYTES + 1];
        assert_eq!(decode(&long_line), bad(BadFrame::BadHeader));
        let many_lines = b"X: y\r\n".repeat(MAX_HEADER_BYTES / 6 + 1);
        assert_eq!(decode(&many_lines), bad(BadFrame::BadHeader));
    }

    #[test]
    fn an_oversize_body_is_skipped_and_the_next_is_read() {
        let input = b"Content-Length: 17\r\n\r\n01234567890123456Content-Length: 2\r\n\r\n{}";
        assert_eq!(decode(input), [TOO_LARGE, frame(b"{}")]);
    }

    #[test]
    fn a_large_body_gets_memory_as_it_arrives_and_no_more_than_its_length() {
        for length in [READ_BUFFER + 1, 65_536 + 60, 1 << 20, (8 << 20) + 77] {
            let body: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut decoder = ContentLength::new(16 << 20);
            decoder.push(format!("Content-Length: {length}\r\n\r\n").as_bytes());
            let (mut rest, mut copied, mut read) = (&body[..], 0, None);
            while read.is_none() {
                read = decoder.next_frame();
                let (held, room) = (decoder.buffer.len(), decoder.buffer.capacity());
                decoder.make_room();
                if read.is_none() && decoder.buffer.capacity() != room {
                    copied += held;
                    assert!(decoder.buffer.capacity() <= 4 * held + READ_BUFFER, "{held} of {length} bytes");
                    assert!(decoder.buffer.capacity() <= length.max(READ_BUFFER + 64), "{length} bytes");
                }
                let room = decoder.buffer.capacity() - decoder.buffer.len();
                assert!(room > 0, "no room at {held} of {length} bytes");
                let (piece, after) = rest.split_at(rest.len().min(room));
                decoder.push(piece);
                rest = after;
            }
            assert_eq!(read, Some(Decoded::Frame(Bytes::from(body))));
            assert!(copied <= length / 2 + READ_BUFFER, "{copied} of {length} bytes were copied");
        }
    }

    #[test]
    fn a_false_content_length_allocates_nothing() {
        let mut decoder = ContentLength::new(1 << 30);
        decoder.push(b"Content-Length: 1073741824\r\n\r\n{}");
        assert_eq!(decoder.next_frame(), None);
        assert!(decoder.buffer.capacity() < 4096);
        decoder.make_room();
        assert!(decoder.buffer.capacity() <= 2 * READ_BUFFER);
        assert_eq!(decoder.finish(), Some(Decoded::Bad(BadFrame::Truncated)));
    }

    #[test]
    fn an_endless_oversize_body_is_held_in_bounded_memory() {
        let mut decoder = ContentLength::new(16);
        decoder.push(format!("Content-Length: {}\r\n\r\n", usize::MAX).as_bytes());
        assert_eq!(decoder.next_frame(), Some(TOO_LARGE));
        for _ in 0..1024 {
            decoder.push(&[b'x'; 4096]);
            assert_eq!(decoder.next_frame(), None);
        }
        assert!(decoder.buffer.capacity() <= 16 * 1024);
    }

    #[test]
    // covers: RULE-14
    fn an_unknown_charset_refuses_only_its_own_body() {
        let next = "Content-Length: 2\r\nContent-Type: a/b; x=y; Charset=\"UTF8\"\r\n\r\n{}";
        for charset in ["latin1", "\"utf-16\"", ""] {
            let input = format!("Content-Type: a/b; charset={charset}\r\nContent-Length: 3\r\n\r\n[1]{next}");
            assert_eq!(decode(input.as_bytes()), [Decoded::Bad(BadFrame::BadCharset), frame(b"{}")]);
        }
    }

    #[test]
    fn input_that_ends_inside_a_frame_is_reported_as_truncated() {
        let whole = b"Content-Length: 2\r\n\r\n{}";
        assert_eq!(decode(b""), []);
        for end in 1..whole.len() {
            assert_eq!(decode(&whole[..end]), bad(BadFrame::Truncated), "cut at {end}");
        }
    }

    #[test]
    fn a_skipped_body_that_ends_early_is_not_reported_twice() {
        assert_eq!(decode(b"Content-Length: 99\r\n\r\nxx"), [TOO_LARGE]);
    }

    #[test]
    fn a_failed_decoder_stays_failed_and_holds_nothing() {
        let mut decoder = ContentLength::new(16);
        decoder.push(b"\r\n");
        assert_eq!(decoder.next_frame(), Some(Decoded::Bad(BadFrame::BadLength)));
        assert!(decoder.is_failed());
        decoder.push(b"Content-Length: 2\r\n\r\n{}");
        assert_eq!(decoder.next_frame(), None);
        assert!(decoder.buffer.is_empty());
    }
}
