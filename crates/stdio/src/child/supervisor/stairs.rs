use std::time::{Duration, Instant};

use crate::child::process::Wish;

/// How far the ending of a child has gone. Time is an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stairs {
    Running,
    /// Its input has ended; at this time it is asked to end.
    InputEnded(Instant),
    /// It was asked to end; at this time it is killed.
    Asked(Instant),
    Killed,
}

/// What to do on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    /// SIGTERM to the group.
    Ask,
    /// SIGKILL to the group.
    Kill,
}

impl Stairs {
    pub(super) fn step(&mut self, wish: Wish, now: Instant, grace: Duration) -> Act {
        match (*self, wish) {
            (Self::Killed, _) | (Self::Running, Wish::Run | Wish::Close) => Act::Nothing,
            (_, Wish::Kill) => {
                *self = Self::Killed;
                Act::Kill
            }
            (Self::Running, Wish::End) => {
                *self = Self::InputEnded(now + grace);
                Act::Nothing
            }
            (Self::InputEnded(until), Wish::Run | Wish::Close | Wish::End) if now >= until => {
                *self = Self::Asked(now + grace);
                Act::Ask
            }
            (Self::Asked(until), Wish::Run | Wish::Close | Wish::End) if now >= until => {
                *self = Self::Killed;
                Act::Kill
            }
            (Self::InputEnded(_) | Self::Asked(_), Wish::Run | Wish::Close | Wish::End) => Act::Nothing,
        }
    }

    /// When the next step is due.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::InputEnded(until) | Self::Asked(until) => Some(until),
            Self::Running | Self::Killed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    #[test]
    fn a_child_is_asked_after_one_grace_and_killed_after_two() {
        let start = Instant::now();
        let mut stairs = Stairs::Running;
        assert_eq!(stairs.step(Wish::Run, start, GRACE), Act::Nothing);
        assert_eq!(stairs.due(), None);
        assert_eq!(stairs.step(Wish::End, start, GRACE), Act::Nothing);
        assert_eq!(stairs.due(), Some(start + GRACE));
        assert_eq!(stairs.step(Wish::End, start + GRACE / 2, GRACE), Act::Nothing);
        assert_eq!(stairs.step(Wish::End, start + GRACE, GRACE), Act::Ask);
        assert_eq!(stairs.step(Wish::End, start + GRACE, GRACE), Act::Nothing);
        assert_eq!(stairs.step(Wish::End, start + 2 * GRACE, GRACE), Act::Kill);
        assert_eq!(stairs.step(Wish::Kill, start + 3 * GRACE, GRACE), Act::Nothing);
    }

    #[test]
    fn a_wish_to_kill_skips_every_grace() {
        let mut stairs = Stairs::Running;
        assert_eq!(stairs.step(Wish::Kill, Instant::now(), GRACE), Act::Kill);
        assert_eq!(stairs, Stairs::Killed);
    }
}
