//! Reading an event stream.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderValue;
use http_body_util::BodyExt;
use rescind_core::{BadFrame, Deviation, ExchangeId, RequestId, TransportEvent};
use serde::de::IgnoredAny;
use tokio::time::Instant;

use crate::client::{BEGINNING, ResponseBody};
use crate::envelope::{EVENT_STREAM, Envelope, JSON, Reply, SILENCE, pause};
use crate::inbound_queue::InboundQueue;

/// An event with data, or only with an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its name. `None` means the default, `message`.
    pub(crate) name: Option<String>,
    /// The id for resuming the stream after this event.
    pub(crate) id: Option<String>,
    /// How long to wait before the stream is resumed.
    pub(crate) retry: Option<Duration>,
    pub(crate) data: Bytes,
    /// The lines after those of its data that have no name of a field, or their beginning.
    pub(crate) torn: Vec<u8>,
}

impl Event {
    /// Whether it has the name of a message. An empty name is the default too.
    pub(crate) fn is_message(&self) -> bool {
        self.name.as_deref().is_none_or(|name| matches!(name, "" | "message"))
    }

    /// Whether some servers send an error so, which may be one of JSON-RPC.
    pub(crate) fn is_error(&self) -> bool {
        self.name.as_deref() == Some("error")
    }
}

/// One item of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// An event.
    Event(Event),
    /// An event above the limit. It was dropped. This is its beginning.
    TooLarge(Bytes),
}

/// Splits a stream into events. It holds at most twice the limit and one piece of input: the data of an event, and a
/// line.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the line, the event or the stream")]
pub(crate) struct Events {
    most: usize,
    /// The beginning of a long line, without an end of line. Its parts are joined when its end is known, so that its
    /// memory is exact. A buffer that doubles would take up to three times as much.
    parts: Vec<BytesMut>,
    /// The bytes in `parts`.
    collected: usize,
    buffer: BytesMut,
    /// The number of bytes of the buffer that were scanned without an end of line.
    scanned: usize,
    begun: bool,
    /// Whether a carriage return ended the last line. A line feed directly after it belongs to it.
    returned: bool,
    /// Set while the current line is above the limit. The rest of the line is dropped.
    skipping: Option<Dropped>,
    event: Event,
    data: Data,
    has_fields: bool,
    too_large: bool,
    /// The beginning of the data of an event that is too large.
    large: Bytes,
    /// The beginning of what is not an event: a line of something else, or the data of a last event that is cut.
    stray: Bytes,
    /// Whether a line is no line of an event stream.
    is_unreadable: bool,
}

/// A line of at least this many bytes gets memory of its own, so it may become the data of an event without a copy.
const LONG: usize = 64 * 1024;
/// The largest part in which a long line is collected, in bytes, unless more than that arrives at once.
const MAX_PART: usize = 256 * 1024;

/// The data of an event that is not complete.
#[derive(Debug, Default)]
struct Data {
    has_lines: bool,
    /// The only line so far, if it is long.
    line: Option<Bytes>,
    /// The lines, with line feeds between them. Its memory serves many events.
    lines: BytesMut,
}

impl Data {
    fn len(&self) -> usize {
        self.line.as_ref().map_or(self.lines.len(), Bytes::len)
    }

    /// The lines so far, or the first of them.
    fn start(&self) -> &[u8] {
        self.line.as_deref().unwrap_or(&self.lines)
    }

    fn push(&mut self, line: &Bytes) {
        let is_first = !std::mem::replace(&mut self.has_lines, true);
        if is_first && line.len() >= LONG {
            self.line = Some(line.clone());
            return;
        }
        if let Some(first) = self.line.take() {
            self.lines.extend_from_slice(&first);
        }
        if !is_first {
            self.lines.extend_from_slice(b"\n");
        }
        self.lines.extend_from_slice(line);
    }

    fn clear(&mut self) {
        self.line = None;
        self.lines = BytesMut::new();
    }

    fn take(&mut self) -> Bytes {
        self.has_lines = false;
        if let Some(line) = self.line.take() {
            return line;
        }
        let lines = self.lines.split();
        if lines.len() >= LONG {
            // The next event gets memory of its own.
            self.lines = BytesMut::new();
        }
        lines.freeze()
    }
}

/// A line above the limit, whether it arrives in one piece or in many.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    /// It has data: its event is too large.
    Data,
    /// Its event continues without this line.
    Other,
}

impl Dropped {
    /// The kind of a line, from its beginning, which is longer than the name of a field.
    fn of(line: &[u8]) -> Self {
        if line.starts_with(b"data:") { Self::Data } else { Self::Other }
    }
}

/// The longest id or name that is kept, in bytes.
const MOST_NAME: usize = 1024;
/// The bytes of a line that are reserved for the name of its field.
const FIELD: usize = 64;

