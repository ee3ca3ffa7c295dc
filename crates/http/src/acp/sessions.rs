//! The sessions of a connection that have their own stream, by name. The peer chooses the names, so their length and
//! number are bounded. When there is no room, the session that was unused for longest is removed, if it is idle.
//!
//! # Streams
//!
//! The event streams of a connection, and the bound of the events that they keep for a client that resumes one.
//!
//! # Which streams may be read
//!
//! A connection knows the sessions that a message has named.
//!
//! # Messages
//!
//! A message of a connection, and the session that it belongs to. Only the answer to `initialize` is changed: it gets
//! the name of its connection.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Deref;
use std::task::{Context, Poll};

use bytes::Bytes;
use memchr::memmem;
use rescind_core::SessionBodies;
use rescind_core::members::PickedMembers;
use serde_json::value::RawValue;

use crate::acp::UnknownSessions;
use crate::acp::connection::{AcpConnectionState, OWN};
use crate::envelope::{Envelope, EnvelopeError, text};
use crate::server::replay_buffer::{Forgotten, ReplayBuffer, Retention};
use crate::sync::IntMap;

/// The most sessions with their own stream. Messages of other sessions use the connection's stream.
const LANES: usize = 1024;
/// The longest name, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// The streams of sessions, by the sessions' names.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    names: HashMap<Box<str>, NamedSession>,
    /// The number of open requests whose answers use a stream, for streams that have such requests.
    open: IntMap<usize>,
    /// The number of streams that were created.
    made: u64,
    /// How often a session was named.
    named: u64,
}

#[derive(Debug)]
struct NamedSession {
    lane: u64,
    /// When it was last named, as the value of the counter `named`.
    used: u64,
}

/// The stream for a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A stream that has to be created, and the stream that is removed for it.
    New { lane: u64, gone: Option<u64> },
    /// The connection's own stream: the limit is reached, or the name is not valid.
    Own,
}

impl Sessions {
    /// The stream of a session that has one.
    pub(super) fn lane(&self, name: &str) -> Option<u64> {
        self.names.get(name).map(|session| session.lane)
    }

    /// The same, for a message that uses the stream.
    pub(super) fn used(&mut self, name: &str) -> Option<u64> {
        let session = self.names.get_mut(name)?;
        self.named += 1;
        session.used = self.named;
        Some(session.lane)
    }

    /// Whether a new name needs the place of another.
    pub(super) fn is_full(&self) -> bool {
        self.names.len() >= LANES
    }

    /// Adds a stream for a session that has none. `is_idle`: whether a stream has no reader and no waiting message, and
    /// none of our requests was sent on it.
    pub(super) fn add(&mut self, name: &str, is_idle: impl Fn(u64) -> bool) -> Found {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Found::Own;
        }
        let gone = if self.is_full() { self.forget_one(is_idle) } else { None };
        if self.is_full() {
            return Found::Own;
        }
        self.made += 1;
        self.named += 1;
        let lane = OWN + self.made;
        self.names.insert(name.into(), NamedSession { lane, used: self.named });
        Found::New { lane, gone }
    }

    /// Removes the idle session that was not named for longest.
    fn forget_one(&mut self, is_idle: impl Fn(u64) -> bool) -> Option<u64> {
        let is_idle =
            |session: &NamedSession| !self.open.contains_key(&session.lane) && is_idle(session.lane);
        let idle = self.names.iter().filter(|(_, session)| is_idle(session));
        let name = idle.min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone())?;
        self.names.remove(&name).map(|session| session.lane)
    }

    /// A request arrived whose answer is sent on this stream.
    pub(super) fn begun(&mut self, lane: u64) {
        *self.open.entry(lane).or_default() += 1;
    }

    /// An answer was sent on this stream.
    pub(super) fn answered(&mut self, lane: u64) {
        if let Some(open) = self.open.get_mut(&lane) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                self.open.remove(&lane);
            }
        }
    }
}

/// The most bytes that all streams of a connection keep for `Last-Event-ID`.
const KEPT: usize = 8 * 1024 * 1024;
/// The part of the connection's memory limit that they may keep: 1 / `PART`.
const PART: usize = 4;
/// The size that is counted for a kept event in addition to its bytes.
const EVENT: usize = 256;

