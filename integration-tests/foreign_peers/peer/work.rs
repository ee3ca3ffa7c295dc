//! Work in steps, which a cancel stops.

use std::time::{Duration, Instant};

use super::flags::{Fault, Manner};
use super::requests::Peer;

/// How often a peer with `--slices` looks at cancels.
const SLICE: Duration = Duration::from_millis(300);

impl Peer {
    /// Works for this time in this number of steps and calls `each` after each step. The error is the number of steps
    /// that were done when it was cancelled.
    pub(super) fn work(
        &self,
        key: u64,
        total: Duration,
        steps: u32,
        mut each: impl FnMut(u32),
    ) -> Result<(), u32> {
        let begun = Instant::now();
        let total = self.time_of_work(total);
        let steps = steps.max(1);
        let mut next_look = begun + SLICE;
        for step in 1..=steps {
            let until = begun + total * step / steps;
            let goes_on = if self.flags.is(Manner::Slices) {
                // A cancel is not seen between two looks.
                self.spend(until, || true);
                let looks = Instant::now() >= next_look;
                if looks {
                    next_look += SLICE;
                }
                !looks || !self.is_stopped(key)
            } else if self.flags.is(Manner::Busy) {
                self.spend(until, || !self.is_stopped(key))
            } else {
                self.wait_until(key, until)
            };
            if !goes_on {
                if self.flags.has(Fault::AnswersAfterSilence) {
                    self.spend(begun + total, || true);
                }
                return Err(step - 1);
            }
            each(step);
        }
        Ok(())
    }

    /// Spends time until then, busy if it is, for as long as `goes_on`.
    fn spend(&self, until: Instant, goes_on: impl Fn() -> bool) -> bool {
        if !self.flags.is(Manner::Busy) {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            return goes_on();
        }
        if let Some(helper) = &self.helper {
            helper.work();
        }
        let mut went_on = goes_on();
        while went_on && Instant::now() < until {
            let pause = Instant::now() + Duration::from_millis(1);
            if self.helper.is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
            while self.helper.is_none() && Instant::now() < pause {
                std::hint::spin_loop();
            }
            went_on = goes_on();
        }
        if let Some(helper) = &self.helper {
            helper.rest();
        }
        went_on
    }
}
