//! Framing by a header block with `Content-Length`, as in LSP, and how the next frame is found after a bad one.

use std::ops::Range;
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2, memmem};

use crate::framing::header_block::{
    HeaderBlock, LENGTH, LengthLine, MAX_HEADER_BYTES, MAX_LENGTH_BYTES, Name, begins_header, later_length,
    length_at_end, length_begins, length_inside, length_line, may_be_header, plain_block, split,
    without_returns,
};
use crate::framing::printed_json::{Brackets, is_own_message, may_be_answer, trim, whole_messages};
use crate::framing::{
    BYTE_ORDER_MARK, BadFrame, Decoded, MAX_ASKED, MAX_HEAD, PART_TIME, READ_BUFFER, Unended, head,
    lacks_room, may_end_object, next_capacity, shed,
};

/// The most bytes of other output between two frames.
const MAX_NOISE_BYTES: usize = 64 * 1024;

/// A header block with `Content-Length`, an empty line, then that many bytes.
///
/// Header lines end with `\r\n`. A block in which every line ends with `\n` alone is accepted too, and so are more `\r`, and
/// a block in which every line ends with `\r` alone.
///
/// A body above the limit or in a charset other than UTF-8 is refused and skipped, and is not kept in memory. It is
/// refused when 1 KiB of it is here, or after the time of [`deadline`](Self::deadline): a length can be wrong.
///
/// Programs print other things than frames. Blank lines before a block are skipped, a byte order mark there is dropped and
/// reported. A line that is not a header, and a block without a length, are [`Decoded::Noise`]: up to 64 KiB between two
/// frames. The next frame begins with `Content-Length:` at the start of a line, or directly after a `}` or `]`, where a
/// length that counted characters and not bytes has cut the body before it. It also begins with a `Content-Length:` and a
/// number at the end of a printed line, if its block has no other line that contradicts. Where a body that is not JSON has such a
/// line in it or begins one at its end, because its length is too large, or it is cut off or was never written, the next frame
/// begins there. A body that is shorter than its length, and has a whole message or its own last bracket and no text behind it, is
/// [`Decoded::Unended`] after the time of [`deadline`](Self::deadline).
///
/// After a length that is repeated, negative or too large, a block over 8 KiB, more noise than that, or a message without
/// a header, the next frame cannot be found, and the decoder stays failed.
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
    /// The bytes of noise since the last frame.
    noise: usize,
    /// A body without its end, or a printed line, if what is here of it ends with an object.
    unended: Option<Unended>,
}

#[derive(Debug)]
enum State {
    Header(HeaderBlock),
    Body {
        length: usize,
    },
    /// After a body at whose end may be the beginning of the next header, until it is known.
    Behind {
        swallowed: Box<[u8]>,
    },
    Skipping {
        remaining: usize,
        /// Until it is reported, with the beginning of the body.
        refusal: Option<Refusal>,
    },
    Failed,
}

#[derive(Debug)]
struct Refusal {
    why: BadFrame,
    seen: BytesMut,
    /// When it is reported with what has arrived by then, once it is known.
    ends_at: Option<Instant>,
}

impl Refusal {
    fn report(self) -> Decoded {
        Decoded::Bad(self.why, self.seen.freeze())
    }
}

