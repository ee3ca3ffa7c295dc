//! What the HTTP transport reads: the head of a request with the part of its body that is read before it is handled, and
//! event streams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bytes::Bytes;
use rescind_http::verify::{
    AcpPeeked, Asked, EventReader, Peeked, ReadEvent, decode_name, encode_name, event, parse_id, priming,
};
use serde_json::Value;

use super::{all_cuts, controlled, cut};

/// The input is a target, header lines, an empty line and a body.
pub(super) fn check_headers(data: &[u8]) {
    let Some((target, fields, body)) = parts(data) else { return };
    let Some(asked) = Asked::new(target, &fields, body) else { return };
    let of = |name: &str| -> Vec<&[u8]> {
        let own = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        own.map(|(_, value)| *value).collect()
    };
    let host = place_asked(asked.authority(), &of("host"));
    let is_near = host.as_ref().is_some_and(HostPort::is_loopback);
    assert_eq!(asked.is_for_us(), is_near, "whether {host:?} is this machine");
    let is_served = is_near || host.as_ref().is_some_and(|host| host.address.is_some());
    assert_eq!(asked.is_for_an_address(), is_served, "whether {host:?} is an address");
    let origins = of("origin");
    let is_ours = host.as_ref().is_some_and(|host| is_our_page(&origins, host));
    assert_eq!(
        asked.origin_passes(),
        is_ours,
        "whether {origins:?} is a page of {host:?} or of this machine"
    );
    let types = of("content-type");
    assert_eq!(asked.says_json(), is_json(&types), "whether {types:?} is JSON");
    let accepts = of("accept");
    let events = takes(&accepts, "text", "event-stream");
    let both = events && takes(&accepts, "application", "json");
    assert_eq!(asked.accepts(), (both, events), "what {accepts:?} takes");
    assert!(asked.reads_agree(), "a body is read in one pass otherwise than member by member");
    check_body(&asked, target, &fields, body);
    if let Ok(name) = std::str::from_utf8(body) {
        let value = encode_name(name);
        assert!(value.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{value:?} fits no header");
        assert_eq!(decode_name(&value).as_deref(), Some(name), "a name does not come back");
        let _ = decode_name(name);
    }
}

/// The target, the fields and the body.
type Parts<'a> = (&'a str, Vec<(&'a str, &'a [u8])>, &'a [u8]);

fn parts(data: &[u8]) -> Option<Parts<'_>> {
    let line = |rest: &[u8]| rest.iter().position(|byte| *byte == b'\n');
    let (target, mut rest) = data.split_at(line(data)?);
    let mut fields = Vec::new();
    loop {
        rest = rest.get(1..)?;
        let (field, after) = rest.split_at(line(rest).unwrap_or(rest.len()));
        if field.is_empty() {
            return Some((std::str::from_utf8(target).ok()?, fields, after.get(1..).unwrap_or_default()));
        }
        let (name, value) = field.split_at(field.iter().position(|byte| *byte == b':')?);
        fields.push((std::str::from_utf8(name).ok()?, value.get(1..).unwrap_or_default().trim_ascii()));
        rest = after;
    }
}

/// A host with a port, as in `Host` and in origins.
#[derive(Debug)]
struct HostPort {
    /// In lower case, otherwise unchanged.
    name: String,
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl HostPort {
    /// Returns `None` if the text is not a host with a port.
    fn of(text: &str) -> Option<Self> {
        let end = text.rfind(']').map_or(0, |bracket| bracket + 1);
        let colon = text.bytes().skip(end).position(|byte| byte == b':').map(|at| at + end);
        let (name, port) = text.split_at(colon.unwrap_or(text.len()));
        let digits = port.trim_start_matches(':');
        let is_port = port.len() - digits.len() <= 1 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let port = if digits.is_empty() { None } else { Some(digits.parse().ok()?) };
        let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(inner) => Some(IpAddr::V6(inner.parse::<Ipv6Addr>().ok()?)),
            None => name.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        };
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let is_name = !name.is_empty() && !name.starts_with('.') && name.chars().all(is_letter);
        let name = name.to_ascii_lowercase();
        (is_port && (address.is_some() || is_name)).then_some(Self { name, address, port })
    }

