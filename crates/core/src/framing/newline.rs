//! Newline framing: one JSON text a line, and the texts over several lines that peers print all the same.

use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr_iter};
use serde::de::IgnoredAny;

use super::printed_json::{
    Brackets, Object, begins_text, has_open_text, is_own_message, last_message, message_behind_half,
    messages_of_line, objects_of_array, opens_object, trim, whole_messages,
};
use super::{
    BYTE_ORDER_MARK, BadFrame, Decoded, MAX_ASKED, PART_TIME, READ_BUFFER, Unended, compact, head,
    is_one_line, lacks_room, may_end_object, shed,
};
use crate::failpoint::{self, Failpoint};

/// The largest part in which a long line is collected, in bytes.
const MAX_PART: usize = 256 * 1024;

/// One message a line.
///
/// A `\r` before the `\n` is dropped, lines of blanks are skipped, and a byte order mark before a line is dropped and
/// reported. A line above the limit is reported once and dropped up to the next `\n`.
///
/// Programs print other things than messages:
/// - A line that begins with neither `{` nor `[` is [`BadFrame::NotJson`]. If a message reaches to its end, that message is
///   a frame and only the rest is [`Decoded::Noise`].
/// - The lines of a JSON text that goes on over several lines are collected, up to the limit, until the text is complete or a
///   line is a message of its own. Time ends the wait too: see [`deadline`](Self::deadline). The text may begin with a `{` at
///   the end of a line that has other output before it, if it is a message and its next line begins with a name.
/// - A whole message whose line does not end is [`Decoded::Unended`] when that time is over, with other output before it. What is
///   behind it is [`Decoded::Noise`], unless another text begins there: the line goes on with that.
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
    /// The rest of a line of which a part was returned.
    rest: BytesMut,
    /// How many bytes at the end of `rest` are noise behind a message without a line end.
    behind: usize,
    /// A text that goes on over several lines.
    text: Option<Box<Text>>,
    /// A line without its end, if it may have a whole message.
    unended: Option<Unended>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a line.
    Line,
    /// In a line that was refused.
    Dropping,
}

/// The lines of a text that is not complete.
#[derive(Debug)]
struct Text {
    lines: BytesMut,
    brackets: Brackets,
    /// Whether other output is before it, which may have a bracket at its end too.
    is_printed: bool,
    /// Whether only blank lines have come after that bracket.
    is_only_bracket: bool,
    /// When its time ends, once it is known.
    ends_at: Option<Instant>,
}

