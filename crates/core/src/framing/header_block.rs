//! Lines of a header block with `Content-Length`, and what programs print among them.

use std::ops::Range;

use memchr::{memchr, memchr_iter, memrchr, memrchr2};

use crate::framing::BadFrame;

/// The largest header block, in bytes, including line ends.
pub(super) const MAX_HEADER_BYTES: usize = 8 * 1024;
/// The most that a `Content-Length` with its number takes, which is at the end of a line of noise or of a body.
pub(super) const MAX_LENGTH_BYTES: usize = 64;
/// The header that each block has.
pub(super) const LENGTH: &[u8] = b"Content-Length:";
const TYPE: &[u8] = b"Content-Type:";

/// A line without its end. Programs that write `\r\n` to a stream that turns `\n` into `\r\n` end it with `\r\r\n`.
#[inline]
pub(super) fn without_returns(mut line: &[u8]) -> &[u8] {
    while let [rest @ .., b'\r'] = line {
        line = rest;
    }
    line
}

/// The content of the header block so far.
#[derive(Debug, Default)]
pub(super) struct HeaderBlock {
    /// In bytes, including line ends.
    pub(super) size: usize,
    pub(super) length: Option<usize>,
    pub(super) foreign_charset: bool,
    /// Whether its lines end with a bare `\n`. `None`: no line was read.
    pub(super) bare: Option<bool>,
    /// Its lines without a length, for a report that they are not a block.
    pub(super) lines: Vec<u8>,
    /// Whether its length was found at the end of other output. Then it may be output too.
    pub(super) is_printed: bool,
}

/// The name of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Length,
    Type,
    Other,
}

impl HeaderBlock {
    /// Reads one header.
    #[inline]
    pub(super) fn header(&mut self, name: Name, value: &[u8], line: &[u8]) -> Result<(), BadFrame> {
        match name {
            Name::Length => {
                let length = parse_length(value).ok_or(BadFrame::BadLength)?;
                if self.length.replace(length).is_some() {
                    return Err(BadFrame::BadLength);
                }
            }
            Name::Type => self.foreign_charset |= !is_utf8(value),
            Name::Other => {}
        }
        if self.is_printed || (name != Name::Length && self.length.is_none()) {
            if !self.lines.is_empty() {
                self.lines.push(b'\n');
            }
            self.lines.extend_from_slice(line);
        }
        Ok(())
    }

    /// The name and the value of a header line. `None`: it is not one. A return byte in it is that of a progress bar.
    #[inline]
    pub(super) fn split<'a>(&self, line: &'a [u8]) -> Option<(Name, &'a [u8])> {
        let has_return = || memchr(b'\r', without_returns(self.room_of(line))).is_some();
        split(line).filter(|(name, _)| *name != Name::Other || !has_return())
    }

    /// The part of a line for which the block has room.
    pub(super) fn room_of<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        line.get(..MAX_HEADER_BYTES.saturating_sub(self.size)).unwrap_or(line)
    }

    /// Whether its length is that of a body.
    pub(super) const fn is_certain(&self) -> bool {
        self.length.is_some() && !self.is_printed
    }

    /// Whether its lines are output that is not a block, if nothing follows.
    pub(super) fn is_noise(&self) -> bool {
        self.size > 0 && !self.is_certain() && (self.is_printed || !begins_header(&self.lines))
    }
}

/// The length in a block as nearly all programs write it, and the size of the block: one line and the empty line, which are here
/// whole. Other blocks are read line by line.
pub(super) fn plain_block(input: &[u8]) -> Option<(usize, usize)> {
    let value = input.strip_prefix(LENGTH)?.strip_prefix(b" ")?;
    // Nine digits fit into a `usize`.
    let digits = value.iter().take(9).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = value.split_at_checked(digits)?;
    let length = number.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    let is_plain = digits > 0 && rest.starts_with(b"\r\n\r\n");
    is_plain.then(|| (length, input.len() - rest.len() + b"\r\n\r\n".len()))
}

/// The name and the value of a header line. `None`: it is not one.
#[inline]
pub(super) fn split(line: &[u8]) -> Option<(Name, &[u8])> {
    // As nearly all programs write it.
    if let Some(value) = line.strip_prefix(LENGTH) {
        return Some((Name::Length, value));
    }
    let (name, value) = line.split_at(colon(line)?);
    let is = |header: &[u8]| {
        header.strip_suffix(b":").is_some_and(|header| without_blanks(name).eq_ignore_ascii_case(header))
    };
    let name = match () {
        () if is(LENGTH) => Name::Length,
        () if is(TYPE) => Name::Type,
        () if name.is_empty() || !name.iter().all(|byte| is_of_token(*byte)) => return None,
        () => Name::Other,
    };
    Some((name, value.strip_prefix(b":").unwrap_or(value)))
}

/// A name without the blanks that some programs write before the colon.
fn without_blanks(mut name: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t'] = name {
        name = rest;
    }
    name
}

