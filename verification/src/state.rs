//! A session, the account of it and the clock: one state of a search.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rescind_core::dialect::{AckStyle, CancelFrom, CapabilityGate, Role};
use rescind_core::inspect::Inspection;
use rescind_core::{
    AckStatus, ExchangeId, InboundKey, Limits, Origin, Output, Principal, RequestId, Scope, Session,
    SessionConfig,
};

use super::calls::CallInput;
use super::class::{Class, Order};
use super::expected::check_owed;
use super::input::{Declared, Input};
use super::invariants::{Broken, holds};
use super::number::number_of;
use super::oracle::{Kind, Ledger, Name};
use super::shutdown_oracle::Begun;

/// Ids the peer uses, and how often it asks under each.
pub(super) const IDS: u8 = 3;
/// The one of them whose handler is a thread.
pub(super) const BLOCKING: u8 = 1;
pub(super) const GENERATIONS: u8 = 2;
/// Calls of ours.
pub(super) const CALLS: u8 = 2;
pub(super) const HELLO: i64 = 100;
pub(super) const CHILD: u64 = 7;
pub(super) const HELLO_COMES_ON: ExchangeId = ExchangeId(800);
/// Far above every key's slot and every exchange.
pub(super) const CANCELS_COME_ON: ExchangeId = ExchangeId(900);
/// The limit of the whole server that is reached.
pub(super) const OVER: &str = "running on all connections";
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// How often each thing was done that would else be done for ever: each of them leaves a mark, and marks are never used again.
/// What leaves none leads back to where it was done, and all else comes to an end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Done {
    pub(super) requests: [u8; IDS as usize],
    pub(super) calls: u8,
    pub(super) hello: bool,
    pub(super) agreed: Option<Declared>,
}

/// A session, the account of it, and the clock.
#[derive(Clone, Debug)]
pub struct MachineState {
    pub(super) session: Session,
    pub(super) ledger: Ledger,
    pub(super) done: Done,
    pub(super) now: Instant,
    pub(super) class: Class,
    pub(super) ordered: bool,
    pub(super) is_exchange_scoped: bool,
    pub(super) gone: Option<InboundKey>,
    pub(super) agreed_needed: bool,
    /// What becomes of a late cancel: the last keys that were settled.
    pub(super) remembered: VecDeque<(RequestId, AckStatus, Instant)>,
    /// When what ends all requests began.
    pub(super) begun: Begun,
    /// Frames that were no message.
    pub(super) bad_frames: u32,
    /// Who asks under the one id that is known by more than its number.
    somebody: Principal,
    /// Who asks nothing.
    pub(super) stranger: Principal,
}

impl MachineState {
    /// Small limits, so that each is reached.
    #[must_use]
    pub fn new(class: Class, order: Order, start: Instant) -> Self {
        let mut limits = Limits::default();
        let ordered = order == Order::Ordered;
        (limits.max_running_handlers, limits.max_blocking_handlers, limits.max_queued_requests) = (2, 1, 1);
        (limits.max_calls, limits.max_early_cancels, limits.max_settled_ids) = (2, 1, 2);
        // One child a step, so that what comes between the slices of a cascade is seen.
        limits.max_cancels_per_step = 1;
        // Else the end of that grace is not seen.
        limits.lost_stream_grace = Some(limits.detach_grace);
        let dialect = class.dialect();
        let agreed_needed =
            dialect.rules().gate == CapabilityGate::Declared || dialect.rules().session_required;
        let mut config = SessionConfig::new(dialect, class.role());
        (config.limits, config.ordered) = (limits, ordered);
        config.exchange_scoped = class.is_exchange_scoped(order);
        let is_exchange_scoped = config.exchange_scoped;
        Self {
            session: Session::new(config),
            ledger: Ledger::default(),
            done: Done::default(),
            now: start,
            class,
            ordered,
            is_exchange_scoped,
            gone: None,
            agreed_needed,
            remembered: VecDeque::new(),
            begun: Begun::default(),
            bad_frames: 0,
            somebody: Principal("somebody".into()),
            stranger: Principal("stranger".into()),
        }
    }

    /// The state of the machine in a number, and that of it and of the account of what it owes.
    #[must_use]
    pub(super) fn numbers(&self, seen: &Inspection) -> (u64, u64) {
        let machine = number_of(seen);
        (machine, number_of(&(machine, &self.ledger)))
    }

