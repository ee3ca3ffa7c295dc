//! Both framings: splits do not matter, the buffered bytes are limited, and a bad frame does not affect a good one.

use bytes::{Bytes, BytesMut};
use rescind_core::{BadFrame, Decoded, Framing};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::envelope::squeezed;
use super::{all_cuts, controlled, cut};

/// Limits of a frame, in bytes. The control byte selects one.
const LIMITS: [usize; 4] = [24, 32, 64, 1024];
/// How many bytes a buffer may have beyond what it needs.
const SPARE: usize = 64 * 1024;

/// A message of its own, which ends a text over several lines.
const GOOD: &[u8] = b"{\"jsonrpc\":\"2.0\"}";

fn limit(control: u8) -> usize {
    LIMITS.get(usize::from(control) % LIMITS.len()).copied().unwrap_or(24)
}

/// The control byte, then the bytes of a stream.
pub(super) fn newline(data: &[u8]) {
    let Some((control, wire)) = controlled(data) else { return };
    let limit = limit(control);
    let whole = normal(naive_newline(wire, limit), limit);
    for pieces in all_cuts(wire, control) {
        assert_eq!(decoded(Framing::Newline, limit, &pieces).0, whole, "cut into {pieces:?}");
    }
    let behind = [wire, b"\n", GOOD, b"\n"].concat();
    let frames = decoded(Framing::Newline, limit, &[&behind]).0;
    assert_eq!(frames, normal(naive_newline(&behind, limit), limit));
    assert_eq!(frames.last(), Some(&Decoded::Frame(Bytes::from_static(GOOD))), "a good line was lost");

    let mut line = BytesMut::new();
    Framing::Newline.encode(wire, &mut line);
    let text = line.strip_suffix(b"\n").unwrap_or_default();
    assert_eq!(text.len() + 1, line.len(), "a line ends");
    assert!(!text.contains(&b'\n') && !text.contains(&b'\r'), "a line is one line");
    if let (Ok(json), Ok(written)) = (std::str::from_utf8(wire), std::str::from_utf8(text)) {
        if serde_json::from_str::<IgnoredAny>(json).is_ok() {
            assert_eq!(squeezed(written), squeezed(json), "a line says something else");
        }
    }
}

/// The control byte, then the bytes of a stream.
pub(super) fn content_length(data: &[u8]) {
    let Some((control, wire)) = controlled(data) else { return };
    let limit = limit(control);
    let (whole, is_between_frames) = naive_content_length(wire, limit);
    let whole = normal(whole, limit);
    for pieces in all_cuts(wire, control) {
        let (frames, is_failed) = decoded(Framing::ContentLength, limit, &pieces);
        assert_eq!(frames, whole, "cut into {pieces:?}");
        assert!(!(is_failed && is_between_frames), "the decoder gave up between two frames");
    }
    let mut good = BytesMut::new();
    Framing::ContentLength.encode(GOOD, &mut good);
    if is_between_frames {
        let mut expected = whole;
        expected.push(Decoded::Frame(Bytes::from_static(GOOD)));
        let behind = [wire, &good].concat();
        assert_eq!(decoded(Framing::ContentLength, limit, &[&behind]).0, expected, "a good frame was lost");
    }

    if !is_in_brackets(wire) && (0..wire.len()).any(|at| wire.get(at..).and_then(length_line).is_some()) {
        // A body with a header in it is not read as it is.
        return;
    }
    let mut framed = BytesMut::new();
    Framing::ContentLength.encode(wire, &mut framed);
    framed.extend_from_slice(&good);
    let first = if wire.len() > limit {
        let head = wire.get(..1024.min(limit)).unwrap_or(wire);
        Decoded::Bad(BadFrame::TooLarge { limit }, Bytes::copy_from_slice(head))
    } else {
        Decoded::Frame(Bytes::copy_from_slice(wire))
    };
    let expected = [first, Decoded::Frame(Bytes::from_static(GOOD))];
    let pieces = cut(&framed, control);
    assert_eq!(decoded(Framing::ContentLength, limit, &pieces).0, expected, "a frame does not come back");
}

