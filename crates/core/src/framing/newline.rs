use bytes::{Buf, BytesMut};
use memchr::{memchr, memchr2};

use super::{BadFrame, Decoded, READ_BUFFER, lacks_room, shed};
use crate::failpoint::{self, Failpoint};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The largest part in which a long line is collected, in bytes.
const MAX_PART: usize = 256 * 1024;

/// One message a line.
///
/// A `\r` before the `\n` is dropped, and empty lines are skipped. A byte order mark at the start is dropped once. A
/// line above the limit is reported once and dropped up to the next `\n`.
///
/// ```
/// # use rescind_core::{Decoded, Newline};
/// let mut lines = Newline::new(1024);
/// lines.push(b"{\"id\":1}\r\n\n{\"id\"");
/// assert_eq!(lines.next_frame(), Some(Decoded::Frame("{\"id\":1}".into())));
/// assert_eq!(lines.next_frame(), None);
/// lines.push(b":2}\n");
/// assert_eq!(lines.next_frame(), Some(Decoded::Frame("{\"id\":2}".into())));
/// ```
#[derive(Debug)]
pub struct Newline {
    /// The beginning of a long line, without a `\n`. Its parts are joined when its end is known, so that its memory is
    /// exact and each byte is copied once. A buffer that doubles would take up to three times as much. The list
    /// keeps its places, 32 bytes for each part of the longest line so far.
    parts: Vec<BytesMut>,
    /// The bytes in `parts`.
    collected: usize,
    buffer: BytesMut,
    /// The number of bytes at the head of the buffer that are known to contain no `\n`.
    scanned: usize,
    /// The longest line, in bytes, without its line end.
    limit: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was read: a byte order mark may follow.
    Start,
    /// In a line.
    Line,
    /// In a line that was refused.
    Dropping,
}

impl Newline {
    /// A decoder for lines of at most `limit` bytes, without their line ends.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            parts: Vec::new(),
            collected: 0,
            buffer: BytesMut::new(),
            scanned: 0,
            limit,
            state: State::Start,
        }
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
    pub fn make_room(&mut self) {
        if !lacks_room(&self.buffer) {
            return;
        }
        if self.buffer.len() < READ_BUFFER / 2 {
            self.buffer.reserve(READ_BUFFER);
            return;
        }
        self.collected += self.buffer.len();
        let room = self.collected.clamp(READ_BUFFER, MAX_PART);
        self.parts.push(std::mem::replace(&mut self.buffer, BytesMut::with_capacity(room)));
        self.scanned = 0;
    }

    /// The next line, or its refusal. `None`: more input is needed. Call it until it returns `None` after each piece of
    /// input: otherwise the memory in use is not limited.
    pub fn next_frame(&mut self) -> Option<Decoded> {
        if !self.is_past_start() {
            return None;
        }
        loop {
            let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(offset) = memchr(b'\n', unseen) else {
                return self.wait_for_line_end();
            };
            let end = self.scanned + offset;
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            self.scanned = 0;
            if self.state == State::Dropping {
                if !failpoint::active(Failpoint::BadFrameSwallowsNext) {
                    self.state = State::Line;
                }
                continue;
            }
            if let Some(decoded) = self.line(line) {
                return Some(decoded);
            }
        }
    }

    /// The result of the end of input: a last line without its `\n` is a frame. Call it after `next_frame` returned
    /// `None`.
    pub fn finish(&mut self) -> Option<Decoded> {
        let rest = self.buffer.split();
        self.scanned = 0;
        match std::mem::replace(&mut self.state, State::Line) {
            State::Start | State::Line => self.line(rest),
            State::Dropping => None,
        }
    }

    /// Appends `body` as one line to `out`.
    ///
    /// JSON allows raw line ends only as white space between tokens, so a body that has one is written without the
    /// white space between its tokens. A line end inside a string is not JSON. It is written escaped, because a frame
    /// is always one line.
    pub fn encode(body: &[u8], out: &mut BytesMut) {
        out.reserve(body.len() + 1);
        if is_one_line(body) {
            out.extend_from_slice(body);
        } else {
            compact(body, out);
        }
        out.extend_from_slice(b"\n");
    }

    /// The number of bytes of a line that is not complete. Call it after `next_frame` returned `None`.
    #[must_use]
    pub fn partial(&self) -> usize {
        self.collected + self.buffer.len()
    }

    /// Drops the line that has begun, up to the next `\n`. `false`: no line has begun.
    pub fn skip_frame(&mut self) -> bool {
        if self.state != State::Line || self.partial() == 0 {
            return false;
        }
        self.state = State::Dropping;
        self.forget();
        true
    }

    /// Drops a byte order mark, once. `false`: more input is needed to know whether there is one.
    fn is_past_start(&mut self) -> bool {
        if self.state == State::Start {
            if self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.advance(BYTE_ORDER_MARK.len());
            } else if BYTE_ORDER_MARK.starts_with(&self.buffer) {
                return false;
            }
            self.state = State::Line;
        }
        true
    }

    /// No `\n` was found: keeps only bytes that may become a frame.
    fn wait_for_line_end(&mut self) -> Option<Decoded> {
        self.scanned = self.buffer.len();
        if self.state == State::Dropping {
            self.forget();
            return None;
        }
        // A `\r` directly above the limit may belong to the line end.
        let last = if self.buffer.is_empty() { self.parts.last() } else { Some(&self.buffer) };
        let return_byte = usize::from(last.is_some_and(|part| part.ends_with(b"\r")));
        if self.partial() - return_byte <= self.limit {
            return None;
        }
        self.state = State::Dropping;
        self.forget();
        Some(Decoded::Bad(BadFrame::TooLarge { limit: self.limit }))
    }

    fn forget(&mut self) {
        self.scanned = 0;
        self.parts.clear();
        self.collected = 0;
        if self.buffer.len() > super::MAX_MOVED_BYTES {
            self.buffer = BytesMut::new();
        } else {
            self.buffer.clear();
        }
    }

    /// A whole line, of which `rest` is the end. The parts are freed while they are copied.
    fn joined(&mut self, rest: BytesMut) -> BytesMut {
        if self.parts.is_empty() {
            return rest;
        }
        let mut line = BytesMut::with_capacity(self.collected + rest.len());
        for part in self.parts.drain(..) {
            line.extend_from_slice(&part);
        }
        line.extend_from_slice(&rest);
        self.collected = 0;
        line
    }

    fn line(&mut self, rest: BytesMut) -> Option<Decoded> {
        let mut line = self.joined(rest);
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        shed(&mut self.buffer, line.len());
        if line.is_empty() {
            None
        } else if line.len() > self.limit {
            Some(Decoded::Bad(BadFrame::TooLarge { limit: self.limit }))
        } else {
            Some(Decoded::Frame(line.freeze()))
        }
    }
}

