//! A session and all that can be done to it: the peer, the user, the wire and the clock.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use rescind_core::dialect::{self, Dialect, Gate, Handshake, HandshakePart, LostStream, Role};
use rescind_core::inspect::{Inspection, RequestState};
use rescind_core::{
    AfterCancel, AnswerKind, Arrival, CallNumber, CallRefused, CallSpec, CancelKey, Cause, CauseKind,
    ExchangeId, Exempt, ForeignChild, HandlerEnd, InboundKey, Limits, Lost, Origin, OutboundKey, Output,
    RequestId, Scope, Session, SessionConfig, Work,
};

use super::invariants::{Broken, Ledger, holds};

/// What the dialects are told apart by, as far as the machine cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A cancelled request is answered.
    AnswerOwed,
    /// A peer that cancelled is owed silence.
    Silence,
    /// Cancels are acknowledged.
    Acknowledged,
    /// Nothing is cancelled before both sides have said what they can.
    Gated,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AnswerOwed, Self::Silence, Self::Acknowledged, Self::Gated];

    /// A dialect of this class.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::AnswerOwed => dialect::ACP,
            Self::Silence => dialect::MCP,
            Self::Acknowledged => dialect::ABP,
            Self::Gated => dialect::ACP_DRAFT,
        }
    }
}

/// One thing that happens. Requests and calls are named by their keys, which are the same in each replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The peer asks, under one of the ids.
    Request(u8),
    /// The peer begins the handshake, under an id of its own.
    Hello,
    /// The handshake is over: both sides cancel.
    Agreed,
    /// The peer cancels this id.
    Cancel(u8),
    /// The peer cancels the handshake.
    CancelHello,
    /// The peer cancels nothing.
    CancelNothing,
    /// A handler says how it ends.
    Offer(InboundKey, HandlerEnd),
    /// A handler's task is gone.
    Ended(InboundKey),
    /// A handler enters a critical section.
    Shield(InboundKey),
    /// And leaves it.
    Unshield(InboundKey),
    /// This side cancels a request it serves.
    LocalCancel(InboundKey),
    /// What was said of a request that is gone comes once more.
    Stale(InboundKey),
    /// The stream a request came on is lost.
    StreamLost(InboundKey),
    /// And is taken up again.
    StreamBack(InboundKey),
    /// This side calls, perhaps for a request it serves.
    Call(Option<InboundKey>),
    /// A handler calls on another connection.
    Adopt(InboundKey),
    /// That call ends by itself.
    Release(u64),
    /// A call goes on without its parent.
    Detach(OutboundKey),
    /// A call's frame is written.
    Written(OutboundKey),
    /// Its caller cancels it.
    CancelCall(OutboundKey, AfterCancel),
    /// Its cancel is written.
    CancelWritten(OutboundKey),
    /// The peer answers it.
    Answer(OutboundKey, AnswerKind),
    /// The peer acknowledges its cancel.
    Ack(OutboundKey, bool),
    /// It fails on its way.
    CallFailed(OutboundKey),
    /// An answer comes that nobody waits for.
    LateAnswer,
    /// The input ends.
    HalfClose,
    /// The connection is lost.
    Lost(Lost),
    /// This side shuts down.
    Shutdown,
    /// Time passes until something is due.
    Time,
}

/// Ids the peer uses, and how often it asks under each.
const IDS: u8 = 3;
const GENERATIONS: u8 = 2;
/// Cancels of each id, and calls of ours.
const CANCELS: u8 = 3;
const CALLS: u8 = 2;
const HELLO: i64 = 100;
const CHILD: u64 = 7;
/// Far above every key's slot and every exchange.
const CANCELS_COME_ON: ExchangeId = ExchangeId(900);
const DRAIN: Duration = Duration::from_secs(10);

/// How often each thing was done that would else be done for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Done {
    requests: [u8; IDS as usize],
    cancels: [u8; IDS as usize],
    calls: u8,
    adopted: bool,
    hello: u8,
    nothing: bool,
    late: bool,
    agreed: bool,
    shields: u8,
    streams: u8,
}

/// A session, the account of it, and the clock.
#[derive(Clone, Debug)]
pub struct World {
    session: Session,
    ledger: Ledger,
    done: Done,
    now: Instant,
    ordered: bool,
    gone: Option<InboundKey>,
    agreed_needed: bool,
}