/// The frames, and whether the decoder stopped because of an error.
fn decoded(framing: Framing, limit: usize, pieces: &[&[u8]]) -> (Vec<Decoded>, bool) {
    let most = match framing {
        // A `\r` directly above the limit may belong to the line end.
        Framing::Newline => limit + 1,
        Framing::ContentLength => limit.max(NOISE),
    };
    let mut decoder = framing.decoder(limit);
    let mut all = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        all.extend(std::iter::from_fn(|| decoder.next_frame()));
        // As a connection does before its next read.
        decoder.make_room();
        let (held, room) = (decoder.partial(), decoder.buffer_mut().capacity());
        assert!(held <= most, "I11: {held} bytes are held, the limit is {limit}");
        assert!(room <= 2 * (most + piece.len()) + SPARE, "I11: room for {room} bytes, the limit is {limit}");
    }
    let is_failed = decoder.is_failed();
    all.extend(std::iter::from_fn(|| decoder.finish()));
    assert_eq!(decoder.finish(), None, "the end was reported twice");
    for frame in &all {
        if let Decoded::Frame(body) | Decoded::SeveralLines(body) = frame {
            assert!(body.len() <= limit, "I11: a frame of {} bytes over the limit of {limit}", body.len());
        }
    }
    (normal(all, limit), is_failed)
}

/// Without what depends on how much had arrived when a frame was refused.
fn normal(mut all: Vec<Decoded>, limit: usize) -> Vec<Decoded> {
    for decoded in &mut all {
        match decoded {
            Decoded::Bad(BadFrame::TooLarge { .. }, head) => head.truncate(limit),
            Decoded::Bad(why, head) if !why.is_recoverable() => head.clear(),
            Decoded::ByteOrderMark(after) => after.clear(),
            _ => {}
        }
    }
    all
}

// Naive readers of whole inputs. The real readers, which get the inputs in pieces, must agree with them.

const MARK: &[u8] = b"\xef\xbb\xbf";
/// The largest header block, in bytes.
const HEADER: usize = 8 * 1024;
/// The most noise between two frames of `Content-Length` framing, in bytes.
const NOISE: usize = 64 * 1024;
/// How much of a refused frame is reported, in bytes.
const HEAD: usize = 1024;

fn copied(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn head(bytes: &[u8]) -> Bytes {
    copied(bytes.get(..HEAD).unwrap_or(bytes))
}

fn too_large(limit: usize, bytes: &[u8]) -> Decoded {
    Decoded::Bad(BadFrame::TooLarge { limit }, head(bytes))
}

/// The frames of lines, without the time that a text over several lines has.
fn naive_newline(wire: &[u8], limit: usize) -> Vec<Decoded> {
    let mut all = Vec::new();
    let mut text = None;
    for line in wire.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        read_line(line.strip_suffix(b"\r").unwrap_or(line), limit, &mut text, &mut all);
    }
    all.extend(text.map(|Collected { text, .. }| Decoded::Bad(BadFrame::NotJson, text.into())));
    all
}

/// The lines of a text so far, and whether other output is before it.
struct Collected {
    text: Vec<u8>,
    is_printed: bool,
}

fn read_line(line: &[u8], limit: usize, collected: &mut Option<Collected>, all: &mut Vec<Decoded>) {
    if let Some(Collected { text, .. }) = collected.take_if(|kept| kept.text.len() + 1 + line.len() > limit) {
        all.push(too_large(limit, &text));
    }
    if line.len() > limit {
        all.push(too_large(limit, line));
        return;
    }
    let mut line = line;
    while let Some(rest) = line.strip_prefix(MARK) {
        line = rest;
        if !line.starts_with(MARK) {
            all.push(Decoded::ByteOrderMark(head(line)));
            if line.is_empty() {
                return;
            }
        }
    }
    if let Some(Collected { text, is_printed }) = collected.take() {
        let is_name = |line: &[u8]| matches!(line.trim_ascii(), [] | [b'"' | b'}', ..]);
        let is_own = message(line.trim_ascii()).is_some_and(|names| is_on_its_own(&names));
        if is_own || (is_printed && text.trim_ascii() == b"{" && !is_name(line)) {
            all.push(Decoded::Bad(BadFrame::NotJson, text.into()));
        } else {
            let before = text.len() + 1;
            let joined = [&text[..], b"\n", line].concat();
            let Some(end) = end_of_brackets(&joined).filter(|end| *end > before) else {
                *collected = Some(Collected { text: joined, is_printed });
                return;
            };
            let (lines, rest) = joined.split_at(end);
            all.push(match serde_json::from_slice::<IgnoredAny>(lines) {
                Ok(_) if is_printed && message(lines).is_none_or(|names| !is_any(&names)) => {
                    Decoded::Noise(copied(lines))
                }
                Ok(_) => Decoded::SeveralLines(copied(lines)),
                Err(_) => Decoded::Bad(BadFrame::NotJson, copied(lines)),
            });
            if !rest.is_empty() {
                read_line(rest, limit, collected, all);
            }
            return;
        }
    }
    read_plain(line, limit, collected, all);
}

