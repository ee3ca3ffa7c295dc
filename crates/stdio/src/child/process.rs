use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rescind_core::{TransportError, TransportErrorKind};

use super::ChildError;
use super::ring_buffer::RingBuffer;
use super::supervisor::WakeSender;

/// The time that a child has to exit after the end of its output. Then it counts as half closed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// The data of one child that the link, the handle and the supervisor share.
#[derive(Debug)]
pub(crate) struct Process {
    command: String,
    pid: u32,
    /// The time of one step of ending it.
    grace: Duration,
    wake_sender: WakeSender,
    /// The receiving half returned an event at its last poll, so it may have another one.
    has_unread: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    exit: Option<ExitStatus>,
    tail: RingBuffer,
    desired: DesiredState,
    output_end: OutputEnd,
    /// The tasks that wait for the exit: of each half of the link the latest, and others.
    halves: [Option<Waker>; 2],
    waiting: Vec<Waker>,
}

/// A half of the link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    Receiver,
    Sender,
}

/// The state of the child that the link requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DesiredState {
    #[default]
    Run,
    /// Its input is being closed. From now on its exit is not an error.
    Close,
    /// Its input has ended. It has its grace.
    End,
    /// It is killed at once.
    Kill,
}

/// The child's stdout, and whether its exit was waited for after the end of its stdout.
#[derive(Clone, Copy, Debug, Default)]
enum OutputEnd {
    #[default]
    Open,
    Ended {
        settled_at: Instant,
    },
    Settled,
}

impl Process {
    pub(crate) fn new(command: String, pid: u32, grace: Duration, wake_sender: WakeSender) -> Self {
        Self { command, pid, grace, wake_sender, has_unread: AtomicBool::new(false), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.state().exit
    }

    pub(crate) fn stderr_tail(&self) -> String {
        self.state().tail.text()
    }

    pub(super) fn push_stderr(&self, bytes: &[u8]) {
        self.state().tail.push(bytes);
    }

    pub(super) fn desired_state(&self) -> DesiredState {
        self.state().desired
    }

    /// Sets the desired state. A state is never replaced by an earlier one.
    pub(super) fn request_state(&self, desired_state: DesiredState) {
        let mut state = self.state();
        if state.desired >= desired_state || state.exit.is_some() {
            return;
        }
        state.desired = desired_state;
        if desired_state == DesiredState::Kill {
            // Done here and not in the supervisor, because the whole process may be about to end. While the lock is
            // held and no exit is known, the child is not reaped, so its process id is still its own.
            super::supervisor::kill_now(self.pid);
        }
        wake(state);
        self.wake_sender.wake();
    }

    /// Kills it at once.
    pub(crate) fn kill(&self) {
        self.request_state(DesiredState::Kill);
    }

    /// The error that names the child and includes its end.
    pub(super) fn error(&self, kind: TransportErrorKind, what: &str) -> TransportError {
        let state = self.state();
        let error = ChildError {
            command: self.command.clone(),
            what: what.into(),
            status: state.exit,
            stderr_tail: state.tail.text(),
        };
        TransportError::new(kind, error)
    }

    /// Waits until it has exited.
    pub(crate) fn poll_exit(&self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        let mut state = self.state();
        if let Some(status) = state.exit {
            return Poll::Ready(status);
        }
        state.register(cx);
        Poll::Pending
    }

    /// Waits until it has exited, for a half of the link whose pipe is not ready. It is asked at each poll, so only the
    /// latest waker is kept.
    pub(super) fn poll_exit_for(&self, half: Half, cx: &Context<'_>) -> Poll<ExitStatus> {
        let mut state = self.state();
        if let Some(status) = state.exit {
            return Poll::Ready(status);
        }
        let [receiver, sender] = &mut state.halves;
        let slot = match half {
            Half::Receiver => receiver,
            Half::Sender => sender,
        };
        match slot {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *slot = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    pub(super) fn set_unread(&self, has_unread: bool) {
        self.has_unread.store(has_unread, Ordering::Relaxed);
    }

    pub(super) fn has_unread(&self) -> bool {
        self.has_unread.load(Ordering::Relaxed)
    }

    /// Its output has ended: waits a moment for the exit that usually follows, or until this side closes.
    pub(super) fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<Option<ExitStatus>> {
        let mut state = self.state();
        if state.exit.is_some()
            || state.desired >= DesiredState::End
            || matches!(state.output_end, OutputEnd::Settled)
        {
            return Poll::Ready(state.exit);
        }
        state.register(cx);
        if matches!(state.output_end, OutputEnd::Open) {
            state.output_end = OutputEnd::Ended { settled_at: Instant::now() + EXIT_TIMEOUT };
            drop(state);
            self.wake_sender.wake();
        }
        Poll::Pending
    }

    /// The time at which the supervisor must call [`Self::settle`].
    pub(super) fn settles_at(&self) -> Option<Instant> {
        match self.state().output_end {
            OutputEnd::Ended { settled_at } => Some(settled_at),
            OutputEnd::Open | OutputEnd::Settled => None,
        }
    }

    pub(super) fn settle(&self) {
        let mut state = self.state();
        state.output_end = OutputEnd::Settled;
        wake(state);
    }

    /// Reaps it with the lock held that protects its process id.
    pub(super) fn reap(&self, wait: impl FnOnce() -> ExitStatus) {
        let mut state = self.state();
        state.exit = Some(wait());
        wake(state);
    }
}

impl State {
    fn register(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    let halves = std::mem::take(&mut state.halves);
    drop(state);
    for waker in halves.into_iter().flatten().chain(waiting) {
        waker.wake();
    }
}
