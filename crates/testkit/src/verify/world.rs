//! A session, the account of it and the clock: one state of a search.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use rescind_core::dialect::{Gate, Role};
use rescind_core::inspect::Inspection;
use rescind_core::{
    ExchangeId, InboundKey, Limits, Origin, Output, RequestId, Scope, Session, SessionConfig,
};

use super::class::Class;
use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::Ledger;
use super::owed::check_owed;
use super::reach::check_refusal;

/// Ids the peer uses, and how often it asks under each.
pub(super) const IDS: u8 = 3;
pub(super) const GENERATIONS: u8 = 2;
/// Cancels of each id, and calls of ours.
pub(super) const CANCELS: u8 = 3;
pub(super) const CALLS: u8 = 2;
pub(super) const HELLO: i64 = 100;
pub(super) const CHILD: u64 = 7;
/// Far above every key's slot and every exchange.
pub(super) const CANCELS_COME_ON: ExchangeId = ExchangeId(900);
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// How often each thing was done that would else be done for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they come in any order")]
pub(super) struct Done {
    pub(super) requests: [u8; IDS as usize],
    pub(super) cancels: [u8; IDS as usize],
    pub(super) calls: u8,
    pub(super) adopted: bool,
    pub(super) hello: u8,
    pub(super) nothing: bool,
    pub(super) late: bool,
    pub(super) agreed: bool,
    pub(super) shields: u8,
    pub(super) streams: u8,
    pub(super) waited: bool,
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
        number_of(&(seen, &self.ledger, &self.done))
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

    pub(super) fn hears_cancels(&self) -> bool {
        !self.agreed_needed || self.done.agreed
    }

    /// Does one thing, and holds what came of it against every invariant.
    ///
    /// # Errors
    /// An invariant is broken.
    pub fn apply(&mut self, input: Input, before: &Inspection) -> Result<Inspection, Broken> {
        let owed = self.owed(input);
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
        check_owed(owed, &outputs)?;
        match input {
            Input::Request(id) if accepted.is_none() => {
                check_refusal(&outputs)?;
                self.check_duplicate(&RequestId::number(i64::from(id)), &outputs)?;
                self.check_early(&RequestId::number(i64::from(id)), before, &outputs)?;
            }
            Input::Hello if accepted.is_none() => check_refusal(&outputs)?,
            Input::Cancel(id) => {
                self.check_cancel(&RequestId::number(i64::from(id)), before, &after, &outputs)?;
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
}

/// A value as a number; with a million of them, two values share one about once in ten million searches.
pub(super) fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