/// A line that does not belong to a text over several lines, unless it begins one.
fn read_plain(line: &[u8], limit: usize, collected: &mut Option<Collected>, all: &mut Vec<Decoded>) {
    let text = line.trim_ascii();
    match (text.first(), text.last()) {
        (None, _) => return,
        (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) => {
            all.push(Decoded::Frame(copied(line)));
            return;
        }
        _ => {}
    }
    let blanks = line.len() - line.trim_ascii_start().len();
    if let Some(length) = first_object(text) {
        let (frame, rest) = line.split_at(blanks + length);
        if message(frame.trim_ascii()).is_some_and(|names| is_any(&names)) {
            all.push(Decoded::Frame(copied(frame)));
            read_line(rest, limit, collected, all);
            return;
        }
    }
    let after = text.get(1..).unwrap_or_default().trim_ascii().first();
    let begins =
        matches!((text.first(), after), (Some(b'{'), None | Some(b'"')) | (Some(b'['), None | Some(b'{')));
    if begins && end_of_brackets(text).is_none() {
        *collected = Some(Collected { text: line.to_vec(), is_printed: false });
        return;
    }
    if text.ends_with(b"{") {
        let (before, text) = line.split_at(line.trim_ascii_end().len() - 1);
        all.push(Decoded::Noise(copied(before)));
        *collected = Some(Collected { text: text.to_vec(), is_printed: true });
        return;
    }
    for (at, _) in line.iter().enumerate().filter(|(_, byte)| **byte == b'{') {
        let (noise, rest) = line.split_at(at);
        if message(rest.trim_ascii()).is_some_and(|names| is_any(&names)) {
            all.extend([Decoded::Noise(copied(noise)), Decoded::Frame(copied(rest))]);
            return;
        }
    }
    all.push(Decoded::Bad(BadFrame::NotJson, copied(line)));
}

/// The length of the object with which a text begins.
fn first_object(text: &[u8]) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<IgnoredAny>();
    let is_object = text.starts_with(b"{") && values.next()?.is_ok();
    is_object.then(|| values.byte_offset())
}

/// The names of the members of an object that is the whole text, in quotes as they are written.
fn message(text: &[u8]) -> Option<Vec<&[u8]>> {
    let whole = std::str::from_utf8(text).ok()?;
    serde_json::from_str::<&RawValue>(whole).ok().filter(|_| text.starts_with(b"{"))?;
    let (mut names, mut depth, mut at) = (Vec::new(), 0_u32, 0);
    while let Some(byte) = text.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                while text.get(at) != Some(&b'"') {
                    at += if text.get(at)? == &b'\\' { 2 } else { 1 };
                }
                at += 1;
                let is_name = text.get(at..)?.trim_ascii_start().first() == Some(&b':');
                names.extend(text.get(start..at).filter(|_| is_name && depth == 1));
            }
            _ => {}
        }
    }
    Some(names)
}

fn is_any(names: &[&[u8]]) -> bool {
    let has = |name: &[u8]| names.contains(&name);
    has(b"\"jsonrpc\"")
        || has(b"\"method\"")
        || has(b"\"type\"")
        || (has(b"\"id\"") && (has(b"\"result\"") || has(b"\"error\"")))
}

