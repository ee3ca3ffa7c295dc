//! What is shown of a request, of an ended one, and of a session.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dialect::Role;
use crate::id::{CallKey, RequestId};
use crate::machine::{AcceptedCancel, RequestStatus, Stats};
use crate::message::ErrorCode;
use crate::registry::SessionId;
use crate::transport::PeerInfo;

/// The most bytes of a method's name that a [`RequestLog`](crate::RequestLog) keeps. A peer may send longer names.
pub const MAX_RECORDED_METHOD_BYTES: usize = 256;

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// The peer asked this side.
    Received,
    /// This side asked the peer: a call.
    Made,
}

impl Direction {
    /// The direction as one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Made => "made",
        }
    }
}

/// Names a request or a call of this process. No two of them have the same key, also not one after the other.
///
/// ```
/// use rescind_core::RequestKey;
///
/// let key: RequestKey = "7-received-3-0".parse().unwrap();
/// assert_eq!(key.to_string(), "7-received-3-0");
/// assert!("7-received-3".parse::<RequestKey>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    pub(crate) connection: u64,
    pub(crate) direction: Direction,
    pub(crate) key: CallKey,
}

impl RequestKey {
    /// The number of its connection in this process, as [`SessionInfo::connection`] has it.
    #[must_use]
    pub const fn connection(&self) -> u64 {
        self.connection
    }

    /// Its direction.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        self.direction
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connection, direction, key } = self;
        write!(f, "{connection}-{}-{}-{}", direction.name(), key.slot, key.generation)
    }
}

/// A text that is not a [`RequestKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request key is written CONNECTION-DIRECTION-SLOT-GENERATION")]
pub struct InvalidRequestKey;

impl FromStr for RequestKey {
    type Err = InvalidRequestKey;

    fn from_str(text: &str) -> Result<Self, InvalidRequestKey> {
        fn number<N: FromStr>(part: Option<&str>) -> Result<N, InvalidRequestKey> {
            let digits = part.filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok()).ok_or(InvalidRequestKey)
        }
        let mut parts = text.split('-');
        let connection = number(parts.next())?;
        let direction = match parts.next() {
            Some("received") => Direction::Received,
            Some("made") => Direction::Made,
            Some(_) | None => return Err(InvalidRequestKey),
        };
        let key = CallKey { slot: number(parts.next())?, generation: number(parts.next())? };
        if parts.next().is_some() {
            return Err(InvalidRequestKey);
        }
        Ok(Self { connection, direction, key })
    }
}

/// A request that the peer made, or a call of this side, while it is in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Its key.
    pub key: RequestKey,
    /// Its session. Over stateless HTTP each request has its own.
    pub session: SessionId,
    /// Its id on the wire.
    pub id: RequestId,
    /// Its method, as its caller wrote it: escape it before it is shown. `None` if it is not known any more: a call
    /// that is written keeps its method only while its connection is recorded, or if few methods were called on it.
    pub method: Option<Arc<str>>,
    /// How far it is.
    pub status: RequestStatus,
    /// When it arrived or was made, exact to a millisecond.
    pub started: Instant,
    /// The request to which a call belongs, on this connection or another. Once that request is cancelled, only a
    /// recorded connection still knows it.
    pub parent: Option<RequestKey>,
    /// Its first accepted cancel.
    pub cancel: Option<AcceptedCancel>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// With a value. After a cancel the value may be partial.
    Completed,
    /// With an error that does not say "cancelled".
    Failed(ErrorCode),
    /// It was cancelled. A received request was answered so, or not answered where the dialect forbids that.
    Cancelled,
    /// A limit refused it while it waited.
    Refused,
    /// The answer to a call could not be read.
    Unreadable,
    /// The connection was lost before an answer.
    Disconnected,
}

impl RequestOutcome {
    /// The outcome as one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
            Self::Disconnected => "disconnected",
        }
    }
}

/// A request or a call that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedRequest {
    /// What was known of it last.
    pub request: RequestInfo,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// When it ended: of a received request, when its handler had ended too.
    pub ended: Instant,
}

impl EndedRequest {
    /// A request that has ended.
    pub(crate) const fn new(request: RequestInfo, outcome: RequestOutcome, ended: Instant) -> Self {
        Self { request, outcome, ended }
    }

    /// The time from its start to its end.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.ended.saturating_duration_since(self.request.started)
    }

    /// The time from its cancel to its end. `None`: it was not cancelled.
    #[must_use]
    pub fn cancel_took(&self) -> Option<Duration> {
        self.request.cancel.as_ref().map(|cancel| self.ended.saturating_duration_since(cancel.at))
    }
}

/// A connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its number in this process.
    pub connection: u64,
    /// Its name in the registry.
    pub session: SessionId,
    /// The name of its dialect.
    pub dialect: &'static str,
    /// The role of this side.
    pub role: Role,
    /// What the transport knows about the peer.
    pub peer: PeerInfo,
    /// When it opened.
    pub opened: Instant,
    /// Its counters.
    pub stats: Stats,
}

