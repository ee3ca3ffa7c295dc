//! Frames that are not messages. They are answered, up to a limit, and they do not end the connection.

use std::time::{Duration, Instant};

use super::input::Origin;
use super::output::{Event, Output};
use super::{Session, lifecycle};
use crate::dialect::Refusal;
use crate::id::{ExchangeId, RequestId};
use crate::message::{BadMessage, Deviation};

/// The most answers to bad frames in a burst.
const BURST: u32 = 100;
/// The time after which one more answer is allowed.
const REFILL_INTERVAL: Duration = Duration::from_millis(100);

/// Limits the answers to bad frames. Above the limit they are only counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenBucket {
    spent: u32,
    since: Option<Instant>,
}

impl TokenBucket {
    fn take(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let refilled = now.saturating_duration_since(since).as_millis() / REFILL_INTERVAL.as_millis();
        let refilled = u32::try_from(refilled).unwrap_or(u32::MAX);
        self.spent = self.spent.saturating_sub(refilled);
        self.since = Some(since + REFILL_INTERVAL.saturating_mul(refilled));
        if self.spent >= BURST {
            return false;
        }
        self.spent += 1;
        true
    }
}

impl Session {
    /// Receives a frame that is not a message. It is answered without an id, in the dialect's form: 100 in a burst and
    /// one more each 100 ms; above that it is only counted. One that arrived on an exchange of the peer is always
    /// answered, because the exchange must end. One that the end of input has cut off is not: the peer sends nothing more,
    /// and might take the answer for that to its only call.
    pub fn recv_bad(&mut self, now: Instant, why: BadMessage, exchange: ExchangeId) {
        self.emit(Event::BadFrame);
        let is_lost = self.lifecycle.state() == lifecycle::State::Lost;
        if !is_lost && !why.is_cut_off() && (exchange.is_peers() || self.bucket.take(now)) {
            let why = why.limit().map_or(Refusal::Bad(why), Refusal::Overloaded);
            self.push(Output::Refuse { to: None, exchange, why });
        }
    }

    /// The peer did something against its protocol, and the connection goes on.
    pub fn recv_deviation(&mut self, deviation: Deviation) {
        self.emit(Event::Deviation(deviation));
    }

    /// The next request has a progress token with a wrong type or length.
    pub fn recv_ignored_token(&mut self) {
        self.emit(Event::IgnoredToken);
    }

    /// Receives a request of which only the id can be read. It is refused with that id, as any request that is not
    /// admitted. If the id is in use, nothing is sent: the peer would take it for the answer of the first request (I4).
    pub fn recv_bad_request(&mut self, id: RequestId, tag: u8, why: BadMessage, origin: &Origin) {
        self.emit(Event::BadFrame);
        if self.lifecycle.state() == lifecycle::State::Lost {
            return;
        }
        let in_use = self.request_named(origin.scope, &id).is_some();
        let to = (!in_use).then_some((id, tag));
        self.push(Output::Refuse { to, exchange: origin.exchange, why: Refusal::Bad(why) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_gives_a_hundred_and_refills_ten_a_second() {
        let start = Instant::now();
        let mut bucket = TokenBucket::default();
        assert_eq!((0..150).filter(|_| bucket.take(start)).count(), 100);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..150).filter(|_| bucket.take(later)).count(), 10);
        let much_later = later + Duration::from_secs(3600);
        assert_eq!((0..150).filter(|_| bucket.take(much_later)).count(), 100);
    }
}