fn is_on_its_own(names: &[&[u8]]) -> bool {
    let has = |name: &[u8]| names.contains(&name);
    has(b"\"jsonrpc\"") || (has(b"\"type\"") && (has(b"\"payload\"") || has(b"\"timestamp\"")))
}

/// Where the brackets of a text are balanced for the first time.
fn end_of_brackets(text: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_u32, 0);
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at);
                }
            }
            b'"' => {
                while text.get(at)? != &b'"' {
                    at += if text.get(at)? == &b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            _ => {}
        }
    }
    None
}

/// A header block that is being read.
#[derive(Default)]
struct Block {
    size: usize,
    length: Option<usize>,
    is_foreign: bool,
    ends: Option<bool>,
    lines: Vec<Vec<u8>>,
    /// Its length is at the end of a printed line.
    is_printed: bool,
}

impl Block {
    fn is_certain(&self) -> bool {
        self.length.is_some() && !self.is_printed
    }
}

/// The frames, and whether the input ends between two of them.
fn naive_content_length(wire: &[u8], limit: usize) -> (Vec<Decoded>, bool) {
    let mut reader = Blocks { all: Vec::new(), noise: 0, block: Block::default(), limit };
    let mut rest = wire;
    loop {
        match reader.step(rest) {
            Ok(after) => rest = after,
            Err(is_between_frames) => return (reader.all, is_between_frames),
        }
    }
}

fn without_returns(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
    line.get(..end).unwrap_or_default()
}

struct Blocks {
    all: Vec<Decoded>,
    noise: usize,
    block: Block,
    limit: usize,
}

