//! A child process behind a transport. It is asked to end by the end of its input, then by signals, and it is always
//! waited for.
//!
//! One thread supervises each child. Only this thread reaps the child, so no signal can reach another process with a
//! reused id. The thread outlives the runtime, so no child remains after the runtime has ended.

mod link;
mod supervisor;

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rescind_core::{TransportError, TransportErrorKind};

pub(crate) use link::{Output, child_link};
#[cfg(windows)]
pub(crate) use supervisor::Started;
pub(crate) use supervisor::{WakeSender, spawn, supervise};

/// The time that a child has to exit after the end of its output. Then it counts as half closed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// A handle of a child process. It keeps neither the process nor the connection alive.
#[derive(Clone)]
#[must_use = "it is the only way to ask for the child's exit status"]
pub struct ChildHandle(Arc<Process>);

impl ChildHandle {
    pub(crate) fn new(process: Arc<Process>) -> Self {
        Self(process)
    }

    /// Its process id; on Unix also the id of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Its exit status. `None`: it is running.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.0.exit_status()
    }

    /// Whether it closed its stdout while this side was using it, and did not exit within 200 ms.
    #[must_use]
    pub fn has_closed_stdout(&self) -> bool {
        self.0.state().closed_stdout
    }

    /// Whether it closed its stdin while this side was using it, and did not exit within 200 ms.
    #[must_use]
    pub fn has_closed_stdin(&self) -> bool {
        self.0.state().closed_stdin
    }

    /// The last 8 KiB of its stderr. Bytes that are not UTF-8 are replaced, and control characters are escaped.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.0.stderr_tail()
    }

    /// Waits until it has exited and was reaped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the child is reaped nevertheless.
    pub async fn wait(&self) -> ExitStatus {
        poll_fn(|cx| self.0.poll_exit(cx)).await
    }
}

impl fmt::Debug for ChildHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildHandle")
            .field("pid", &self.pid())
            .field("exit_status", &self.exit_status())
            .finish_non_exhaustive()
    }
}

/// The failure of a child process. It is the source of the transport's
/// [`TransportError`](rescind_core::TransportError).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildError {
    /// The program, without its arguments, which may contain secrets.
    pub command: String,
    /// What happened.
    pub what: String,
    /// Its exit status. `None`: it never ran, or it is still running.
    pub status: Option<ExitStatus>,
    /// The end of its stderr.
    pub stderr_tail: String,
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.command, self.what)?;
        if let Some(status) = self.status {
            write!(f, "; {status}")?;
        }
        let tail = self.stderr_tail.trim_end();
        if tail.is_empty() { f.write_str("; nothing on stderr") } else { write!(f, "; stderr ends: {tail}") }
    }
}

impl std::error::Error for ChildError {}

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
    state: Mutex<ProcessState>,
}

#[derive(Debug, Default)]
struct ProcessState {
    exit: Option<ExitStatus>,
    tail: RingBuffer,
    desired: DesiredState,
    output_end: OutputEnd,
    closed_stdin: bool,
    closed_stdout: bool,
    /// The tasks that wait for the exit: of each half of the link the latest, and others.
    halves: [Option<Waker>; 2],
    waiting: Vec<Waker>,
}

/// A half of the link.
#[derive(Clone, Copy, Debug)]
enum Half {
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

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    fn grace(&self) -> Duration {
        self.grace
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.state().exit
    }

    pub(crate) fn stderr_tail(&self) -> String {
        self.state().tail.text()
    }

    fn push_stderr(&self, bytes: &[u8]) {
        self.state().tail.push(bytes);
    }

    fn desired_state(&self) -> DesiredState {
        self.state().desired
    }

    /// Sets the desired state. A state is never replaced by an earlier one.
    fn request_state(&self, desired_state: DesiredState) {
        let mut state = self.state();
        if state.desired >= desired_state || state.exit.is_some() {
            return;
        }
        state.desired = desired_state;
        if desired_state == DesiredState::Kill {
            // Done here and not in the supervisor, because the whole process may be about to end. While the lock is
            // held and no exit is known, the child is not reaped, so its process id is still its own.
            supervisor::kill_now(self.pid);
        }
        wake(state);
        self.wake_sender.wake();
    }

    /// Kills it at once.
    pub(crate) fn kill(&self) {
        self.request_state(DesiredState::Kill);
    }

    /// The error that names the child and includes its end.
    fn error(&self, kind: TransportErrorKind, what: &str) -> TransportError {
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
    fn poll_exit_for(&self, half: Half, cx: &Context<'_>) -> Poll<ExitStatus> {
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

    fn note_closed_stdin(&self) {
        self.state().closed_stdin = true;
    }

    fn note_closed_stdout(&self) {
        self.state().closed_stdout = true;
    }

    fn set_unread(&self, has_unread: bool) {
        self.has_unread.store(has_unread, Ordering::Relaxed);
    }

    fn has_unread(&self) -> bool {
        self.has_unread.load(Ordering::Relaxed)
    }

    /// Its output has ended: waits a moment for the exit that usually follows, or until this side closes.
    fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<Option<ExitStatus>> {
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
    fn settles_at(&self) -> Option<Instant> {
        match self.state().output_end {
            OutputEnd::Ended { settled_at } => Some(settled_at),
            OutputEnd::Open | OutputEnd::Settled => None,
        }
    }

    fn settle(&self) {
        let mut state = self.state();
        state.output_end = OutputEnd::Settled;
        wake(state);
    }

    /// Reaps it with the lock held that protects its process id.
    fn reap(&self, wait: impl FnOnce() -> ExitStatus) {
        let mut state = self.state();
        state.exit = Some(wait());
        wake(state);
    }
}

impl ProcessState {
    fn register(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }
}

fn wake(mut state: MutexGuard<'_, ProcessState>) {
    let waiting = std::mem::take(&mut state.waiting);
    let halves = std::mem::take(&mut state.halves);
    drop(state);
    for waker in halves.into_iter().flatten().chain(waiting) {
        waker.wake();
    }
}

/// The last bytes of an endless stream.
#[derive(Debug, Default)]
struct RingBuffer(VecDeque<u8>);

impl RingBuffer {
    /// The most bytes that are kept.
    const CAPACITY: usize = 8 * 1024;

    fn push(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(Self::CAPACITY)..).unwrap_or_default();
        let spare = (self.0.len() + bytes.len()).saturating_sub(Self::CAPACITY);
        self.0.drain(..spare);
        self.0.extend(bytes);
    }

    /// The bytes as text. Control characters except line ends and tabs are escaped, so that it can be shown on a
    /// terminal.
    fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let mut text = String::with_capacity(bytes.len());
        for letter in String::from_utf8_lossy(&bytes).chars() {
            if letter.is_control() && !matches!(letter, '\n' | '\t') {
                text.extend(letter.escape_default());
            } else {
                text.push(letter);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_bytes_are_kept() {
        let mut tail = RingBuffer::default();
        tail.push(&[b'a'; RingBuffer::CAPACITY]);
        tail.push(b"end");
        assert_eq!(tail.0.len(), RingBuffer::CAPACITY);
        assert!(tail.text().ends_with("aend"));
        tail.push(&vec![b'b'; 3 * RingBuffer::CAPACITY]);
        assert_eq!(tail.text(), "b".repeat(RingBuffer::CAPACITY));
    }

    #[test]
    fn escapes_for_terminals_are_shown_as_text() {
        let mut tail = RingBuffer::default();
        tail.push(b"\x1b[31mred\n");
        assert_eq!(tail.text(), "\\u{1b}[31mred\n");
    }
}
