//! The required observations of the peer and the handlers, defined without slots, timers or queues.

use std::collections::BTreeMap;
use std::time::Duration;

use rescind_core::dialect::{AckStyle, CancelFrom, CancelledReply, Dialect, EarlyCancel, Role};
use rescind_core::{AckStatus, CauseKind, HandlerResult};

use super::caller::{CallEvent, Caller, Own};

/// The number of ids that the peer uses.
pub(super) const IDS: u8 = 4;
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long an early cancel waits for its request.
pub(super) const EARLY: Duration = Duration::from_secs(30);
/// How long the status of an id is known.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);

/// The parameters of a case: a dialect, the role of this side, and whether frames arrive in the order in which they
/// were sent.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) dialect: Dialect,
    pub(super) role: Role,
    pub(super) ordered: bool,
}

impl Case {
    /// Whether requests of the peer may become tasks.
    pub(super) fn has_tasks(&self) -> bool {
        self.dialect.rules().tasks.is_some() && self.role == Role::Server
    }
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Ask(u8),
    /// The same, with params that ask for a task: no cancel message cancels it.
    AskForTask(u8),
    /// With any id: one in use, one that was used, or one of a later request.
    Cancel(u8),
    /// The handler of the n-th request reports its result.
    End(usize, HandlerResult),
    /// Its task has ended.
    Gone(usize),
    /// The handler of the n-th request makes it a task.
    BecomeTask(usize),
    /// The task that the n-th request became is cancelled with this cause: by a client, or because its time is over.
    CancelTask(usize, CauseKind),
    /// An event of a call of this side.
    Own(Own),
    /// The connection is gone. Tasks go on.
    Lost,
    /// The server of the connection that is gone shuts down.
    ShutDown,
    Pass(Duration),
}

/// A required observation, with the number of the request in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Started(usize),
    Signalled(usize),
    Value(usize),
    Cancelled(usize),
    Failed(usize),
    Silence(usize),
    Aborted(usize),
    Refused(u8),
    /// Its cancel came first: it is never started, and is answered as cancelled.
    Unborn(u8),
    /// The same in a protocol that forbids an answer.
    UnbornInSilence(u8),
    /// A cancel that names nothing.
    Nothing,
    /// A cancel that waits for its request.
    Waits,
    /// A cancel from a side that may not cancel.
    Unheard,
    /// The status of an acknowledgement of a cancel.
    Acknowledged(AckStatus),
    /// The answer is the handle of a task.
    Handed(usize),
    /// It did not become a task.
    NotATask(usize),
    /// The task has ended for its clients: with this cause, or by its handler.
    TaskEnded(usize, Option<CauseKind>),
    /// The handler of the task is signalled.
    TaskSignalled(usize),
    /// Whether a cancel of the task took effect.
    TaskCancelled(usize, bool),
    /// An observation of a call of this side.
    CallEvent(CallEvent),
}