/// The name, or its beginning if it is longer than is kept.
pub(crate) fn recorded_method(method: Arc<str>) -> Arc<str> {
    if method.len() <= MAX_RECORDED_METHOD_BYTES {
        return method;
    }
    let mut end = MAX_RECORDED_METHOD_BYTES;
    while !method.is_char_boundary(end) {
        end -= 1;
    }
    method.get(..end).map_or(method.clone(), Arc::from)
}

/// A time in milliseconds since its connection opened. It wraps after 49 days: read at a time that is less than 24 days
/// later, it is exact to a millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

/// The stamp that a connection gave last. Most requests arrive in the same millisecond as the one before them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastStamp {
    stamp: Stamp,
    /// The end of its millisecond. `None`: there was no stamp.
    until: Option<Instant>,
}

impl LastStamp {
    /// The stamp of this time, on a connection that opened at `opened`. A time before the last stamp gets that stamp.
    pub(crate) fn of(&mut self, now: Instant, opened: Instant) -> Stamp {
        if self.until.is_none_or(|until| now >= until) {
            self.stamp = Stamp::of(now, opened);
            let nanos = now.saturating_duration_since(opened).subsec_nanos() % 1_000_000;
            self.until = now.checked_add(Duration::from_nanos(u64::from(1_000_000 - nanos)));
        }
        self.stamp
    }
}

impl Stamp {
    fn of(now: Instant, opened: Instant) -> Self {
        let since = now.saturating_duration_since(opened);
        #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
        let seconds = since.as_secs() as u32;
        Self(seconds.wrapping_mul(1000).wrapping_add(since.subsec_millis()))
    }

    /// The time that was stamped. A stamp of a later millisecond than `now` is that of `now`: a step takes its time
    /// before it has the lock.
    pub(crate) fn time(self, now: Instant, opened: Instant) -> Instant {
        let age = Self::of(now, opened).0.wrapping_sub(self.0);
        let age = if age > u32::MAX / 2 { 0 } else { age };
        now.checked_sub(Duration::from_millis(age.into())).map_or(opened, |time| time.max(opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written_and_nothing_else_is() {
        for direction in [Direction::Received, Direction::Made] {
            let key = RequestKey {
                connection: u64::MAX,
                direction,
                key: CallKey { slot: u32::MAX, generation: 9 },
            };
            assert_eq!(key.to_string().parse(), Ok(key));
            assert_eq!((key.connection(), key.direction()), (u64::MAX, direction));
        }
        for text in [
            "",
            "1",
            "1-made",
            "1-made-2",
            "1-made-2-3-4",
            "1-sent-2-3",
            "-1-made-2-3",
            "1-made-+2-3",
            "1-made--3",
            "1-made-4294967296-3",
        ] {
            assert_eq!(text.parse::<RequestKey>(), Err(InvalidRequestKey), "{text}");
        }
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_and_a_short_one_is_shared() {
        let short: Arc<str> = Arc::from("work");
        assert!(Arc::ptr_eq(&recorded_method(Arc::clone(&short)), &short));
        let long = recorded_method(Arc::from(format!("x{}", "é".repeat(4000))));
        assert_eq!(long.len(), MAX_RECORDED_METHOD_BYTES - 1);
    }

    #[test]
    fn a_stamp_is_exact_to_a_millisecond_and_survives_its_wrap() {
        let opened = Instant::now();
        for (opened_before, age) in
            [(0, 0), (5, 5), (90_000, 1234), (5_000_000_000, 777), (4_294_967_500, 900)]
        {
            let now = opened + Duration::from_micros(opened_before * 1000 + 123_456);
            let came = now.checked_sub(Duration::from_millis(age)).unwrap();
            let read = Stamp::of(came, opened).time(now, opened);
            let off = read.max(came) - read.min(came);
            assert!(off <= Duration::from_millis(1), "{opened_before}: {off:?}");
        }
    }

    #[test]
    fn a_time_before_the_connection_is_its_beginning() {
        let opened = Instant::now();
        assert_eq!(Stamp::of(opened, opened + Duration::from_secs(9)), Stamp::default());
        assert_eq!(Stamp::default().time(opened, opened), opened);
    }

    #[test]
    fn the_last_stamp_is_given_again_until_its_millisecond_ends() {
        let opened = Instant::now();
        let mut last = LastStamp::default();
        for micros in [0, 999, 1000, 1999, 2001, 900_000, 900_999, 901_000, 5_000_000] {
            let now = opened + Duration::from_micros(micros);
            assert_eq!(last.of(now, opened), Stamp::of(now, opened), "{micros} us");
        }
    }

    #[test]
    fn a_time_that_another_step_has_passed_gets_the_stamp_of_that_step_and_no_great_age() {
        let opened = Instant::now();
        let (before, now) = (opened + Duration::from_micros(6_900), opened + Duration::from_micros(7_100));
        let mut last = LastStamp::default();
        let stamp = last.of(now, opened);
        assert_eq!(last.of(before, opened), stamp);
        assert_eq!(stamp.time(before, opened), before);
    }
}
