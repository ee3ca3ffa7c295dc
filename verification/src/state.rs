//! A session, its ledger and the clock: one state of a search.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

use rescind_core::dialect::{AckStyle, CancelFrom, CapabilityGate, Role};
use rescind_core::inspect::Inspection;
use rescind_core::{
    AckStatus, ExchangeId, InboundKey, Limits, Origin, Output, Principal, RequestId, Scope, Session,
    SessionConfig,
};

use super::dialect_class::{Class, Order};
use super::expected::check_owed;
use super::input::{CallInput, Declared, Input};
use super::invariants::{Broken, holds};
use super::oracle::{Kind, Ledger, Name};
use super::shutdown_oracle::Begun;

/// The number of ids that the peer uses, and how many requests it sends with each.
pub(super) const IDS: u8 = 3;
/// The id whose handler is a thread.
pub(super) const BLOCKING: u8 = 1;
pub(super) const GENERATIONS: u8 = 2;
/// The number of calls of this side.
pub(super) const CALLS: u8 = 2;
const HELLO: i64 = 100;
pub(super) const CHILD: u64 = 7;
pub(super) const HANDSHAKE_EXCHANGE: ExchangeId = ExchangeId(800);
/// Far above the slot of every key and above every exchange.
pub(super) const CANCEL_EXCHANGE: ExchangeId = ExchangeId(900);
/// The name of the server-wide limit that is reached.
pub(super) const OVER: &str = "running on all connections";
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// How often each input was used that could otherwise be used without end: each of them makes a new id or key, which
/// is never used again. An input without such an effect leads back to an earlier state, and all others end after a
/// finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Done {
    pub(super) requests: [u8; IDS as usize],
    pub(super) calls: u8,
    pub(super) hello: bool,
    pub(super) agreed: Option<Declared>,
}

/// A session, its ledger, and the clock.
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
    /// The status for a late cancel: the last keys that were settled.
    pub(super) remembered: VecDeque<(RequestId, AckStatus, Instant)>,
    /// The start times of the events that end all requests.
    pub(super) begun: Begun,
    /// The number of bad frames.
    pub(super) bad_frames: u32,
    /// The principal of the one id that has one.
    principal: Principal,
    /// A principal without requests.
    pub(super) stranger: Principal,
}

