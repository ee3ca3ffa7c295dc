//! The messages of one event stream: those that wait for its reader, and those that were read and may be read again.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use tokio::time::Instant;

use crate::envelope::LAST_EVENT_ID;
use crate::server::checks::Refused;

/// How many of the events that a reader took are kept, so that a cut stream can be resumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// If it is zero, events have no ids either.
    pub(crate) events: usize,
    /// In bytes. The newest event is kept whatever its size.
    pub(crate) bytes: usize,
}

/// One event stream. It never blocks; its owner bounds the waiting messages with [`waiting`](Self::waiting).
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    stream: u64,
    kept: Retention,
    /// The number of the next event.
    next: u64,
    waiting: VecDeque<StoredEvent>,
    waiting_bytes: usize,
    read: VecDeque<StoredEvent>,
    read_bytes: usize,
    reader: Option<Reader>,
    readers: u64,
    /// When a reader was last attached or took an event, or when an event arrived after all were taken.
    moved: Instant,
    /// No more events are added.
    ended: bool,
}

#[derive(Debug)]
struct StoredEvent {
    number: u64,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Message { body: Bytes, droppable: bool },
    Priming(Option<std::time::Duration>),
}

#[derive(Debug)]
struct Reader {
    token: u64,
    waker: Option<Waker>,
    /// Whether it has yet to get the id after which it can resume the stream.
    lacks_id: bool,
}

/// Some events after the one that a client named are not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten;

impl StoredEvent {
    fn size(&self) -> usize {
        match &self.content {
            Content::Message { body, .. } => body.len(),
            Content::Priming(_) => 0,
        }
    }
}

impl ReplayBuffer {
    pub(crate) fn new(stream: u64, kept: Retention) -> Self {
        Self::begun(Instant::now(), stream, kept)
    }

    /// A new buffer and its first reader.
    pub(crate) fn with_reader(now: Instant, stream: u64, kept: Retention) -> (Self, u64) {
        let mut buffer = Self::begun(now, stream, kept);
        let (token, _) = buffer.replace_reader(now, false);
        (buffer, token)
    }

    const fn begun(now: Instant, stream: u64, kept: Retention) -> Self {
        Self {
            stream,
            kept,
            next: 1,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            read: VecDeque::new(),
            read_bytes: 0,
            reader: None,
            readers: 0,
            moved: now,
            ended: false,
        }
    }

    /// Adds a message. A droppable one (a notification) may be dropped to make room.
    pub(crate) fn push(&mut self, body: Bytes, droppable: bool) -> Option<Waker> {
        self.waiting_bytes += body.len();
        self.put(Content::Message { body, droppable })
    }

    /// Adds an event without data before all others, for its id. It has the number 0, so it may be added only once.
    pub(crate) fn prime_first(&mut self, retry: Option<std::time::Duration>) -> Option<Waker> {
        if self.waiting.is_empty() {
            self.moved = Instant::now();
        }
        self.waiting.push_front(StoredEvent { number: 0, content: Content::Priming(retry) });
        self.reader.as_mut()?.waker.take()
    }

    fn put(&mut self, content: Content) -> Option<Waker> {
        let number = self.next;
        self.next += 1;
        if self.waiting.is_empty() {
            self.moved = Instant::now();
        }
        self.waiting.push_back(StoredEvent { number, content });
        self.reader.as_mut()?.waker.take()
    }

    /// Drops the oldest droppable message that waits. `false`: there is none.
    pub(crate) fn drop_oldest(&mut self) -> bool {
        let droppable =
            |stored: &StoredEvent| matches!(stored.content, Content::Message { droppable: true, .. });
        let Some(place) = self.waiting.iter().position(droppable) else { return false };
        if let Some(stored) = self.waiting.remove(place) {
            self.waiting_bytes -= stored.size();
        }
        true
    }