impl Events {
    /// A stream whose events have at most `most` bytes of data.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            parts: Vec::new(),
            collected: 0,
            buffer: BytesMut::new(),
            scanned: 0,
            begun: false,
            returned: false,
            skipping: None,
            event: Event::default(),
            data: Data::default(),
            has_fields: false,
            too_large: false,
            large: Bytes::new(),
            stray: Bytes::new(),
            is_unreadable: false,
        }
    }

    /// Adds received bytes. Call [`next`](Self::next) until it returns `None` after each piece: otherwise the memory in
    /// use is not limited.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let has_no_end = self.scanned == self.buffer.len();
        let is_full = self.buffer.capacity() - self.buffer.len() < bytes.len();
        if has_no_end && is_full && self.buffer.len() >= LONG {
            self.collected += self.buffer.len();
            self.scanned = 0;
            let room = self.collected.min(MAX_PART).max(bytes.len());
            self.parts.push(std::mem::replace(&mut self.buffer, BytesMut::with_capacity(room)));
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event, if it is complete.
    pub(crate) fn next(&mut self) -> Option<Read> {
        loop {
            let line = self.next_line()?;
            if let Some(read) = self.take(&line) {
                return Some(read);
            }
        }
    }

    /// The last event of a stream that has ended without a blank line after it, if its data is a whole JSON object.
    /// Anything else of it is dropped: it may be cut. The last line counts only as data, because another one may be cut
    /// and still look whole, such as an id.
    pub(crate) fn finish(&mut self) -> Option<Event> {
        let rest = std::mem::take(&mut self.buffer);
        let is_dropped = self.skipping.is_some() || self.is_over(self.collected + rest.len());
        let line = if is_dropped { Bytes::new() } else { self.joined(rest) };
        self.forget();
        if line.starts_with(b"data:") || line.starts_with(b"{") {
            let _is_none = self.take(&line);
        }
        let Some(Read::Event(event)) = self.dispatch().filter(|_| !is_dropped) else {
            self.note_stray(&line);
            return None;
        };
        let is_whole = is_object(&event.data);
        if !is_whole {
            self.note_stray(&event.data);
        }
        is_whole.then_some(event)
    }

    /// Whether data has arrived of an event that has no end yet. A comment is not data.
    pub(crate) fn is_partial(&self) -> bool {
        let is_dropped = self.too_large || self.skipping.is_some();
        let has_line = self.collected > 0 || self.buffer.first().is_some_and(|first| *first != b':');
        is_dropped || has_line || self.data.len() > 0
    }

    /// Whether a part of the stream that has no end yet is above the limit.
    fn is_overrun(&self) -> bool {
        self.too_large || self.skipping.is_some()
    }

    /// The beginning of the data of an event that has no end yet.
    fn begun(&self) -> Bytes {
        if self.is_overrun() {
            return self.large.clone();
        }
        let line = self.parts.first().unwrap_or(&self.buffer);
        let value = line.strip_prefix(b"data:").or((line.first() == Some(&b'{')).then_some(&line[..]));
        let parts = [self.data.start(), value.unwrap_or_default()];
        let parts = parts.map(|part| part.get(..BEGINNING).unwrap_or(part).trim_ascii());
        Bytes::copy_from_slice(parts.join(&b'\n').trim_ascii())
    }

    /// The event whose end does not arrive, if its data is a whole JSON object, or if it is an `endpoint`, whose last line has
    /// its end.
    pub(crate) fn give_up(&mut self) -> Option<Event> {
        if self.skipping.is_some() || self.too_large {
            return None;
        }
        let is_endpoint = self.event.name.as_deref() == Some("endpoint") && self.data.len() > 0;
        if is_endpoint && self.buffer.is_empty() && self.collected == 0 {
            return match self.dispatch() {
                Some(Read::Event(event)) => Some(event),
                Some(Read::TooLarge(_)) | None => None,
            };
        }
        // Most input that pauses is looked at without a copy.
        let last = if self.buffer.is_empty() { self.data.start() } else { &self.buffer };
        if !last.trim_ascii_end().ends_with(b"}") {
            return None;
        }
        let line: Vec<u8> = self.parts.iter().chain([&self.buffer]).flatten().copied().collect();
        let value = line.strip_prefix(b"data:").or((line.first() == Some(&b'{')).then_some(&line[..]));
        if value.is_none() && !line.is_empty() {
            return None;
        }
        let text = [self.data.start(), value.unwrap_or_default()].join(&b'\n');
        if is_object(&text) { self.finish() } else { None }
    }

    fn note_stray(&mut self, bytes: &[u8]) {
        if self.stray.is_empty() {
            self.stray = Bytes::copy_from_slice(bytes.get(..BEGINNING).unwrap_or(bytes));
        }
    }

    /// The bytes that are held.
    #[cfg(feature = "verify")]
    pub(crate) fn held(&self) -> usize {
        self.collected + self.buffer.len() + self.data.len()
    }

    fn next_line(&mut self) -> Option<Bytes> {
        if !self.begun && !self.buffer.is_empty() {
            const MARK: &[u8] = b"\xef\xbb\xbf";
            if self.buffer.len() < MARK.len() && MARK.starts_with(&self.buffer) {
                return None;
            }
            if self.buffer.starts_with(MARK) {
                self.buffer.advance(MARK.len());
            }
            self.begun = true;
        }
        if self.returned && !self.buffer.is_empty() {
            self.returned = false;
            if self.buffer.first() == Some(&b'\n') {
                self.buffer.advance(1);
                self.scanned = 0;
            }
        }
        let fresh = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(end) = memchr::memchr2(b'\n', b'\r', fresh).map(|end| end + self.scanned) else {
            self.scanned = self.buffer.len();
            // Bytes above the limit are dropped as they arrive.
            if self.skipping.is_some() || self.is_over(self.collected + self.buffer.len()) {
                if self.skipping.is_none() {
                    self.skipping = Some(self.drop_line(&[]));
                }
                self.forget();
            }
            return None;
        };
        self.scanned = 0;
        self.returned = self.buffer.get(end) == Some(&b'\r');
        let rest = self.buffer.split_to(end);
        self.buffer.advance(1);
        let whole = self.is_over(self.collected + rest.len()).then(|| self.drop_line(&rest));
        let Some(dropped) = self.skipping.take().or(whole) else {
            return Some(self.joined(rest));
        };
        self.forget_parts();
        self.renew_buffer();
        if matches!(dropped, Dropped::Data) {
            self.too_large = true;
            self.has_fields = true;
            self.data.clear();
        }
        Some(Bytes::from_static(b":"))
    }

    /// The kind of the line above the limit that begins in the parts, in `rest` or in the buffer. Its beginning is noted.
    fn drop_line(&mut self, rest: &[u8]) -> Dropped {
        let line = match self.parts.first() {
            Some(part) => part,
            None if rest.is_empty() => &self.buffer[..],
            None => rest,
        };
        let dropped = Dropped::of(line);
        if matches!(dropped, Dropped::Data) {
            let value = line.strip_prefix(b"data:").unwrap_or_default();
            let value = value.strip_prefix(b" ").unwrap_or(value);
            let start = Bytes::copy_from_slice(value.get(..BEGINNING).unwrap_or(value));
            self.note_large(&start);
        }
        dropped
    }

    /// Notes how an event that is too large begins, of which this line is a part.
    fn note_large(&mut self, line: &[u8]) {
        if self.large.is_empty() {
            let first = if self.data.has_lines { self.data.start() } else { line };
            self.large = Bytes::copy_from_slice(first.get(..BEGINNING).unwrap_or(first));
        }
    }

    /// A whole line, of which `rest` is the end. The parts are freed while they are copied.
    fn joined(&mut self, rest: BytesMut) -> Bytes {
        let bytes = self.collected + rest.len();
        if bytes < LONG {
            return rest.freeze();
        }
        let mut line = BytesMut::with_capacity(bytes);
        for part in std::mem::take(&mut self.parts) {
            line.extend_from_slice(&part);
        }
        line.extend_from_slice(&rest);
        self.collected = 0;
        self.renew_buffer();
        line.freeze()
    }

    /// Drops the bytes of a line that is not complete.
    fn forget(&mut self) {
        self.forget_parts();
        self.buffer.clear();
        self.scanned = 0;
        self.renew_buffer();
    }

    fn forget_parts(&mut self) {
        self.parts = Vec::new();
        self.collected = 0;
    }

    /// Frees the memory of a line that was long or is dropped: moves what follows it to memory of its own, if it is short.
    fn renew_buffer(&mut self) {
        if self.buffer.len() < LONG {
            self.buffer = BytesMut::from(&*self.buffer);
        }
    }

    fn is_over(&self, bytes: usize) -> bool {
        bytes > self.most.saturating_add(FIELD)
    }

    fn take(&mut self, line: &Bytes) -> Option<Read> {
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = match memchr::memchr(b':', line) {
            // A comment.
            Some(0) => return None,
            Some(colon) => {
                let value = line.slice(colon + 1..);
                let value = if value.first() == Some(&b' ') { value.slice(1..) } else { value };
                (line.slice(..colon), value)
            }
            None => (line.clone(), Bytes::new()),
        };
        match &*field {
            b"data" => self.take_data(&value),
            b"event" => self.event.name = text(&value),
            b"id" if !value.contains(&0) => self.event.id = text(&value),
            b"retry" => {
                let millis = text(&value).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                self.event.retry = millis.and_then(|text| text.parse().ok()).map(Duration::from_millis);
            }
            // A message without the name of its field.
            _ if is_object(line) => self.take_data(line),
            _ => {
                // Unknown fields are ignored. Their names have no spaces or brackets, as text and pages have, and their values are no
                // answers: `Data` is another name than `data`.
                self.is_unreadable |=
                    !field.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
                        || (is_object(&value) && Envelope::of(&value).is_answer());
                self.note_stray(line);
                if self.data.has_lines && &*field != b"id" && self.event.torn.len() < BEGINNING {
                    self.event.torn.push(b'\n');
                    self.event.torn.extend_from_slice(line.get(..BEGINNING).unwrap_or(line));
                }
                return None;
            }
        }
        self.has_fields = true;
        None
    }

    fn take_data(&mut self, value: &Bytes) {
        if self.data.len() + value.len() > self.most {
            self.note_large(value);
            self.too_large = true;
            self.data.clear();
        } else if !self.too_large {
            self.data.push(value);
        }
    }

    fn dispatch(&mut self) -> Option<Read> {
        let mut event = std::mem::take(&mut self.event);
        event.data = self.data.take();
        if std::mem::take(&mut self.too_large) {
            self.has_fields = false;
            return Some(Read::TooLarge(std::mem::take(&mut self.large)));
        }
        std::mem::take(&mut self.has_fields).then_some(Read::Event(event))
    }
}