impl World {
    /// Small limits, so that each is reached.
    #[must_use]
    pub fn new(class: Class, ordered: bool, start: Instant) -> Self {
        let mut limits = Limits::default();
        (limits.running, limits.queued, limits.calls, limits.parked, limits.remembered) = (2, 1, 2, 1, 2);
        let dialect = class.dialect();
        let agreed_needed = dialect.rules().gate == Gate::Declared || dialect.rules().session_required;
        let mut config = SessionConfig::new(dialect, Role::Server);
        (config.limits, config.ordered) = (limits, ordered);
        Self {
            session: Session::new(config),
            ledger: Ledger::default(),
            done: Done::default(),
            now: start,
            ordered,
            gone: None,
            agreed_needed,
        }
    }

    /// All that decides what can happen next, in a number.
    #[must_use]
    pub fn fingerprint(&self, seen: &Inspection) -> u64 {
        let mut hasher = DefaultHasher::new();
        (seen, &self.ledger, &self.done).hash(&mut hasher);
        hasher.finish()
    }

    /// What the session holds.
    #[must_use]
    pub fn inspect(&self) -> Inspection {
        self.session.inspect(self.now)
    }

    fn origin(&self, exchange: ExchangeId) -> Origin {
        let exchange = if self.ordered { ExchangeId::NONE } else { exchange };
        Origin { scope: Scope::Session, exchange, principal: None }
    }

    fn hears_cancels(&self) -> bool {
        !self.agreed_needed || self.done.agreed
    }

    /// Everything that can happen now.
    #[must_use]
    pub fn inputs(&self, seen: &Inspection) -> Vec<Input> {
        let mut inputs = Vec::with_capacity(40);
        if !self.ledger.lost {
            self.peers_inputs(&mut inputs);
            inputs.extend([Input::Lost(Lost::CancelNow), Input::Lost(Lost::Detach), Input::HalfClose]);
        }
        inputs.extend([Input::Shutdown, Input::Time]);
        inputs.extend(self.gone.map(Input::Stale));
        if self.done.calls < CALLS {
            inputs.push(Input::Call(None));
        }
        for view in &seen.requests {
            self.handlers_inputs(view.key, view.state, &mut inputs);
        }
        inputs.extend(self.ledger.foreign.keys().map(|child| Input::Release(*child)));
        for (key, made) in &self.ledger.made {
            if !made.written {
                inputs.push(Input::Written(*key));
            }
            if made.parent.is_some() {
                inputs.push(Input::Detach(*key));
            }
            inputs.push(Input::CancelCall(*key, AfterCancel::WaitForPeer));
            inputs.push(Input::CancelCall(*key, AfterCancel::ReturnNow));
            if made.cancel.is_some_and(|(_, written)| !written) {
                inputs.push(Input::CancelWritten(*key));
            }
            if self.ledger.lost {
                continue;
            }
            inputs.push(Input::Answer(*key, AnswerKind::Value));
            inputs.push(Input::Answer(*key, AnswerKind::Cancelled));
            if made.cancel.is_some_and(|(_, written)| written) {
                inputs.extend([Input::Ack(*key, true), Input::Ack(*key, false)]);
            }
            if !self.ordered {
                inputs.push(Input::CallFailed(*key));
            }
        }
        inputs
    }

    fn peers_inputs(&self, inputs: &mut Vec<Input>) {
        for id in 0..IDS {
            if self.done.requests.get(usize::from(id)).is_some_and(|asked| *asked < GENERATIONS) {
                inputs.push(Input::Request(id));
            }
            if self.done.cancels.get(usize::from(id)).is_some_and(|cancels| *cancels < CANCELS) {
                inputs.push(Input::Cancel(id));
            }
        }
        match self.done.hello {
            0 if self.session.dialect().rules().handshake.is_some() => inputs.push(Input::Hello),
            1 => inputs.push(Input::CancelHello),
            _ => {}
        }
        if !self.done.agreed && self.agreed_needed {
            inputs.push(Input::Agreed);
        }
        if !self.done.nothing {
            inputs.push(Input::CancelNothing);
        }
        if !self.done.late && self.done.calls > 0 {
            inputs.push(Input::LateAnswer);
        }
    }

    fn handlers_inputs(&self, key: InboundKey, state: RequestState, inputs: &mut Vec<Input>) {
        let Some(served) = self.ledger.served.get(&key) else { return };
        inputs.push(Input::LocalCancel(key));
        if !self.ordered && self.done.streams < 2 {
            inputs.extend([Input::StreamLost(key), Input::StreamBack(key)]);
        }
        if state == RequestState::Queued || state == RequestState::Ended || !served.started {
            return;
        }
        inputs.push(Input::Ended(key));
        if !served.offered {
            let ends = [HandlerEnd::Value, HandlerEnd::Error, HandlerEnd::Stopped, HandlerEnd::Panicked];
            inputs.extend(ends.map(|end| Input::Offer(key, end)));
            if self.done.calls < CALLS {
                inputs.push(Input::Call(Some(key)));
            }
            if !self.done.adopted {
                inputs.push(Input::Adopt(key));
            }
        }
        if served.shields > 0 {
            inputs.push(Input::Unshield(key));
        } else if self.done.shields < 2 {
            inputs.push(Input::Shield(key));
        }
    }