/// The streams, by their numbers. Each keeps its own newest events. If all together keep too much, the one that keeps
/// most drops its oldest event, so that a stream with many events does not take the room of the others.
#[derive(Debug)]
pub(super) struct Lanes {
    buffers: IntMap<ReplayBuffer>,
    retention: Retention,
    /// The size of the kept events of all streams.
    kept: usize,
}

/// The most that the streams of a connection with this memory limit keep.
pub(super) fn most_kept(memory: usize) -> usize {
    KEPT.min(memory / PART)
}

/// The size of the kept events of a stream.
fn kept(buffer: &ReplayBuffer) -> usize {
    let (events, bytes) = buffer.kept();
    bytes + events * EVENT
}

impl Lanes {
    /// The connection's own stream. `retention` is the limit of each stream.
    pub(super) fn new(retention: Retention) -> Self {
        let mut lanes = Self { buffers: IntMap::default(), retention, kept: 0 };
        lanes.add(OWN);
        lanes
    }

    pub(super) fn add(&mut self, lane: u64) {
        self.buffers.insert(lane, ReplayBuffer::new(lane, self.retention));
    }

    pub(super) fn remove(&mut self, lane: u64) {
        if let Some(buffer) = self.buffers.remove(&lane) {
            self.kept -= kept(&buffer);
        }
    }

    pub(super) fn get(&self, lane: u64) -> Option<&ReplayBuffer> {
        self.buffers.get(&lane)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ReplayBuffer> {
        self.buffers.values()
    }

    /// The numbers of the streams of which this is true.
    pub(super) fn which(&self, is_so: impl Fn(&ReplayBuffer) -> bool) -> Vec<u64> {
        self.buffers.iter().filter(|(_, buffer)| is_so(buffer)).map(|(lane, _)| *lane).collect()
    }

    /// Runs a step on a stream.
    pub(super) fn step<T>(&mut self, lane: u64, step: impl FnOnce(&mut ReplayBuffer) -> T) -> Option<T> {
        let buffer = self.buffers.get_mut(&lane)?;
        let before = kept(buffer);
        let result = step(buffer);
        self.kept = self.kept - before + kept(buffer);
        Some(result)
    }

    /// The next event of a stream for this reader. Afterwards the streams keep at most `most`.
    pub(super) fn poll_next(
        &mut self,
        lane: u64,
        token: u64,
        most: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        let event = self.step(lane, |buffer| buffer.poll_next(token, cx)).unwrap_or(Poll::Ready(None));
        self.limit_kept(most);
        event
    }

    /// Moves the events that were read after event `last` back in front of those that wait.
    pub(super) fn rewind(&mut self, lane: u64, last: u64) -> Result<(), Forgotten> {
        self.step(lane, |buffer| buffer.rewind(last)).unwrap_or(Err(Forgotten))
    }

    /// Drops kept events until there are at most `most` bytes of them.
    pub(super) fn limit_kept(&mut self, most: usize) {
        while self.kept > most {
            let Some((lane, _)) = self.buffers.iter().max_by_key(|(_, buffer)| kept(buffer)) else { return };
            let lane = *lane;
            self.step(lane, ReplayBuffer::forget_oldest);
        }
    }

    /// Drops all kept events.
    pub(super) fn forget_kept(&mut self) {
        self.buffers.values_mut().for_each(ReplayBuffer::forget_all);
        self.kept = 0;
    }

    /// The size of the kept events of all streams.
    #[cfg(test)]
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }
}

/// Why a stream is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoStream {
    /// No message has named the session, or it was forgotten.
    Unknown,
    /// The connection has reached its limit of sessions.
    TooMany,
    /// The event after which the client resumes is none of this stream.
    Foreign,
    /// Events after the one that the client names are not kept any more.
    Forgotten,
}

impl From<Forgotten> for NoStream {
    fn from(_: Forgotten) -> Self {
        Self::Forgotten
    }
}

