//! A child and what it starts are one job of Windows, which ends as a whole: when it is killed, when the child has exited, and
//! when this process has ended. No signal asks a process without a window to end, so after one grace the job is killed.

use std::io::{self, Read};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use process_wrap::tokio::{ChildWrapper, CommandWrap, CommandWrapper, JobObject, KillOnDrop};

use super::{Action, Termination};
use crate::child::Process;

/// The interval at which the child's exit is checked.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the end of stderr is waited for after the exit: a process outside the job may hold it.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);
/// `CREATE_SUSPENDED`: it starts nothing before it is in its job.
const SUSPENDED: u32 = 0x0000_0004;
/// `CREATE_NEW_PROCESS_GROUP`: Ctrl-C on the console is for this process, which then ends the child in order.
const NEW_PROCESS_GROUP: u32 = 0x0000_0200;

/// A child in its job. Dropping it ends the job.
#[derive(Debug)]
pub(crate) struct Started {
    job: Box<dyn ChildWrapper>,
    pid: u32,
    pub(crate) pipes: Option<(ChildStdin, ChildStdout)>,
    stderr: ChildStderr,
}

impl Started {
    pub(crate) fn id(&self) -> u32 {
        self.pid
    }
}

/// The flags of the child. `JobObject` sets its own, so this comes after it.
#[derive(Debug)]
struct Flags;

impl CommandWrapper for Flags {
    fn pre_spawn(&mut self, command: &mut tokio::process::Command, _: &CommandWrap) -> io::Result<()> {
        command.creation_flags(SUSPENDED | NEW_PROCESS_GROUP);
        Ok(())
    }
}

/// Starts the child in a job of its own.
pub(crate) fn spawn(command: Command) -> io::Result<Started> {
    let mut command = CommandWrap::from(tokio::process::Command::from(command));
    command.wrap(JobObject).wrap(KillOnDrop).wrap(Flags);
    let mut job = command.spawn()?;
    let (Some(pid), Some(stdin), Some(stdout), Some(stderr)) =
        (job.id(), job.stdin().take(), job.stdout().take(), job.stderr().take())
    else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let pipes = (stdin.into_owned_handle()?.into(), stdout.into_owned_handle()?.into());
    Ok(Started { job, pid, pipes: Some(pipes), stderr: stderr.into_owned_handle()?.into() })
}

/// Wakes the supervisor.
#[derive(Debug)]
pub(crate) struct WakeSender(Arc<(Mutex<bool>, Condvar)>);

/// The [`WakeSender`] wakes it.
#[derive(Debug)]
pub(crate) struct WakeReceiver(Arc<(Mutex<bool>, Condvar)>);

impl WakeSender {
    #[expect(clippy::unnecessary_wraps, reason = "on Unix it can fail")]
    pub(crate) fn new() -> io::Result<(Self, WakeReceiver)> {
        let shared = Arc::default();
        Ok((Self(Arc::clone(&shared)), WakeReceiver(shared)))
    }

    pub(crate) fn wake(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_one();
    }
}

impl WakeReceiver {
    /// Waits until it is woken, at most until the next action is due or the exit is checked again.
    fn wait(&self, due: Option<Instant>) {
        let interval = due.map_or(EXIT_POLL_INTERVAL, |due| {
            EXIT_POLL_INTERVAL.min(due.saturating_duration_since(Instant::now()))
        });
        let rung = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(rung, interval, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Supervises the child on a thread of its own until the child is reaped.
pub(crate) fn supervise(
    child: Started,
    process: &Arc<Process>,
    wake_receiver: WakeReceiver,
) -> io::Result<()> {
    let Started { job, mut stderr, .. } = child;
    let (ended, stderr_end) = sync_channel::<()>(0);
    let theirs = Arc::clone(process);
    thread::Builder::new().name("rescind-stderr".into()).spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut piece) {
            theirs.push_stderr(piece.get(..count).unwrap_or_default());
        }
        drop(ended);
    })?;
    let process = Arc::clone(process);
    thread::Builder::new()
        .name("rescind-child".into())
        .spawn(move || run(job, &process, &wake_receiver, &stderr_end))?;
    Ok(())
}

fn run(
    mut job: Box<dyn ChildWrapper>,
    process: &Process,
    wake_receiver: &WakeReceiver,
    stderr_end: &Receiver<()>,
) {
    let mut termination = Termination::Running;
    let status = loop {
        match job.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(_) => break ExitStatus::default(),
        }
        let now = Instant::now();
        match termination.step(process.desired_state(), now, process.grace()) {
            Action::Nothing => {}
            Action::Terminate | Action::Kill => drop(job.start_kill()),
        }
        if process.settles_at().is_some_and(|at| now >= at) {
            process.settle();
        }
        let due = [termination.due(), process.settles_at()].into_iter().flatten().min();
        wake_receiver.wait(due);
    };
    // The processes that remain in the job are killed, so the pipes end.
    drop(job.start_kill());
    let _ended = stderr_end.recv_timeout(STDERR_TIMEOUT);
    process.reap(|| status);
}

/// The supervisor kills: only the process id is known here, and another process may have it already. If this process ends
/// before, the job ends with it.
pub(crate) fn kill_now(_: u32) {}
