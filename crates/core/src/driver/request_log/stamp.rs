//! The time of a request's arrival, in four bytes.

use std::time::{Duration, Instant};

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
