#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::time::{Duration, Instant};

use super::DesiredState;

#[cfg(unix)]
pub(crate) use unix::{WakeSender, kill_now, spawn, supervise};
#[cfg(windows)]
pub(crate) use windows::{Started, WakeSender, kill_now, spawn, supervise};

/// The progress of ending a child. Time is an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Termination {
    Running,
    /// Its input has ended. At this time it is asked to end, or killed where no signal asks for that (Windows).
    InputEnded(Instant),
    /// It was asked to end. At this time it is killed.
    Signalled(Instant),
    Killed,
}

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    /// SIGTERM to the group. On Windows the end of the job.
    Terminate,
    /// SIGKILL to the group. On Windows the end of the job.
    Kill,
}

impl Termination {
    fn step(&mut self, desired_state: DesiredState, now: Instant, grace: Duration) -> Action {
        match (*self, desired_state) {
            (Self::Killed, _) | (Self::Running, DesiredState::Run | DesiredState::Close) => Action::Nothing,
            (_, DesiredState::Kill) => {
                *self = Self::Killed;
                Action::Kill
            }
            (Self::Running, DesiredState::End) => {
                *self = Self::InputEnded(now + grace);
                Action::Nothing
            }
            (Self::InputEnded(until), DesiredState::Run | DesiredState::Close | DesiredState::End)
                if now >= until =>
            {
                *self = Self::Signalled(now + grace);
                Action::Terminate
            }
            (Self::Signalled(until), DesiredState::Run | DesiredState::Close | DesiredState::End)
                if now >= until =>
            {
                *self = Self::Killed;
                Action::Kill
            }
            (
                Self::InputEnded(_) | Self::Signalled(_),
                DesiredState::Run | DesiredState::Close | DesiredState::End,
            ) => Action::Nothing,
        }
    }

    /// The time of the next step.
    fn due(self) -> Option<Instant> {
        match self {
            Self::InputEnded(until) | Self::Signalled(until) => Some(until),
            Self::Running | Self::Killed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    #[test]
    fn a_child_gets_sigterm_after_one_grace_and_sigkill_after_two() {
        let start = Instant::now();
        let mut termination = Termination::Running;
        assert_eq!(termination.step(DesiredState::Run, start, GRACE), Action::Nothing);
        assert_eq!(termination.due(), None);
        assert_eq!(termination.step(DesiredState::End, start, GRACE), Action::Nothing);
        assert_eq!(termination.due(), Some(start + GRACE));
        assert_eq!(termination.step(DesiredState::End, start + GRACE / 2, GRACE), Action::Nothing);
        assert_eq!(termination.step(DesiredState::End, start + GRACE, GRACE), Action::Terminate);
        assert_eq!(termination.step(DesiredState::End, start + GRACE, GRACE), Action::Nothing);
        assert_eq!(termination.step(DesiredState::End, start + 2 * GRACE, GRACE), Action::Kill);
        assert_eq!(termination.step(DesiredState::Kill, start + 3 * GRACE, GRACE), Action::Nothing);
    }

    #[test]
    fn a_kill_skips_every_grace() {
        let mut termination = Termination::Running;
        assert_eq!(termination.step(DesiredState::Kill, Instant::now(), GRACE), Action::Kill);
        assert_eq!(termination, Termination::Killed);
    }
}
