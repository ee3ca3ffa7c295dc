//! A session, the account of it and the clock: one state of a search.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rescind_core::dialect::{AckStyle, CancelFrom, Gate, Role};
use rescind_core::inspect::Inspection;
use rescind_core::{
    AckStatus, ExchangeId, InboundKey, Limits, Origin, Output, RequestId, Scope, Session, SessionConfig,
};

use super::calls::CallInput;
use super::class::{Class, Order};
use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::{Ledger, Name};
use super::number::number_of;
use super::owed::check_owed;

/// Ids the peer uses, and how often it asks under each.
pub(super) const IDS: u8 = 3;
/// The one of them whose handler is a thread.
pub(super) const BLOCKING: u8 = 1;
pub(super) const GENERATIONS: u8 = 2;
/// Calls of ours.
pub(super) const CALLS: u8 = 2;
pub(super) const HELLO: i64 = 100;
pub(super) const CHILD: u64 = 7;
/// Far above every key's slot and every exchange.
pub(super) const CANCELS_COME_ON: ExchangeId = ExchangeId(900);
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// How often each thing was done that would else be done for ever: each of them leaves a mark, and marks are never used again.
/// What leaves none leads back to where it was done, and all else comes to an end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Done {
    pub(super) requests: [u8; IDS as usize],
    pub(super) calls: u8,
    pub(super) hello: bool,
    pub(super) agreed: bool,
}

/// A session, the account of it, and the clock.
#[derive(Clone, Debug)]
pub struct World {
    pub(super) session: Session,
    pub(super) ledger: Ledger,
    pub(super) done: Done,
    pub(super) now: Instant,
    pub(super) ordered: bool,
    pub(super) gone: Option<InboundKey>,
    pub(super) agreed_needed: bool,
    /// What becomes of a late cancel: the last keys that were settled.
    pub(super) remembered: VecDeque<(RequestId, AckStatus, Instant)>,
}

impl World {
    /// Small limits, so that each is reached.
    #[must_use]
    pub fn new(class: Class, order: Order, start: Instant) -> Self {
        let mut limits = Limits::default();
        let ordered = order == Order::Ordered;
        (limits.running, limits.blocking, limits.queued) = (2, 1, 1);
        (limits.calls, limits.parked, limits.remembered) = (2, 1, 2);
        let dialect = class.dialect();
        let agreed_needed = dialect.rules().gate == Gate::Declared || dialect.rules().session_required;
        let mut config = SessionConfig::new(dialect, class.role());
        (config.limits, config.ordered) = (limits, ordered);
        Self {
            session: Session::new(config),
            ledger: Ledger::default(),
            done: Done::default(),
            now: start,
            ordered,
            gone: None,
            agreed_needed,
            remembered: VecDeque::new(),
        }
    }

    /// The state of the machine, and of the account of what it owes, in a number.
    #[must_use]
    pub(super) fn number(&self, seen: &Inspection) -> u64 {
        number_of(&(seen, &self.ledger))
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

    pub(super) fn origin(&self, exchange: ExchangeId) -> Origin {
        let exchange = if self.ordered { ExchangeId::NONE } else { exchange };
        Origin { scope: Scope::Session, exchange, principal: None }
    }

    /// What one of the ids is known by: a number, another, and the text of the first. Where cancels have keys of their own, two
    /// requests have each other's id for a key, and the third has the first one's.
    pub(super) fn name(&self, id: u8) -> Name {
        let text = || RequestId::text("0").unwrap_or(RequestId::number(2));
        let of = if id < 2 { RequestId::number(id.into()) } else { text() };
        let key = if self.names_keys() { RequestId::number(i64::from(id != BLOCKING)) } else { of.clone() };
        Name { id: of, key }
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
        !self.agreed_needed || self.done.agreed
    }

    /// Does one thing, and holds what came of it against every invariant.
    ///
    /// # Errors
    /// An invariant is broken.
    pub fn apply(&mut self, input: Input, before: &Inspection) -> Result<Inspection, Broken> {
        let owed = self.owed(input);
        let verdict = self.verdict(input, before);
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
            if let Output::Gone(key) = output {
                self.gone = Some(*key);
            }
        }
        let after = self.inspect();
        self.ledger.check(&self.session, &after)?;
        check_owed(owed, &outputs)?;
        match input {
            Input::Cancel(id) => self.check_cancel(&self.named(id), before, &after, &outputs)?,
            Input::CancelHello => self.check_cancel(&RequestId::number(HELLO), before, &after, &outputs)?,
            Input::CancelByStranger => self.check_unknown(&self.named(0), before, &after)?,
            Input::Stale(key) => {
                holds(outputs.is_empty(), "I14", || {
                    format!("{key:?} is gone, and its word counts: {outputs:?}")
                })?;
                holds(*before == after, "I14", || {
                    format!("{key:?} is gone, and its word changes something")
                })?;
            }
            Input::CancelNothing | Input::Call(CallInput::LateAnswer) => {
                holds(*before == after, "I8", || format!("{input:?} names nothing, and changes something"))?;
            }
            // What these owe is told by the account alone.
            Input::Request(_)
            | Input::Hello
            | Input::Call(_)
            | Input::Agreed
            | Input::Offer(..)
            | Input::Ended(_)
            | Input::Shield(_)
            | Input::Unshield(_)
            | Input::LocalCancel(_)
            | Input::Deadline(_)
            | Input::StreamLost(_)
            | Input::StreamBack(_)
            | Input::HalfClose
            | Input::Lost(_)
            | Input::Shutdown
            | Input::Time
            | Input::Wait => {}
        }
        if *before == after {
            self.done = done;
        }
        Ok(after)
    }
}