impl Blocks {
    /// Reads one line, or a body after the last one. An error: nothing more is read.
    fn step<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], bool> {
        let is_start = self.block.size == 0;
        if let Some(after) = rest.strip_prefix(MARK).filter(|_| is_start) {
            self.noise(MARK.len(), Decoded::ByteOrderMark(Bytes::new()))?;
            return Ok(after);
        }
        let end = rest.iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            return self.end(rest);
        };
        let (whole, after) = rest.split_at(end);
        let after = after.get(1..).unwrap_or_default();
        let line = without_returns(whole);
        let returned = line.len() < whole.len();
        if is_start && line.iter().all(u8::is_ascii_whitespace) {
            return Ok(after);
        }
        if line.is_empty() && self.block.ends == Some(returned) {
            self.block.size += end + 1;
            return if self.block.size > HEADER { self.fails(BadFrame::BadHeader) } else { self.body(after) };
        }
        if let Some(size) = returns(whole).filter(|_| is_start) {
            return self.block_of_returns(rest, size);
        }
        let room = line.get(..HEADER - self.block.size.min(HEADER)).unwrap_or(line);
        let header = header(line).filter(|(name, _)| {
            matches!(&name[..], b"content-length" | b"content-type")
                || (later(room).is_none() && !without_returns(room).contains(&b'\r'))
        });
        let Some((name, value)) = header else {
            return self.other(rest, end);
        };
        if is_start && self.block.size + end + 1 > HEADER && has_bad_length(whole) {
            return self.fails(BadFrame::BadLength);
        }
        if self.block.size + end + 1 > HEADER {
            let is_log = !is_start && !self.block.is_certain() && self.block.ends == Some(false);
            return if is_log { self.drop_block(rest) } else { self.fails(BadFrame::BadHeader) };
        }
        let is_other = !matches!(&name[..], b"content-length" | b"content-type");
        if is_other && !self.block.is_certain() && at_end(line).is_some() {
            return self.other(rest, end);
        }
        if self.block.ends.is_some_and(|ends| ends != returned) {
            if !self.block.is_certain() {
                return self.drop_block(rest);
            }
            if !is_other {
                return self.fails(BadFrame::BadHeader);
            }
            self.noise(end + 1, Decoded::Noise(head(line)))?;
            return Ok(after);
        }
        if self.block.is_printed && self.block.length.is_some() && &name[..] == b"content-length" {
            return self.drop_block(rest);
        }
        self.block.size += end + 1;
        self.block.ends = Some(returned);
        match &name[..] {
            b"content-length" => {
                let said = number(value.trim_ascii()).filter(|_| self.block.length.is_none());
                self.block.length = match said {
                    None => return self.fails(BadFrame::BadLength),
                    said => said,
                };
                if !self.block.is_printed {
                    return Ok(after);
                }
            }
            b"content-type" => self.block.is_foreign |= !is_utf8(&value.to_ascii_lowercase()),
            _ => {}
        }
        if !self.block.is_certain() {
            self.block.lines.push(line.to_vec());
        }
        Ok(after)
    }

    /// A block whose lines end with returns alone.
    fn block_of_returns<'a>(&mut self, rest: &'a [u8], size: usize) -> Result<&'a [u8], bool> {
        let (block, after) = rest.split_at(size);
        for line in without_returns(block).split(|byte| *byte == b'\r') {
            match header(line) {
                None => return self.fails(BadFrame::BadHeader),
                Some((name, value)) if &name[..] == b"content-length" => {
                    let said = number(value.trim_ascii()).filter(|_| self.block.length.is_none());
                    self.block.length = match said {
                        None => return self.fails(BadFrame::BadLength),
                        said => said,
                    };
                }
                Some((name, value)) if &name[..] == b"content-type" => {
                    self.block.is_foreign |= !is_utf8(&value.to_ascii_lowercase());
                }
                Some(_) => {}
            }
        }
        self.body(after)
    }

    /// A line that is not a header.
    fn other<'a>(&mut self, rest: &'a [u8], end: usize) -> Result<&'a [u8], bool> {
        if self.block.size > 0 && !self.block.is_certain() {
            return self.drop_block(rest);
        }
        let is_start = self.block.size == 0;
        let line = rest.get(..end).unwrap_or_default();
        let line = without_returns(line);
        if line.is_empty() {
            return self.fails(BadFrame::BadHeader);
        }
        let later = later(line);
        let printed = line.get(..later.unwrap_or(line.len())).unwrap_or_default();
        if message(printed.trim_ascii()).is_some_and(|names| is_on_its_own(&names)) {
            return self.fails(BadFrame::BadHeader);
        }
        let last = at_end(line).filter(|_| is_start && later.is_none());
        let (noise, taken) = match later.or(last) {
            Some(at) => (line.get(..at).unwrap_or_default(), at),
            None => (line, end + 1),
        };
        self.noise(taken, Decoded::Noise(head(without_returns(noise))))?;
        self.block.is_printed = last.is_some();
        Ok(rest.get(taken..).unwrap_or_default())
    }

    /// The header block is complete: its body follows.
    fn body<'a>(&mut self, after: &'a [u8]) -> Result<&'a [u8], bool> {
        let Some(length) = self.block.length else {
            return self.drop_block(after);
        };
        let is_foreign = self.block.is_foreign;
        self.noise = 0;
        self.block = Block::default();
        let is_whole = after.len() >= length;
        let (body, _) = after.split_at(length.min(after.len()));
        if is_whole && length <= self.limit && !is_foreign && !is_in_brackets(body) {
            return Ok(self.other_body(body, after));
        }
        self.all.push(match (length > self.limit, is_foreign, is_whole) {
            (true, _, _) => too_large(self.limit, body),
            (false, true, _) => Decoded::Bad(BadFrame::BadCharset, head(body)),
            (false, false, true) => Decoded::Frame(copied(body)),
            (false, false, false) => Decoded::Bad(BadFrame::Truncated, Bytes::new()),
        });
        if is_whole { Ok(after.get(length..).unwrap_or_default()) } else { Err(false) }
    }

    /// A body that does not begin and end as JSON does: it may have the next header in it. Returns what is read next.
    fn other_body<'a>(&mut self, body: &[u8], after: &'a [u8]) -> &'a [u8] {
        let whole_line = (0..body.len()).find_map(|at| {
            let size = length_line(body.get(at..)?)?;
            Some((at, at + size)).filter(|(_, end)| body.get(end - 2..*end) == Some(b"\r\n"))
        });
        let Some((start, end)) = whole_line else {
            let begun = (body.len().saturating_sub(64)..body.len()).find(|at| {
                let line = after.get(*at..).unwrap_or_default();
                length_line(line).is_some_and(|size| at + size > body.len())
            });
            self.all.push(Decoded::Frame(copied(body)));
            return after.get(begun.unwrap_or(body.len())..).unwrap_or_default();
        };
        let (before, next) = (body.get(..start).unwrap_or_default(), body.get(end..).unwrap_or_default());
        let next = next.trim_ascii_start();
        let next = next.get(..64).unwrap_or(next);
        let names = |id: &[u8]| next.windows(4).any(|window| window == id);
        let is_closed = end_of_brackets(before).is_some();
        if is_closed && next.starts_with(b"{") && (names(b"\"id\"") || names(b"'id'")) {
            self.all.push(Decoded::Frame(copied(body)));
            return after.get(body.len()..).unwrap_or_default();
        }
        self.all.push(if before.trim_ascii().is_empty() {
            Decoded::Noise(format!("Content-Length: {}", body.len()).into())
        } else {
            Decoded::Frame(copied(if is_closed { body.get(..end).unwrap_or_default() } else { before }))
        });
        after.get(start..).unwrap_or_default()
    }

    /// A line without its end, at the end of the input.
    fn end<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], bool> {
        if let Some(size) = returns(rest).filter(|_| self.block.size == 0) {
            return self.block_of_returns(rest, size);
        }
        if self.block.size == 0 && has_bad_length(rest) {
            return self.fails(BadFrame::BadLength);
        }
        let found = header(rest).filter(|(name, _)| {
            let room = rest.get(..HEADER - self.block.size.min(HEADER)).unwrap_or(rest);
            matches!(&name[..], b"content-length" | b"content-type")
                || !without_returns(room).contains(&b'\r')
        });
        let room = rest.get(..HEADER - self.block.size.min(HEADER)).unwrap_or(rest);
        let named = match &found {
            Some((name, _)) if matches!(&name[..], b"content-length" | b"content-type") => None,
            Some(_) => later(room),
            None => later(rest),
        };
        let is_log = self.block.size > 0 && !self.block.is_certain();
        let is_noise = found.is_none() && (rest.len() >= HEADER || rest.contains(&b':'));
        if is_log && (named.is_some() || is_noise) {
            return self.drop_block(rest);
        }
        if named.is_some() {
            return self.other(rest, rest.len());
        }
        if is_noise && self.noise + rest.len() > NOISE {
            return self.fails(BadFrame::BadHeader);
        }
        if found.is_some() && self.block.size + rest.len() > HEADER {
            if is_log && self.block.ends == Some(false) {
                return self.drop_block(rest);
            }
            return self.fails(BadFrame::BadHeader);
        }
        let begins = |text: &[u8]| {
            let text = text.to_ascii_lowercase();
            let of =
                |header: &[u8]| text.starts_with(header) || (!text.is_empty() && header.starts_with(&text));
            of(b"content-length:") || of(b"content-type:")
        };
        let is_between = self.block.size == 0 && rest.is_empty();
        let lines = std::mem::take(&mut self.block.lines).join(&b'\n');
        if is_log && (self.block.is_printed || !begins(&lines)) {
            self.all.push(Decoded::Noise(lines.into()));
            self.block.size = 0;
        }
        if self.block.size > 0 || begins(rest) {
            self.all.push(Decoded::Bad(BadFrame::Truncated, Bytes::new()));
        } else if !rest.trim_ascii().is_empty() {
            self.all.push(Decoded::Noise(head(rest.trim_ascii())));
        }
        Err(is_between)
    }

    fn drop_block<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], bool> {
        let Block { size, lines, .. } = std::mem::take(&mut self.block);
        self.noise(size, Decoded::Noise(lines.join(&b'\n').into()))?;
        Ok(rest)
    }

    fn noise(&mut self, size: usize, what: Decoded) -> Result<(), bool> {
        self.noise += size;
        if self.noise > NOISE {
            return self.fails(BadFrame::BadHeader).map(|_| ());
        }
        self.all.push(what);
        Ok(())
    }

    fn fails(&mut self, why: BadFrame) -> Result<&'static [u8], bool> {
        self.all.push(Decoded::Bad(why, Bytes::new()));
        Err(false)
    }
}