    fn is_loopback(&self) -> bool {
        matches!(&*self.name, "localhost" | "localhost.")
            || self.address.is_some_and(|address| address.to_canonical().is_loopback())
    }

    fn is_same_name(&self, other: &Self) -> bool {
        match (self.address, other.address) {
            (None, None) => self.name == other.name,
            (one, other) => one == other,
        }
    }
}

/// The single host that the request names.
fn place_asked(target: Option<&str>, hosts: &[&[u8]]) -> Option<HostPort> {
    let header = match hosts {
        [] => None,
        [host] => Some(HostPort::of(std::str::from_utf8(host).ok()?)?),
        _ => return None,
    };
    let target = match target {
        None => None,
        Some(target) => Some(HostPort::of(target)?),
    };
    let (Some(one), Some(other)) = (&target, &header) else { return target.or(header) };
    let is_default = |port: Option<u16>| matches!(port, None | Some(80 | 443));
    let is_same_port = match (one.port, other.port) {
        (Some(one), Some(other)) => one == other,
        (one, other) => is_default(one) && is_default(other),
    };
    (is_same_port && one.is_same_name(other)).then_some(target).flatten()
}

fn text<'a>(value: &&'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(value).ok().filter(|text| text.is_ascii())
}

fn is_our_page(origins: &[&[u8]], host: &HostPort) -> bool {
    let origin = match origins {
        [] => return true,
        [origin] => text(origin).map(str::to_ascii_lowercase),
        _ => return false,
    };
    let Some(origin) = origin else { return false };
    let (default, page) = match origin.split_once("://") {
        Some(("http", rest)) => (80, HostPort::of(rest)),
        Some(("https", rest)) => (443, HostPort::of(rest)),
        _ => return false,
    };
    let Some(page) = page else { return false };
    let is_own = page.is_same_name(host) && page.port.unwrap_or(default) == host.port.unwrap_or(default);
    is_own || (page.is_loopback() && page.name != "localhost.")
}

fn is_json(types: &[&[u8]]) -> bool {
    let [only] = types else { return false };
    let Some(media) = text(only).map(str::to_ascii_lowercase) else { return false };
    let (media, parameters) = media.split_once(';').unwrap_or((&media, ""));
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim() == "charset" => {
            matches!(value.trim().trim_matches('"'), "utf-8" | "utf8")
        }
        _ => true,
    };
    media.trim() == "application/json" && parameters.split(';').all(is_utf8)
}

/// Whether a media type is accepted, by its name or by a range.
fn takes(accepts: &[&[u8]], group: &str, media: &str) -> bool {
    let names = [format!("{group}/{media}"), format!("{group}/*"), "*/*".to_owned()];
    let is_none = |parameter: &str| {
        let weight = parameter.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
        weight.is_some_and(|(_, weight)| weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0))
    };
    accepts.iter().filter_map(text).flat_map(|value| value.split(',')).any(|range| {
        let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
        names.contains(&name.trim().to_ascii_lowercase()) && !parameters.split(';').any(is_none)
    })
}

/// A binding reads a body only if it is an object, and reads everything that it needs from it.
fn check_body(asked: &Asked, target: &str, fields: &[(&str, &[u8])], body: &[u8]) {
    let _ = (asked.peeked(), asked.acp());
    // A server accepts the headers that a client makes for a message.
    if let Some(mirrored) = asked.mirrored().filter(|_| asked.headers_fit()) {
        assert!(mirrored.headers_fit(), "the headers made for a message do not fit it");
    }
    // The plain form, with each member once.
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    let Some(asked) = Asked::new(target, fields, value.to_string().as_bytes()) else { return };
    let of = |name: &str| value.get(name).filter(|value| !value.is_null());
    let method = of("method").and_then(Value::as_str);
    // A `type` is the envelope's own only where it is not JSON-RPC's.
    let kind = of("type").filter(|_| of("jsonrpc").is_none()).and_then(Value::as_str);
    let is_shaped = of("method").is_none_or(Value::is_string);
    let has_id = is_shaped && of("id").is_some();
    let answers = is_shaped
        && match kind {
            Some(kind) => kind.ends_with("-result"),
            None => method.is_none() && (value.get("result").is_some() || of("error").is_some()),
        };
    let expected = Peeked {
        opens: has_id && method.or(kind) == Some("initialize"),
        asks: has_id && method.or(kind).is_some(),
        answers,
        answers_one: answers && has_id,
    };
    assert_eq!(asked.peeked(), expected, "what {value} is");
    let session = of("params").and_then(|params| params.get("sessionId")).and_then(Value::as_str);
    let expected = value.is_object().then(|| AcpPeeked {
        opens: expected.opens,
        is_request: expected.asks,
        is_answer: expected.answers,
        session: session
            .filter(|_| method.is_some_and(|method| !method.starts_with("$/")))
            .map(ToOwned::to_owned),
    });
    assert_eq!(asked.acp(), expected, "what {value} is");
    let fits = asked.mirrored().is_some_and(|mirrored| mirrored.headers_fit());
    assert_eq!(fits, is_stateless(&value), "whether {value} fits the headers made for it");
}