impl AcpConnectionState {
    /// The stream of a session that a client wants to read.
    pub(super) fn lane_to_read(&mut self, name: &str, unknown: UnknownSessions) -> Result<u64, NoStream> {
        match (self.sessions.lane(name), unknown) {
            (None, UnknownSessions::Refused) => Err(NoStream::Unknown),
            (Some(_), _) | (None, UnknownSessions::Opened) => match self.lane(name) {
                OWN => Err(NoStream::TooMany),
                lane => Ok(lane),
            },
        }
    }

    /// Stores the session that an answer created. From now on it is known.
    pub(super) fn learn(&mut self, answer: &[u8], bodies: &'static SessionBodies) {
        // Most answers do not contain the name of the member, and are not parsed.
        if memmem::find(answer, bodies.session.as_bytes()).is_some() {
            if let Some(name) = Message::of(answer, bodies).made() {
                self.lane(&name);
            }
        }
    }
}

/// An envelope, and the protocol's data about the methods and members in it.
pub(super) struct Message<'a> {
    envelope: Envelope<'a>,
    bodies: &'static SessionBodies,
}

/// The answer to `initialize` with the connection's name in its result: the draft requires it there as well as in the
/// header. A result that already names a connection is not changed, and neither is a result that is not an object.
pub(super) fn naming(answer: &Bytes, connection: &str, bodies: &SessionBodies) -> Bytes {
    let result = Envelope::of(answer).result;
    let is_free = matches!(PickedMembers::of(result, [bodies.connection]).values, [None]);
    let members = result.map(RawValue::get).and_then(|result| result.strip_prefix('{'));
    let Some(members) = members.filter(|_| is_free) else { return answer.clone() };
    let at = members.as_ptr() as usize - answer.as_ptr() as usize;
    let comma = if members.trim_ascii_start().starts_with('}') { "" } else { "," };
    let (before, after) = answer.split_at(at);
    let named = format!(r#""{}":"{connection}"{comma}"#, bodies.connection);
    [before, named.as_bytes(), after].concat().into()
}

impl<'a> Message<'a> {
    pub(super) fn of(body: &'a [u8], bodies: &'static SessionBodies) -> Self {
        Self { envelope: Envelope::of(body), bodies }
    }

    /// Reads a body that a client posts. The connection itself checks anything that is an object.
    pub(super) fn read(body: &'a [u8], bodies: &'static SessionBodies) -> Result<Self, EnvelopeError> {
        Ok(Self { envelope: Envelope::read(body)?, bodies })
    }

    /// Whether it is a request that opens a connection.
    pub(super) fn opens(&self) -> bool {
        self.is_request_of(&[self.bodies.opening])
    }

    /// The session that its params name. The protocol's own methods (`$/`) belong to the connection.
    pub(super) fn session(&self) -> Option<Cow<'a, str>> {
        if self.method()?.starts_with(self.bodies.of_connection) {
            return None;
        }
        text(self.params, self.bodies.session)
    }

    /// The session that an answer created or resumed.
    pub(super) fn made(&self) -> Option<Cow<'a, str>> {
        self.result_text(self.bodies.session)
    }

    /// The connection that an answer to `initialize` names.
    pub(super) fn connection(&self) -> Option<Cow<'a, str>> {
        self.result_text(self.bodies.connection)
    }

    /// Whether it belongs to a session, by its method or because its params name one. Then its header must name the
    /// session.
    pub(super) fn needs_session(&self) -> bool {
        self.method().is_some_and(|method| self.bodies.of_session.contains(&&*method))
            || self.session().is_some()
    }

    /// Whether its answer is sent on the connection's own stream although it names a session.
    pub(super) fn is_answered_apart(&self) -> bool {
        self.method().is_some_and(|method| self.bodies.answered_on_connection.contains(&&*method))
    }
}

impl<'a> Deref for Message<'a> {
    type Target = Envelope<'a>;

    fn deref(&self) -> &Envelope<'a> {
        &self.envelope
    }
}

/// The parts of this binding that [`crate::verify`] exports.
#[cfg(feature = "verify")]
pub(crate) mod verify {
    use rescind_core::ACP_BODIES;

    use super::Message;