fn is_in_brackets(body: &[u8]) -> bool {
    matches!((body.first(), body.last()), (Some(b'{' | b'['), Some(b'}' | b']'))) && body.len() > 1
}

/// The size of a line with a length, as nearly all programs write it, with which some bytes begin.
fn length_line(bytes: &[u8]) -> Option<usize> {
    let (name, rest) = bytes.split_at_checked(15)?;
    // First, because it is asked at each byte of an input.
    if !name.eq_ignore_ascii_case(b"content-length:") {
        return None;
    }
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let value = rest.get(..end)?;
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    let value = value.strip_prefix(b" ").unwrap_or(value);
    (value.len() <= 9 && number(value).is_some()).then_some(name.len() + end + 1)
}

/// The name of a header in lower case, and its value.
fn header(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let colon = line.iter().take(HEADER).position(|byte| *byte == b':')?;
    let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?);
    let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t');
    let blanks = name.iter().rev().take_while(is_blank).count();
    let known = name.get(..name.len() - blanks).unwrap_or_default().to_ascii_lowercase();
    if matches!(&known[..], b"content-length" | b"content-type") {
        return Some((known, value));
    }
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (!name.is_empty() && name.iter().all(is_token)).then(|| (name.to_ascii_lowercase(), value))
}

/// The size of a block, at the beginning of a line, whose lines end with returns alone.
fn returns(line: &[u8]) -> Option<usize> {
    let line = without_returns(line.get(..HEADER).unwrap_or(line));
    let empty = line.windows(2).position(|pair| pair == b"\r\r")?;
    let (name, value) = header(line.get(..empty)?)?;
    let size = line.iter().skip(empty).position(|byte| *byte != b'\r').map(|after| empty + after)?;
    let is_blank = line.get(size)?.is_ascii_whitespace() || value.trim_ascii().is_empty();
    (&name[..] == b"content-length" && !is_blank).then_some(size)
}