/// Whether a text is a whole JSON object.
pub(crate) fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

fn text(value: &[u8]) -> Option<String> {
    (value.len() <= MOST_NAME).then(|| std::str::from_utf8(value).ok().map(ToOwned::to_owned)).flatten()
}

/// Why the stream that answers a request will not bring its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An event or a line is not a message, but an error, a page or text.
    NoMessage,
    /// It has the answer to this request, which is another one.
    OtherAnswer(RequestId),
    /// It stopped in the middle of an event.
    Silent,
    /// An event is above this limit, in bytes.
    TooLarge(usize),
}

impl Fault {
    /// The fault of an event, which is this for the request of the stream.
    pub(crate) fn of(event: &Event, reply: Reply) -> Option<Self> {
        let data = &event.data;
        match reply {
            Reply::OtherAnswer if event.is_message() => Envelope::of(data).id().map(Self::OtherAnswer),
            Reply::Nothing if !data.is_empty() => {
                let is_error = || event.is_error() || Envelope::of(data).is_answer();
                let is_fault = is_error() || (event.is_message() && !is_sign_of_life(data));
                is_fault.then_some(Self::NoMessage)
            }
            Reply::Own
            | Reply::Unclear
            | Reply::UnnamedError
            | Reply::Other
            | Reply::OtherAnswer
            | Reply::Nothing => None,
        }
    }

