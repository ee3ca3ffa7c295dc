//! Event streams: splits do not matter, a naive reader of the whole agrees, and the output of our server can be read.

use std::time::Duration;

use bytes::Bytes;
use rescind_http::verify::{EventReader, ReadEvent, event, parse_id, priming};

use super::pieces;

/// Limits of an event's data, in bytes. The control byte selects one.
const LIMITS: [usize; 4] = [8, 64, 1024, 2048];
/// How many bytes a line may be longer than its data.
const FIELD: usize = 64;
/// An id or a name with more bytes than this is not kept.
const NAME: usize = 1024;

/// The control byte, then a stream.
pub(super) fn check(data: &[u8]) {
    let Some((control, stream)) = pieces::controlled(data) else { return };
    let most = LIMITS.get(usize::from(control) % LIMITS.len()).copied().unwrap_or(8);
    let expected = naive(stream, most);
    for pieces in pieces::all_cuts(stream, control) {
        assert_eq!(read(&pieces, most), expected, "cut into {pieces:?}");
    }
    written_and_read(stream, most, control);
    if let Ok(id) = std::str::from_utf8(stream) {
        if let Some((stream, number)) = parse_id(id) {
            assert_eq!(format!("{stream}-{number}"), id, "an id that we never gave");
        }
    }
}

fn read(pieces: &[&[u8]], most: usize) -> Vec<Option<ReadEvent>> {
    let mut reader = EventReader::new(most);
    let mut all = Vec::new();
    for piece in pieces {
        reader.push(piece);
        all.extend(std::iter::from_fn(|| reader.next_event()));
        let held = reader.held();
        assert!(held <= 2 * most + FIELD + 1, "{held} bytes are held, the limit is {most}");
    }
    all.extend(reader.finish().map(Some));
    assert_eq!((reader.finish(), reader.held()), (None, 0), "nothing is left after the end");
    all
}

/// Writes one line of data as our server does, and reads it again.
fn written_and_read(data: &[u8], most: usize, control: u8) {
    let line: Vec<u8> = data.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    let id = (u64::from(control), u64::MAX - u64::from(control));
    let (own_id, retry) = (format!("{}-{}", id.0, id.1), Duration::from_millis(u64::from(control)));
    assert_eq!(parse_id(&own_id), Some(id), "an id of ours");
    let wire = [&priming(id, Some(retry))[..], &event(Some(id), &line), &event(None, b"{}")].concat();
    let first = ReadEvent { id: Some(own_id.clone()), retry: Some(retry), ..ReadEvent::default() };
    let second = (line.len() <= most).then(|| ReadEvent {
        id: Some(own_id),
        data: line.into(),
        ..ReadEvent::default()
    });
    let last = ReadEvent { data: Bytes::from_static(b"{}"), ..ReadEvent::default() };
    let expected = [Some(first), second, Some(last)];
    assert_eq!(read(&pieces::cut(&wire, control), most), expected, "our own stream");
}

/// An event that is being read.
#[derive(Default)]
struct Coming {
    event: ReadEvent,
    data: Vec<u8>,
    has_data: bool,
    has_fields: bool,
    is_too_large: bool,
}

/// Reads a whole stream as the standard defines, except for the last event without an empty line at its end: it counts if its
/// data is a JSON object. Its last line counts only as data.
fn naive(stream: &[u8], most: usize) -> Vec<Option<ReadEvent>> {
    let mut all = Vec::new();
    let mut coming = Coming::default();
    let (lines, last) = lines(stream);
    for line in lines {
        if !line.is_empty() {
            coming.take(line, most);
            continue;
        }
        let Coming { mut event, data, has_fields, is_too_large, .. } = std::mem::take(&mut coming);
        event.data = data.into();
        if has_fields {
            all.push((!is_too_large).then_some(event));
        }
    }
    if last.len() > most + FIELD {
        return all;
    }
    if last.starts_with(b"data:") {
        coming.take(last, most);
    }
    let is_object = coming.data.trim_ascii_start().starts_with(b"{")
        && serde_json::from_slice::<serde::de::IgnoredAny>(&coming.data).is_ok();
    if is_object && !coming.is_too_large {
        coming.event.data = coming.data.into();
        all.push(Some(coming.event));
    }
    all
}

impl Coming {
    fn take(&mut self, line: &[u8], most: usize) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) =
            (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let is_over = line.len() > most + FIELD;
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).ok().filter(|text| text.len() <= NAME);
        match field {
            b"data" => {
                if self.data.len() + value.len() > most {
                    self.is_too_large = true;
                    self.data.clear();
                } else if !self.is_too_large {
                    if self.has_data {
                        self.data.push(b'\n');
                    }
                    self.data.extend_from_slice(value);
                }
                self.has_data = true;
            }
            _ if is_over => return,
            b"event" => self.event.name = text(value),
            b"id" if !value.contains(&0) => self.event.id = text(value),
            b"retry" => {
                let digits = text(value).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                self.event.retry = digits.and_then(|text| text.parse().ok()).map(Duration::from_millis);
            }
            _ => return,
        }
        self.has_fields = true;
    }
}

/// The complete lines, which end with `\n`, `\r` or both, and the beginning of one.
fn lines(stream: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut rest = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let mut lines = Vec::new();
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        let (line, after) = rest.split_at(end);
        lines.push(line);
        rest = after.strip_prefix(b"\r\n").or_else(|| after.get(1..)).unwrap_or_default();
    }
    (lines, rest)
}