    /// Does one thing, and holds what came of it against every invariant.
    ///
    /// # Errors
    /// An invariant is broken.
    pub fn apply(&mut self, input: Input, before: &Inspection) -> Result<Inspection, Broken> {
        let accepted = self.give(input)?;
        let mut outputs = Vec::new();
        while let Some(output) = self.session.poll_output() {
            outputs.push(output);
        }
        for output in &outputs {
            self.ledger.take(&self.session, output)?;
            if let Output::Gone(key) = output {
                self.gone = Some(*key);
            }
        }
        let after = self.inspect();
        self.ledger.check(&self.session, &after)?;
        match input {
            Input::Request(_) | Input::Hello if accepted.is_none() => check_refusal(&outputs)?,
            Input::Cancel(id) => {
                self.check_cancel(&RequestId::number(i64::from(id)), before, &after, &outputs)?
            }
            Input::CancelHello => self.check_cancel(&RequestId::number(HELLO), before, &after, &outputs)?,
            Input::Stale(key) => {
                holds(outputs.is_empty(), "I14", || {
                    format!("{key:?} is gone, and its word counts: {outputs:?}")
                })?;
                holds(*before == after, "I14", || {
                    format!("{key:?} is gone, and its word changes something")
                })?;
            }
            _ => {}
        }
        Ok(after)
    }

    fn give(&mut self, input: Input) -> Result<Option<InboundKey>, Broken> {
        let now = self.now;
        match input {
            Input::Request(id) => return self.request(id),
            Input::Hello => {
                self.done.hello = 1;
                let method = self.session.dialect().rules().handshake.unwrap_or_default();
                return self.ask(RequestId::number(HELLO), method, ExchangeId(800), true);
            }
            Input::Agreed => {
                self.done.agreed = true;
                let yes = Handshake::new(Some(true), None);
                self.session.handshake(HandshakePart::Params, &yes);
                self.session.handshake(HandshakePart::Result, &yes);
            }
            Input::Cancel(id) => {
                if let Some(cancels) = self.done.cancels.get_mut(usize::from(id)) {
                    *cancels += 1;
                }
                self.cancel(Some(RequestId::number(i64::from(id))));
            }
            Input::CancelHello => {
                self.done.hello = 2;
                self.cancel(Some(RequestId::number(HELLO)));
            }
            Input::CancelNothing => {
                self.done.nothing = true;
                self.cancel(None);
            }
            Input::Offer(key, end) => {
                if let Some(served) = self.ledger.served.get_mut(&key) {
                    served.offered = true;
                }
                self.session.local_answer(now, key, end);
            }
            Input::Ended(key) => self.session.local_ended(now, key),
            Input::Shield(key) => {
                self.done.shields += 1;
                self.shields(key, 1);
                self.session.local_shield(now, key);
            }
            Input::Unshield(key) => {
                self.shields(key, 0);
                self.session.local_unshield(now, key);
            }
            Input::LocalCancel(key) => {
                let _ = self.session.local_cancel(now, key, Cause::new(CauseKind::Local));
            }
            Input::Stale(key) => {
                let _ = self.session.local_cancel(now, key, Cause::new(CauseKind::Local));
                self.session.local_shield(now, key);
                self.session.local_unshield(now, key);
                self.session.local_answer(now, key, HandlerEnd::Value);
                self.session.local_ended(now, key);
            }
            Input::StreamLost(key) | Input::StreamBack(key) => self.stream(key, input),
            Input::Time => {
                self.now = self.session.next_timeout().map_or(now, |due| due.max(now));
                self.session.handle_timeout(self.now);
            }
            Input::HalfClose => self.session.recv_half_close(now),
            Input::Lost(lost) => {
                self.ledger.lost = true;
                self.session.recv_lost(now, lost);
            }
            Input::Shutdown => self.session.local_shutdown(now, DRAIN),
            _ => self.give_to_calls(input)?,
        }
        Ok(None)
    }