    /// What the error of the call says of it. `own` is the id of its request, and `has_ended` whether the server ended the
    /// stream.
    pub(crate) fn shown(&self, own: Option<&RequestId>, has_ended: bool) -> String {
        let own = own.map(|own| format!(" to request {own}")).unwrap_or_default();
        let ended = if has_ended { "ended" } else { "stayed open" };
        match self {
            Self::NoMessage => {
                format!(
                    "the event stream {ended} without the answer{own}, after something that is not a message"
                )
            }
            Self::OtherAnswer(other) => {
                format!(
                    "the event stream {ended} without the answer{own}, but with one to request {other}, which is not open"
                )
            }
            Self::TooLarge(limit) => {
                format!(
                    "the event stream has an event that is larger than the limit of {limit} bytes, and not the answer{own}"
                )
            }
            Self::Silent => {
                let seconds = SILENCE.as_secs();
                format!(
                    "the event stream stopped in the middle of an event before the answer{own}, and nothing more came within {seconds} s"
                )
            }
        }
    }
}

/// Whether the data of an event says only that the server is alive: some send `ping` or `{}` as if it were a message.
fn is_sign_of_life(data: &[u8]) -> bool {
    const WORDS: [&str; 4] = ["ping", "heartbeat", "keepalive", "alive"];
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut words = text.split(|character: char| !character.is_ascii_alphabetic());
    text.trim() == "{}" || words.any(|word| WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// How long a stream may stay open after its answer, so that its connection can be used again, or after a fault.
const AFTER_ANSWER: Duration = Duration::from_secs(1);

/// How long the end of an event was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// Not long.
    Begun,
    /// So long that a whole message would have been taken.
    LookedAt,
    /// So long that the driver got the beginning of the event.
    Reported,
}

/// A response that is an event stream.
pub(crate) struct EventStream<'a> {
    body: ResponseBody,
    events: Events,
    /// The largest event, in bytes.
    limit: usize,
    inbound_queue: &'a InboundQueue,
    /// When the client stops reading the stream.
    ends_by: Option<Instant>,
    /// Whether the client reads no more of the response.
    is_over: bool,
    /// Whether the response has ended.
    has_ended: bool,
    /// Whether the stream has the answers of all calls. Otherwise it has those of one exchange, or none.
    is_of_all_calls: bool,
    /// The exchange whose answer the stream has, if it has one.
    exchange: ExchangeId,
    /// What was done about an event without its end since the last byte arrived.
    waiting: Waiting,
    /// When the client stops reading, because an event above the limit has no end.
    overrun_by: Option<Instant>,
    /// Why the stream could not bring the answer, if the reason is how it ended or the size of an event.
    fault: Option<Fault>,
}