impl Seen {
    /// The invariant that requires it.
    pub(super) const fn invariant(self) -> &'static str {
        match self {
            Self::Started(_)
            | Self::Failed(_)
            | Self::Cancelled(_)
            | Self::Silence(_)
            | Self::Handed(_)
            | Self::NotATask(_) => "I1",
            Self::TaskEnded(..) | Self::TaskCancelled(..) => "I16",
            Self::TaskSignalled(_) => "I17",
            Self::Signalled(_) => "L1",
            Self::Value(_) => "I6",
            Self::Aborted(_) => "L3",
            Self::Refused(_) => "I4",
            Self::Unborn(_) | Self::UnbornInSilence(_) | Self::Nothing | Self::Waits => "I8",
            Self::Unheard | Self::Acknowledged(_) => "I7",
            Self::CallEvent(reported) => match reported {
                CallEvent::AlreadyCancelled | CallEvent::Cancelled { cause: CauseKind::Parent, .. } => "I5",
                CallEvent::TakenBack(_) | CallEvent::CancelSent(_) => "I12",
                CallEvent::Acked(..) => "I7",
                CallEvent::Late | CallEvent::Unknown => "I14",
                CallEvent::NotMade
                | CallEvent::Canceller(_)
                | CallEvent::Answered(..)
                | CallEvent::Cancelled { .. }
                | CallEvent::Disconnected { .. }
                | CallEvent::Unresponsive(_) => "I13",
            },
        }
    }

    /// The invariant that is violated if the machine gave a different observation: the caller's invariant, if both
    /// settle its call.
    pub(super) fn broken_by(self, other: Self) -> &'static str {
        match (self, other) {
            (
                Self::CallEvent(CallEvent::Cancelled { call, .. }),
                Self::CallEvent(CallEvent::Cancelled { call: same, .. }),
            ) if call == same => "I13",
            _ => self.invariant(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Asked {
    pub(super) id: u8,
    /// Whether no cancel message cancels it.
    exempt: bool,
    /// Whether it became a task. Its id is free then, and it is settled when the task has ended.
    pub(super) is_task: bool,
    signalled_at: Option<Duration>,
    settled: bool,
    aborted: bool,
    pub(super) alive: bool,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Reference {
    /// Whether the answer to a cancelled request is decided when its cancel arrives.
    at_once: bool,
    silence: bool,
    hears_cancels: bool,
    acknowledges: bool,
    waits_for_requests: bool,
    pub(super) has_tasks: bool,
    /// Whether params can ask for a task.
    pub(super) asks_for_tasks: bool,
    pub(super) now: Duration,
    pub(super) asked: Vec<Asked>,
    pub(super) caller: Caller,
    /// When an id was settled last, and whether as cancelled.
    settled: BTreeMap<u8, (Duration, bool)>,
    /// The highest id whose status is forgotten.
    forgotten: Option<u8>,
    /// Cancels that arrived before their requests, with their times.
    early: BTreeMap<u8, Duration>,
    pub(super) lost: bool,
    /// The requests whose children are cancelled at the end of this step.
    over: Vec<usize>,
    pub(super) seen: Vec<Seen>,
}

impl Reference {
    pub(super) fn of(case: &Case) -> Self {
        let rules = case.dialect.rules();
        let silence = rules.peer_cancelled == CancelledReply::Silence;
        let at_once = silence || rules.peer_cancelled == CancelledReply::OwnShape;
        let client_alone = rules.cancel_from == CancelFrom::Client;
        let acknowledges = rules.ack == AckStyle::Acknowledged;
        Self {
            at_once,
            silence,
            hears_cancels: !client_alone || case.role == Role::Server,
            acknowledges,
            waits_for_requests: match rules.early {
                EarlyCancel::Never => false,
                EarlyCancel::WhereUnordered => !case.ordered,
                EarlyCancel::Always => true,
            },
            has_tasks: case.has_tasks(),
            asks_for_tasks: case.has_tasks() && rules.uncancellable_param.is_some(),
            now: Duration::ZERO,
            asked: Vec::new(),
            caller: Caller::new(!client_alone || case.role == Role::Client, silence, acknowledges),
            settled: BTreeMap::new(),
            forgotten: None,
            early: BTreeMap::new(),
            lost: false,
            over: Vec::new(),
            seen: Vec::new(),
        }
    }

    pub(super) fn occupied(&self, id: u8) -> Option<usize> {
        self.asked.iter().position(|asked| asked.alive && !asked.is_task && asked.id == id)
    }

    /// Whether nothing runs and no call is open, on a connection that is gone.
    pub(super) fn is_finished(&self) -> bool {
        self.lost && !self.asked.iter().any(|asked| asked.alive) && self.caller.open() == 0
    }

    /// A request gets its answer. On a lost connection it is not observed.
    fn answer(&mut self, number: usize, answer: Seen, as_cancelled: bool) {
        let asked = &mut self.asked[number];
        asked.settled = true;
        self.over.push(number);
        self.settled.insert(asked.id, (self.now, as_cancelled));
        if !self.lost {
            self.seen.push(answer);
        }
    }

    /// The cancelled answer, or no answer if the protocol forbids it.
    fn cancelled(&mut self, number: usize) {
        let answer = if self.silence { Seen::Silence(number) } else { Seen::Cancelled(number) };
        self.answer(number, answer, true);
    }

    fn signal(&mut self, number: usize) {
        self.asked[number].signalled_at = Some(self.now);
        if self.at_once {
            self.cancelled(number);
        }
        self.seen.push(Seen::Signalled(number));
        self.over.push(number);
    }

    fn acknowledge(&mut self, status: AckStatus) {
        if self.acknowledges {
            self.seen.push(Seen::Acknowledged(status));
        }
    }

    fn became_of(&self, id: u8) -> AckStatus {
        match self.settled.get(&id) {
            Some((_, true)) => AckStatus::Cancelled,
            Some((_, false)) => AckStatus::AlreadyCompleted,
            None => AckStatus::NotFound,
        }
    }

    fn forget(&mut self) {
        let is_old = |at: Duration| self.now.saturating_sub(at) >= REMEMBERED;
        let old = self.settled.iter().filter(|(_, (at, _))| is_old(*at)).map(|(id, _)| *id).max();
        self.settled.retain(|_, (at, _)| !is_old(*at));
        self.forgotten = self.forgotten.max(old);
    }

    fn cancel(&mut self, id: u8) {
        let named = self.occupied(id);
        if !self.hears_cancels {
            self.seen.push(Seen::Unheard);
            let is_there = named.is_some();
            self.acknowledge(if is_there { AckStatus::NotCancellable } else { AckStatus::NotFound });
            return;
        }
        match named.map(|number| (number, self.asked[number])) {
            Some((_, Asked { exempt: true, .. })) => {
                self.seen.push(Seen::Unheard);
                self.acknowledge(AckStatus::NotCancellable);
            }
            Some((number, Asked { settled: false, signalled_at: None, .. })) => {
                self.acknowledge(AckStatus::Cancelled);
                self.signal(number);
            }
            Some((_, Asked { settled: false, .. })) => self.acknowledge(AckStatus::Cancelled),
            found => {
                let became = self.became_of(id);
                let waits = self.early.get(&id).is_some_and(|since| self.now.saturating_sub(*since) < EARLY);
                let never_was = found.is_none()
                    && became == AckStatus::NotFound
                    && self.forgotten.is_none_or(|highest| id > highest);
                if self.waits_for_requests && never_was && !waits {
                    self.early.insert(id, self.now);
                    self.seen.push(Seen::Waits);
                    self.acknowledge(AckStatus::Cancelled);
                } else {
                    self.seen.push(Seen::Nothing);
                    self.acknowledge(became);
                }
            }
        }
    }

    fn ask(&mut self, id: u8, exempt: bool) {
        if let Some(number) = self.occupied(id) {
            self.seen.push(Seen::Refused(id));
            // Its handler only drains: its status is remembered again for the full time.
            if self.asked[number].settled {
                let was_cancelled = self.became_of(id) == AckStatus::Cancelled;
                self.settled.insert(id, (self.now, was_cancelled));
            }
            return;
        }
        let waited = self.early.remove(&id).is_some_and(|since| self.now.saturating_sub(since) < EARLY);
        if waited && exempt {
            self.seen.push(Seen::Unheard);
        } else if waited {
            self.settled.insert(id, (self.now, true));
            self.seen.push(if self.silence { Seen::UnbornInSilence(id) } else { Seen::Unborn(id) });
            return;
        }
        self.asked.push(Asked {
            id,
            exempt,
            is_task: false,
            signalled_at: None,
            settled: false,
            aborted: false,
            alive: true,
        });
        self.seen.push(Seen::Started(self.asked.len() - 1));
    }

    fn end(&mut self, number: usize, end: HandlerResult) {
        let asked = self.asked[number];
        if !asked.alive || asked.settled {
            return;
        }
        if asked.is_task {
            // A handler that stops without a cancel has cancelled its task.
            let cause = (end == HandlerResult::Stopped).then_some(CauseKind::Local);
            self.end_task(number, cause);
            return;
        }
        match (asked.signalled_at, end) {
            (_, HandlerResult::Value) | (None, HandlerResult::Error) => {
                self.answer(number, Seen::Value(number), false);
            }
            (None, HandlerResult::Panicked) => self.answer(number, Seen::Failed(number), false),
            // A handler that stops without a cancel of its peer still sends an answer.
            (None, HandlerResult::Stopped) => self.answer(number, Seen::Cancelled(number), true),
            (Some(_), _) => self.cancelled(number),
        }
    }

    /// A running request whose connection is open becomes a task: it is answered, and its id is free.
    fn become_task(&mut self, number: usize) {
        let asked = &mut self.asked[number];
        let runs = asked.alive && !asked.is_task && !asked.settled && asked.signalled_at.is_none();
        if !runs || self.lost {
            self.seen.push(Seen::NotATask(number));
            return;
        }
        asked.is_task = true;
        self.settled.insert(asked.id, (self.now, false));
        self.seen.push(Seen::Handed(number));
    }

    fn end_task(&mut self, number: usize, cause: Option<CauseKind>) {
        self.asked[number].settled = true;
        self.over.push(number);
        self.seen.push(Seen::TaskEnded(number, cause));
    }

    fn cancel_task(&mut self, number: usize, cause: CauseKind) {
        self.end_task(number, Some(cause));
        self.asked[number].signalled_at = Some(self.now);
        self.seen.push(Seen::TaskSignalled(number));
    }

    /// Whether it is a task that has not ended.
    fn is_open_task(&self, number: usize) -> bool {
        let asked = self.asked[number];
        asked.is_task && asked.alive && !asked.settled
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.forget();
        for number in 0..self.asked.len() {
            let asked = self.asked[number];
            let is_due = asked.signalled_at.is_some_and(|at| at + GRACE <= self.now);
            if !is_due || !asked.alive || asked.aborted {
                continue;
            }
            if !asked.settled {
                self.cancelled(number);
            }
            self.asked[number].aborted = true;
            self.seen.push(Seen::Aborted(number));
        }
        self.caller.pass(self.now, &mut self.seen);
    }

    fn lose(&mut self) {
        self.lost = true;
        self.caller.lose(&mut self.seen);
        for number in 0..self.asked.len() {
            let asked = self.asked[number];
            if asked.alive && !asked.is_task && !asked.settled && asked.signalled_at.is_none() {
                self.signal(number);
            }
        }
    }

    pub(super) fn happen(&mut self, event: Event) {
        let from = self.seen.len();
        match event {
            Event::Ask(id) => self.ask(id, false),
            Event::AskForTask(id) => self.ask(id, true),
            Event::Cancel(id) => self.cancel(id),
            Event::End(number, end) => self.end(number, end),
            Event::Gone(number) => {
                self.end(number, HandlerResult::Panicked);
                self.asked[number].alive = false;
            }
            Event::BecomeTask(number) => self.become_task(number),
            Event::CancelTask(number, cause) => {
                let is_open = self.is_open_task(number);
                self.seen.push(Seen::TaskCancelled(number, is_open));
                if is_open {
                    self.cancel_task(number, cause);
                }
            }
            Event::Own(Own::Call(Some(parent), ..)) if !self.lost && !self.may_have_children(parent) => {
                self.seen.push(Seen::CallEvent(CallEvent::AlreadyCancelled));
            }
            Event::Own(own) => self.caller.happen(own, self.now, self.lost, &mut self.seen),
            Event::Lost => self.lose(),
            Event::ShutDown => {
                for number in
                    (0..self.asked.len()).filter(|number| self.is_open_task(*number)).collect::<Vec<_>>()
                {
                    self.cancel_task(number, CauseKind::Shutdown);
                }
            }
            Event::Pass(time) => self.pass(time),
        }
        for parent in std::mem::take(&mut self.over) {
            self.caller.cascade(parent, self.now, &mut self.seen);
        }
        in_no_order(event, &mut self.seen[from..]);
    }

    fn may_have_children(&self, parent: usize) -> bool {
        let asked = self.asked[parent];
        asked.alive && !asked.settled && asked.signalled_at.is_none()
    }
}

/// Events that are due at the same time, and the effects of a lost connection, have no order.
pub(super) fn in_no_order(event: Event, seen: &mut [Seen]) {
    if matches!(event, Event::Pass(_) | Event::Lost | Event::ShutDown) {
        seen.sort_by_cached_key(|seen| format!("{seen:?}"));
    }
}

/// The cause of all cancels of this side in these cases.
pub(super) const BY_US: CauseKind = CauseKind::Caller;
