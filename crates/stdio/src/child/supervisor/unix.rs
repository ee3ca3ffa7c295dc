use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::{Action, Termination};
use crate::child::Process;

/// The interval at which a child's exit is checked, if no descriptor reports it.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The most pieces of stderr that are read after the exit: another process may continue to write.
const MAX_READS_AFTER_EXIT: usize = 64;

/// Wakes the supervisor.
#[derive(Debug)]
pub(crate) struct WakeSender(UnixStream);

impl WakeSender {
    pub(crate) fn wake(&self) {
        // A full socket has woken it already. A closed socket has no receiver.
        let _ = (&self.0).write(&[1]);
    }
}

/// The [`WakeSender`] wakes it.
#[derive(Debug)]
pub(crate) struct WakeReceiver(UnixStream);

impl WakeSender {
    pub(crate) fn new() -> io::Result<(Self, WakeReceiver)> {
        let (wake_sender, wake_receiver) = UnixStream::pair()?;
        wake_sender.set_nonblocking(true)?;
        wake_receiver.set_nonblocking(true)?;
        Ok((Self(wake_sender), WakeReceiver(wake_receiver)))
    }
}

/// Starts the child as the leader of a process group.
pub(crate) fn spawn(mut command: std::process::Command) -> io::Result<Child> {
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Supervises the child on a thread of its own until the child is reaped.
pub(crate) fn supervise(child: Child, process: &Arc<Process>, wake_receiver: WakeReceiver) -> io::Result<()> {
    let process = Arc::clone(process);
    // The child is passed to the thread only when the thread exists. Without a thread the child is killed and reaped
    // here.
    let (hand_over, taken) = std::sync::mpsc::sync_channel::<Child>(1);
    let thread = thread::Builder::new().name("rescind-child".into()).spawn(move || {
        if let Ok(child) = taken.recv() {
            Supervisor::new(child, process, wake_receiver).run();
        }
    });
    match thread {
        Ok(_) => {
            // The receiver waits for exactly this value.
            let _ = hand_over.send(child);
            Ok(())
        }
        Err(error) => {
            let mut child = child;
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

struct Supervisor {
    child: Child,
    process: Arc<Process>,
    wake_receiver: WakeReceiver,
    stderr: Option<ChildStderr>,
    /// Readable when the child has exited.
    exit: Option<OwnedFd>,
    termination: Termination,
}

impl Supervisor {
    fn new(mut child: Child, process: Arc<Process>, wake_receiver: WakeReceiver) -> Self {
        let stderr = child.stderr.take();
        let exit = exit_descriptor(&child);
        Self { child, process, wake_receiver, stderr, exit, termination: Termination::Running }
    }

    fn run(mut self) {
        while !has_exited(&self.child) {
            let now = Instant::now();
            match self.termination.step(self.process.desired_state(), now, self.process.grace()) {
                Action::Nothing => {}
                Action::Terminate => signal(self.process.pid(), Signal::TERM),
                Action::Kill => signal(self.process.pid(), Signal::KILL),
            }
            if self.process.settles_at().is_some_and(|at| now >= at) {
                self.process.settle();
            }
            self.wait();
        }
        // The dead child still has its process id, and its group exists. The processes that remain in the group are
        // killed.
        signal(self.process.pid(), Signal::KILL);
        for _ in 0..MAX_READS_AFTER_EXIT {
            if !is_readable(self.stderr.as_ref()) || !self.drain_stderr() {
                break;
            }
        }
        let Self { mut child, process, .. } = self;
        process.reap(|| child.wait().unwrap_or_else(|_| ExitStatus::default()));
    }

    /// Waits for the next action, and drains the descriptors that woke it.
    fn wait(&mut self) {
        let mut due = [self.termination.due(), self.process.settles_at()].into_iter().flatten().min();
        if self.exit.is_none() {
            let asked = Instant::now() + EXIT_POLL_INTERVAL;
            due = Some(due.map_or(asked, |due| due.min(asked)));
        }
        let mut watched = vec![readable(self.wake_receiver.0.as_fd())];
        watched.extend(self.exit.as_ref().map(|exit| readable(exit.as_fd())));
        watched.extend(self.stderr.as_ref().map(|stderr| readable(stderr.as_fd())));
        let timeout = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        if poll(&mut watched, timeout.as_ref()).is_err() {
            // The wait was interrupted. The caller checks everything again.
            return;
        }
        let mut rung = [0; 64];
        while (&self.wake_receiver.0).read(&mut rung).is_ok_and(|count| count == rung.len()) {}
        if is_readable(self.stderr.as_ref()) {
            self.drain_stderr();
        }
    }

    /// Reads one piece. `false`: there is nothing more.
    fn drain_stderr(&mut self) -> bool {
        let mut piece = [0; 4096];
        let read = self.stderr.as_mut().map(|stderr| stderr.read(&mut piece));
        match read {
            Some(Ok(count)) if count > 0 => {
                self.process.push_stderr(piece.get(..count).unwrap_or_default());
                true
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => true,
            Some(_) | None => {
                self.stderr = None;
                false
            }
        }
    }
}

/// Kills the group. Call it only while the child is not reaped.
pub(crate) fn kill_now(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It fails only if the group has no process.
        let _ = kill_process_group(pid, signal);
    }
}

/// Whether the child has exited. It is not reaped.
fn has_exited(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        Ok(status) => status.is_some(),
        Err(rustix::io::Errno::INTR) => false,
        // There is no such child: other code in this process has reaped it.
        Err(_) => true,
    }
}

#[cfg(target_os = "linux")]
fn exit_descriptor(child: &Child) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_child(child), rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn exit_descriptor(_: &Child) -> Option<OwnedFd> {
    None
}

fn readable(descriptor: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor, PollFlags::IN)
}

fn is_readable(stderr: Option<&ChildStderr>) -> bool {
    stderr.is_some_and(|stderr| {
        let mut watched = [readable(stderr.as_fd())];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    })
}

/// Rounded up to whole milliseconds, so that no wait ends just before its time.
fn timespec(duration: Duration) -> Timespec {
    let duration = duration + Duration::from_millis(1);
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_millis()) * 1_000_000,
    }
}