/// Whether some bytes begin with a line that has a length, or are a part of one, as nearly all programs write it.
pub(super) fn length_line(bytes: impl Iterator<Item = u8>) -> LengthLine {
    let mut bytes = bytes.peekable();
    for expected in LENGTH {
        match bytes.next() {
            None => return LengthLine::Part,
            Some(byte) if byte.eq_ignore_ascii_case(expected) => {}
            Some(_) => return LengthLine::No,
        }
    }
    bytes.next_if_eq(&b' ');
    // As in `plain_block`.
    let digits = (0..9).take_while(|_| bytes.next_if(u8::is_ascii_digit).is_some()).count();
    let mut end = bytes.next();
    if end == Some(b'\r') && digits > 0 {
        end = bytes.next();
    }
    match end {
        None => LengthLine::Part,
        Some(b'\n') if digits > 0 => LengthLine::Whole,
        Some(_) => LengthLine::No,
    }
}

/// The place of the first whole line with a length in a body, with the `\r\n` that ends it. JSON has none: a `\r` in a string
/// is escaped.
pub(super) fn length_inside(body: &[u8]) -> Option<Range<usize>> {
    memchr_iter(b'\r', body).find_map(|at| {
        let (line, end) = body.split_at_checked(at)?;
        // As in `plain_block`.
        let digits = line.iter().rev().take(10).take_while(|byte| byte.is_ascii_digit()).count();
        if !end.starts_with(b"\r\n") || !(1..10).contains(&digits) {
            return None;
        }
        let (name, _) = line.split_at_checked(at - digits)?;
        let name = name.strip_suffix(b" ").unwrap_or(name);
        let start = name.len().checked_sub(LENGTH.len())?;
        name.get(start..)?.eq_ignore_ascii_case(LENGTH).then_some(start..at + 2)
    })
}

/// The place where a body may have the beginning of a line with a length at its end, which goes on behind it.
pub(super) fn length_begins(body: &[u8]) -> Option<usize> {
    let from = body.len().saturating_sub(MAX_LENGTH_BYTES);
    let end = body.get(from..)?;
    let start = memrchr2(b'C', b'c', end)?;
    let line = end.get(start..)?.iter().copied();
    (length_line(line) == LengthLine::Part).then_some(from + start)
}

/// What [`length_line`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LengthLine {
    No,
    Part,
    Whole,
}

/// The place of the first colon, where a header can have it.
fn colon(line: &[u8]) -> Option<usize> {
    memchr(b':', line.get(..MAX_HEADER_BYTES).unwrap_or(line))
}

/// Whether a line that is not a header can become one when more of it arrives.
pub(super) fn may_be_header(line: &[u8]) -> bool {
    colon(line).is_none() && line.len() < MAX_HEADER_BYTES
}

/// Whether the input ends in the first header of a block: it is the beginning of one, or begins with one.
pub(super) fn begins_header(input: &[u8]) -> bool {
    !input.is_empty()
        && [LENGTH, TYPE].into_iter().any(|header| {
            let common = header.len().min(input.len());
            input.get(..common).is_some_and(|start| {
                header.get(..common).is_some_and(|header| start.eq_ignore_ascii_case(header))
            })
        })
}

/// The place of a `Content-Length:` directly after the end of an object or an array. The search begins at `from`.
pub(super) fn later_length(line: &[u8], from: usize) -> Option<usize> {
    let begins = |colon: usize| {
        let start = (colon + 1).checked_sub(LENGTH.len())?;
        let before = line.get(start.checked_sub(1)?)?;
        let is_length = line.get(start..=colon)?.eq_ignore_ascii_case(LENGTH);
        (is_length && matches!(before, b'}' | b']')).then_some(start)
    };
    memchr_iter(b':', line.get(from..)?).find_map(|colon| begins(from + colon))
}

/// The place of a `Content-Length:` with a number that reaches to the end of a line.
pub(super) fn length_at_end(line: &[u8]) -> Option<usize> {
    let colon = memrchr(b':', line)?;
    let start = (colon + 1).checked_sub(LENGTH.len())?;
    let is_length = line.get(start..=colon)?.eq_ignore_ascii_case(LENGTH);
    let value = line.get(colon + 1..)?;
    (is_length && parse_length(value).is_some()).then_some(start)
}

/// Whether HTTP allows this byte in the name of a header field.
const fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Only digits: no sign, no overflow.
#[inline]
fn parse_length(value: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Whether a content type names UTF-8 or no charset.
fn is_utf8(content_type: &[u8]) -> bool {
    content_type.split(|&byte| byte == b';').skip(1).all(|parameter| {
        let mut halves = parameter.splitn(2, |&byte| byte == b'=');
        let (name, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let value = value.trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
        // Older language clients send `utf8`; the LSP asks servers to accept it.
        !name.trim_ascii().eq_ignore_ascii_case(b"charset")
            || value.eq_ignore_ascii_case(b"utf-8")
            || value.eq_ignore_ascii_case(b"utf8")
    })
}