    /// The messages that wait for the reader, in number and in bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.waiting.len(), self.waiting_bytes)
    }

    /// The events that were read and are kept, in number and in bytes.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.read.len(), self.read_bytes)
    }

    /// Drops the oldest event that is kept.
    pub(crate) fn forget_oldest(&mut self) {
        if let Some(stored) = self.read.pop_front() {
            self.read_bytes -= stored.size();
        }
    }

    /// Drops all events that are kept.
    pub(crate) fn forget_all(&mut self) {
        self.read.clear();
        self.read_bytes = 0;
    }

    pub(crate) const fn has_reader(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether it ever had a reader.
    pub(crate) const fn was_read(&self) -> bool {
        self.readers > 0
    }

    /// Whether events wait and the reader has taken none since then.
    pub(crate) fn is_stalled(&self, since: Instant) -> bool {
        self.has_reader() && !self.waiting.is_empty() && self.moved <= since
    }

    /// No more events are added. The reader ends after the waiting ones.
    pub(crate) fn end(&mut self) -> Option<Waker> {
        self.ended = true;
        self.reader.as_mut()?.waker.take()
    }

    pub(crate) const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Attaches a new reader. The reader before it, if any, ends.
    pub(crate) fn attach(&mut self) -> (u64, Option<Waker>) {
        self.replace_reader(Instant::now(), false)
    }

    /// The same, for a reader that knows no id of this stream. If events have ids, it gets one at once, so that it can
    /// resume the stream even if it loses the first event.
    pub(crate) fn attach_without_id(&mut self) -> (u64, Option<Waker>) {
        self.replace_reader(Instant::now(), self.kept.events > 0)
    }

    fn replace_reader(&mut self, now: Instant, lacks_id: bool) -> (u64, Option<Waker>) {
        self.readers += 1;
        self.moved = now;
        let displaced = self.reader.replace(Reader { token: self.readers, waker: None, lacks_id });
        (self.readers, displaced.and_then(|reader| reader.waker))
    }

    /// Removes the reader. `false`: another had already displaced it.
    pub(crate) fn detach(&mut self, token: u64) -> bool {
        let own = self.reader.as_ref().is_some_and(|reader| reader.token == token);
        if own {
            self.reader = None;
        }
        own
    }

    /// Removes the current reader. Waiting events are kept for a reader that returns.
    pub(crate) fn cut(&mut self) -> Option<Waker> {
        self.reader.take()?.waker
    }

    /// Drops the waiting events.
    pub(crate) fn discard(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Frees the room of events that are gone. For a buffer that is kept and gets no more events.
    pub(crate) fn shrink(&mut self) {
        self.waiting.shrink_to_fit();
        self.read.shrink_to_fit();
    }

    /// Whether a reader has taken an event that is kept, so that it can return for more.
    pub(crate) fn was_begun(&self) -> bool {
        !self.read.is_empty()
    }

    /// Moves the events that were read after event `last` back in front of the waiting ones.
    pub(crate) fn rewind(&mut self, last: u64) -> Result<(), Forgotten> {
        let oldest = self.read.front().or(self.waiting.front()).map_or(self.next, |stored| stored.number);
        if last >= self.next || last + 1 < oldest {
            return Err(Forgotten);
        }
        while self.read.back().is_some_and(|stored| stored.number > last) {
            let Some(stored) = self.read.pop_back() else { break };
            self.read_bytes -= stored.size();
            self.waiting_bytes += stored.size();
            self.waiting.push_front(stored);
        }
        Ok(())
    }

    /// The next event for this reader, encoded. `None`: its response ends.
    pub(crate) fn poll_next(&mut self, token: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(reader) = self.reader.as_mut().filter(|reader| reader.token == token) else {
            return Poll::Ready(None);
        };
        if std::mem::take(&mut reader.lacks_id) {
            let next = self.waiting.front().map_or(self.next, |stored| stored.number);
            return Poll::Ready(Some(id_only((self.stream, next.saturating_sub(1)))));
        }
        let Some(stored) = self.waiting.pop_front() else {
            if self.ended {
                return Poll::Ready(None);
            }
            reader.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        self.moved = Instant::now();
        let id = (self.stream, stored.number);
        let event = match &stored.content {
            Content::Message { body, .. } => event(Some(id).filter(|_| self.kept.events > 0), body),
            Content::Priming(retry) => priming(id, *retry),
        };
        self.waiting_bytes -= stored.size();
        if self.kept.events == 0 {
            return Poll::Ready(Some(event));
        }
        self.read_bytes += stored.size();
        self.read.push_back(stored);
        while self.read.len() > 1 && (self.read.len() > self.kept.events || self.read_bytes > self.kept.bytes)
        {
            self.forget_oldest();
        }
        Poll::Ready(Some(event))
    }
}

/// One event with one line of data. It has an id if a cut stream may be resumed after it.
pub(crate) fn event(id: Option<(u64, u64)>, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(data.len() + 48);
    put_id(&mut out, id);
    out.put_slice(b"data: ");
    out.put_slice(data);
    out.put_slice(b"\n\n");
    out.freeze()
}

/// An event without data. It gives the client an id for resuming the stream, and the time to wait before that.
pub(crate) fn priming(id: (u64, u64), retry: Option<Duration>) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    put_id(&mut out, Some(id));
    if let Some(retry) = retry {
        let _ = writeln!(out, "retry: {}", retry.as_millis());
    }
    out.put_slice(b"data: \n\n");
    out.freeze()
}

/// Only an id. A client remembers it and gets no event, because there is no line of data (WHATWG HTML, 9.2.6).
pub(crate) fn id_only(id: (u64, u64)) -> Bytes {
    let mut out = BytesMut::with_capacity(48);
    put_id(&mut out, Some(id));
    out.put_slice(b"\n");
    out.freeze()
}

fn put_id(out: &mut BytesMut, id: Option<(u64, u64)>) {
    if let Some((stream, number)) = id {
        let _ = writeln!(out, "id: {stream}-{number}");
    }
}

/// The stream and the number that an id names. The id must have exactly the form that we write.
pub(crate) fn parse_id(id: &str) -> Option<(u64, u64)> {
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|number| number.to_string() == digits);
    let (stream, place) = id.split_once('-')?;
    Some((number(stream)?, number(place)?))
}