impl MachineState {
    /// Uses small limits, so that each is reached.
    #[must_use]
    pub fn new(class: Class, order: Order, start: Instant) -> Self {
        let mut limits = Limits::default();
        let ordered = order == Order::Ordered;
        (limits.max_running_handlers, limits.max_blocking_handlers, limits.max_queued_requests) = (2, 1, 1);
        (limits.max_calls, limits.max_early_cancels, limits.max_settled_ids) = (2, 1, 2);
        // One child in each step, so that the states between the slices of a cascade are seen.
        limits.max_cancels_per_step = 1;
        // Otherwise the end of that grace is not seen.
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
            principal: Principal("somebody".into()),
            stranger: Principal("stranger".into()),
        }
    }

    /// The hash of the machine's state, and the hash of that state and the ledger.
    #[must_use]
    pub(super) fn numbers(&self, seen: &Inspection) -> (u64, u64) {
        let machine = number_of(seen);
        (machine, number_of(&(machine, &self.ledger)))
    }

    /// The hash of all that determines the next inputs: the state and the history.
    #[must_use]
    pub(super) fn situation(&self, number: u64) -> u64 {
        number_of(&(number, &self.done))
    }

    /// The content of the session.
    #[must_use]
    pub fn inspect(&self) -> Inspection {
        self.session.inspect(self.now)
    }

    /// Returns the exchange, if there are exchanges.
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

    /// The name of the next request with one of the ids: a number, another number, and the text of the first. If
    /// cancels have separate keys, two requests have each other's id as their key, and the third has the key of the
    /// first.
    pub(super) fn name(&self, id: u8) -> Name {
        Name { scope: self.scope(self.next_exchange(id)), ..self.unscoped(id) }
    }

    /// The name of the last request with it.
    pub(super) fn last_name(&self, id: u8) -> Name {
        Name { scope: self.scope(self.last_exchange(id)), ..self.unscoped(id) }
    }

    pub(super) fn unscoped(&self, id: u8) -> Name {
        let text = || RequestId::text("0").unwrap_or(RequestId::number(2));
        let of = if id < 2 { RequestId::number(id.into()) } else { text() };
        let key = if self.names_keys() { RequestId::number(i64::from(id != BLOCKING)) } else { of.clone() };
        let principal = (id == BLOCKING).then(|| self.principal.clone());
        Name { scope: Scope::Session, principal, id: of, key }
    }

    /// The name of the handshake.
    pub(super) fn hello(&self) -> Name {
        Name { scope: self.scope(HANDSHAKE_EXCHANGE), ..RequestId::number(HELLO).into() }
    }

    /// The name that a cancel with this key means, if ids belong to the session.
    pub(super) fn meant(&self, key: &RequestId) -> Name {
        let named = (0..IDS).map(|id| self.unscoped(id)).find(|name| name.key == *key);
        let principal = named.and_then(|name| name.principal);
        Name { scope: Scope::Session, principal, id: key.clone(), key: key.clone() }
    }

    pub(super) fn names_keys(&self) -> bool {
        self.session.dialect().rules().ack == AckStyle::Acknowledged
    }

    /// Whether the peer's cancels name calls of this side.
    pub(super) fn is_called_off(&self) -> bool {
        self.session.role() == Role::Client
            && self.session.dialect().rules().cancel_from == CancelFrom::Client
    }

    pub(super) fn hears_cancels(&self) -> bool {
        let Some(declared) = self.done.agreed else { return !self.agreed_needed };
        self.session.dialect().rules().gate == CapabilityGate::None || declared.ours()
    }

    /// Applies one input, and checks its effects against every invariant.
    ///
    /// # Errors
    /// If an invariant is violated.
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

    /// The result of the slice of a cascade that every step walks, without the input, if a cascade is in progress.
    fn walk(&self, before: &Inspection) -> Option<(Inspection, Vec<Output>)> {
        if before.cascades.is_empty() {
            return None;
        }
        let mut session = self.session.clone();
        session.advance(self.now);
        let outputs = std::iter::from_fn(|| session.poll_output()).collect();
        Some((session.inspect(self.now), outputs))
    }

    /// Checks what an input may change and what it may not, besides its required result.
    fn check_reach(
        &self,
        input: Input,
        before: &Inspection,
        after: &Inspection,
        outputs: &[Output],
        walk: Option<&(Inspection, Vec<Output>)>,
    ) -> Result<(), Broken> {
        // The steps of a cascade in progress are not an effect of the input.
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
            // The ledger alone determines the required results of these.
            Input::Request(_)
            | Input::RequestOver
            | Input::RequestExempt
            | Input::Hello
            | Input::Call(_)
            | Input::Agreed(_)
            | Input::Offer(..)
            | Input::Ended(_)
            | Input::BecomeTask(_)
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

// Hashes of values, which distinguish a million states without keeping them.

/// A set of hashes.
pub(super) type Numbers = HashSet<u64, BuildHasherDefault<IdentityHasher>>;

/// A hash of a value. Among a million values, two have the same hash about once in ten million searches.
fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = Folded(SEED);
    value.hash(&mut hasher);
    hasher.finish()
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;
/// Odd, and half of its bits are set.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Folds each word into the state with one long multiplication. A search spends most of its time on hashing. Its
/// values are not chosen by an attacker, so the hash need not resist attacks.
struct Folded(u64);

impl Folded {
    fn fold(&mut self, word: u64) {
        let [low, high] = halves(u128::from(self.0 ^ word) * u128::from(FACTOR));
        // The rotation prevents a word and its neighbour from being exchanged.
        self.0 = (low ^ high).rotate_left(23).wrapping_add(SEED);
    }
}

const fn halves(product: u128) -> [u64; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are what is wanted")]
    [product as u64, (product >> 64) as u64]
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.fold(SEED);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (place, byte) in word.iter_mut().zip(chunk) {
                *place = *byte;
            }
            self.fold(u64::from_le_bytes(word));
        }
        self.fold(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.fold(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.fold(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }
}

/// For values that are already hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_values_have_different_hashes() {
        let mut numbers = Numbers::default();
        let (mut count, mut bits) = (0, 0);
        for first in 0..60_u64 {
            for second in 0..60_u32 {
                for third in 0..60_u8 {
                    let number = number_of(&(first, second, third));
                    bits += (number ^ number_of(&(first, second, third ^ 1))).count_ones();
                    numbers.insert(number);
                    count += 1;
                }
            }
        }
        assert_eq!(numbers.len(), count, "two of so few share a number");
        let share = f64::from(bits) / (f64::from(u32::try_from(count).unwrap()) * 64.0);
        assert!((0.45..0.55).contains(&share), "one bit changes {share} of all");
        assert_ne!(number_of(&[1_u8, 0]), number_of(&[1_u8]));
    }
}
