//! Reports a seed that never ends: a task that spins without a pause stops the paused clock, so that no limit on it
//! ever ends (L4).
//!
//! The trace until then is printed with it, also if a single seed is played again.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Case;
use super::judge::Judge;
use crate::Broken;

/// The real time for one seed. A slow machine takes a second.
const LONGEST: Duration = Duration::from_secs(120);

/// A thread that stops the process and prints the seed if one takes too long.
pub(super) struct Watch {
    seeds_tx: Option<Sender<(u64, Judge)>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn new(case: &Case) -> Self {
        let (seeds_tx, seeds) = channel();
        let (wire, dialect) = (case.wire, case.dialect.name());
        let thread = thread::spawn(move || {
            let mut last: Option<(u64, Judge)> = None;
            loop {
                match seeds.recv_timeout(LONGEST) {
                    Ok(next) => last = Some(next),
                    Err(RecvTimeoutError::Disconnected) => return,
                    // No seed has begun yet.
                    Err(RecvTimeoutError::Timeout) if last.is_none() => {}
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            let Some((seed, judge)) = last else { return };
            eprintln!("{}", judge.trace().join("\n"));
            let what =
                format!("seed {seed} on {wire:?} in {dialect} does not end; nothing lets the clock go on");
            eprintln!("{}", Broken { invariant: "L4", what });
            eprintln!("to play it again: RESCIND_SEED={seed} cargo test -p rescind-verification sim");
            std::process::exit(101);
        });
        Self { seeds_tx: Some(seeds_tx), thread: Some(thread) }
    }

    /// This seed begins. `judge` records its events.
    pub(super) fn begins(&self, seed: u64, judge: &Judge) {
        if let Some(seeds_tx) = &self.seeds_tx {
            // It fails only if the thread has ended, and then the process ends too.
            let _ = seeds_tx.send((seed, judge.clone()));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.seeds_tx = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
