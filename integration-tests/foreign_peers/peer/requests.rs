//! The requests that run: how they are taken, cancelled and answered. One lock, one condition variable.

use std::collections::VecDeque;
use std::io::{BufRead as _, Write as _, stdin};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::peer::flags::{Fault, Flags, Manner};
use crate::peer::wire::{self, Answer, Framing, Output, Request};
use crate::peer::{Ended, Protocol};

/// How many slow requests run at once; more of them wait.
const SLOTS: usize = 8;

/// The whole program.
pub(super) struct Peer {
    pub(super) flags: Flags,
    pub(super) output: Output,
    pub(super) protocol: Box<dyn Protocol>,
    pub(super) helper: Option<Helper>,
    state: Mutex<State>,
    changed: Condvar,
}

/// How a request was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancel {
    /// By its id.
    Request,
    /// With the turn of its session (ACP).
    Turn,
}

/// What became of a request that arrived.
#[derive(Debug)]
pub(super) enum Taken {
    Running(u64),
    /// Behind others. The first one starts the worker.
    Queued(bool),
    Refused,
    Dropped,
}

#[derive(Default)]
struct State {
    running: Vec<Running>,
    answered: Vec<Value>,
    queue: VecDeque<u64>,
    has_worker: bool,
    last_key: u64,
    taken_slots: usize,
    last_own_id: u64,
    replied: Vec<Value>,
    loaded_at: Option<Instant>,
    next_is_cancelled: bool,
    dead: bool,
    works_begun: u64,
    /// The sessions that take no prompt any more (ACP).
    dead_sessions: Vec<String>,
    slow_taken: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a request")]
struct Running {
    key: u64,
    request: Request,
    /// The id of its answer.
    answer_id: Value,
    cancel: Option<Cancel>,
    slow: bool,
    has_slot: bool,
    is_answered: bool,
    /// Its turn was cancelled, which shows only at its normal end.
    ends_late: bool,
}

/// The session of a request (ACP).
fn session_of(request: &Request) -> Option<&str> {
    request.params.get("sessionId").and_then(Value::as_str)
}

impl State {
    fn entry(&mut self, key: u64) -> Option<&mut Running> {
        self.running.iter_mut().find(|it| it.key == key)
    }