/// The event after which a client resumes a stream, if it names one: the stream and the number of the event.
pub(crate) fn last_event(headers: &HeaderMap) -> Result<Option<(u64, u64)>, Refused> {
    let Some(last) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let last = last.to_str().ok().and_then(parse_id);
    last.map(Some).ok_or_else(Refused::foreign_event)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn next(buffer: &mut ReplayBuffer, token: u64) -> Poll<Option<String>> {
        let mut cx = Context::from_waker(Waker::noop());
        buffer
            .poll_next(token, &mut cx)
            .map(|event| event.map(|event| String::from_utf8(event.to_vec()).unwrap()))
    }

    fn event(number: u64, data: &str) -> Poll<Option<String>> {
        Poll::Ready(Some(format!("id: 7-{number}\ndata: {data}\n\n")))
    }

    #[test]
    fn a_cut_stream_is_read_again_after_the_event_named() {
        let mut buffer = ReplayBuffer::new(7, Retention { events: 8, bytes: 1024 });
        for body in ["1", "2", "3"] {
            buffer.push(Bytes::from(body), true);
        }
        let (first, _) = buffer.attach();
        assert_eq!(next(&mut buffer, first), event(1, "1"));
        assert_eq!(next(&mut buffer, first), event(2, "2"));
        assert!(buffer.detach(first));
        assert!(!buffer.detach(first), "it is gone already");
        assert_eq!(buffer.rewind(1), Ok(()));
        assert_eq!(buffer.waiting(), (2, 2));
        let (second, _) = buffer.attach();
        buffer.end();
        assert_eq!(next(&mut buffer, first), Poll::Ready(None), "the first reader is gone");
        assert_eq!(next(&mut buffer, second), event(2, "2"));
        assert_eq!(next(&mut buffer, second), event(3, "3"));
        assert_eq!(next(&mut buffer, second), Poll::Ready(None));
        assert_eq!(buffer.rewind(4), Err(Forgotten), "never sent");
        assert_eq!(buffer.rewind(3), Ok(()), "nothing was missed");
    }

    #[test]
    fn read_messages_are_kept_up_to_the_limit() {
        let mut buffer = ReplayBuffer::new(7, Retention { events: 2, bytes: 1024 });
        let (token, _) = buffer.attach();
        for _ in 0..5 {
            buffer.push(Bytes::from("x"), true);
            assert!(next(&mut buffer, token).is_ready());
        }
        assert_eq!((buffer.kept(), buffer.rewind(2)), ((2, 2), Err(Forgotten)));
        assert_eq!(buffer.rewind(3), Ok(()));
        let mut buffer = ReplayBuffer::new(7, Retention { events: 9, bytes: 4 });
        let (token, _) = buffer.attach();
        for size in [3, 3, 100] {
            buffer.push(Bytes::from("x".repeat(size)), true);
            assert!(next(&mut buffer, token).is_ready());
        }
        assert_eq!((buffer.kept(), buffer.rewind(2)), ((1, 100), Ok(())), "the newest is kept");
    }

    #[test]
    fn a_forgotten_event_cannot_be_read_again_and_newer_ones_can() {
        let mut buffer = ReplayBuffer::new(7, Retention { events: 8, bytes: 1024 });
        let (token, _) = buffer.attach();
        for body in ["1", "22"] {
            buffer.push(Bytes::from(body), true);
            assert!(next(&mut buffer, token).is_ready());
        }
        buffer.forget_oldest();
        assert_eq!((buffer.kept(), buffer.rewind(0)), ((1, 2), Err(Forgotten)));
        buffer.forget_oldest();
        buffer.forget_oldest();
        assert_eq!((buffer.kept(), buffer.rewind(1)), ((0, 0), Err(Forgotten)));
        assert_eq!(buffer.rewind(2), Ok(()), "nothing was missed");
    }

    #[test]
    fn a_reader_without_an_id_gets_one_after_which_it_misses_nothing() {
        let id = |number: u64| Poll::Ready(Some(format!("id: 7-{number}\n\n")));
        let mut buffer = ReplayBuffer::new(7, Retention { events: 8, bytes: 1024 });
        let (first, _) = buffer.attach_without_id();
        assert_eq!(next(&mut buffer, first), id(0));
        assert_eq!(next(&mut buffer, first), Poll::Pending);
        for body in ["1", "2", "3"] {
            buffer.push(Bytes::from(body), true);
        }
        assert_eq!(next(&mut buffer, first), event(1, "1"));
        assert_eq!(next(&mut buffer, first), event(2, "2"));
        let (second, _) = buffer.attach_without_id();
        assert_eq!(next(&mut buffer, second), id(2), "the third waits");
        assert_eq!(buffer.rewind(0), Ok(()));
        let (third, _) = buffer.attach();
        assert_eq!(next(&mut buffer, third), event(1, "1"));
        let mut buffer = ReplayBuffer::new(7, Retention { events: 0, bytes: 0 });
        let (token, _) = buffer.attach_without_id();
        assert_eq!(next(&mut buffer, token), Poll::Pending, "its events have no ids");
    }

    #[test]
    fn a_full_buffer_drops_notifications_but_no_requests() {
        let mut buffer = ReplayBuffer::new(7, Retention { events: 8, bytes: 1024 });
        buffer.push(Bytes::from("request"), false);
        buffer.push(Bytes::from("reported"), true);
        assert!(buffer.drop_oldest());
        assert!(!buffer.drop_oldest());
        assert_eq!(buffer.waiting(), (1, 7));
        let (token, _) = buffer.attach();
        buffer.prime_first(Some(std::time::Duration::from_millis(5)));
        let primed = "id: 7-0\nretry: 5\ndata: \n\n".to_owned();
        assert_eq!(next(&mut buffer, token), Poll::Ready(Some(primed)));
        assert_eq!(next(&mut buffer, token), event(1, "request"));
        assert_eq!(buffer.rewind(0), Ok(()), "nothing but the first event was seen");
        buffer.cut();
        assert_eq!(next(&mut buffer, token), Poll::Ready(None), "it was cut");
        assert_eq!(buffer.waiting(), (1, 7), "what waits is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_buffer_is_stalled_while_its_reader_takes_nothing() {
        let wait = std::time::Duration::from_secs(30);
        let mut buffer = ReplayBuffer::new(7, Retention { events: 8, bytes: 1024 });
        buffer.push(Bytes::from("1"), true);
        tokio::time::advance(wait).await;
        let since = Instant::now();
        assert!(!buffer.is_stalled(since), "it has no reader");
        let (token, _) = buffer.attach();
        assert!(buffer.is_stalled(since));
        buffer.push(Bytes::from("2"), true);
        tokio::time::advance(wait).await;
        assert!(buffer.is_stalled(since), "more has come, and nothing was taken");
        assert!(next(&mut buffer, token).is_ready());
        assert!(!buffer.is_stalled(since), "one was taken");
        assert!(next(&mut buffer, token).is_ready());
        tokio::time::advance(wait).await;
        let since = Instant::now();
        tokio::time::advance(wait).await;
        buffer.push(Bytes::from("3"), true);
        assert!(!buffer.is_stalled(since), "nothing was there to be taken");
    }

    #[test]
    fn only_an_issued_id_names_an_event() {
        assert_eq!(parse_id("1-20"), Some((1, 20)));
        for id in
            ["+1-2", "1-+2", "01-2", "1-02", "1-", "-2", "1-2-3", "1", "", "1- 2", "18446744073709551616-1"]
        {
            assert_eq!(parse_id(id), None, "{id}");
        }
    }
}
