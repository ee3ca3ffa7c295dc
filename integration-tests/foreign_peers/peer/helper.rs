//! A child process, which works when it is asked to. It ends when its stdin ends.

use std::io::{BufRead as _, Write as _, stdin};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The argument that makes the program its own helper.
pub(super) const ARGUMENT: &str = "helper";

const WORK: &str = "work";
const REST: &str = "rest";

/// The child, as its parent has it.
#[derive(Debug)]
pub(super) struct Helper {
    orders: Mutex<ChildStdin>,
    _child: Child,
}

impl Helper {
    /// `None`: it could not be started.
    pub(super) fn start() -> Option<Self> {
        let program = std::env::current_exe().ok()?;
        // Whatever the program needs before the dialect to become this program.
        let prefix = std::env::args().skip(1).take_while(|it| !super::DIALECTS.contains(&it.as_str()));
        let mut child = Command::new(program)
            .args(prefix)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let orders = Mutex::new(child.stdin.take()?);
        Some(Self { orders, _child: child })
    }

    pub(super) fn work(&self) {
        self.order(WORK);
    }

    pub(super) fn rest(&self) {
        self.order(REST);
    }

    fn order(&self, order: &str) {
        drop(writeln!(self.orders.lock().unwrap_or_else(PoisonError::into_inner), "{order}"));
    }
}

/// The child itself.
pub(super) fn run() -> ExitCode {
    let works = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&works);
    let worker = thread::spawn(move || {
        loop {
            while seen.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            thread::park();
        }
    });
    for order in stdin().lock().lines() {
        works.store(order.is_ok_and(|order| order == WORK), Ordering::Relaxed);
        worker.thread().unpark();
    }
    ExitCode::SUCCESS
}
