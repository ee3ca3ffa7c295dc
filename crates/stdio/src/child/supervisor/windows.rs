use std::io::{self, Read};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Action, Termination};
use crate::child::Process;

/// The interval at which the child's exit is checked.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

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
    mut child: Child,
    process: &Arc<Process>,
    wake_receiver: WakeReceiver,
) -> io::Result<()> {
    if let Some(mut stderr) = child.stderr.take() {
        let process = Arc::clone(process);
        thread::Builder::new().name("rescind-stderr".into()).spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut piece) {
                process.push_stderr(piece.get(..count).unwrap_or_default());
            }
        })?;
    }
    let process = Arc::clone(process);
    thread::Builder::new()
        .name("rescind-child".into())
        .spawn(move || run(child, &process, &wake_receiver))?;
    Ok(())
}

fn run(mut child: Child, process: &Process, wake_receiver: &WakeReceiver) {
    let mut termination = Termination::Running;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(_) => break ExitStatus::default(),
        }
        let now = Instant::now();
        match termination.step(process.desired_state(), now, process.grace()) {
            Action::Nothing => {}
            // There is no signal that requests the end.
            Action::Terminate | Action::Kill => drop(child.kill()),
        }
        if process.settles_at().is_some_and(|at| now >= at) {
            process.settle();
        }
        wake_receiver.wait(termination.due());
    };
    process.reap(|| status);
}

/// The supervisor kills: only the process id is known here, and another process may have it already.
pub(crate) fn kill_now(_: u32) {}