/// Whether a body is written as it is.
pub(super) fn is_one_line(body: &[u8]) -> bool {
    memchr2(b'\n', b'\r', body).is_none()
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const TOO_LARGE: Decoded = Decoded::Bad(BadFrame::TooLarge { limit: 8 });

    fn frame(text: &'static [u8]) -> Decoded {
        Decoded::Frame(Bytes::from_static(text))
    }

    fn decode(pieces: &[&[u8]], limit: usize) -> Vec<Decoded> {
        let mut decoder = Newline::new(limit);
        let mut all = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            all.extend(std::iter::from_fn(|| decoder.next_frame()));
        }
        all.extend(decoder.finish());
        assert_eq!(decoder.finish(), None);
        all
    }

    fn encode(body: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        Newline::encode(body, &mut out);
        out.to_vec()
    }

    #[test]
    fn lines_are_decoded_and_empty_lines_are_skipped() {
        let input: &[u8] = b"\n\r\n{}\n[1]\r\n\n\"last\"";
        let expected = [frame(b"{}"), frame(b"[1]"), frame(b"\"last\"")];
        assert_eq!(decode(&[input], 8), expected);
        assert_eq!(decode(&input.chunks(1).collect::<Vec<_>>(), 8), expected);
    }

    #[test]
    fn only_one_carriage_return_is_stripped() {
        assert_eq!(decode(&[b"a\r\r\n"], 8), [frame(b"a\r")]);
    }

    #[test]
    fn a_byte_order_mark_is_dropped_once_at_the_start() {
        let input: &[u8] = b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}\n";
        let expected = [frame(b"{}"), frame(b"\xef\xbb\xbf{}")];
        assert_eq!(decode(&[input], 8), expected);
        assert_eq!(decode(&input.chunks(1).collect::<Vec<_>>(), 8), expected);
    }

    #[test]
    fn a_truncated_byte_order_mark_is_passed_on_unchanged() {
        assert_eq!(decode(&[b"\xef\xbb"], 8), [frame(b"\xef\xbb")]);
    }

    #[test]
    fn a_line_of_exactly_the_limit_passes_with_either_line_end() {
        for input in [&b"12345678\n"[..], b"12345678\r\n", b"12345678"] {
            assert_eq!(decode(&[input], 8), [frame(b"12345678")]);
            assert_eq!(decode(&input.chunks(1).collect::<Vec<_>>(), 8), [frame(b"12345678")]);
        }
    }

    #[test]
    fn an_oversize_line_is_refused_once_and_the_next_line_is_read() {
        let input: &[u8] = b"123456789abcdefghijklmnop\n{}\n";
        assert_eq!(decode(&[input], 8), [TOO_LARGE, frame(b"{}")]);
        assert_eq!(decode(&input.chunks(1).collect::<Vec<_>>(), 8), [TOO_LARGE, frame(b"{}")]);
        assert_eq!(decode(&[b"123456789abc"], 8), [TOO_LARGE]);
    }

    #[test]
    fn an_endless_line_is_held_in_bounded_memory() {
        let mut decoder = Newline::new(1 << 20);
        let piece = [b'x'; 4096];
        let mut refusals = 0;
        for _ in 0..4096 {
            decoder.push(&piece);
            refusals += usize::from(decoder.next_frame().is_some());
            assert!(decoder.buffer.capacity() <= 2 << 20);
        }
        assert_eq!(refusals, 1);
        assert!(decoder.buffer.capacity() <= super::super::MAX_MOVED_BYTES);
    }

    #[test]
    fn a_large_line_does_not_keep_its_memory() {
        let mut decoder = Newline::new(1 << 20);
        decoder.push(&vec![b'x'; 1 << 20]);
        decoder.push(b"\n{}");
        assert!(matches!(decoder.next_frame(), Some(Decoded::Frame(_))));
        assert!(decoder.buffer.capacity() < 4096);
        assert_eq!(decoder.finish(), Some(frame(b"{}")));
    }

    /// Reads as a connection does: into the room that the decoder makes.
    fn read(decoder: &mut Newline, input: &[u8]) -> Vec<Decoded> {
        let mut all: Vec<_> = std::iter::from_fn(|| decoder.next_frame()).collect();
        let mut rest = input;
        while !rest.is_empty() {
            decoder.make_room();
            let room = decoder.buffer.capacity() - decoder.buffer.len();
            let (piece, after) = rest.split_at(rest.len().min(room));
            decoder.push(piece);
            rest = after;
            all.extend(std::iter::from_fn(|| decoder.next_frame()));
        }
        all
    }

    #[test]
    fn a_long_line_is_collected_in_parts_and_takes_exact_memory() {
        for size in [1, READ_BUFFER - 1, READ_BUFFER, READ_BUFFER + 1, 100_000, (1 << 20) - 1, 1 << 20] {
            for end in ["\n", "\r\n"] {
                let mut decoder = Newline::new(1 << 20);
                let line: Vec<u8> = (b'a'..=b'z').cycle().take(size).collect();
                let input = [&line[..], end.as_bytes(), b"{}\n"].concat();
                let expected = [Decoded::Frame(Bytes::from(line)), frame(b"{}")];
                assert_eq!(read(&mut decoder, &input), expected, "{size} bytes");
                assert!(decoder.buffer.capacity() <= MAX_PART, "{size} bytes");
                assert_eq!((decoder.partial(), decoder.parts.len()), (0, 0), "{size} bytes");
                assert!(decoder.parts.capacity() <= 16, "{size} bytes: places for parts");
            }
        }
    }

    #[test]
    fn a_long_line_above_the_limit_is_refused_and_its_parts_are_dropped() {
        for (limit, over) in [(100_000, "x"), (100_000, "xx\r"), (READ_BUFFER, "x\r"), (READ_BUFFER, "\r\r")]
        {
            let mut decoder = Newline::new(limit);
            let input = ["x".repeat(limit).as_bytes(), over.as_bytes()].concat();
            let refused = Decoded::Bad(BadFrame::TooLarge { limit });
            assert_eq!(read(&mut decoder, &input), [refused], "{limit} and {over:?}");
            assert_eq!((decoder.partial(), decoder.parts.len()), (0, 0));
            assert_eq!(read(&mut decoder, b"x\n{}\n"), [frame(b"{}")]);
        }
        // A `\r` that fills the last part may belong to the line end.
        let mut decoder = Newline::new(READ_BUFFER - 1);
        let line = "x".repeat(READ_BUFFER - 1);
        assert_eq!(read(&mut decoder, format!("{line}\r").as_bytes()), []);
        decoder.make_room();
        assert_eq!(decoder.next_frame(), None);
        assert_eq!(read(&mut decoder, b"\n"), [Decoded::Frame(Bytes::from(line))]);
    }

    #[test]
    fn a_long_line_can_be_skipped_and_may_end_with_the_input() {
        let mut decoder = Newline::new(1 << 20);
        let long = "x".repeat(100_000);
        assert_eq!(read(&mut decoder, long.as_bytes()), []);
        assert_eq!(decoder.partial(), long.len());
        assert!(decoder.skip_frame());
        assert_eq!(read(&mut decoder, format!("x\n{long}").as_bytes()), []);
        assert_eq!(decoder.finish(), Some(Decoded::Frame(Bytes::from(long))));
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_unchanged() {
        assert_eq!(decode(&[b"\xff\x00\xc3\n{}\n"], 8), [frame(b"\xff\x00\xc3"), frame(b"{}")]);
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
        assert_eq!(memchr(b'\n', &encode(b"\"a\\\nb")), Some(6));
    }
}