/// Whether a line begins with a length that is not a number.
fn has_bad_length(line: &[u8]) -> bool {
    let Some((name, value)) = header(line.get(..HEADER).unwrap_or(line)) else { return false };
    let value = value.split(|byte| *byte == b'\r').next().unwrap_or_default();
    &name[..] == b"content-length"
        && !value.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_whitespace())
}

/// The place of a length that reaches to the end of a line.
fn at_end(line: &[u8]) -> Option<usize> {
    let places = 0..line.len();
    places.rev().find(|at| {
        line.get(at + 14) == Some(&b':')
            && header(line.get(*at..).unwrap_or_default()).is_some_and(|(name, value)| {
                &name[..] == b"content-length" && number(value.trim_ascii()).is_some()
            })
    })
}

/// The place of a length directly after a closing bracket.
fn later(line: &[u8]) -> Option<usize> {
    let length = b"content-length:";
    let windows = line.windows(length.len() + 1);
    let mut found = windows.enumerate().filter(|(_, window)| {
        let (bracket, name) = window.split_at(1);
        (bracket == b"}" || bracket == b"]") && name.eq_ignore_ascii_case(length)
    });
    found.next().map(|(at, _)| at + 1)
}

fn number(digits: &[u8]) -> Option<usize> {
    let digit = |byte: &u8| char::from(*byte).to_digit(10).and_then(|digit| usize::try_from(digit).ok());
    let add = |sum: usize, byte: &u8| sum.checked_mul(10)?.checked_add(digit(byte)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// The text is in lower case. `utf8` is also accepted.
fn is_utf8(content_type: &[u8]) -> bool {
    let mut parameters = content_type.split(|byte| *byte == b';').skip(1);
    parameters.all(|parameter| {
        let Some(equals) = parameter.iter().position(|byte| *byte == b'=') else {
            return parameter.trim_ascii() != b"charset";
        };
        let (name, value) = parameter.split_at(equals);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let plain: [&[u8]; 4] = [b"utf-8", b"utf8", b"\"utf-8\"", b"\"utf8\""];
        name.trim_ascii() != b"charset" || plain.contains(&value)
    })
}