impl Text {
    const fn new(lines: BytesMut, brackets: Brackets, is_printed: bool) -> Self {
        Self { lines, brackets, is_printed, is_only_bracket: is_printed, ends_at: None }
    }
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
            state: State::Line,
            rest: BytesMut::new(),
            behind: 0,
            text: None,
            unended: None,
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
        if !self.rest.is_empty() {
            if let Some(decoded) = self.rest_of_line() {
                return Some(decoded);
            }
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
            self.unended = None;
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

    /// The results of the end of input: a last line without its `\n` is a frame, and a text that is not complete is
    /// [`BadFrame::NotJson`]. Call it after `next_frame` returned `None`, until it returns `None` too.
    pub fn finish(&mut self) -> Option<Decoded> {
        let last = self.buffer.split();
        self.scanned = 0;
        let decoded = match std::mem::replace(&mut self.state, State::Line) {
            State::Line if !self.rest.is_empty() => self.rest_of_line(),
            State::Line if last.is_empty() && self.parts.is_empty() => None,
            State::Line => self.line(last),
            State::Dropping => None,
        };
        decoded.or_else(|| self.drop_text())
    }

    /// When the time ends in which the text over several lines must be complete, or the line end after an object must come:
    /// 1 s after the first call for it. `None`: there is none. Call it after `next_frame` returned `None`, and
    /// [`give_up`](Self::give_up) when the time is over.
    pub fn deadline(&mut self, now: Instant) -> Option<Instant> {
        match &mut self.text {
            Some(text) => Some(*text.ends_at.get_or_insert(now + PART_TIME)),
            None => Unended::deadline(&mut self.unended, now),
        }
    }

    /// Whether a text goes on over several lines and is not complete, or a line ends with an object and without a line end.
    #[must_use]
    pub const fn is_collecting(&self) -> bool {
        self.text.is_some() || Unended::is_awaited(self.unended.as_ref())
    }

    /// The time of a text is over: it is [`BadFrame::NotJson`], unless the line that has begun completes it. A line without an
    /// end is a frame if it is a message. `None`: it is not, and its end is waited for.
    pub fn give_up(&mut self) -> Option<Decoded> {
        if self.text.is_none() {
            return self.unended_line();
        }
        let mut brackets = self.text.as_ref()?.brackets;
        brackets.read(b"\n");
        let line = self.parts.iter().chain([&self.buffer]);
        if line.into_iter().any(|part| brackets.read(part).is_some()) {
            let last = self.buffer.split();
            self.scanned = 0;
            return self.line(last);
        }
        self.drop_text()
    }

    /// The messages of a line that is not JSON as a whole: several beside each other, or one beside other output. What is
    /// inside of another text is none.
    #[must_use]
    pub fn messages_of(line: &[u8]) -> Vec<&[u8]> {
        messages_of_line(line)
    }

    /// The objects with which an array begins that is not JSON or has too many values. The last one may be cut off.
    pub fn objects_of_array(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        objects_of_array(text)
    }

    /// A whole message at the end of a text that is cut off, behind half of another.
    #[must_use]
    pub fn message_behind_half(text: &[u8]) -> Option<&[u8]> {
        message_behind_half(text)
    }

    /// A text without what is before its first object.
    #[must_use]
    pub fn beginning_with_object(text: &[u8]) -> Option<&[u8]> {
        let text = trim(text);
        memchr_iter(b'{', text).filter_map(|at| text.get(at..)).find(|rest| begins_text(rest))
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

    /// The number of bytes of a line or text that is not complete. Call it after `next_frame` returned `None`.
    #[must_use]
    pub fn partial(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.lines.len()) + self.begun()
    }

    /// The number of bytes of a line that is not complete.
    fn begun(&self) -> usize {
        self.collected + self.buffer.len()
    }

    /// Drops the line that has begun, up to the next `\n`, and the text to which it belongs. Returns its beginning.
    /// `None`: nothing has begun.
    pub fn skip_frame(&mut self) -> Option<Bytes> {
        if self.state != State::Line || self.partial() == 0 {
            return None;
        }
        let beginning = self.beginning();
        self.text = None;
        if self.begun() > 0 {
            self.state = State::Dropping;
            self.forget();
        }
        Some(beginning)
    }

    /// The beginning of a line or text that is not complete: at most 1 KiB.
    #[must_use]
    pub fn beginning(&self) -> Bytes {
        self.text.as_ref().map_or_else(|| self.head_of_line(), |text| head(&text.lines))
    }

    fn head_of_line(&self) -> Bytes {
        head(self.parts.first().unwrap_or(&self.buffer))
    }

    /// No `\n` was found: keeps only bytes that may become a frame.
    fn wait_for_line_end(&mut self) -> Option<Decoded> {
        self.scanned = self.buffer.len();
        if self.begun() == 0 {
            return None;
        }
        if self.state == State::Dropping {
            self.forget();
            return None;
        }
        // A `\r` directly above the limit may belong to the line end.
        let last = if self.buffer.is_empty() { self.parts.last() } else { Some(&self.buffer) };
        let ends_with = |end: &[u8]| last.is_some_and(|part| part.ends_with(end));
        let length = self.begun() - usize::from(ends_with(b"\r"));
        if self.text.is_some() && length > 0 {
            if let Some(decoded) = self.text_is_too_long(length) {
                return Some(decoded);
            }
        }
        let part_before = self.parts.last().is_some_and(|part| may_end_object(part));
        let may_be_whole = self.text.is_none() && (part_before || may_end_object(&self.buffer));
        let begun = self.begun();
        Unended::note(&mut self.unended, begun, may_be_whole, MAX_ASKED);
        if length <= self.limit {
            return None;
        }
        let beginning = self.head_of_line();
        self.state = State::Dropping;
        self.forget();
        Some(Decoded::Bad(BadFrame::TooLarge { limit: self.limit }, beginning))
    }

    #[cold]
    fn unended_line(&mut self) -> Option<Decoded> {
        let begun = self.begun();
        if !Unended::is_over(&mut self.unended, begun) {
            return None;
        }
        if self.is_cut_off() {
            return None;
        }
        let rest = self.buffer.split();
        let mut line = self.joined(rest);
        let Some(end) = whole_messages(&line) else {
            self.scanned = line.len();
            self.buffer = line;
            return None;
        };
        (self.scanned, self.unended) = (0, None);
        let behind = line.split_off(end);
        let decoded = self.line(line);
        if has_open_text(&behind) {
            self.buffer = behind;
        } else if !trim(&behind).is_empty() {
            self.behind = behind.len();
            self.rest.unsplit(behind);
        }
        match decoded {
            Some(Decoded::Frame(message)) => Some(Decoded::Unended(message)),
            decoded => decoded,
        }
    }

    /// Whether a line is a text that goes on, which is seen without joining its parts.
    fn is_cut_off(&self) -> bool {
        let mut first = &self.parts.first().unwrap_or(&self.buffer)[..];
        while let Some(rest) = first.strip_prefix(BYTE_ORDER_MARK) {
            first = rest;
        }
        let mut brackets = Brackets::default();
        let mut parts = self.parts.iter().chain([&self.buffer]);
        begins_text(first) && !parts.any(|part| brackets.read(part).is_some())
    }

    fn forget(&mut self) {
        self.scanned = 0;
        self.unended = None;
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
        if self.text.is_none() && looks_whole(&line) && line.len() <= self.limit {
            Some(Decoded::Frame(line.freeze()))
        } else {
            self.other_line(line)
        }
    }

    #[cold]
    fn rest_of_line(&mut self) -> Option<Decoded> {
        let mut rest = std::mem::take(&mut self.rest);
        let behind = rest.split_off(rest.len().saturating_sub(std::mem::take(&mut self.behind)));
        if rest.is_empty() {
            return Some(Decoded::Noise(behind.freeze()));
        }
        let decoded = self.other_line(rest);
        self.behind = behind.len();
        self.rest.unsplit(behind);
        decoded
    }

    /// A line, or the rest of one, that is not obviously one frame. `None`: nothing is returned for it, or not yet.
    #[cold]
    fn other_line(&mut self, mut line: BytesMut) -> Option<Decoded> {
        if let Some(decoded) = self.text_is_too_long(line.len()) {
            self.rest = line;
            return Some(decoded);
        }
        if line.len() > self.limit {
            return Some(Decoded::Bad(BadFrame::TooLarge { limit: self.limit }, head(&line)));
        }
        if line.starts_with(BYTE_ORDER_MARK) {
            while line.starts_with(BYTE_ORDER_MARK) {
                line.advance(BYTE_ORDER_MARK.len());
            }
            self.rest = line;
            return Some(Decoded::ByteOrderMark(head(&self.rest)));
        }
        if self.text.is_some() {
            return self.line_of_text(line);
        }
        let text = trim(&line);
        if text.is_empty() {
            return None;
        }
        if looks_whole(text) {
            return Some(Decoded::Frame(line.freeze()));
        }
        if text.first() == Some(&b'{') {
            let before = line.len() - line.trim_ascii_start().len();
            // Only as far as the object can reach: after it, the rest of the line is read again.
            let object = Brackets::default().read(text).and_then(|end| Object::read(text.get(..end)?));
            if let Some(object) = object.filter(|object| object.is_message()) {
                // Not at the end of the line, because a line that ends with the object looks whole.
                self.rest = line.split_off(before + object.length);
                return Some(Decoded::Frame(line.freeze()));
            }
        }
        let mut brackets = Brackets::default();
        if begins_text(text) && brackets.read(text).is_none() {
            // Of its own memory, because it grows.
            let lines = BytesMut::from(&line[..]);
            self.text = Some(Box::new(Text::new(lines, brackets, false)));
            return None;
        }
        if let Some(at) = opens_object(&line) {
            let mut brackets = Brackets::default();
            let lines = BytesMut::from(line.get(at..).unwrap_or_default());
            brackets.read(&lines);
            self.text = Some(Box::new(Text::new(lines, brackets, true)));
            line.truncate(at);
            return Some(Decoded::Noise(line.freeze()));
        }
        match last_message(&line) {
            Some(at) => {
                self.rest = line.split_off(at);
                Some(Decoded::Noise(line.freeze()))
            }
            None => Some(Decoded::Bad(BadFrame::NotJson, line.freeze())),
        }
    }

    /// A line while a text is not complete.
    fn line_of_text(&mut self, mut line: BytesMut) -> Option<Decoded> {
        let text = self.text.as_mut()?;
        let first = trim(&line).first();
        let goes_on = !text.is_only_bracket || matches!(first, None | Some(b'"' | b'}'));
        text.is_only_bracket &= first.is_none();
        if !goes_on || is_own_message(&line) {
            self.rest = line;
            return self.drop_text();
        }
        text.lines.extend_from_slice(b"\n");
        // It may be escaped, though that is not JSON.
        text.brackets.read(b"\n");
        let Some(end) = text.brackets.read(&line) else {
            text.lines.extend_from_slice(&line);
            return None;
        };
        let rest = line.split_off(end);
        text.lines.extend_from_slice(&line);
        self.rest = rest;
        let Text { lines, is_printed, .. } = *self.text.take()?;
        let lines = lines.freeze();
        let is_message = !is_printed || Object::read(&lines).is_some_and(Object::is_message);
        Some(match serde_json::from_slice::<IgnoredAny>(&lines) {
            Ok(IgnoredAny) if is_message => Decoded::SeveralLines(lines),
            Ok(IgnoredAny) => Decoded::Noise(lines),
            Err(_) => Decoded::Bad(BadFrame::NotJson, lines),
        })
    }

    /// Refuses the text that is collected if it is too long together with a line of this length.
    fn text_is_too_long(&mut self, line: usize) -> Option<Decoded> {
        let text = self.text.as_ref()?;
        if text.lines.len() + 1 + line <= self.limit {
            return None;
        }
        let beginning = head(&text.lines);
        self.text = None;
        Some(Decoded::Bad(BadFrame::TooLarge { limit: self.limit }, beginning))
    }

    fn drop_text(&mut self) -> Option<Decoded> {
        let text = self.text.take()?;
        Some(Decoded::Bad(BadFrame::NotJson, text.lines.freeze()))
    }
}

/// Whether a line begins and ends as an object or an array does.
fn looks_whole(line: &[u8]) -> bool {
    matches!((line.first(), line.last()), (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static [u8]) -> Decoded {
        Decoded::Frame(Bytes::from_static(text))
    }

    fn unended(text: &'static [u8]) -> Decoded {
        Decoded::Unended(Bytes::from_static(text))
    }

    fn not_json(text: &'static [u8]) -> Decoded {
        Decoded::Bad(BadFrame::NotJson, Bytes::from_static(text))
    }

    fn noise(text: &'static [u8]) -> Decoded {
        Decoded::Noise(Bytes::from_static(text))
    }

    fn several(text: &'static [u8]) -> Decoded {
        Decoded::SeveralLines(Bytes::from_static(text))
    }

    fn too_large(limit: usize, head: &'static [u8]) -> Decoded {
        Decoded::Bad(BadFrame::TooLarge { limit }, Bytes::from_static(head))
    }

    fn decode_pieces(pieces: &[&[u8]], limit: usize) -> Vec<Decoded> {
        let mut decoder = Newline::new(limit);
        let mut all = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            all.extend(std::iter::from_fn(|| decoder.next_frame()));
            assert!(decoder.partial() <= limit + 1, "{} bytes are held", decoder.partial());
        }
        all.extend(std::iter::from_fn(|| decoder.finish()));
        assert_eq!((decoder.finish(), decoder.partial()), (None, 0));
        all
    }

    /// Input in one piece and byte by byte must give the same result.
    fn decode(input: &[u8], limit: usize) -> Vec<Decoded> {
        let whole = decode_pieces(&[input], limit);
        let mut bytes = decode_pieces(&input.chunks(1).collect::<Vec<_>>(), limit);
        for (decoded, of_whole) in bytes.iter_mut().zip(&whole) {
            // Of a line that is too long, only what had arrived is known.
            if let (Decoded::Bad(why, head), Decoded::Bad(_, longer)) = (decoded, of_whole) {
                if matches!(why, BadFrame::TooLarge { .. }) && longer.starts_with(head) {
                    head.clone_from(longer);
                }
            }
        }
        assert_eq!(bytes, whole);
        whole
    }

    #[test]
    fn lines_are_decoded_and_lines_of_blanks_are_skipped() {
        let input: &[u8] = b"\n\r\n{}\n  \t\n[1]\r\n \r\n\n[\"last\"]";
        assert_eq!(decode(input, 8), [frame(b"{}"), frame(b"[1]"), frame(b"[\"last\"]")]);
        assert_eq!(decode(&b" \n".repeat(1 << 12), 8), []);
    }

    #[test]
    fn only_one_carriage_return_is_stripped() {
        assert_eq!(decode(b"{}\r\r\n", 8), [frame(b"{}\r")]);
    }

    #[test]
    fn a_byte_order_mark_before_any_line_is_dropped_and_reported() {
        let mark = |after: &'static [u8]| Decoded::ByteOrderMark(Bytes::from_static(after));
        let input: &[u8] = b"\xef\xbb\xbf{}\n{}\n\xef\xbb\xbf\xef\xbb\xbf{}\n\xef\xbb\xbf\n\xef\xbb\xbfhi";
        let expected =
            [mark(b"{}"), frame(b"{}"), frame(b"{}"), mark(b"{}"), frame(b"{}"), mark(b""), mark(b"hi")];
        assert_eq!(decode(input, 8), [&expected[..], &[not_json(b"hi")]].concat());
    }

    #[test]
    fn a_truncated_byte_order_mark_is_not_json() {
        assert_eq!(decode(b"\xef\xbb", 8), [not_json(b"\xef\xbb")]);
    }

    #[test]
    fn a_line_of_exactly_the_limit_passes_with_either_line_end() {
        for input in [&b"[123456]\n"[..], b"[123456]\r\n", b"[123456]"] {
            assert_eq!(decode(input, 8), [frame(b"[123456]")]);
        }
    }

    #[test]
    fn an_oversize_line_is_refused_once_and_the_next_line_is_read() {
        let input: &[u8] = b"123456789abcdefghijklmnop\n{}\n";
        assert_eq!(decode(input, 8), [too_large(8, b"123456789abcdefghijklmnop"), frame(b"{}")]);
        assert_eq!(decode(b"123456789abc", 8), [too_large(8, b"123456789abc")]);
        let head = decode_pieces(&[&b"{".repeat(5000)], 4000);
        assert_eq!(head, [Decoded::Bad(BadFrame::TooLarge { limit: 4000 }, b"{".repeat(1024).into())]);
    }

    #[test]
    fn a_line_that_is_not_json_is_reported_whole() {
        let input: &[u8] = b"Loading...\n{}\nok {}\n7\n[INFO] up\n[INFO] {\"a\":1}\n";
        let expected = [
            not_json(b"Loading..."),
            frame(b"{}"),
            not_json(b"ok {}"),
            not_json(b"7"),
            not_json(b"[INFO] up"),
            not_json(b"[INFO] {\"a\":1}"),
        ];
        assert_eq!(decode(input, 64), expected);
        // A reader of JSON judges lines that may be whole.
        assert_eq!(decode(b"[INFO]\n{x}\n", 64), [frame(b"[INFO]"), frame(b"{x}")]);
    }

    #[test]
    fn a_message_in_a_line_of_noise_is_a_frame() {
        let message = br#"{"jsonrpc":"2.0","id":1,"result":{"a":"{"}}"#;
        for before in ["Loading... ", "[INFO] ", "it's \"", "\u{1b}[32m"] {
            let input = [before.as_bytes(), message, b" \r\n{}\n"].concat();
            let noise = Decoded::Noise(Bytes::copy_from_slice(before.as_bytes()));
            let message = Decoded::Frame([&message[..], b" "].concat().into());
            assert_eq!(decode(&input, 256), [noise, message, frame(b"{}")], "{before}");
        }
        let rest = [frame(message), not_json(b" done")];
        assert_eq!(decode(&[&message[..], b" done\n"].concat(), 256), rest);
    }

    const INDENTED: &[u8] = b"{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 1,\n  \"result\": [\n    {\"a\":1},\n    {\"type\":\"x\"}\n  ]\n}";

    #[test]
    fn a_json_text_over_several_lines_is_one_frame() {
        let input = [INDENTED, b"\n{}\n"].concat();
        assert_eq!(decode(&input, 256), [several(INDENTED), frame(b"{}")]);
        assert_eq!(
            decode(b"[\n{\"a\":1},\n\n{\"a\":2}\n]\n", 256),
            [several(b"[\n{\"a\":1},\n\n{\"a\":2}\n]")]
        );
        // With `\r\n` the return bytes are not part of the lines.
        let returns = INDENTED.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..]);
        assert_eq!(decode(&returns, 256), [several(INDENTED)]);
        assert_eq!(
            decode(b"{\n\"a\":1} x {\"id\":1,\"error\":2}\n", 256),
            [several(b"{\n\"a\":1}"), noise(b" x "), frame(b"{\"id\":1,\"error\":2}")]
        );
    }

    #[test]
    fn a_message_over_several_lines_may_begin_behind_other_output() {
        for before in
            ["Response: ", "> ", "[INFO] ", "\u{1b}[32m", "{\"level\":\"info\"} ", "{ {", "it's \"so"]
        {
            let input = [before.as_bytes(), INDENTED, b"\x1b[0m\n{}\n"].concat();
            let before = Decoded::Noise(before.into());
            let expected = [before, several(INDENTED), not_json(b"\x1b[0m"), frame(b"{}")];
            assert_eq!(decode(&input, 256), expected);
        }
        let input = b"a {\r\n\r\n\"id\":7,\n\"result\":NaN}\n";
        assert_eq!(decode(input, 64), [noise(b"a "), not_json(b"{\n\n\"id\":7,\n\"result\":NaN}")]);
    }

    #[test]
    fn a_bracket_at_the_end_of_other_output_is_noise_if_no_message_follows() {
        assert_eq!(
            decode(b"fn x {\n  y\n}\n", 64),
            [noise(b"fn x "), not_json(b"{"), not_json(b"  y"), not_json(b"}")]
        );
        let answer = b"{\"id\":7,\"result\":1}";
        let input = [b"KeyError: {\n", &answer[..], b"\n"].concat();
        assert_eq!(decode(&input, 64), [noise(b"KeyError: "), not_json(b"{"), frame(answer)]);
        assert_eq!(decode(b"config {\n\"id\":7\n}\n", 64), [noise(b"config "), noise(b"{\n\"id\":7\n}")]);
        assert_eq!(decode(b"x {\n\n\"a\":1,\n", 64), [noise(b"x "), not_json(b"{\n\n\"a\":1,")]);
        assert_eq!(decode(b"x {}\n{} {\n", 64), [not_json(b"x {}"), noise(b"{} "), not_json(b"{")]);
    }

    #[test]
    fn a_message_of_its_own_ends_a_text_that_is_not_complete() {
        let cancel = br#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}"#;
        let abp = br#"{"type":"capabilities/cancel","id":"7","timestamp":1,"payload":{}}"#;
        for own in [&cancel[..], abp] {
            let input = [b"{\n\"id\": 7,\n\"result\":\n ", own, b"\n{}\n"].concat();
            let text = not_json(b"{\n\"id\": 7,\n\"result\":");
            let own = Decoded::Frame([b" ", own].concat().into());
            assert_eq!(decode(&input, 256), [text, own, frame(b"{}")]);
        }
    }

    #[test]
    fn a_text_above_the_limit_is_refused_and_the_line_that_follows_is_read() {
        let expected = |limit| [too_large(limit, b"{\"a\":"), not_json(b"12345"), frame(b"{}")];
        assert_eq!(decode(b"{\"a\":\n12345\n{}\n", 10), expected(10));
        assert_eq!(decode(b"{\"a\":\n12345\n}\n", 11), [too_large(11, b"{\"a\":\n12345"), not_json(b"}")]);
        assert_eq!(decode(b"{\"a\":\n12345\n}\n", 13), [several(b"{\"a\":\n12345\n}")]);
    }

    #[test]
    fn a_text_that_is_not_json_and_one_that_never_ends_are_not_frames() {
        let nan = b"{\n\"id\": 7,\n\"result\": NaN\n}";
        assert_eq!(decode(&[&nan[..], b"\n{}"].concat(), 64), [not_json(nan), frame(b"{}")]);
        let line_in_string = b"{\"id\":7,\"result\":\"one\ntwo\"}";
        assert_eq!(decode(line_in_string, 64), [not_json(line_in_string)]);
        assert_eq!(decode(b"{\"id\":7,\n\"result\":[", 64), [not_json(b"{\"id\":7,\n\"result\":[")]);
    }

    #[test]
    fn the_time_of_a_text_begins_with_the_first_question_and_ends_it() {
        let mut decoder = Newline::new(64);
        let start = Instant::now();
        assert_eq!((decoder.deadline(start), decoder.give_up()), (None, None));
        decoder.push(b"{\"id\":7,\n");
        assert_eq!(decoder.next_frame(), None);
        let end = decoder.deadline(start);
        assert_eq!(end, Some(start + PART_TIME));
        decoder.push(b"\"a\":1,\n\"b\"");
        assert_eq!(decoder.next_frame(), None);
        assert_eq!(decoder.deadline(start + PART_TIME / 2), end);
        assert_eq!(decoder.give_up(), Some(not_json(b"{\"id\":7,\n\"a\":1,")));
        assert_eq!((decoder.deadline(start), decoder.give_up()), (None, None));
        decoder.push(b"\n{}\n");
        let rest: Vec<_> = std::iter::from_fn(|| decoder.next_frame()).collect();
        assert_eq!(rest, [not_json(b"\"b\""), frame(b"{}")]);
    }

    #[test]
    fn the_last_line_of_a_text_needs_no_line_end() {
        let mut decoder = Newline::new(64);
        decoder.push(b"{\"id\":7,\n\"result\":1\n}");
        assert_eq!(decoder.next_frame(), None);
        assert_eq!(decoder.give_up(), Some(several(b"{\"id\":7,\n\"result\":1\n}")));
        decoder.push(b"\n{}\n");
        assert_eq!((decoder.next_frame(), decoder.next_frame()), (Some(frame(b"{}")), None));
    }

    #[test]
    fn a_whole_message_whose_line_does_not_end_is_taken_after_the_time() {
        let start = Instant::now();
        let message = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let mut decoder = Newline::new(64);
        decoder.push(message);
        assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
        assert_eq!((decoder.give_up(), decoder.partial()), (Some(unended(message)), 0));
        decoder.push(b"\n{}\n");
        assert_eq!((decoder.next_frame(), decoder.next_frame()), (Some(frame(b"{}")), None));
        // One after the other, each with a return byte alone.
        for _ in 0..2 {
            decoder.push(message);
            decoder.push(b"\r");
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            assert_eq!((decoder.give_up(), decoder.partial()), (Some(unended(message)), 0));
        }
        // With other output before it, as at the end of a line.
        let marked = [BYTE_ORDER_MARK, message].concat();
        decoder.push(&marked);
        assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
        assert!(matches!(decoder.give_up(), Some(Decoded::ByteOrderMark(_))));
        assert_eq!((decoder.next_frame(), decoder.partial()), (Some(frame(message)), 0));
        decoder.push(b"> ");
        decoder.push(message);
        assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
        assert_eq!(decoder.give_up(), Some(Decoded::Noise(Bytes::from_static(b"> "))));
        assert_eq!((decoder.next_frame(), decoder.partial()), (Some(frame(message)), 0));
        decoder.push(b"\n");
        assert_eq!((decoder.next_frame(), decoder.partial()), (None, 0));
        // Not a message, or not a whole one: it is asked about, and its end is waited for.
        for part in
            [&b"{\"a\":{}}"[..], &message[..35], b"x {}", br#"{"a":{"jsonrpc":"2.0","id":1,"result":{}}"#]
        {
            decoder.push(part);
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            assert_eq!((decoder.give_up(), decoder.partial()), (None, part.len()));
            assert_eq!((decoder.next_frame(), decoder.is_collecting()), (None, false));
            decoder.push(b"}\n");
            let mut line = part.to_vec();
            line.push(b'}');
            let (Some(Decoded::Frame(read) | Decoded::Bad(BadFrame::NotJson, read)), None) =
                (decoder.next_frame(), decoder.next_frame())
            else {
                panic!("{part:?} was lost")
            };
            assert_eq!(read, line);
        }
    }

    #[test]
    fn a_whole_message_is_taken_after_the_time_whatever_is_behind_it() {
        let start = Instant::now();
        let message = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let take = |decoder: &mut Newline, input: &[u8]| -> Vec<Decoded> {
            let mut all = Vec::new();
            for piece in input.chunks(1) {
                decoder.push(piece);
                all.extend(std::iter::from_fn(|| decoder.next_frame()));
            }
            assert_eq!((all.len(), decoder.deadline(start)), (0, Some(start + PART_TIME)));
            all.extend(decoder.give_up());
            all.extend(std::iter::from_fn(|| decoder.next_frame()));
            all
        };
        for behind in
            [" ", "\t", "\0", "}", ";", "\u{1b}[0m", "\u{feff}", " done", "\r\u{1b}[0m", " {x", " [7] {}"]
        {
            let mut decoder = Newline::new(512);
            let noise = || Decoded::Noise(Bytes::from(behind));
            let is_blank = trim(behind.as_bytes()).is_empty();
            for _ in 0..2 {
                let expected = [unended(message), noise()];
                let all = take(&mut decoder, &[message, behind.as_bytes()].concat());
                assert_eq!(all, expected[..2 - usize::from(is_blank)], "{behind:?}");
                let expected = [Decoded::Noise("> ".into()), frame(message), noise()];
                let all = take(&mut decoder, &[b"> ", &message[..], behind.as_bytes()].concat());
                assert_eq!(all, expected[..3 - usize::from(is_blank)], "{behind:?}");
                assert_eq!((decoder.partial(), decoder.is_collecting()), (0, false), "{behind:?}");
            }
            decoder.push(b"\n{}\n");
            assert_eq!((decoder.next_frame(), decoder.next_frame()), (Some(frame(b"{}")), None));
        }
        // Two messages: a reader of JSON finds the second one.
        let mut decoder = Newline::new(512);
        let two = [message, &b"\0"[..], message, b"\0"].concat();
        let both = Decoded::Unended(Bytes::copy_from_slice(&two[..two.len() - 1]));
        assert_eq!(take(&mut decoder, &two), [both, noise(b"\0")]);
        // Another one has begun, and the line goes on with it.
        let half = br#" {"jsonrpc":"2.0","id":2,"resu"#;
        assert_eq!(take(&mut decoder, &[message, &half[..]].concat()), [unended(message)]);
        assert_eq!(decoder.partial(), half.len());
        decoder.push(b"lt\":5}\n");
        let second = frame(br#" {"jsonrpc":"2.0","id":2,"result":5}"#);
        assert_eq!((decoder.next_frame(), decoder.next_frame()), (Some(second), None));
    }

    #[test]
    fn a_message_that_comes_slowly_and_without_a_line_end_is_asked_about_a_limited_number_of_times() {
        let start = Instant::now();
        let mut decoder = Newline::new(1 << 20);
        let beginning = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":[{}", "{},".repeat(1000));
        let mut asked = 0;
        for piece in std::iter::once(&beginning[..]).chain(std::iter::repeat_n("{},", 500)) {
            decoder.push(piece.as_bytes());
            assert_eq!(decoder.next_frame(), None);
            asked += usize::from(decoder.deadline(start).is_some());
            assert_eq!(decoder.give_up(), None);
        }
        assert_eq!(asked, usize::from(MAX_ASKED));
        // It is twice as long now.
        decoder.push(format!("{}7]}}", "{},".repeat(1000)).as_bytes());
        assert_eq!((decoder.next_frame(), decoder.is_collecting()), (None, true));
        assert!(matches!(decoder.give_up(), Some(Decoded::Unended(_))));
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
    fn lines_of_any_kind_are_read_in_linear_time() {
        // If a text or a line were read again for each of its parts, this would take many minutes.
        let message = "{\"jsonrpc\":\"2.0\"}";
        let parts = [
            "\n",
            "\r\n",
            " ",
            " \n",
            "{",
            "{\n",
            "}",
            "}\n",
            "[",
            "]\n",
            "\"",
            "\\",
            "\u{feff}",
            "\u{feff}\n",
            "x\n",
            "\u{e9}",
            "\"a\":1,\n",
            "{}",
            "{}\n",
            "x {\n",
            "{\"a\":\n",
            "x {\"jsonrpc\":1}",
            "x {\"jsonrpc\":1}\n",
            message,
        ];
        for (beginning, part) in ["x {\n", message].iter().flat_map(|first| parts.map(|part| (first, part))) {
            let text = format!("{beginning}{} x\n{{}}\n", part.repeat((512 << 10) / part.len()));
            let mut decoder = Newline::new(4 << 20);
            decoder.push(text.as_bytes());
            let count = std::iter::from_fn(|| decoder.next_frame()).count();
            assert!(count > 0 || decoder.is_collecting(), "{beginning:?}, {part:?}");
            assert!(count <= text.len(), "{beginning:?}, {part:?}");
        }
    }

    #[test]
    fn a_large_line_does_not_keep_its_memory() {
        let mut decoder = Newline::new(1 << 20);
        decoder.push(&array(1 << 20));
        decoder.push(b"\n{}");
        assert!(matches!(decoder.next_frame(), Some(Decoded::Frame(_))));
        assert!(decoder.buffer.capacity() < 4096);
        assert_eq!(decoder.finish(), Some(frame(b"{}")));
    }

    /// A line of this length that begins and ends as an array does.
    fn array(size: usize) -> Vec<u8> {
        let mut line: Vec<u8> = (b'a'..=b'z').cycle().take(size).collect();
        (line[0], line[size - 1]) = (b'[', b']');
        line
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
        for size in [2, READ_BUFFER - 1, READ_BUFFER, READ_BUFFER + 1, 100_000, (1 << 20) - 1, 1 << 20] {
            for end in ["\n", "\r\n"] {
                let mut decoder = Newline::new(1 << 20);
                let line = array(size);
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
            let refused = Decoded::Bad(BadFrame::TooLarge { limit }, Bytes::from("x".repeat(1024)));
            assert_eq!(read(&mut decoder, &input), [refused], "{limit} and {over:?}");
            assert_eq!((decoder.partial(), decoder.parts.len()), (0, 0));
            assert_eq!(read(&mut decoder, b"x\n{}\n"), [frame(b"{}")]);
        }
        // A `\r` that fills the last part may belong to the line end.
        let mut decoder = Newline::new(READ_BUFFER - 1);
        let line = array(READ_BUFFER - 1);
        assert_eq!(read(&mut decoder, &[&line[..], b"\r"].concat()), []);
        decoder.make_room();
        assert_eq!(decoder.next_frame(), None);
        assert_eq!(read(&mut decoder, b"\n"), [Decoded::Frame(Bytes::from(line))]);
    }

    #[test]
    fn a_long_line_can_be_skipped_and_may_end_with_the_input() {
        let mut decoder = Newline::new(1 << 20);
        let long = array(100_000);
        assert_eq!(read(&mut decoder, &long), []);
        assert_eq!(decoder.partial(), long.len());
        assert_eq!(decoder.skip_frame().as_deref(), long.get(..1024));
        assert_eq!(decoder.skip_frame(), None);
        assert_eq!(read(&mut decoder, &[b"x\n", &long[..]].concat()), []);
        assert_eq!(decoder.finish(), Some(Decoded::Frame(Bytes::from(long))));
    }

    #[test]
    fn a_line_end_after_a_backslash_belongs_to_its_escape() {
        // The string ends with the second quote of the text, so the text ends with its bracket.
        let text = b"{\"a\":\"b\\\n\"}";
        assert_eq!(decode(&[&text[..], b"\n\n{}\n"].concat(), 64), [not_json(text), frame(b"{}")]);
    }

    #[test]
    fn a_text_over_several_lines_can_be_skipped() {
        let mut decoder = Newline::new(1 << 20);
        decoder.push(b"{\n\"id\":7,\n\"a\"");
        assert_eq!(decoder.next_frame(), None);
        assert_eq!(decoder.partial(), 12);
        assert_eq!(decoder.skip_frame().as_deref(), Some(&b"{\n\"id\":7,"[..]));
        decoder.push(b":1\n{}\n");
        assert_eq!((decoder.next_frame(), decoder.next_frame()), (Some(frame(b"{}")), None));
    }

    #[test]
    fn a_text_that_never_ends_is_held_in_bounded_memory() {
        let mut decoder = Newline::new(1 << 20);
        let mut refused = Vec::new();
        decoder.push(b"{\n");
        for _ in 0..20_000 {
            decoder.push(b"\"x\": {\"jsonrpc\": [{\"jsonrpc\":\"2.0\",\"y\":1}, \"................................................\n");
            refused.extend(std::iter::from_fn(|| decoder.next_frame()));
            assert!(decoder.partial() <= 1 << 20);
        }
        assert!(
            matches!(refused.first(), Some(Decoded::Bad(BadFrame::TooLarge { .. }, _))),
            "{:?}",
            refused.first()
        );
        decoder.push(b"{\"jsonrpc\":\"2.0\"}\n");
        let rest: Vec<_> = std::iter::from_fn(|| decoder.next_frame()).collect();
        assert_eq!(rest.last(), Some(&frame(b"{\"jsonrpc\":\"2.0\"}")));
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_unchanged() {
        assert_eq!(
            decode(b"{\xff\x00\xc3}\n\xff\n{}\n", 8),
            [frame(b"{\xff\x00\xc3}"), not_json(b"\xff"), frame(b"{}")]
        );
    }
}