impl<'a> EventStream<'a> {
    /// A stream whose events have at most `limit` bytes of data each.
    pub(crate) fn new(body: ResponseBody, limit: usize, inbound_queue: &'a InboundQueue) -> Self {
        Self {
            body,
            events: Events::new(limit),
            limit,
            inbound_queue,
            ends_by: None,
            is_over: false,
            has_ended: false,
            is_of_all_calls: false,
            exchange: ExchangeId::NONE,
            waiting: Waiting::Begun,
            overrun_by: None,
            fault: None,
        }
    }

    /// The stream has the answer of this exchange.
    pub(crate) const fn of_exchange(mut self, exchange: ExchangeId) -> Self {
        self.exchange = exchange;
        self
    }

    /// The stream has the answers of all calls: if an event stops in its middle, the driver gets its beginning.
    pub(crate) const fn of_all_calls(mut self) -> Self {
        self.is_of_all_calls = true;
        self
    }

    /// Whether the server has ended the stream, and not the client.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Notes that the answer has arrived, or will not: the stream should end now. If it does not end in time, the client
    /// stops reading it.
    pub(crate) fn answered(&mut self) {
        self.ends_by.get_or_insert_with(|| Instant::now() + AFTER_ANSWER);
    }

    /// The beginning of what the stream has beside events: a page that is labelled as a stream, or an event that is cut.
    pub(crate) fn stray(&mut self) -> Bytes {
        let stray = std::mem::take(&mut self.events.stray);
        let is_too_large = matches!(self.fault, Some(Fault::TooLarge(_)));
        if is_too_large && !self.events.large.is_empty() { self.events.large.clone() } else { stray }
    }

    /// Why the stream, which is over, could not bring the answer to its request, whatever its events are.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.clone().or_else(|| self.events.is_unreadable.then_some(Fault::NoMessage))
    }

    /// Whether an event of the exchange is above the limit and does not end.
    fn is_endless(&mut self) -> bool {
        if self.exchange == ExchangeId::NONE || !self.events.is_overrun() {
            self.overrun_by = None;
            return false;
        }
        let now = Instant::now();
        let may_be_answer = !self.events.large.is_empty() && !has_method(&self.events.large);
        let wait = if may_be_answer { Duration::ZERO } else { AFTER_ANSWER };
        *self.overrun_by.get_or_insert(now + wait) <= now
    }

    /// The next event. `None`: the stream has ended, with or without an error. If an event is above the limit, it is
    /// skipped and the driver gets a rejection; if it may be the answer, the stream should end now. An event without its end is
    /// taken if its message is whole and nothing more arrives within 1 s. If nothing arrives within 5 s, the driver gets the
    /// beginning of an event of a stream of all calls, and the stream of an exchange is over, as it is if the event is above the
    /// limit: at once if it may be the answer, else after 1 s.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let is_of_session = self.exchange == ExchangeId::NONE;
        loop {
            while let Some(read) = self.events.next() {
                match read {
                    Read::Event(event) => return Some(event),
                    Read::TooLarge(head) => {
                        if !is_of_session && !has_method(&head) {
                            self.fault = Some(Fault::TooLarge(self.limit));
                            self.answered();
                        }
                        let (exchange, why) = (self.exchange, BadFrame::TooLarge { limit: self.limit });
                        self.inbound_queue.push_event(TransportEvent::Rejected { exchange, why, head });
                    }
                }
            }
            if self.is_over {
                return None;
            }
            if self.events.is_unreadable && !is_of_session {
                self.answered();
            }
            if self.is_endless() {
                (self.fault, self.is_over) = (Some(Fault::TooLarge(self.limit)), true);
                return None;
            }
            let was_looked_at = self.waiting != Waiting::Begun;
            let waits = match self.waiting {
                Waiting::Begun => true,
                Waiting::LookedAt => !is_of_session || self.is_of_all_calls,
                Waiting::Reported => false,
            };
            let look = (waits && self.events.is_partial()).then(|| Instant::now() + pause(was_looked_at));
            let until = self.ends_by.into_iter().chain(look).chain(self.overrun_by).min();
            let frame = self.body.frame();
            let frame = match until {
                Some(until) => tokio::time::timeout_at(until, frame).await,
                None => Ok(frame.await),
            };
            let last = match frame {
                Ok(Some(Ok(frame))) => {
                    self.events.push(&frame.into_data().unwrap_or_default());
                    self.waiting = Waiting::Begun;
                    continue;
                }
                Err(_) if until == look && !was_looked_at => {
                    self.waiting = Waiting::LookedAt;
                    self.events.give_up()
                }
                Err(_) if until == look && is_of_session => {
                    self.waiting = Waiting::Reported;
                    self.inbound_queue.push_event(TransportEvent::Stalled { head: self.events.begun() });
                    continue;
                }
                late @ (Ok(None | Some(Err(_))) | Err(_)) => {
                    self.has_ended = late.is_ok();
                    let is_silent = late.is_err() && until == look;
                    if !is_of_session && self.events.is_overrun() {
                        self.fault = Some(Fault::TooLarge(self.limit));
                    } else if is_silent && self.fault.is_none() {
                        self.fault = Some(Fault::Silent);
                    }
                    self.is_over = true;
                    self.events.finish()
                }
            };
            if let Some(last) = &last {
                self.inbound_queue.push_event(TransportEvent::Deviation {
                    deviation: Deviation::UnendedEvent,
                    sent: last.data.clone(),
                });
            }
            if last.is_some() || self.is_over {
                return last;
            }
        }
    }
}