    /// All that decides what can happen next, in a number: the state, and what was done before.
    #[must_use]
    pub(super) fn situation(&self, number: u64) -> u64 {
        number_of(&(number, &self.done))
    }

    /// What the session holds.
    #[must_use]
    pub fn inspect(&self) -> Inspection {
        self.session.inspect(self.now)
    }

    /// An exchange, where there are such.
    pub(super) const fn on(&self, exchange: ExchangeId) -> ExchangeId {
        if self.ordered { ExchangeId::NONE } else { exchange }
    }

    pub(super) fn origin(&self, name: &Name, exchange: ExchangeId) -> Origin {
        Origin {
            scope: name.scope,
            exchange: self.on(exchange),
            principal: name.principal.clone(),
            client: None,
        }
    }

    const fn scope(&self, exchange: ExchangeId) -> Scope {
        if self.is_exchange_scoped { Scope::Exchange(exchange) } else { Scope::Session }
    }

    /// What the next request under one of the ids is known by: a number, another, and the text of the first. Where cancels have keys of
    /// their own, two requests have each other's id for a key, and the third has the first one's.
    pub(super) fn name(&self, id: u8) -> Name {
        Name { scope: self.scope(self.next_exchange(id)), ..self.unscoped(id) }
    }

    /// The same of the last request that came under it.
    pub(super) fn last_name(&self, id: u8) -> Name {
        Name { scope: self.scope(self.last_exchange(id)), ..self.unscoped(id) }
    }

    pub(super) fn unscoped(&self, id: u8) -> Name {
        let text = || RequestId::text("0").unwrap_or(RequestId::number(2));
        let of = if id < 2 { RequestId::number(id.into()) } else { text() };
        let key = if self.names_keys() { RequestId::number(i64::from(id != BLOCKING)) } else { of.clone() };
        let principal = (id == BLOCKING).then(|| self.somebody.clone());
        Name { scope: Scope::Session, principal, id: of, key }
    }

    /// What the handshake is known by.
    pub(super) fn hello(&self) -> Name {
        Name { scope: self.scope(HELLO_COMES_ON), ..RequestId::number(HELLO).into() }
    }

    /// Who may cancel by this key, where the session is the space of ids.
    pub(super) fn meant(&self, key: &RequestId) -> Name {
        let named = (0..IDS).map(|id| self.unscoped(id)).find(|name| name.key == *key);
        let principal = named.and_then(|name| name.principal);
        Name { scope: Scope::Session, principal, id: key.clone(), key: key.clone() }
    }

    pub(super) fn names_keys(&self) -> bool {
        self.session.dialect().rules().ack == AckStyle::Acknowledged
    }

    /// The peer's cancels name calls of ours.
    pub(super) fn is_called_off(&self) -> bool {
        self.session.role() == Role::Client
            && self.session.dialect().rules().cancel_from == CancelFrom::Client
    }

    pub(super) fn hears_cancels(&self) -> bool {
        let Some(declared) = self.done.agreed else { return !self.agreed_needed };
        self.session.dialect().rules().gate == CapabilityGate::None || declared.ours()
    }

    /// Does one thing, and holds what came of it against every invariant.
    ///
    /// # Errors
    /// An invariant is broken.
    pub fn apply(&mut self, input: Input, before: &Inspection) -> Result<Inspection, Broken> {
        let owed = self.owed(input, before);
        let verdict = self.verdict(input, before);
        let walk = self.walk(before);
        let done = self.done;
        let accepted = self.give(input, before)?;
        let mut outputs = Vec::new();
        while let Some(output) = self.session.poll_output() {
            outputs.push(output);
        }
        self.check_verdict(input, &verdict, accepted, &outputs)?;
        for output in &outputs {
            self.remember(output);
            self.ledger.take(&self.session, output)?;
            if let Output::Released(key) = output {
                self.gone = Some(*key);
            }
        }
        let after = self.inspect();
        self.ledger.check(&self.session, &after)?;
        check_owed(owed, &outputs)?;
        self.check_reach(input, before, &after, &outputs, walk.as_ref())?;
        if *before == after {
            self.done = done;
        }
        Ok(after)
    }