/// Whether this is a request or a notification of MCP 2026-07-28.
fn is_stateless(value: &Value) -> bool {
    let of = |name: &str| value.get(name).filter(|value| !value.is_null());
    let params = of("params");
    let inside = |name: &str| params.and_then(|params| params.get(name)).filter(|value| !value.is_null());
    let is_word = |value: Option<&Value>| value.is_none_or(Value::is_string);
    let meta = |name: &str| inside("_meta").and_then(|meta| meta.get(name)).filter(|value| !value.is_null());
    let version = meta(VERSION).and_then(Value::as_str);
    let method = value.get("method").and_then(Value::as_str);
    // A header could not repeat a name that is no text.
    let named = match method {
        Some("tools/call" | "prompts/get") => inside("name"),
        Some("resources/read") => inside("uri"),
        Some(method) if method.starts_with("tasks/") => inside("taskId"),
        _ => None,
    };
    // A method that no header can hold has none, which a request needs and a notification does not.
    let is_plain = |text: &str| text.trim() == text && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let is_notification = value.get("id").is_none();
    let is_message = value.is_object()
        && (is_word(named) || is_notification)
        && of("jsonrpc").and_then(Value::as_str) == Some("2.0")
        && method.is_some_and(|method| is_plain(method) || is_notification)
        && value
            .get("params")
            .is_none_or(|params| params.is_null() || params.is_object() || params.is_array());
    let id = value.get("id");
    let is_id = id.is_none_or(|id| id.is_i64() || id.as_str().is_some_and(|id| id.len() <= 256));
    let is_whole = id.is_none() || (version.is_some() && meta(CAPABILITIES).is_some());
    is_message && is_id && is_whole && version.is_none_or(|version| version == "2026-07-28")
}

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

// Event streams: splits do not matter, a naive reader of the whole agrees, and the output of our server can be read.

/// Limits of an event's data, in bytes. The control byte selects one.
const LIMITS: [usize; 4] = [8, 64, 1024, 2048];
/// How many bytes a line may be longer than its data.
const FIELD: usize = 64;
/// An id or a name with more bytes than this is not kept.
const NAME: usize = 1024;

/// The control byte, then a stream.
pub(super) fn check_stream(data: &[u8]) {
    let Some((control, stream)) = controlled(data) else { return };
    let most = LIMITS.get(usize::from(control) % LIMITS.len()).copied().unwrap_or(8);
    let expected = naive(stream, most);
    for pieces in all_cuts(stream, control) {
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
    assert_eq!(read(&cut(&wire, control), most), expected, "our own stream");
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
/// data is a JSON object. Its last line counts only as data. A line that is a JSON object is data too.
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
    if last.starts_with(b"data:") || last.starts_with(b"{") {
        coming.take(last, most);
    }
    if is_object(&coming.data) && !coming.is_too_large {
        coming.event.data = coming.data.into();
        all.push(Some(coming.event));
    }
    all
}

fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

impl Coming {
    fn take(&mut self, line: &[u8], most: usize) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) =
            (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let is_over = line.len() > most + FIELD;
        let (field, value) = if !is_over && is_object(line) { (&b"data"[..], line) } else { (field, value) };
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