impl ContentLength {
    /// A decoder for bodies of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let state = State::Header(HeaderBlock::default());
        Self { buffer: BytesMut::new(), scanned: 0, limit, state, noise: 0, unended: None }
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
                    Step::Return(decoded) => return Some(decoded),
                },
                State::Body { length } => {
                    let length = *length;
                    if self.buffer.len() < length {
                        let may_be_whole = may_end_object(&self.buffer);
                        Unended::note(&mut self.unended, self.buffer.len(), may_be_whole, MAX_ASKED);
                        return None;
                    }
                    self.unended = None;
                    // Of nearly all bodies, the last byte is their last bracket.
                    if !is_in_brackets(self.buffer.get(..length).unwrap_or_default()) {
                        if let Some(decoded) = self.body_with_header(length) {
                            return Some(decoded);
                        }
                    }
                    let body = self.buffer.split_to(length).freeze();
                    shed(&mut self.buffer, length);
                    self.state = State::Header(HeaderBlock::default());
                    return Some(Decoded::Frame(body));
                }
                State::Behind { swallowed } => {
                    let line = swallowed.iter().chain(self.buffer.iter()).copied();
                    match length_line(line) {
                        LengthLine::Part => return None,
                        LengthLine::No => {}
                        LengthLine::Whole => {
                            let mut buffer = BytesMut::from(&swallowed[..]);
                            buffer.extend_from_slice(&self.buffer);
                            self.buffer = buffer;
                        }
                    }
                    self.state = State::Header(HeaderBlock::default());
                }
                State::Skipping { remaining, refusal } => {
                    if let Some(mut refused) = refusal.take() {
                        let wanted = (MAX_HEAD - refused.seen.len()).min(*remaining);
                        let here = self.buffer.split_to(self.buffer.len().min(wanted));
                        refused.seen.extend_from_slice(&here);
                        *remaining -= here.len();
                        if here.len() == wanted {
                            return Some(refused.report());
                        }
                        *refusal = Some(refused);
                        return None;
                    }
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

    /// The results of the end of input: [`BadFrame::Truncated`] inside a frame, noise, or nothing. A refused frame is not
    /// reported again. Call it after `next_frame` returned `None`, until it returns `None` too.
    pub fn finish(&mut self) -> Option<Decoded> {
        if let State::Behind { .. } = self.state {
            self.state = State::Header(HeaderBlock::default());
        }
        let last = match &mut self.state {
            State::Header(block) if block.is_noise() => {
                let lines = std::mem::take(block).lines;
                return Some(Decoded::Noise(lines.into()));
            }
            State::Header(block) if block.size == 0 && !begins_header(&self.buffer) => {
                let rest = self.buffer.trim_ascii();
                (!rest.is_empty()).then(|| Decoded::Noise(head(rest)))
            }
            State::Header(_) | State::Body { .. } | State::Behind { .. } => {
                Some(Decoded::Bad(BadFrame::Truncated, head(&self.buffer)))
            }
            State::Skipping { refusal, .. } => refusal.take().map(Refusal::report),
            State::Failed => None,
        };
        self.fail();
        last
    }

    /// When a frame that is refused is reported, although little of it has arrived, or a body that is too short for its length
    /// is taken, or a message without a header and a line end is refused: 1 s after the first call for it. `None`: there is
    /// none. Call it after `next_frame` returned `None`, and
    /// [`give_up`](Self::give_up) when the time is over.
    pub fn deadline(&mut self, now: Instant) -> Option<Instant> {
        match &mut self.state {
            State::Skipping { refusal: Some(refusal), .. } => {
                Some(*refusal.ends_at.get_or_insert(now + PART_TIME))
            }
            State::Body { .. } | State::Header(_) => Unended::deadline(&mut self.unended, now),
            State::Skipping { .. } | State::Behind { .. } | State::Failed => None,
        }
    }

    /// Whether a frame is refused and not reported yet, or a body that may be too short for its length has arrived, or what may
    /// be a message without a header.
    #[must_use]
    pub const fn is_collecting(&self) -> bool {
        matches!(self.state, State::Skipping { refusal: Some(_), .. })
            || Unended::is_awaited(self.unended.as_ref())
    }

    /// The time for the beginning of a refused frame, or for the end of a body or line, is over: the frame is reported, the body
    /// is taken if it is whole, and the line is refused if it is a message. `None`: it is not, and its end is waited for.
    pub fn give_up(&mut self) -> Option<Decoded> {
        match &mut self.state {
            State::Skipping { refusal, .. } => refusal.take().map(Refusal::report),
            State::Body { .. } => self.short_body(),
            State::Header(_) => self.message_without_header(),
            State::Behind { .. } | State::Failed => None,
        }
    }

    #[cold]
    fn short_body(&mut self) -> Option<Decoded> {
        if !Unended::is_over(&mut self.unended, self.buffer.len()) {
            return None;
        }
        if let (State::Body { length }, Some(line)) = (&self.state, length_inside(&self.buffer)) {
            let length = *length;
            let is_whole = self.buffer.get(..line.start).is_some_and(is_closed);
            return match self.body_before(line, length) {
                Some(Decoded::Frame(body)) if is_whole => Some(Decoded::Unended(body)),
                decoded => decoded,
            };
        }
        let body = trim(&self.buffer);
        // After its last bracket a body has nothing more that counts, also if it is not JSON.
        let closed = body.strip_prefix(b"{").and_then(|_| Brackets::default().read(body));
        let end = closed.max(whole_messages(body))?;
        if memchr2(b'{', b'[', body.get(end..)?).is_some() {
            return None;
        }
        self.unended = None;
        self.state = State::Header(HeaderBlock::default());
        Some(Decoded::Unended(self.buffer.split().freeze()))
    }

    /// A body that has the next header in it, or the beginning of that: its length is too large, or it is cut off or was never
    /// written. Reading goes on at that header. `None`: there is none, and nothing was taken.
    #[cold]
    fn body_with_header(&mut self, length: usize) -> Option<Decoded> {
        let (body, after) = self.buffer.split_at_checked(length)?;
        if let Some(line) = length_inside(body) {
            let (before, _) = body.split_at_checked(line.start)?;
            let next = body.get(line.end..)?.trim_ascii_start();
            // A reader of JSON ends the call of the next frame too, if it has begun with its id.
            let is_named = may_be_answer(next.get(..MAX_LENGTH_BYTES).unwrap_or(next));
            return if is_named && is_closed(before) { None } else { self.body_before(line, length) };
        }
        let start = length_begins(body)?;
        let swallowed = body.get(start..)?;
        match length_line(swallowed.iter().chain(after).copied()) {
            LengthLine::No => None,
            LengthLine::Part => {
                self.state = State::Behind { swallowed: swallowed.into() };
                Some(Decoded::Frame(self.buffer.split_to(length).freeze()))
            }
            LengthLine::Whole => {
                // Each byte of a body is copied once. What follows it could be copied again after each body.
                let body = Bytes::copy_from_slice(body);
                self.buffer.advance(start);
                self.state = State::Header(HeaderBlock::default());
                Some(Decoded::Frame(body))
            }
        }
    }

    /// What is before a line with a length in a body: a whole text, with that line as other output behind it, or the part of one.
    #[cold]
    fn body_before(&mut self, line: Range<usize>, length: usize) -> Option<Decoded> {
        let (body, _) = self.buffer.split_at_checked(line.end)?;
        let (before, _) = body.split_at_checked(line.start)?;
        let decoded = if trim(before).is_empty() {
            Decoded::Noise(format!("Content-Length: {length}").into())
        } else {
            Decoded::Frame(Bytes::copy_from_slice(if is_closed(before) { body } else { before }))
        };
        self.buffer.advance(line.start);
        shed(&mut self.buffer, line.start);
        (self.state, self.unended) = (State::Header(HeaderBlock::default()), None);
        Some(decoded)
    }

    #[cold]
    fn message_without_header(&mut self) -> Option<Decoded> {
        let is_message =
            Unended::is_over(&mut self.unended, self.buffer.len()) && is_own_message(&self.buffer);
        is_message.then(|| self.refused(BadFrame::BadHeader))
    }

    /// Whether no further frame can be found. All further input is dropped.
    #[must_use]
    pub const fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// The parts of a body that is not JSON and has header blocks in it, between those. Empty: it has none.
    #[must_use]
    pub fn parts_of(body: &[u8]) -> Vec<&[u8]> {
        let (mut parts, mut rest) = (Vec::new(), body);
        while let Some(line) = length_inside(rest) {
            parts.extend(rest.get(..line.start));
            rest = rest.get(line.end..).unwrap_or_default();
        }
        if rest.len() < body.len() {
            parts.push(rest);
        }
        parts.retain(|part| !trim(part).is_empty());
        parts
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

    /// Drops the body that has begun, and the rest of it when it arrives. Returns its beginning. `None`: no body has begun.
    pub fn skip_frame(&mut self) -> Option<Bytes> {
        let State::Body { length } = self.state else { return None };
        self.unended = None;
        let remaining = length.saturating_sub(self.buffer.len());
        let beginning = head(&self.buffer);
        self.state = State::Skipping { remaining, refusal: None };
        self.buffer = BytesMut::new();
        Some(beginning)
    }

    /// The beginning of a body that is not complete: at most 1 KiB.
    #[must_use]
    pub fn beginning(&self) -> Bytes {
        match self.state {
            State::Body { .. } => head(&self.buffer),
            State::Header(_) | State::Behind { .. } | State::Skipping { .. } | State::Failed => Bytes::new(),
        }
    }

    fn fail(&mut self) {
        (self.state, self.unended) = (State::Failed, None);
        self.buffer = BytesMut::new();
    }

    /// Reads one line of the header block, or before it.
    fn header_line(&mut self) -> Step {
        let State::Header(block) = &mut self.state else {
            return Step::Again;
        };
        if self.buffer.is_empty() {
            return Step::Wait;
        }
        if let Some((length, size)) = plain_block(&self.buffer).filter(|_| block.size == 0) {
            block.length = Some(length);
            self.take_line(size - 1);
            return self.body();
        }
        let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
        let end = memchr(b'\n', unseen).map(|offset| self.scanned + offset);
        if block.size == 0 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.buffer.advance(BYTE_ORDER_MARK.len());
            self.scanned = 0;
            return match self.add_noise(BYTE_ORDER_MARK.len()) {
                Ok(()) => Step::Return(Decoded::ByteOrderMark(head(&self.buffer))),
                Err(refused) => refused,
            };
        }
        let Some(end) = end else {
            return self.part_of_line();
        };
        let whole = self.buffer.get(..end).unwrap_or_default();
        let line = without_returns(whole);
        let bare = line.len() == whole.len();
        if block.size == 0 && line.iter().all(u8::is_ascii_whitespace) {
            self.take_line(end);
            return Step::Again;
        }
        if line.is_empty() && block.bare == Some(bare) {
            block.size += end + 1;
            let is_large = block.size > MAX_HEADER_BYTES;
            self.take_line(end);
            return if is_large { self.refuse(BadFrame::BadHeader) } else { self.body() };
        }
        let Some((name, value)) = block.split(line) else {
            return self.other_line(end);
        };
        if name == Name::Other && later_length(block.room_of(line), 0).is_some() {
            return self.other_line(end);
        }
        if block.size + end + 1 > MAX_HEADER_BYTES {
            return self.oversize_line();
        }
        if name == Name::Other && !block.is_certain() && length_at_end(line).is_some() {
            return self.other_line(end);
        }
        if block.bare.is_some_and(|known| known != bare) {
            return match name {
                _ if !block.is_certain() => self.drop_block(),
                Name::Other => self.drop_line(end, end + 1),
                Name::Length | Name::Type => self.refuse(BadFrame::BadHeader),
            };
        }
        if name == Name::Length && block.is_printed && block.length.is_some() {
            return self.drop_block();
        }
        if let Err(why) = block.header(name, value, line) {
            return self.block_of_returns().unwrap_or_else(|| self.refuse(why));
        }
        (block.size, block.bare) = (block.size + end + 1, Some(bare));
        self.take_line(end);
        Step::Again
    }

    /// A line whose end has not arrived. The same is returned for it as for the whole line.
    fn part_of_line(&mut self) -> Step {
        let before = std::mem::replace(&mut self.scanned, self.buffer.len());
        let unseen = self.buffer.get(before.saturating_sub(1)..).unwrap_or_default();
        if memchr(b'\r', unseen).is_some() {
            if let Some(step) = self.block_of_returns() {
                return step;
            }
        }
        if self.begins_with_bad_length() {
            return self.refuse(BadFrame::BadLength);
        }
        let State::Header(block) = &mut self.state else {
            return Step::Again;
        };
        let line = &self.buffer[..];
        let (searched, is_noise) = match block.split(line) {
            Some((Name::Length | Name::Type, _)) => (&[][..], false),
            Some((Name::Other, _)) => (block.room_of(line), false),
            None => (line, !may_be_header(line)),
        };
        if later_length(searched, before.saturating_sub(LENGTH.len())).is_some() {
            return self.other_line(self.buffer.len());
        }
        Unended::note(&mut self.unended, line.len(), is_noise && line.ends_with(b"}"), 1);
        if is_noise {
            if block.size > 0 && !block.is_certain() {
                return self.drop_block();
            }
            if self.noise + self.buffer.len() > MAX_NOISE_BYTES + MAX_LENGTH_BYTES {
                return self.refuse(BadFrame::BadHeader);
            }
        } else if block.size + self.buffer.len() > MAX_HEADER_BYTES && split(&self.buffer).is_some() {
            return self.oversize_line();
        }
        Step::Wait
    }

    /// A header line with which the block is too large. Lines that end as those of a log do are not a block.
    fn oversize_line(&mut self) -> Step {
        match &self.state {
            State::Header(block) if block.size > 0 && !block.is_certain() && block.bare == Some(true) => {
                self.drop_block()
            }
            _ if self.begins_with_bad_length() => self.refuse(BadFrame::BadLength),
            _ => self.block_of_returns().unwrap_or_else(|| self.refuse(BadFrame::BadHeader)),
        }
    }

    /// Whether a block begins with a length that is not a number, whatever follows: the end of its line may never come.
    fn begins_with_bad_length(&self) -> bool {
        let State::Header(block) = &self.state else { return false };
        let line = block.room_of(&self.buffer);
        let value = split(line).filter(|(name, _)| *name == Name::Length && block.size == 0);
        let is_part = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace();
        value.is_some_and(|(_, value)| {
            value.iter().take_while(|byte| **byte != b'\r').any(|byte| !is_part(byte))
        })
    }

    /// A block whose lines end with `\r` alone, at the beginning of the buffer. The byte that follows its empty line is here.
    #[cold]
    fn block_of_returns(&mut self) -> Option<Step> {
        let State::Header(block) = &mut self.state else { return None };
        if block.size > 0 {
            return None;
        }
        let end = memchr(b'\n', &self.buffer).unwrap_or(self.buffer.len());
        let line = without_returns(block.room_of(self.buffer.get(..end)?));
        let (headers, rest) = line.split_at(memmem::find(line, b"\r\r")?);
        let returns = rest.iter().take_while(|byte| **byte == b'\r').count();
        let size = headers.len() + returns;
        // Blanks may be around the value of a header.
        let is_blank = rest.get(returns)?.is_ascii_whitespace();
        if is_blank || !matches!(split(headers)?, (Name::Length, value) if !value.trim_ascii().is_empty()) {
            return None;
        }
        for header in headers.split(|byte| *byte == b'\r') {
            let read = split(header).ok_or(BadFrame::BadHeader);
            if let Err(why) = read.and_then(|(name, value)| block.header(name, value, header)) {
                return Some(self.refuse(why));
            }
        }
        block.size = size;
        self.buffer.advance(size);
        self.scanned = 0;
        Some(self.body())
    }

    /// A line that is not a header, of which `end` bytes are here. The lines before it are not a block, unless they have a
    /// length.
    fn other_line(&mut self, end: usize) -> Step {
        let State::Header(block) = &self.state else {
            return Step::Again;
        };
        if block.size > 0 && !block.is_certain() {
            return self.drop_block();
        }
        let is_first = block.size == 0;
        let whole = self.buffer.get(..end).unwrap_or_default();
        let line = without_returns(whole);
        if line.is_empty() {
            // The end of a block whose other lines end differently.
            return self.refuse(BadFrame::BadHeader);
        }
        let later = later_length(line, 0);
        if is_own_message(later.and_then(|at| line.get(..at)).unwrap_or(line)) {
            // The peer writes messages without a header, and would wait forever.
            return self.refuse(BadFrame::BadHeader);
        }
        if let Some(at) = later {
            return self.drop_line(at, at);
        }
        let Some(at) = length_at_end(line).filter(|_| is_first) else {
            return self.drop_line(end, end + 1);
        };
        let step = self.drop_line(at, at);
        if let State::Header(block) = &mut self.state {
            block.is_printed = true;
        }
        step
    }

    /// Drops `taken` bytes, of which `end` are the noise.
    fn drop_line(&mut self, end: usize, taken: usize) -> Step {
        (self.scanned, self.unended) = (0, None);
        let line = self.buffer.get(..end).unwrap_or_default();
        let noise = head(without_returns(line));
        self.buffer.advance(taken.min(self.buffer.len()));
        match self.add_noise(taken) {
            Ok(()) => Step::Return(Decoded::Noise(noise)),
            Err(refused) => refused,
        }
    }

    /// Drops the lines of a block without a length.
    fn drop_block(&mut self) -> Step {
        let State::Header(block) = &mut self.state else {
            return Step::Again;
        };
        self.scanned = 0;
        let block = std::mem::take(block);
        match self.add_noise(block.size) {
            Ok(()) => Step::Return(Decoded::Noise(block.lines.into())),
            Err(refused) => refused,
        }
    }

    fn add_noise(&mut self, bytes: usize) -> Result<(), Step> {
        self.noise += bytes;
        if self.noise > MAX_NOISE_BYTES { Err(self.refuse(BadFrame::BadHeader)) } else { Ok(()) }
    }

    fn take_line(&mut self, end: usize) {
        self.buffer.advance(end + 1);
        (self.scanned, self.unended) = (0, None);
    }

    /// The header block is complete: a body follows, to read or to skip.
    fn body(&mut self) -> Step {
        let State::Header(HeaderBlock { length, foreign_charset, .. }) = self.state else {
            return Step::Again;
        };
        let Some(length) = length else {
            return self.drop_block();
        };
        self.noise = 0;
        let why = if length > self.limit {
            BadFrame::TooLarge { limit: self.limit }
        } else if foreign_charset {
            BadFrame::BadCharset
        } else {
            self.state = State::Body { length };
            return Step::Again;
        };
        let refusal = Some(Refusal { why, seen: BytesMut::new(), ends_at: None });
        self.state = State::Skipping { remaining: length, refusal };
        Step::Again
    }

    fn refuse(&mut self, why: BadFrame) -> Step {
        Step::Return(self.refused(why))
    }

    fn refused(&mut self, why: BadFrame) -> Decoded {
        let beginning = head(&self.buffer);
        self.fail();
        Decoded::Bad(why, beginning)
    }
}