    /// What the slice of a cascade that every step walks comes to by itself, where one is under way.
    fn walk(&self, before: &Inspection) -> Option<(Inspection, Vec<Output>)> {
        if before.cascades.is_empty() {
            return None;
        }
        let mut session = self.session.clone();
        session.advance(self.now);
        let outputs = std::iter::from_fn(|| session.poll_output()).collect();
        Some((session.inspect(self.now), outputs))
    }

    /// What an input may do, and what it may not, beside what it owes.
    fn check_reach(
        &self,
        input: Input,
        before: &Inspection,
        after: &Inspection,
        outputs: &[Output],
        walk: Option<&(Inspection, Vec<Output>)>,
    ) -> Result<(), Broken> {
        // Where a cascade is under way, what it does by itself is not the input's doing.
        let (alone, by_itself) =
            walk.map_or((before, &[] as &[Output]), |(alone, outputs)| (alone, outputs.as_slice()));
        let moves = after != before;
        let before = if moves { alone } else { before };
        let own: Vec<&Output> = outputs.iter().filter(|output| !by_itself.contains(output)).collect();
        match input {
            Input::Cancel(_) | Input::CancelHello => {
                let Some(name) = self.meaning(input) else { return Ok(()) };
                self.check_cancel(&name, before, after, &own)
            }
            Input::CancelByStranger | Input::CancelByNobody | Input::CancelElsewhere => {
                let Some(name) = self.meaning(input) else { return Ok(()) };
                self.check_unknown(&name, before, after)
            }
            Input::Stale(key) => holds(own.is_empty() && before == after, "I14", || {
                format!("{key:?} is gone, and its word counts: {own:?}")
            }),
            Input::CancelNothing
            | Input::Bad
            | Input::BadRequest
            | Input::Call(CallInput::LateAnswer | CallInput::CancelFailed(_)) => {
                holds(before == after, "I8", || format!("{input:?} names nothing, and changes something"))
            }
            Input::LocalCancel(key) | Input::Deadline(key) | Input::StreamLost(key) => {
                self.check_handshake(key, before, after)
            }
            Input::Lost(_) | Input::HalfClose => {
                let open = self.ledger.made.values().filter(|made| !made.settled).count();
                holds(open == 0, "I13", || format!("no answer can come, and {open} callers wait"))
            }
            Input::Advance => {
                let is_call = |output: &&Output| {
                    matches!(
                        output,
                        Output::SendCancel { .. }
                            | Output::TakeBack(_)
                            | Output::Settle { .. }
                            | Output::CancelForeign(_)
                            | Output::Released(_)
                            | Output::Close(_)
                    )
                };
                holds(moves, "L4", || format!("a cascade does not go on: {after:?}"))?;
                holds(outputs.iter().all(|output| is_call(&output)), "I5", || {
                    format!("a cascade brought {outputs:?}")
                })
            }
            Input::Call(CallInput::Detach(call)) => {
                let child = after.calls.iter().find(|view| view.key == call);
                let is_free = child.is_none_or(|child| child.parent.is_none());
                holds(is_free, "I5", || format!("{call:?} was detached, and it has a parent"))
            }
            // What these owe is told by the account alone.
            Input::Request(_)
            | Input::RequestOver
            | Input::RequestExempt
            | Input::Hello
            | Input::Call(_)
            | Input::Agreed(_)
            | Input::Offer(..)
            | Input::Ended(_)
            | Input::Shield(_)
            | Input::Unshield(_)
            | Input::StreamBack(_)
            | Input::Shutdown
            | Input::Idle
            | Input::Time
            | Input::Wait => Ok(()),
        }
    }

    /// I9: neither this side nor a lost stream cancels the handshake.
    fn check_handshake(
        &self,
        key: InboundKey,
        before: &Inspection,
        after: &Inspection,
    ) -> Result<(), Broken> {
        if self.ledger.served.get(&key).is_none_or(|served| served.kind != Kind::Handshake) {
            return Ok(());
        }
        let stands = |seen: &Inspection| {
            seen.requests.iter().find(|view| view.key == key).map(|view| (view.state, view.cause))
        };
        holds(stands(before) == stands(after), "I9", || format!("the handshake {key:?} was cancelled"))
    }
}