    fn is_cancelled(&self, key: u64) -> bool {
        self.running.iter().any(|it| it.key == key && it.cancel.is_some())
    }
}

impl Peer {
    pub(super) fn new(
        flags: Flags,
        framing: Framing,
        protocol: Box<dyn Protocol>,
        helper: Option<Helper>,
    ) -> Self {
        let output = Output::new(framing, &flags);
        Self { flags, output, protocol, helper, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request, so that from now on a cancel finds it.
    pub(super) fn take(&self, request: Request, slow: bool) -> Taken {
        let mut state = self.lock();
        let is_in = |dead: &String| session_of(&request) == Some(dead.as_str());
        if state.dead || (slow && state.dead_sessions.iter().any(is_in)) {
            return Taken::Dropped;
        }
        if slow && self.flags.is(Manner::OneAtATime) && state.running.iter().any(|it| it.slow) {
            return Taken::Refused;
        }
        if slow {
            state.slow_taken += 1;
            if self.flags.is(Manner::RateLimited) && state.slow_taken > 12 {
                return Taken::Refused;
            }
            if self.flags.is(Manner::Supersedes) {
                self.supersede(&mut state);
            }
        }
        state.last_key += 1;
        let key = state.last_key;
        let cancel = std::mem::take(&mut state.next_is_cancelled).then_some(Cancel::Request);
        let answer_id = request.id.clone();
        let (has_slot, is_answered) = (false, false);
        let ends_late = false;
        state.running.push(Running {
            key,
            request,
            answer_id,
            cancel,
            slow,
            has_slot,
            is_answered,
            ends_late,
        });
        if !self.flags.is(Manner::Serial) {
            return Taken::Running(key);
        }
        state.queue.push_back(key);
        self.changed.notify_all();
        Taken::Queued(!std::mem::replace(&mut state.has_worker, true))
    }

    /// Ends the slow requests that run.
    fn supersede(&self, state: &mut State) {
        for older in state.running.iter_mut().filter(|it| it.slow && it.cancel.is_none()) {
            older.cancel = Some(Cancel::Request);
            older.is_answered = true;
            let answer = Answer::error(wire::CONTENT_MODIFIED, "a newer request has taken its place");
            self.output.send(&answer.message(&older.answer_id));
        }
        self.changed.notify_all();
    }

    /// The next request of a serial peer.
    pub(super) fn next_queued(&self) -> u64 {
        let mut state = self.lock();
        loop {
            if let Some(key) = state.queue.pop_front() {
                return key;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn request(&self, key: u64) -> Option<Request> {
        self.lock().entry(key).map(|it| it.request.clone())
    }

    /// Whether this is a slow request.
    pub(super) fn is_working(&self, key: u64) -> bool {
        self.lock().entry(key).is_some_and(|it| it.slow)
    }

    /// Waits for a slot. `false`: cancelled before.
    pub(super) fn take_slot(&self, key: u64) -> bool {
        let full = |state: &mut State| state.taken_slots >= SLOTS && !state.is_cancelled(key);
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        if state.taken_slots >= SLOTS {
            return false;
        }
        state.taken_slots += 1;
        if let Some(entry) = state.entry(key) {
            entry.has_slot = true;
        }
        true
    }

    /// Waits until it is loaded, if it loads late.
    pub(super) fn load(&self) {
        if !self.flags.is(Manner::Lazy) {
            return;
        }
        let loaded_at = *self.lock().loaded_at.get_or_insert_with(|| Instant::now() + Duration::from_secs(2));
        std::thread::sleep(loaded_at.saturating_duration_since(Instant::now()));
    }

    /// How long the work takes that begins now and usually takes this time.
    pub(super) fn time_of_work(&self, usual: Duration) -> Duration {
        let mut state = self.lock();
        state.works_begun += 1;
        match state.works_begun {
            2 if self.flags.is(Manner::SecondIsQuick) => usual / 100,
            4.. if self.flags.is(Manner::SlowsDown) => usual * 3,
            _ => usual,
        }
    }

    /// Whether the work for a request has to stop.
    pub(super) fn is_stopped(&self, key: u64) -> bool {
        self.hears_cancels() && self.lock().is_cancelled(key)
    }

    fn hears_cancels(&self) -> bool {
        let deaf = [Fault::IgnoresCancel, Fault::WorkGoesOn, Fault::AnswersTwiceLate];
        !deaf.into_iter().any(|fault| self.flags.has(fault))
    }

    /// Waits until this time. `false`: the request was cancelled before.
    pub(super) fn wait_until(&self, key: u64, until: Instant) -> bool {
        let goes_on = |state: &mut State| !(self.hears_cancels() && state.is_cancelled(key));
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(super) fn own_id(&self) -> u64 {
        let mut state = self.lock();
        state.last_own_id += 1;
        state.last_own_id
    }

    pub(super) fn recv_reply(&self, id: Value) {
        self.lock().replied.push(id);
        self.changed.notify_all();
    }

    /// `false`: the request was cancelled before the reply came.
    pub(super) fn wait_for_reply(&self, key: u64, id: &Value) -> bool {
        let waits = |state: &mut State| {
            !(state.replied.contains(id) || self.hears_cancels() && state.is_cancelled(key))
        };
        let state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        state.replied.contains(id)
    }

    /// Handles the cancel of one request. Returns the exit code if it ends the program.
    pub(super) fn recv_cancel(&self, id: Option<&Value>) -> Option<ExitCode> {
        let Some(id) = id else {
            return self.flags.has(Fault::MalformedCancelKills).then_some(ExitCode::FAILURE);
        };
        if *id == 0 && self.flags.has(Fault::ZeroIdNotCancelled) {
            return None;
        }
        let loose = self.flags.has(Fault::TextIdCancelsNumber);
        let text = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
        let is_it = |other: &Value| other == id || (loose && text(other) == text(id));
        let mut state = self.lock();
        let named = state.running.iter().find(|it| is_it(&it.request.id)).map(|it| it.key);
        let Some(mut key) = named else {
            if !state.answered.iter().any(is_it) {
                return self.flags.has(Fault::UnknownCancelKills).then_some(ExitCode::FAILURE);
            }
            state.next_is_cancelled |= self.flags.has(Fault::LateCancelKillsNext);
            return None;
        };
        if self.flags.has(Fault::CancelsOldest) {
            let oldest =
                state.running.iter().filter(|it| it.slow && it.cancel.is_none()).map(|it| it.key).min();
            key = oldest.unwrap_or(key);
        }
        let other = state.running.iter().find(|it| it.slow && it.key != key).map(|it| it.key);
        if let Some(other) = other {
            if self.flags.has(Fault::CancelsSibling) {
                key = other;
            }
            if self.flags.has(Fault::CrossingIds) {
                let theirs = state.entry(other).map(|it| it.answer_id.clone());
                let ours = state.entry(key).map(|it| it.answer_id.clone());
                for (at, id) in [(key, theirs), (other, ours)] {
                    if let (Some(entry), Some(id)) = (state.entry(at), id) {
                        entry.answer_id = id;
                    }
                }
            }
        }
        self.cancel(state, key, Cancel::Request);
        None
    }

    /// Handles the cancel of a session's turn.
    pub(super) fn recv_cancel_of_session(&self, session: Option<&str>) -> Option<ExitCode> {
        let Some(session) = session else {
            return self.flags.has(Fault::MalformedCancelKills).then_some(ExitCode::FAILURE);
        };
        let all = self.flags.has(Fault::TurnsOfAllSessions);
        let is_in = |it: &&Running| it.slow && (all || session_of(&it.request) == Some(session));
        let mut state = self.lock();
        let keys = state.running.iter().filter(is_in).map(|it| it.key).collect::<Vec<_>>();
        if self.flags.has(Fault::TurnIgnoresCancel) {
            return None;
        }
        if self.flags.has(Fault::TurnEndsLate) {
            state.running.iter_mut().filter(|it| keys.contains(&it.key)).for_each(|it| it.ends_late = true);
            return None;
        }
        if self.flags.has(Fault::SessionDeadAfterTurn) && !keys.is_empty() {
            state.dead_sessions.push(session.to_owned());
        }
        drop(state);
        for key in keys {
            self.cancel(self.lock(), key, Cancel::Turn);
        }
        None
    }

    fn cancel(&self, mut state: MutexGuard<'_, State>, key: u64, cancel: Cancel) {
        let Some(entry) = state.entry(key).filter(|it| it.cancel.is_none()) else { return };
        entry.cancel = Some(cancel);
        self.changed.notify_all();
        let at_once = [Fault::WorkGoesOn, Fault::AnswersTwiceLate];
        if at_once.into_iter().any(|fault| self.flags.has(fault)) {
            entry.is_answered = true;
            let id = entry.answer_id.clone();
            drop(state);
            if let Some(answer) = self.protocol.cancelled(&self.flags, cancel, None) {
                self.output.send(&answer.message(&id));
            }
        }
    }

    /// Answers a request, unless it was cancelled in a protocol that wants silence.
    pub(super) fn finish(&self, key: u64, ended: Ended) {
        let mut state = self.lock();
        let Some(at) = state.running.iter().position(|it| it.key == key) else { return };
        let entry = state.running.swap_remove(at);
        let was_cancelled = entry.cancel.is_some();
        if entry.has_slot && !(was_cancelled && self.flags.has(Fault::SlotNotFreed)) {
            state.taken_slots -= 1;
        }
        state.answered.push(entry.request.id.clone());
        let silent = state.dead || (entry.is_answered && !self.flags.has(Fault::AnswersTwiceLate));
        if was_cancelled && self.flags.has(Fault::DeadAfterCancel) {
            state.dead = true;
        }
        drop(state);
        self.changed.notify_all();
        let answer = match (ended, entry.cancel) {
            (Ended::Answered(_), None) if entry.ends_late => {
                self.protocol.cancelled(&self.flags, Cancel::Turn, None)
            }
            (Ended::Answered(answer), _) => Some(answer),
            (Ended::Cancelled(partial), Some(cancel)) => self.cancelled_answer(cancel, partial),
            (Ended::Cancelled(_), None) => None,
        };
        if let Some(answer) = answer.filter(|_| !silent) {
            let message = answer.message(&entry.answer_id);
            self.output.send(&message);
            let doubles = was_cancelled || self.answers_cancels_by_silence();
            if entry.slow && doubles && self.flags.has(Fault::AnswersTwice) {
                self.output.send(&message);
            }
        }
        if entry.slow
            && self.flags.has(Fault::ProgressAfterAnswer)
            && let Some(message) = self.protocol.progress(&entry.request, u32::MAX, u32::MAX)
        {
            self.output.send(&message);
        }
        if was_cancelled && self.flags.has(Fault::ExitsAfterCancel) {
            self.output.close();
            exit(0);
        }
    }

    fn answers_cancels_by_silence(&self) -> bool {
        self.protocol.cancelled(&self.flags, Cancel::Request, None).is_none()
    }

    fn cancelled_answer(&self, cancel: Cancel, partial: Option<Value>) -> Option<Answer> {
        let answers = [Fault::AnswersCancelled, Fault::AnswersAfterSilence];
        if self.flags.has(Fault::NeverAnswersCancelled) {
            None
        } else if answers.into_iter().any(|fault| self.flags.has(fault)) {
            Some(Answer::error(wire::REQUEST_CANCELLED, "the request was cancelled"))
        } else if self.flags.has(Fault::WrongCancelledCode) {
            Some(Answer::error(wire::INTERNAL_ERROR, "interrupted"))
        } else {
            self.protocol.cancelled(&self.flags, cancel, partial)
        }
    }
}

// Work in steps, which a cancel stops.

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

// A child process, which works when it is asked to. It ends when its stdin ends.

/// The argument that makes the program its own helper.
pub(super) const HELPER_ARGUMENT: &str = "helper";

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
        let prefix =
            std::env::args().skip(1).take_while(|it| !crate::peer::flags::DIALECTS.contains(&it.as_str()));
        let mut child = Command::new(program)
            .args(prefix)
            .arg(HELPER_ARGUMENT)
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
pub(super) fn run_helper() -> ExitCode {
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