    /// Whether a body opens a connection, is a request, is an answer; and the session that its params name.
    pub(crate) fn peek(body: &[u8]) -> Option<(bool, bool, bool, Option<String>)> {
        let message = Message::read(body, &ACP_BODIES).ok()?;
        let (_, _) = (message.made(), message.needs_session());
        let session = message.session().map(std::borrow::Cow::into_owned);
        Some((message.opens(), message.is_request(), message.is_answer(), session))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use rescind_core::ACP_BODIES;

    use super::*;

    fn full() -> Sessions {
        let mut sessions = Sessions::default();
        for n in 1..=LANES as u64 {
            assert_eq!(sessions.add(&n.to_string(), |_| true), Found::New { lane: n, gone: None });
        }
        sessions
    }

    #[test]
    fn a_full_table_forgets_its_oldest_idle_session() {
        let mut sessions = full();
        // The first session is used again, the second has an open request, and the third has a reader.
        assert_eq!(sessions.used("1"), Some(1));
        sessions.begun(2);
        let next = LANES as u64 + 1;
        assert_eq!(sessions.add("new", |lane| lane != 3), Found::New { lane: next, gone: Some(4) });
        assert_eq!((sessions.lane("4"), sessions.lane("2")), (None, Some(2)), "I11");
        sessions.answered(2);
        assert_eq!(sessions.add("newer", |_| true), Found::New { lane: next + 1, gone: Some(2) });
        assert!(sessions.is_full() && sessions.open.is_empty(), "I11");
    }

    #[test]
    fn with_all_sessions_in_use_a_further_one_uses_the_stream_of_the_connection() {
        let mut sessions = full();
        assert_eq!(sessions.add("new", |_| false), Found::Own);
        assert_eq!((sessions.lane("1"), sessions.names.len()), (Some(1), LANES), "I11");
    }

    #[test]
    fn a_name_that_is_too_long_is_never_kept() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.add(&"s".repeat(MAX_NAME_BYTES + 1), |_| true), Found::Own);
        assert_eq!(sessions.add("", |_| true), Found::Own);
        let longest = sessions.add(&"s".repeat(MAX_NAME_BYTES), |_| true);
        assert_eq!(longest, Found::New { lane: 1, gone: None });
    }

    /// Puts events of this size on a stream, and reads them.
    fn read(lanes: &mut Lanes, lane: u64, sizes: &[usize], most: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        let (token, _) = lanes.step(lane, ReplayBuffer::attach).unwrap();
        for size in sizes {
            lanes.step(lane, |buffer| buffer.push(Bytes::from("x".repeat(*size)), true));
            assert!(matches!(lanes.poll_next(lane, token, most, &mut cx), Poll::Ready(Some(_))));
        }
    }

    #[test]
    fn the_stream_that_keeps_most_drops_its_oldest_event_first() {
        let mut lanes = Lanes::new(Retention { events: 8, bytes: 4096 });
        lanes.add(1);
        let most = 1000 + 4 * EVENT;
        read(&mut lanes, OWN, &[100, 100], most);
        read(&mut lanes, 1, &[400, 400], most);
        assert_eq!(lanes.kept(), 1000 + 4 * EVENT);
        read(&mut lanes, OWN, &[10], most);
        assert_eq!(lanes.rewind(1, 0), Err(Forgotten), "the first event of the larger stream");
        assert_eq!(lanes.rewind(1, 1), Ok(()));
        assert_eq!(lanes.rewind(OWN, 0), Ok(()), "the smaller stream has kept all");
        assert_eq!(lanes.kept(), 0, "what waits is not kept");
    }

    #[test]
    fn a_thousand_streams_keep_no_more_than_the_limit_of_the_connection() {
        let mut lanes = Lanes::new(Retention { events: 256, bytes: 64 * 1024 });
        for lane in 1..=1024 {
            lanes.add(lane);
            read(&mut lanes, lane, &[30_000, 30_000], most_kept(usize::MAX));
            assert!(lanes.kept() <= KEPT, "{}", lanes.kept());
        }
        let counted: usize = lanes.all().map(kept).sum();
        assert_eq!(lanes.kept(), counted);
        assert!(counted > KEPT - 64 * 1024, "the room is used: {counted}");
        read(&mut lanes, 7, &[KEPT], most_kept(usize::MAX));
        assert_eq!(
            lanes.rewind(7, 3),
            Ok(()),
            "the event is counted with {EVENT} bytes more, so it is not kept"
        );
        for lane in 0..=1024 {
            lanes.remove(lane);
        }
        assert_eq!(lanes.kept(), 0);
    }

    #[test]
    fn small_events_are_bounded_too() {
        let mut lanes = Lanes::new(Retention { events: 256, bytes: 64 * 1024 });
        for lane in 1..=200 {
            lanes.add(lane);
            read(&mut lanes, lane, &[1; 256], most_kept(32 << 20));
        }
        let events: usize = lanes.all().map(|buffer| buffer.kept().0).sum();
        assert_eq!(events, KEPT / (EVENT + 1), "an event of one byte counts as {} bytes", EVENT + 1);
    }

    #[test]
    fn a_connection_with_little_memory_keeps_less() {
        assert_eq!((most_kept(usize::MAX), most_kept(32 << 20), most_kept(1 << 20)), (KEPT, KEPT, 1 << 18));
    }

    #[test]
    fn the_session_of_a_message_is_the_one_its_params_name() {
        for (body, session, made) in [
            (r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#, Some("s"), None),
            (r#"{"method":"$/cancel_request","params":{"requestId":1,"sessionId":"s"}}"#, None, None),
            (r#"{"id":1,"result":{"sessionId":"s"}}"#, None, Some("s")),
            (r#"{"id":1,"result":null}"#, None, None),
            (r#"{"id":1,"method":"session/new","params":[]}"#, None, None),
            ("[", None, None),
            (r#"{"id":1,"method":"_own","params":["s"]}"#, None, None),
            (r#"[1,"_own",{"sessionId":"s"}]"#, None, None),
        ] {
            let message = Message::of(body.as_bytes(), &ACP_BODIES);
            assert_eq!((message.session().as_deref(), message.made().as_deref()), (session, made), "{body}");
        }
        assert!(Message::of(br#"{"id":1,"method":"initialize"}"#, &ACP_BODIES).opens());
        assert!(!Message::of(br#"{"method":"initialize"}"#, &ACP_BODIES).opens());
        for (body, needs) in [
            (r#"{"method":"session/cancel"}"#, true),
            (r#"{"method":"_own","params":{"sessionId":"s"}}"#, true),
            (r#"{"method":"$/cancel_request","params":{"requestId":1,"sessionId":"s"}}"#, false),
            (r#"{"method":"session/new","params":{}}"#, false),
            (r#"{"id":1,"result":{"sessionId":"s"}}"#, false),
        ] {
            assert_eq!(Message::of(body.as_bytes(), &ACP_BODIES).needs_session(), needs, "{body}");
        }
    }

    #[test]
    fn an_answer_names_its_connection() {
        for (answer, named) in [
            (r#"{"id":0,"result":{}}"#, r#"{"id":0,"result":{"connectionId":"c"}}"#),
            (
                r#"{"result": { "a":{"connectionId":"x"}},"id":0}"#,
                r#"{"result": {"connectionId":"c", "a":{"connectionId":"x"}},"id":0}"#,
            ),
            (r#"{"id":0,"result":{"connectionId":"own"}}"#, r#"{"id":0,"result":{"connectionId":"own"}}"#),
            (r#"{"id":0,"result":{"connectionId":null}}"#, r#"{"id":0,"result":{"connectionId":null}}"#),
            (r#"{"id":0,"result":[]}"#, r#"{"id":0,"result":[]}"#),
            (r#"{"id":0,"error":{}}"#, r#"{"id":0,"error":{}}"#),
        ] {
            assert_eq!(naming(&Bytes::from_static(answer.as_bytes()), "c", &ACP_BODIES), named);
        }
        assert_eq!(
            Message::of(br#"{"result":{"connectionId":"c"}}"#, &ACP_BODIES).connection().as_deref(),
            Some("c")
        );
    }
}