/// Whether an event, which begins with this, is a request or a notification.
fn has_method(head: &[u8]) -> bool {
    memchr::memmem::find(head, b"\"method\"").is_some()
}

/// The media types that the bindings know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// One message.
    Json,
    /// A stream of messages.
    Events,
    /// Anything else.
    Other,
}

/// The media type that a `Content-Type` names. Parameters are ignored.
pub(crate) fn media_of(value: &HeaderValue) -> Media {
    // The spelling that nearly all servers use.
    match value.as_bytes() {
        usual if usual == JSON.as_bytes() => return Media::Json,
        usual if usual == EVENT_STREAM.as_bytes() => return Media::Events,
        _ => {}
    }
    let media = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case(JSON) {
        Media::Json
    } else if media.eq_ignore_ascii_case(EVENT_STREAM) {
        Media::Events
    } else {
        Media::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(most: usize, pieces: &[&[u8]]) -> Vec<Read> {
        let mut events = Events::new(most);
        let mut all = Vec::new();
        for piece in pieces {
            events.push(piece);
            all.extend(std::iter::from_fn(|| events.next()).map(|read| match read {
                Read::TooLarge(head) => {
                    assert!(head.starts_with(b"xxxxxxxxxx") && head.len() <= BEGINNING, "{head:?}");
                    large()
                }
                event @ Read::Event(_) => event,
            }));
        }
        all
    }

    /// An event above the limit, whatever its beginning is.
    fn large() -> Read {
        Read::TooLarge(Bytes::new())
    }

    fn data(data: &'static str) -> Read {
        Read::Event(Event { data: Bytes::from_static(data.as_bytes()), ..Event::default() })
    }

    #[test]
    fn every_end_of_line_and_every_cut_gives_the_same_events() {
        let streams: [&[u8]; 3] = [
            b"\xef\xbb\xbfid: 1-2\nretry: 500\ndata: \n\n:\n\ndata: {\"a\":1}\n\nevent: x\ndata:one\ndata: two\n\n",
            b"id: 1-2\r\nretry: 500\r\ndata: \r\n\r\n:\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\r\ndata:one\r\ndata: two\r\n\r\n",
            b"id: 1-2\rretry: 500\rdata: \r\r:\r\rdata: {\"a\":1}\r\revent: x\rdata:one\rdata: two\r\r",
        ];
        let priming =
            Event { id: Some("1-2".to_owned()), retry: Some(Duration::from_millis(500)), ..Event::default() };
        let named =
            Event { name: Some("x".to_owned()), data: Bytes::from_static(b"one\ntwo"), ..Event::default() };
        let expected = vec![Read::Event(priming), data("{\"a\":1}"), Read::Event(named)];
        for stream in streams {
            assert_eq!(read(1024, &[stream]), expected);
            for cut in 0..stream.len() {
                let (before, after) = stream.split_at(cut);
                assert_eq!(read(1024, &[before, after]), expected, "cut at {cut}");
            }
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            assert_eq!(read(1024, &bytes), expected);
        }
    }

    #[test]
    fn long_lines_of_an_event_are_joined_as_short_ones_are() {
        let (longest, long, short) = ("z".repeat(3 * MAX_PART), "x".repeat(LONG), "y".repeat(10));
        for lines in [
            vec![&long],
            vec![&longest],
            vec![&long, &short],
            vec![&longest, &short],
            vec![&short, &longest],
            vec![&long, &longest],
        ] {
            let lines: Vec<&str> = lines.into_iter().map(String::as_str).collect();
            let stream = format!("data: {}\n\ndata: ok\n\n", lines.join("\ndata: "));
            let event = Event { data: lines.join("\n").into(), ..Event::default() };
            for size in [7, 4096, MAX_PART + 1, stream.len()] {
                let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
                assert_eq!(read(1 << 20, &pieces), vec![Read::Event(event.clone()), data("ok")]);
            }
        }
    }

    #[test]
    fn a_long_event_is_as_large_as_its_line_and_a_short_one_holds_no_memory_of_those_before_it() {
        let most = 1 << 20;
        let long = |bytes: usize| "x".repeat(bytes);
        let event = |bytes: usize| format!("data: {}\n\n", long(bytes));
        let oversize = event(most * 2);
        let lines = format!("data: {}\ndata: {}\n\n", long(most / 2), long(most / 4));
        for before in [String::new(), event(most), oversize, lines] {
            for bytes in [100, 5000, LONG, 2 * LONG, most] {
                for piece in [16 * 1024, usize::MAX] {
                    let mut events = Events::new(most);
                    let mut last = None;
                    let stream = before.clone() + &event(bytes);
                    for piece in stream.as_bytes().chunks(piece) {
                        events.push(piece);
                        last = std::iter::from_fn(|| events.next()).last().or(last);
                    }
                    drop(events);
                    let Some(Read::Event(Event { data, .. })) = last else { panic!("an event") };
                    assert!(data.len() == bytes && data.is_unique());
                    // The only owner of memory gets all of it.
                    let room = Vec::from(data).capacity();
                    let allowed = if bytes < LONG { 2 * LONG } else { bytes + FIELD };
                    assert!(
                        room <= allowed,
                        "{bytes} bytes hold {room} after {} in pieces of {piece}",
                        before.len()
                    );
                }
            }
        }
    }

    #[test]
    fn the_memory_of_a_long_line_is_freed_wherever_it_ends_in_its_buffer() {
        for bytes in (LONG..3 * MAX_PART).step_by(LONG / 3) {
            for most in [LONG / 2, 4 * MAX_PART] {
                let mut events = Events::new(most);
                let stream = format!("data: {}\n\ndata: ok\n", "x".repeat(bytes));
                for piece in stream.as_bytes().chunks(16 * 1024) {
                    events.push(piece);
                    while events.next().is_some() {}
                }
                let room = events.buffer.capacity() + events.parts.capacity() + events.data.lines.capacity();
                assert!(room <= 2 * LONG, "{room} are kept after {bytes} of {most}");
            }
        }
    }

    #[test]
    fn a_line_in_parts_has_the_limits_and_line_ends_of_a_short_one() {
        let most = 3 * MAX_PART;
        let longest = most + FIELD;
        for end in ["\n", "\r", "\r\n"] {
            for (field, bytes, expected) in [
                ("data:", longest - "data:".len(), vec![large(), data("ok")]),
                (
                    "data:",
                    most,
                    vec![
                        Read::Event(Event { data: "x".repeat(most).into(), ..Event::default() }),
                        data("ok"),
                    ],
                ),
                ("data:", most + 1, vec![large(), data("ok")]),
                ("data:", longest, vec![large(), data("ok")]),
                (":", longest, vec![data("ok")]),
                ("id:", longest, vec![data("ok")]),
                (":", MAX_PART, vec![data("ok")]),
            ] {
                let stream = format!("{field}{}{end}{end}data: ok{end}{end}", "x".repeat(bytes));
                let line = field.len() + bytes;
                // The last piece of the line ends with it, before its line end, and within that.
                for size in [16 * 1024, LONG, MAX_PART, line, line + 1, line + 2, line.div_ceil(5)] {
                    let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
                    let found = read(most, &pieces);
                    assert!(
                        found == expected,
                        "{field}{bytes} with {end:?} in pieces of {size}: {}",
                        found.len()
                    );
                }
            }
        }
    }

    #[test]
    fn an_event_without_its_end_is_taken_if_its_message_is_whole() {
        let long = format!("{{\"x\":\"{}\"}}", "x".repeat(2 * LONG));
        for (stream, whole) in [
            ("data: {\"a\":1}\n".to_owned(), Some("{\"a\":1}")),
            ("data:{\"a\":1}".to_owned(), Some("{\"a\":1}")),
            ("{\"a\":1}".to_owned(), Some("{\"a\":1}")),
            ("{\"a\":1}\n".to_owned(), Some("{\"a\":1}")),
            ("{\"a\":".to_owned(), None),
            ("data: {\"a\":\ndata: 1}".to_owned(), Some("{\"a\":\n1}")),
            (format!("data: {long}"), Some(&*long)),
            ("data: {\"a\":".to_owned(), None),
            ("data: 1\n".to_owned(), None),
            ("data: {\"a\":1}\nid: 4".to_owned(), None),
            (format!("data: {long}x\n"), None),
        ] {
            let mut events = Events::new(1 << 20);
            for piece in stream.as_bytes().chunks(9999) {
                events.push(piece);
                assert_eq!(events.next(), None);
            }
            assert!(events.is_partial());
            let taken = events.give_up();
            assert_eq!(taken.map(|event| event.data), whole.map(|text| Bytes::from(text.to_owned())));
            // Nothing of what is waited for is lost.
            events.push(b"\n\n");
            let rest = std::iter::from_fn(|| events.next()).count();
            assert_eq!(rest, usize::from(whole.is_none() && stream.starts_with("data")));
            events.push(b"\n\ndata: ok\n\n");
            assert_eq!(events.next(), Some(data("ok")));
        }
    }

    #[test]
    fn the_fault_of_an_event_is_what_is_no_message_and_no_sign_of_life() {
        let own = RequestId::number(2);
        for (name, data, fault) in [
            (None, r#"{"jsonrpc":"2.0","id":2,"result":1}"#, None),
            (None, r#"{"jsonrpc":"2.0","id":"2","result":1}"#, None),
            (None, r#"{"jsonrpc":"2.0","method":"told"}"#, None),
            (None, r#"{"jsonrpc":"2.0","id":7,"result":1}"#, Some(Fault::OtherAnswer(RequestId::number(7)))),
            (Some("x"), r#"{"jsonrpc":"2.0","id":7,"result":1}"#, None),
            (None, "", None),
            (None, "Internal Server Error", Some(Fault::NoMessage)),
            (Some("message"), "<html>", Some(Fault::NoMessage)),
            (Some("log"), "Internal Server Error", None),
            (Some("error"), "no", Some(Fault::NoMessage)),
            (Some("log"), r#"{"error":"no"}"#, Some(Fault::NoMessage)),
            (None, r#"{"detail":"no"}"#, Some(Fault::NoMessage)),
            (None, "null", Some(Fault::NoMessage)),
            (None, " {} ", None),
            (None, "ping", None),
            (None, "keep-alive", None),
            (None, "Heartbeat 2026-01-01T00:00:00Z", None),
            (None, r#"{"type":"ping"}"#, None),
            (None, "shipping stopped", Some(Fault::NoMessage)),
        ] {
            let name = name.map(ToOwned::to_owned);
            let event = Event { name, data: Bytes::from_static(data.as_bytes()), ..Event::default() };
            let reply = Reply::of(&event.data, Some(&own));
            assert_eq!(Fault::of(&event, reply), fault, "{:?} {data}", event.name);
        }
    }

    #[test]
    fn a_line_of_a_page_is_no_line_of_a_stream() {
        for (line, is_unreadable) in [
            ("<!doctype html>", true),
            ("Internal Server Error", true),
            ("Traceback (most recent call last):", true),
            ("foo: bar", false),
            ("x-field", false),
            (": comment <b>", false),
            ("{\"a\":1}", false),
            ("data: <html>", false),
        ] {
            let mut events = Events::new(1000);
            events.push(format!("{line}\n\n").as_bytes());
            while events.next().is_some() {}
            assert_eq!(events.is_unreadable, is_unreadable, "{line}");
        }
    }

    #[test]
    fn an_oversize_event_is_reported_once_and_the_next_is_read() {
        let long = format!("data: {}\n\ndata: ok\n\n", "x".repeat(500));
        let pieces: Vec<&[u8]> = long.as_bytes().chunks(7).collect();
        assert_eq!(read(100, &pieces), vec![large(), data("ok")]);
        assert_eq!(read(100, &[long.as_bytes()]), vec![large(), data("ok")]);
        let lines = format!("{}\ndata: ok\n\n", "data: xxxxxxxxxx\n".repeat(50));
        assert_eq!(read(100, &[lines.as_bytes()]), vec![large(), data("ok")]);
    }

    #[test]
    fn a_long_comment_takes_no_event_with_it_however_it_comes() {
        for line in [": ", "id: ", "event: ", "foo: "] {
            let stream = format!("{line}{}\ndata: ok\n\n", "x".repeat(300));
            assert_eq!(read(100, &[stream.as_bytes()]), vec![data("ok")], "{line}");
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(7).collect();
            assert_eq!(read(100, &pieces), vec![data("ok")], "{line} in pieces");
        }
    }

    #[test]
    fn an_unknown_field_is_ignored() {
        let stream: &[u8] = b"nonsense\nfoo: bar\nretry: 1x\n: comment\ndata\nid: \0\n\n\n\n";
        assert_eq!(read(100, &[stream]), vec![data("")]);
        assert_eq!(read(100, &[b": only a comment\n\n"]), vec![]);
    }

    #[test]
    fn the_last_event_of_a_stream_counts_without_its_end_if_it_is_a_whole_object() {
        let last = |stream: &[u8], size: usize| {
            let mut events = Events::new(64);
            for piece in stream.chunks(size) {
                events.push(piece);
                while events.next().is_some() {}
            }
            let last = events.finish();
            assert_eq!((events.finish(), events.next()), (None, None), "there is one");
            last
        };
        let whole = Event { data: Bytes::from_static(b"{\"a\":1}"), ..Event::default() };
        let numbered = Event { id: Some("7".to_owned()), ..whole.clone() };
        for (stream, event) in [
            ("data: {\"a\":1}", Some(&whole)),
            ("data: {\"a\":1}\n", Some(&whole)),
            ("data: {\"a\":1}\r", Some(&whole)),
            ("id: 7\ndata: {\"a\":1}\nid: 81", Some(&numbered)),
            ("id: 7\ndata: {\"a\":1}\nda", Some(&numbered)),
            ("data: x\n\ndata: {\"a\":1}", Some(&whole)),
            ("data: {\"a\":1", None),
            ("data: {\"a\":1}\n\n", None),
            ("data: {\"a\":1}}", None),
            ("data: [1]", None),
            ("data: 1", None),
            ("id: 7", None),
            (":", None),
            ("", None),
        ] {
            for size in [1, 3, 100] {
                assert_eq!(last(stream.as_bytes(), size).as_ref(), event, "{stream:?}");
            }
        }
        let long = format!("data: {{\"a\":\"{}\"}}", "x".repeat(1000));
        assert_eq!(last(long.as_bytes(), 7), None, "it is over the limit");
    }
}
