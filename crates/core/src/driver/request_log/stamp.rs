//! The time of a request's arrival, in four bytes.

use std::time::{Duration, Instant};

/// A time in milliseconds since its connection opened. It wraps after 49 days: read at a time that is less than that
/// later, it is exact to a millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    /// The stamp of this time, on a connection that opened at `opened`.
    pub(crate) fn of(now: Instant, opened: Instant) -> Self {
        let since = now.saturating_duration_since(opened);
        #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
        let seconds = since.as_secs() as u32;
        Self(seconds.wrapping_mul(1000).wrapping_add(since.subsec_millis()))
    }

    /// The time that was stamped.
    pub(crate) fn time(self, now: Instant, opened: Instant) -> Instant {
        let age = Self::of(now, opened).0.wrapping_sub(self.0);
        now.checked_sub(Duration::from_millis(age.into())).map_or(opened, |time| time.max(opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