/// Whether a body begins and ends as JSON does.
fn is_in_brackets(body: &[u8]) -> bool {
    matches!(body, [b'{' | b'[', .., b'}' | b']'])
}

/// Whether a text has its brackets closed, whatever is behind them.
fn is_closed(text: &[u8]) -> bool {
    Brackets::default().read(text).is_some()
}

enum Step {
    Again,
    Wait,
    Return(Decoded),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static [u8]) -> Decoded {
        Decoded::Frame(Bytes::from_static(text))
    }

    fn noise(text: &'static [u8]) -> Decoded {
        Decoded::Noise(Bytes::from_static(text))
    }

    fn too_large(head: &'static [u8]) -> Decoded {
        Decoded::Bad(BadFrame::TooLarge { limit: 16 }, Bytes::from_static(head))
    }

    /// What was refused, with nothing of what was sent.
    fn bad(why: BadFrame) -> Vec<Decoded> {
        vec![Decoded::Bad(why, Bytes::new())]
    }

    fn decode_pieces(pieces: &[&[u8]]) -> Vec<Decoded> {
        decode_with_limit(16, pieces)
    }

    /// Bodies above the limit of the other tests, in one piece, byte by byte and in two pieces.
    fn decode_long(input: &[u8]) -> Vec<Decoded> {
        let whole = decode_with_limit(256, &[input]);
        assert_eq!(decode_with_limit(256, &input.chunks(1).collect::<Vec<_>>()), whole);
        for cut in 0..input.len() {
            assert_eq!(decode_with_limit(256, &[&input[..cut], &input[cut..]]), whole, "cut at {cut}");
        }
        whole
    }

    fn decode_with_limit(limit: usize, pieces: &[&[u8]]) -> Vec<Decoded> {
        let mut decoder = ContentLength::new(limit);
        let mut all = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            all.extend(std::iter::from_fn(|| decoder.next_frame()));
            assert!(
                decoder.partial() <= MAX_NOISE_BYTES + MAX_LENGTH_BYTES,
                "{} bytes are held",
                decoder.partial()
            );
        }
        all.extend(std::iter::from_fn(|| decoder.finish()));
        assert_eq!(decoder.finish(), None);
        for decoded in &mut all {
            match decoded {
                // Only what had arrived is known.
                Decoded::Bad(why, head) if !why.is_recoverable() => *head = Bytes::new(),
                Decoded::ByteOrderMark(after) => *after = Bytes::new(),
                _ => {}
            }
        }
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
    fn a_repeated_signed_or_overlong_length_fails_the_decoder() {
        for header in [
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
        // The end of its line is not waited for.
        let mut decoder = ContentLength::new(16);
        decoder.push(b"Content-Length: 2{");
        assert!(matches!(decoder.next_frame(), Some(Decoded::Bad(BadFrame::BadLength, _))));
        let long = [&b"Content-Length: 2x"[..], &[b'x'; MAX_HEADER_BYTES], b"\r\n"].concat();
        assert_eq!(decode(&long), bad(BadFrame::BadLength));
    }

    #[test]
    fn a_body_that_is_shorter_than_its_length_is_taken_after_the_time_if_it_is_a_message() {
        let start = Instant::now();
        let message = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let mut decoder = ContentLength::new(1024);
        for _ in 0..2 {
            decoder.push(b"Content-Length: 40\r\n\r\n");
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, None));
            decoder.push(message);
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            assert!(decoder.is_collecting());
            let taken = Decoded::Unended(Bytes::from_static(message));
            assert_eq!((decoder.give_up(), decoder.is_collecting()), (Some(taken), false));
        }
        // Other output is behind it: a reader of JSON leaves it out.
        for behind in [&b" "[..], b"\n", b"\r\n", b"\0", b";"] {
            decoder.push(b"Content-Length: 40\r\n\r\n");
            decoder.push(message);
            decoder.push(behind);
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            let taken = Decoded::Unended([message, behind].concat().into());
            assert_eq!((decoder.give_up(), decoder.is_collecting()), (Some(taken), false));
        }
        // Its end comes in time, or it is not a message: its length counts.
        for (body, length) in
            [(&message[..], 37), (br#"{"jsonrpc":"2.0","id":1,"result":{}"#, 36), (b"[{}", 4)]
        {
            decoder.push(format!("Content-Length: {length}\r\n\r\n").as_bytes());
            decoder.push(body);
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            if body != message {
                assert_eq!((decoder.give_up(), decoder.is_collecting()), (None, false));
            }
            decoder.push(b" ");
            assert!(matches!(decoder.next_frame(), Some(Decoded::Frame(read)) if read.len() == length));
        }
    }

    #[test]
    fn a_block_without_a_length_is_noise() {
        for lines in ["X: 1", "Warning: a\r\nINFO: b", "Content-Type: x"] {
            let input = format!("{lines}\r\n\r\nContent-Length: 2\r\n\r\n{{}}");
            let lines = Decoded::Noise(lines.replace('\r', "").into());
            assert_eq!(decode(input.as_bytes()), [lines, frame(b"{}")]);
        }
    }

    #[test]
    fn blank_lines_and_byte_order_marks_before_a_block_are_dropped() {
        let mark = Decoded::ByteOrderMark(Bytes::new());
        let input = b"\xef\xbb\xbfContent-Length: 2\r\n\r\n{}\r\n \n\n\xef\xbb\xbf\r\n\xef\xbb\xbfContent-Length: 2\r\n\r\n[]\n";
        assert_eq!(decode(input), [mark.clone(), frame(b"{}"), mark.clone(), mark, frame(b"[]")]);
        assert_eq!(decode(&b"\r\n".repeat(100_000)), []);
        assert_eq!(decode(b"\xef\xbb"), [noise(b"\xef\xbb")]);
    }

    #[test]
    fn a_line_may_end_with_several_return_bytes() {
        let input = b"Content-Length: 2\r\r\nContent-Type: x\r\r\n\r\r\n{}Content-Length: 2\r\n\r\n[]";
        assert_eq!(decode(input), [frame(b"{}"), frame(b"[]")]);
    }

    #[test]
    fn a_printed_line_between_frames_is_noise() {
        for line in ["panic at main.rs", ": 2", "Content Length: 2", "Other-Length : 2", r#"{"id":1}"#] {
            let input = format!("Content-Length: 2\r\n\r\n[]{line}\r\nContent-Length: 2\r\n\r\n{{}}{line}");
            let line = Decoded::Noise(line.to_owned().into());
            assert_eq!(decode(input.as_bytes()), [frame(b"[]"), line.clone(), frame(b"{}"), line]);
        }
    }

    #[test]
    fn a_printed_line_before_or_among_headers_is_noise() {
        assert_eq!(decode(b"Content-Length: 2\nX: y\n\n{}"), [frame(b"{}")]);
        for input in ["Warning: a\nContent-Length: 2\r\n\r\n{}", "Content-Length: 2\r\nWarning: a\n\r\n{}"] {
            assert_eq!(decode(input.as_bytes()), [noise(b"Warning: a"), frame(b"{}")], "{input:?}");
        }
        let among = b"Content-Length: 2\r\nit works\n\r\n{}Content-Length: 2\r\n\r\n[]";
        assert_eq!(decode(among), [noise(b"it works"), frame(b"{}"), frame(b"[]")]);
        assert_eq!(decode(b"Content-Length: 2\r\n\n{}"), bad(BadFrame::BadHeader));
        assert_eq!(decode(b"Content-Length: 2\r\nContent-Type: x\n\r\n{}"), bad(BadFrame::BadHeader));
    }

    #[test]
    fn after_a_body_that_its_length_cuts_the_next_frame_is_read() {
        for (rest, line_end) in [("}}", "\r\n"), ("a: b\"}", "\r\n"), ("\"]", "\n"), ("\n}\nx: y}", "\r\n")] {
            let input = format!("Content-Length: 2\r\n\r\n{{}}{rest}content-length: 2{line_end}{line_end}[]");
            let decoded = decode(input.as_bytes());
            assert_eq!(
                (decoded.first(), decoded.last()),
                (Some(&frame(b"{}")), Some(&frame(b"[]"))),
                "{rest}"
            );
            for other in &decoded[1..decoded.len() - 1] {
                assert!(matches!(other, Decoded::Noise(_)), "{other:?}");
            }
        }
        let no_number = b"Content-Length: 2\r\n\r\n{}x Content-Length: 2 bytes\r\n\r\n[]\r\n";
        assert_eq!(decode(no_number), [frame(b"{}"), noise(b"x Content-Length: 2 bytes"), noise(b"[]")]);
    }

    #[test]
    fn the_beginning_of_a_header_at_the_end_of_a_body_is_read_again() {
        let second = b"content-length: 8\r\n\r\n{\"b\":2}\n";
        for body in ["{\"a\":1}c", "[1]co", "{}content-lengt", "{}content-length"] {
            let end = body.find('c').unwrap();
            let input = format!("Content-Length: {}\r\n\r\n{}", body.len(), body.split_at(end).0);
            let input = [input.as_bytes(), second].concat();
            let all = decode(&input);
            assert_eq!(all, [Decoded::Frame(body.into()), frame(b"{\"b\":2}\n")]);
        }
        // Each length is too large.
        let input = b"Content-Length: 3\r\n\r\n{}Content-Length: 4\n\n[1]Content-Length: 2\n\n{}";
        assert_eq!(decode(input), [frame(b"{}C"), frame(b"[1]C"), frame(b"{}")]);
    }

    #[test]
    fn a_body_that_ends_as_a_header_begins_keeps_its_end_if_no_header_goes_on() {
        let next = b"Content-Length: 2\r\n\r\n{}";
        for body in ["{}C", "{}content-len", "{\"Conte", "{{}C", "]C", "C"] {
            let mut input = BytesMut::new();
            ContentLength::encode(body.as_bytes(), &mut input);
            input.extend_from_slice(next);
            assert_eq!(decode(&input), [Decoded::Frame(body.into()), frame(b"{}")]);
        }
        assert_eq!(
            decode(b"Content-Length: 3\r\n\r\n{}Content-Length: x\n"),
            [frame(b"{}C"), noise(b"ontent-Length: x")]
        );
        assert_eq!(decode(b"Content-Length: 3\r\n\r\n{}Content-Len"), [frame(b"{}C"), noise(b"ontent-Len")]);
    }

    #[test]
    fn a_length_that_counts_a_line_end_too_much_ends_at_the_next_header() {
        let next = b"Content-Length: 2\r\n\r\n{}";
        for behind in ["\n", "\r\n", " ", "\0", "\r\n\r\n", " \t"] {
            for swallowed in 1..20 {
                let body = format!("[1]{behind}{}", &"Content-Length: 2\r\n"[..swallowed]);
                let header = format!("Content-Length: {}\r\n\r\n[1]{behind}", body.len());
                let all = decode_long(&[header.as_bytes(), next].concat());
                assert_eq!(all, [Decoded::Frame(body.into()), frame(b"{}")]);
            }
        }
    }

    #[test]
    fn a_body_that_is_cut_or_was_never_written_ends_at_the_next_header() {
        let next = "content-length: 29\r\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"\"}";
        let message = || Decoded::Frame(next[22..].to_owned().into());
        for half in ["{\"id\":1,\"result\":{\"a\":", "{\"id\":1,\"result\":\"C", "{", "x", "{}}", ""] {
            for length in half.len() + 1..half.len() + next.len() {
                let input = format!("Content-Length: {length}\r\n\r\n{half}{next}");
                let all = decode_long(input.as_bytes());
                if is_in_brackets(&input.as_bytes()[input.len() - next.len() - half.len()..][..length]) {
                    // A reader of JSON takes such a body apart.
                    continue;
                }
                assert_eq!(all.last(), Some(&message()), "{length} in {input:?}");
                assert_eq!(all.len(), 2, "{length} in {input:?}");
                let swallowed = length - half.len();
                let expected = match half {
                    "" if swallowed >= 20 => Decoded::Noise(format!("Content-Length: {length}").into()),
                    "{}}" if swallowed >= 20 => Decoded::Frame(format!("{half}{}", &next[..20]).into()),
                    _ if swallowed >= 20 => Decoded::Frame(half.into()),
                    _ => Decoded::Frame(format!("{half}{}", &next[..swallowed]).into()),
                };
                assert_eq!(all.first(), Some(&expected), "{length} in {input:?}");
            }
        }
        // Header blocks only, and then a body.
        let blocks = "Content-Length: 40\r\n\r\n".repeat(3) + next;
        let lost = noise(b"Content-Length: 40");
        assert_eq!(decode_long(blocks.as_bytes()), [lost.clone(), lost.clone(), lost, message()]);
    }

    #[test]
    fn a_body_that_never_comes_to_its_length_ends_at_a_header_in_it_after_the_time() {
        let next = "Content-Length: 36\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}";
        for (half, expected) in [
            ("{\"id\":1,\"result\":{\"a\":", frame(b"{\"id\":1,\"result\":{\"a\":")),
            ("", noise(b"Content-Length: 500")),
            ("{\"id\":1}", Decoded::Unended("{\"id\":1}Content-Length: 36\r\n".into())),
        ] {
            let mut decoder = ContentLength::new(1024);
            decoder.push(format!("Content-Length: 500\r\n\r\n{half}{next}").as_bytes());
            assert_eq!(decoder.next_frame(), None);
            assert!(decoder.deadline(Instant::now()).is_some());
            assert_eq!(decoder.give_up(), Some(expected));
            let message = Decoded::Frame(next[22..].to_owned().into());
            assert_eq!((decoder.next_frame(), decoder.next_frame()), (Some(message), None));
            assert_eq!((decoder.partial(), decoder.is_collecting()), (0, false));
        }
    }

    #[test]
    fn the_parts_of_a_body_are_between_its_headers() {
        let parts = ContentLength::parts_of;
        assert_eq!(parts(b"{\"a\":Content-Length: 2\r\n\r\n{}"), [&b"{\"a\":"[..], b"\r\n{}"]);
        assert_eq!(parts(b"{}content-length:2\r\n\r\n{}Content-Length: 2\r\n\r\n"), [&b"{}"[..], b"\r\n{}"]);
        for none in
            [&b"{}"[..], b"", b"Content-Length: 2\n", b"Content-Length: 1234567890\r\n", b"\r\n", b": 2\r\n"]
        {
            assert!(parts(none).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn bodies_with_headers_in_them_are_read_in_linear_time() {
        for unit in [
            "{}Content-Length: 999999\r\n",
            "{\"Content-Length: 999999\r\n\r\n",
            "{}1\r\n",
            "Content-Length: 9\r",
            "\r",
            "c",
        ] {
            let input = format!("Content-Length: 999999\r\n\r\n{}", unit.repeat((4 << 20) / unit.len()));
            let mut decoder = ContentLength::new(16 << 20);
            for piece in input.as_bytes().chunks(64 * 1024) {
                decoder.push(piece);
                assert!(std::iter::from_fn(|| decoder.next_frame()).count() <= input.len(), "{unit:?}");
                let _ = (decoder.deadline(Instant::now()), decoder.give_up());
            }
        }
    }

    #[test]
    fn blanks_before_the_colon_of_a_length_or_a_type_are_accepted() {
        let input =
            b"Content-Length : 2\r\ncontent-type\t : a; charset=utf-8\r\n\r\n{}Content-Length: 2\n\n[]";
        assert_eq!(decode(input), [frame(b"{}"), frame(b"[]")]);
        assert_eq!(decode(b"Warning : 2\n"), [noise(b"Warning : 2")]);
        assert_eq!(decode(b"Content-Length : -2\r\n\r\n{}"), bad(BadFrame::BadLength));
    }

    #[test]
    fn a_message_without_a_header_fails_the_decoder() {
        for message in ["{\"jsonrpc\":\"2.0\",\"id\":1}\n", "  {\"type\":\"x\",\"payload\":{}}\r\n"] {
            assert_eq!(decode(message.as_bytes()), bad(BadFrame::BadHeader));
        }
        assert_eq!(decode(b"{\"a\":1}\n"), [noise(b"{\"a\":1}")]);
        let before_a_header = b"Content-Length 9\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":1}Content-Length: 2";
        assert_eq!(
            decode(before_a_header),
            [noise(b"Content-Length 9"), bad(BadFrame::BadHeader)[0].clone()]
        );
    }

    #[test]
    fn a_message_without_a_header_and_a_line_end_fails_the_decoder_after_the_time() {
        let start = Instant::now();
        for header in ["", "Content-Length 36\r\n\r\n", "Content-Length: 36\r\n"] {
            let mut decoder = ContentLength::new(1024);
            decoder.push(header.as_bytes());
            decoder.push(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}");
            let _noise = decoder.next_frame();
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            assert_eq!((decoder.give_up(), decoder.is_collecting()), (None, false), "{header}");
            decoder.push(b"}");
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, None), "{header}");
            let mut decoder = ContentLength::new(1024);
            decoder.push(header.as_bytes());
            decoder.push(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}");
            let _noise = decoder.next_frame();
            assert_eq!((decoder.next_frame(), decoder.deadline(start)), (None, Some(start + PART_TIME)));
            assert!(
                matches!(decoder.give_up(), Some(Decoded::Bad(BadFrame::BadHeader, head)) if head.starts_with(b"{"))
            );
            assert!(decoder.is_failed() && !decoder.is_collecting());
        }
    }

    #[test]
    fn a_header_at_the_end_of_a_printed_line_begins_a_frame() {
        for printed in [
            "Loading 50%\rLoading 100%",
            "Loading: 50%\rLoading: 100%",
            "100%",
            "\0\0",
            " ",
            "sent Content-Length: 7, ",
            "[INFO] Warning: ",
        ] {
            for line_end in ["\r\n", "\n", "\r\r\n"] {
                let input = format!("{printed}content-length: 2{line_end}{line_end}{{}}");
                let noise = Decoded::Noise(printed.to_owned().into());
                assert_eq!(decode(input.as_bytes()), [noise, frame(b"{}")], "{input:?}");
            }
        }
        let typed = b"50%Content-Length: 2\r\nContent-Type: x\r\n\r\n{}";
        assert_eq!(decode(typed), [noise(b"50%"), frame(b"{}")]);
        // The length is output too, because what follows it is no header block.
        for (rest, dropped) in [
            ("\n", "Content-Length: 7"),
            ("\nINFO: x\n", "Content-Length: 7\nINFO: x"),
            ("\r\nX: y\r\n", "Content-Length: 7\nX: y"),
        ] {
            let input = format!("sent Content-Length: 7{rest}Content-Length: 2\r\n\r\n{{}}");
            let dropped = Decoded::Noise(dropped.to_owned().into());
            assert_eq!(decode(input.as_bytes()), [noise(b"sent "), dropped, frame(b"{}")], "{input:?}");
        }
        assert_eq!(
            decode(b"sent Content-Length: 7\nit works\n"),
            [noise(b"sent "), noise(b"Content-Length: 7"), noise(b"it works")]
        );
        assert_eq!(decode(b"x Content-Length: 7\n"), [noise(b"x "), noise(b"Content-Length: 7")]);
        let progress = ["Loading: 50%\r".repeat(1000).as_bytes(), b"Content-Length: 2\r\n\r\n{}"].concat();
        assert_eq!(decode(&progress).last(), Some(&frame(b"{}")));
        // The name of another header may end as that of the length does.
        let other = b"Content-Length: 2\r\nX-Content-Length: 7\r\n\r\n{}";
        assert_eq!(decode(other), [frame(b"{}")]);
    }

    #[test]
    fn a_block_may_have_return_bytes_as_line_ends() {
        let input =
            b"Content-Length: 2\r\r{}Content-Length: 3\rContent-Type: x\r\r[1]Content-Length: 2\r\n\r\n[]";
        assert_eq!(decode(input), [frame(b"{}"), frame(b"[1]"), frame(b"[]")]);
        assert_eq!(decode(b"Content-Length: 2\r\r{\n"), [frame(b"{\n")]);
        assert_eq!(decode(b"Content-Length: 2\rit works\r\r{}"), bad(BadFrame::BadHeader));
        assert_eq!(decode(b"Content-Length: 2\rContent-Length: 2\r\r{}"), bad(BadFrame::BadLength));
        let long = [&b"Content-Length: 2\rX: "[..], &[b'x'; MAX_HEADER_BYTES], b"\r\r{}\n"].concat();
        assert_eq!(decode(&long), bad(BadFrame::BadHeader));
    }

    #[test]
    fn a_header_block_over_eight_kibibytes_fails_the_decoder() {
        let long_line = [&b"X: "[..], &[b'x'; MAX_HEADER_BYTES]].concat();
        assert_eq!(decode(&long_line), bad(BadFrame::BadHeader));
        let many_lines = b"X: y\r\n".repeat(MAX_HEADER_BYTES / 6 + 1);
        assert_eq!(decode(&many_lines), bad(BadFrame::BadHeader));
        let with_length = [&b"Content-Length: 2\n"[..], &b"X: y\n".repeat(MAX_HEADER_BYTES / 5)].concat();
        assert_eq!(decode(&with_length), bad(BadFrame::BadHeader));
    }

    #[test]
    fn noise_between_two_frames_is_limited() {
        const LINE: &[u8] = b"0123456789abcdef0123456789abcde\n";
        // Byte by byte it would take seconds.
        let decode = |input: &[u8]| {
            let whole = decode_pieces(&[input]);
            assert_eq!(decode_pieces(&input.chunks(13).collect::<Vec<_>>()), whole);
            whole
        };
        let good = b"Content-Length: 2\r\n\r\n{}";
        let fits = [&LINE.repeat(MAX_NOISE_BYTES / LINE.len())[..], good].concat();
        // The frame between resets the count.
        let decoded = decode(&fits.repeat(2));
        assert_eq!(decoded.iter().filter(|decoded| **decoded == frame(b"{}")).count(), 2);
        // The length of the frame ends the last line of it.
        for end in ["}", "x"] {
            let noise = "x".repeat(MAX_NOISE_BYTES - 1) + end;
            assert_eq!(decode(&[noise.as_bytes(), good].concat()).last(), Some(&frame(b"{}")), "{end:?}");
        }
        let too_much = [&LINE.repeat(MAX_NOISE_BYTES / LINE.len() + 1)[..], good].concat();
        assert_eq!(decode(&too_much).last(), bad(BadFrame::BadHeader).last());
        for unit in ["x", "x: ", "{\"a\": ", "}Content-Length", "\u{feff}", "INFO: x\n", "a\nb: c\r\n"] {
            let endless = unit.repeat(2 * MAX_NOISE_BYTES / unit.len());
            assert_eq!(decode(endless.as_bytes()).last(), bad(BadFrame::BadHeader).last(), "{unit:?}");
        }
        // Lines of a log may look like headers.
        let log = [&b"INFO: started\n".repeat(2000)[..], good].concat();
        assert_eq!(decode(&log).last(), Some(&frame(b"{}")));
    }

    #[test]
    fn an_oversize_body_is_skipped_and_the_next_is_read() {
        let input = b"Content-Length: 17\r\n\r\n01234567890123456Content-Length: 2\r\n\r\n{}";
        assert_eq!(decode(input), [too_large(b"01234567890123456"), frame(b"{}")]);
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
        assert_eq!(decoder.finish(), Some(Decoded::Bad(BadFrame::Truncated, Bytes::from_static(b"{}"))));
    }

    #[test]
    fn an_endless_oversize_body_is_held_in_bounded_memory() {
        let mut decoder = ContentLength::new(16);
        decoder.push(format!("Content-Length: {}\r\n\r\n", usize::MAX).as_bytes());
        assert_eq!(decoder.next_frame(), None);
        decoder.push(&[b'x'; 1023]);
        assert_eq!(decoder.next_frame(), None);
        decoder.push(&[b'x'; 4096]);
        let head = Bytes::from(vec![b'x'; 1024]);
        assert_eq!(decoder.next_frame(), Some(Decoded::Bad(BadFrame::TooLarge { limit: 16 }, head)));
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
            let refused = Decoded::Bad(BadFrame::BadCharset, Bytes::from_static(b"[1]"));
            assert_eq!(decode(input.as_bytes()), [refused, frame(b"{}")]);
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
        assert_eq!(decode(b"Content-Length: 99\r\n\r\nxx"), [too_large(b"xx")]);
    }

    #[test]
    fn a_failed_decoder_stays_failed_and_holds_nothing() {
        let mut decoder = ContentLength::new(16);
        decoder.push(b"Content-Length: x\r\n");
        assert!(matches!(decoder.next_frame(), Some(Decoded::Bad(BadFrame::BadLength, _))));
        assert!(decoder.is_failed());
        decoder.push(b"Content-Length: 2\r\n\r\n{}");
        assert_eq!(decoder.next_frame(), None);
        assert!(decoder.buffer.is_empty());
    }
}