    fn give_to_calls(&mut self, input: Input) -> Result<(), Broken> {
        let now = self.now;
        match input {
            Input::Call(parent) => return self.call(parent),
            Input::Adopt(parent) => {
                self.done.adopted = true;
                if self.session.local_adopt(now, parent, ForeignChild(CHILD)).is_ok() {
                    self.ledger.foreign.insert(CHILD, parent);
                }
            }
            Input::Release(child) => {
                if let Some(parent) = self.ledger.foreign.remove(&child) {
                    self.session.local_release(parent, ForeignChild(child));
                }
            }
            Input::Detach(key) => {
                if let Some(made) = self.ledger.made.get_mut(&key) {
                    made.parent = None;
                }
                self.session.local_detach(key);
            }
            Input::Written(key) => {
                if let Some(made) = self.ledger.made.get_mut(&key).filter(|made| !made.settled) {
                    made.written = true;
                    self.session.local_written(now, key);
                }
            }
            Input::CancelCall(key, after) => {
                let _ = self.session.local_cancel_call(now, key, Cause::new(CauseKind::Caller), Some(after));
            }
            Input::CancelWritten(key) => {
                // As the driver does: a cancel that an answer has disarmed is not written.
                if self.session.wants_cancel(key) {
                    if let Some((_, written)) =
                        self.ledger.made.get_mut(&key).and_then(|made| made.cancel.as_mut())
                    {
                        *written = true;
                    }
                    self.session.local_cancel_written(now, key);
                }
            }
            Input::Answer(key, kind) => {
                let number = self.ledger.made.get(&key).filter(|made| made.written).map(|made| made.number);
                let settled = self.session.recv_answer(now, number, kind);
                holds(settled.is_none_or(|settled| settled == key), "I4", || {
                    format!("the answer to {key:?} settled {settled:?}")
                })?;
            }
            Input::Ack(key, cancelled) => {
                let cancel =
                    self.ledger.made.get(&key).and_then(|made| made.cancel).map(|(number, _)| number);
                self.session.recv_ack(now, cancel, cancelled);
            }
            Input::CallFailed(key) => {
                let written = self.ledger.made.get(&key).is_some_and(|made| made.written);
                self.session.recv_call_failed(now, key, written);
            }
            Input::LateAnswer => {
                self.done.late = true;
                let settled = self.session.recv_answer(now, Some(CallNumber(99)), AnswerKind::Value);
                holds(settled.is_none(), "I4", || format!("an answer to nothing settled {settled:?}"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn request(&mut self, id: u8) -> Result<Option<InboundKey>, Broken> {
        let Some(asked) = self.done.requests.get_mut(usize::from(id)) else { return Ok(None) };
        *asked += 1;
        let exchange = ExchangeId(u64::from(id) * u64::from(GENERATIONS) + u64::from(*asked));
        self.ask(RequestId::number(i64::from(id)), "work", exchange, false)
    }

    fn ask(
        &mut self,
        id: RequestId,
        method: &str,
        exchange: ExchangeId,
        is_handshake: bool,
    ) -> Result<Option<InboundKey>, Broken> {
        let arrival = Arrival {
            id: id.clone(),
            cancel_key: CancelKey::SameAsId,
            method,
            exempt: Exempt::No,
            tag: 0,
            origin: self.origin(exchange),
            server_cancellable: false,
            work: Work::Task,
            admission: Ok(()),
        };
        let key = self.session.recv_request(self.now, arrival);
        if let Some(key) = key {
            self.ledger.accept(key, id, is_handshake)?;
        }
        Ok(key)
    }

    fn cancel(&mut self, id: Option<RequestId>) {
        let ack = (self.session.dialect().rules().ack == dialect::AckStyle::Acknowledged)
            .then(|| RequestId::number(500));
        let origin = self.origin(CANCELS_COME_ON);
        self.session.recv_cancel(self.now, id, None, ack, &origin);
    }

    fn call(&mut self, parent: Option<InboundKey>) -> Result<(), Broken> {
        self.done.calls += 1;
        let mut spec = CallSpec::new("ask");
        spec.parent = parent;
        match self.session.local_call(self.now, &spec) {
            Ok((key, number)) => self.ledger.make(key, number, parent),
            Err(CallRefused::TooMany | CallRefused::Disconnected | CallRefused::BornCancelled(_)) => Ok(()),
        }
    }

    fn shields(&mut self, key: InboundKey, shields: u8) {
        if let Some(served) = self.ledger.served.get_mut(&key) {
            served.shields = shields;
        }
    }

    fn stream(&mut self, key: InboundKey, input: Input) {
        self.done.streams += 1;
        let seen = self.inspect();
        let Some((exchange, _)) = seen.exchanges.iter().find(|(_, on)| *on == key) else { return };
        match input {
            Input::StreamLost(_) => self.session.recv_exchange_closed(self.now, *exchange),
            _ => self.session.recv_exchange_resumed(self.now, *exchange),
        }
    }

    /// A cancel reaches the request it names and its descendants, at once, and nothing else.
    fn check_cancel(
        &self,
        id: &RequestId,
        before: &Inspection,
        after: &Inspection,
        outputs: &[Output],
    ) -> Result<(), Broken> {
        let target =
            before.requests.iter().find(|view| view.id.1 == *id && view.state != RequestState::Ended);
        for output in outputs {
            let reached = match output {
                Output::Signal { key, .. } | Output::Silence { key, .. } | Output::Start(key) => Some(*key),
                Output::Reply(reply) => Some(reply.key),
                Output::SendCancel { call, .. } | Output::TakeBack(call) => {
                    before.calls.iter().find(|view| view.key == *call).and_then(|view| view.parent)
                }
                _ => continue,
            };
            let own = reached.is_some() && reached == target.map(|view| view.key);
            holds(own, "I4", || format!("a cancel of {id:?} brought {output:?}"))?;
        }
        let Some(target) = target else {
            let mut unknown = after.clone();
            unknown.parked.clone_from(&before.parked);
            return holds(unknown == *before, "I8", || {
                format!("a cancel of {id:?}, which is unknown, left something")
            });
        };
        let key = target.key;
        let now = after.requests.iter().find(|view| view.key == key);
        if target.cause.is_some() || !target.cancellable || !self.hears_cancels() {
            let same = now.map(|now| (now.state, now.cause)) == Some((target.state, target.cause));
            return holds(same, "I7", || {
                format!("a cancel that counts for nothing moved {key:?}: {target:?}, {now:?}")
            });
        }
        let signalled =
            outputs.iter().any(|output| matches!(output, Output::Signal { key: to, .. } if *to == key));
        match target.state {
            RequestState::Running if target.shields == 0 => {
                holds(signalled, "L1", || format!("{key:?} was cancelled and not signalled"))
            }
            RequestState::Queued => {
                let entered = outputs.iter().any(|output| matches!(output, Output::Start(to) if *to == key));
                holds(now.is_none() && !entered, "L1", || {
                    format!("{key:?} was cancelled in the queue and is there")
                })
            }
            _ => {
                holds(!signalled, "I6", || format!("{key:?} was signalled, though it is decided or shielded"))
            }
        }
    }

    /// I3 and L3: from here, a lost connection ends, whatever its handlers do, and leaves nothing.
    ///
    /// # Errors
    /// Something is left.
    pub fn check_end(&self) -> Result<(), Broken> {
        let mut end = self.clone();
        let mut seen = end.inspect();
        if !end.ledger.lost {
            seen = end.apply(Input::Lost(Lost::CancelNow), &seen)?;
        }
        for _ in 0..100 {
            let ended = end.ledger.served.iter().find(|(_, served)| served.aborted || served.offered);
            let next = match ended.map(|(key, _)| *key) {
                Some(key) => Input::Ended(key),
                None if end.session.next_timeout().is_some() => Input::Time,
                None => break,
            };
            seen = end.apply(next, &seen)?;
        }
        let unsettled = end.ledger.made.values().filter(|made| !made.settled).count();
        holds(unsettled == 0, "I13", || format!("{unsettled} callers wait for ever: {:?}", end.ledger.made))?;
        holds(end.session.is_finished(), "L3", || format!("the lost connection does not end: {seen:?}"))?;
        let left = seen.timers.len() + seen.queue.len() + seen.exchanges.len() + seen.cancel_keys.len();
        let left = left + seen.cancels.len() + seen.foreign.len() + seen.permits.0 + seen.permits.1;
        holds(left == 0, "I3", || format!("the ended connection has left: {seen:?}"))
    }

    /// The machine's own rule for a lost stream, for the trace.
    #[must_use]
    pub fn lost_stream(&self) -> LostStream {
        self.session.dialect().rules().lost_stream
    }
}

/// A request that is not accepted is refused once, or dropped where the dialect has no words.
fn check_refusal(outputs: &[Output]) -> Result<(), Broken> {
    let refusals = outputs.iter().filter(|output| {
        matches!(output, Output::Refuse { .. } | Output::RefuseCancelled { .. } | Output::Finish { .. })
    });
    let refusals = refusals.count();
    holds(refusals <= 1, "I1", || format!("one request was refused {refusals} times: {outputs:?}"))
}
