//! Random inputs, checked against the invariants only: no model says what must happen, only what must not happen.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::cause::CauseKind;
use crate::dialect::{ALL, AckStyle, AnswerAfterCancel, MCP};

/// One input. The numbers select from what exists at that time.
#[derive(Clone, Debug)]
enum Input {
    Request { id: i64, key: u8, exchange: u64, kind: u8 },
    Cancel { id: i64, who: u8, kind: u8 },
    Answer { which: usize, end: HandlerResult },
    Ended { which: usize },
    LocalCancel { which: usize, kind: CauseKind },
    Shield { which: usize },
    Unshield { which: usize },
    Call { parent: Option<usize>, deadline: Option<u64>, staged: bool, method: u8 },
    Written { which: usize },
    CancelCall { which: usize, after: Option<AfterCancel> },
    CancelWritten { which: usize },
    PeerAnswer { number: u64, kind: AnswerKind },
    Ack { number: u64, cancelled: bool },
    CallFailed { which: usize, sent: bool },
    Detach { which: usize },
    Adopt { which: usize },
    Release { which: usize },
    ExchangeClosed { exchange: u64 },
    ExchangeResumed { exchange: u64 },
    Bad { exchange: u64 },
    Open,
    Pass { millis: u64 },
    Advance,
    HalfClose,
    Shutdown { seconds: u64 },
    Lost { how: DisconnectPolicy },
}

fn input() -> impl Strategy<Value = Input> {
    let which = 0..8usize;
    let number = 0..24u64;
    let end = prop_oneof![
        Just(HandlerResult::Value),
        Just(HandlerResult::Error),
        Just(HandlerResult::Stopped),
        Just(HandlerResult::Panicked),
    ];
    let answer = prop_oneof![Just(AnswerKind::Value), Just(AnswerKind::Cancelled), Just(AnswerKind::Error)];
    let after =
        prop_oneof![Just(None), Just(Some(AfterCancel::WaitForPeer)), Just(Some(AfterCancel::ReturnNow))];
    let kind = prop_oneof![Just(CauseKind::Local), Just(CauseKind::Shutdown), Just(CauseKind::Deadline)];
    let how = prop_oneof![
        Just(DisconnectPolicy::CancelNow),
        Just(DisconnectPolicy::Detach),
        Just(DisconnectPolicy::Keep)
    ];
    prop_oneof![
        16 => (0..5i64, 0..4u8, 0..4u64, any::<u8>())
            .prop_map(|(id, key, exchange, kind)| Input::Request { id, key, exchange, kind }),
        12 => (0..5i64, 0..4u8, 0..4u8).prop_map(|(id, who, kind)| Input::Cancel { id, who, kind }),
        8 => (which.clone(), end).prop_map(|(which, end)| Input::Answer { which, end }),
        8 => which.clone().prop_map(|which| Input::Ended { which }),
        3 => (which.clone(), kind).prop_map(|(which, kind)| Input::LocalCancel { which, kind }),
        4 => which.clone().prop_map(|which| Input::Shield { which }),
        4 => which.clone().prop_map(|which| Input::Unshield { which }),
        8 => (proptest::option::of(which.clone()), proptest::option::of(0..9u64), any::<bool>(), 0..3u8)
            .prop_map(|(parent, deadline, staged, method)| Input::Call { parent, deadline, staged, method }),
        4 => which.clone().prop_map(|which| Input::Written { which }),
        6 => (which.clone(), after).prop_map(|(which, after)| Input::CancelCall { which, after }),
        6 => which.clone().prop_map(|which| Input::CancelWritten { which }),
        6 => (number.clone(), answer).prop_map(|(number, kind)| Input::PeerAnswer { number, kind }),
        3 => (number, any::<bool>()).prop_map(|(number, cancelled)| Input::Ack { number, cancelled }),
        2 => (which.clone(), any::<bool>()).prop_map(|(which, sent)| Input::CallFailed { which, sent }),
        1 => which.clone().prop_map(|which| Input::Detach { which }),
        2 => which.clone().prop_map(|which| Input::Adopt { which }),
        2 => which.prop_map(|which| Input::Release { which }),
        2 => (1..4u64).prop_map(|exchange| Input::ExchangeClosed { exchange }),
        1 => (1..4u64).prop_map(|exchange| Input::ExchangeResumed { exchange }),
        1 => (0..4u64).prop_map(|exchange| Input::Bad { exchange }),
        2 => Just(Input::Open),
        8 => prop_oneof![0..100u64, 0..3000u64, 0..40_000u64].prop_map(|millis| Input::Pass { millis }),
        2 => Just(Input::Advance),
        1 => Just(Input::HalfClose),
        1 => (0..20u64).prop_map(|seconds| Input::Shutdown { seconds }),
        1 => how.prop_map(|how| Input::Lost { how }),
    ]
}

/// What was observed so far, for events that may happen only once.
struct Watch {
    bench: Bench,
    open: Vec<InboundKey>,
    started: HashSet<InboundKey>,
    /// Requests whose handlers have reported their results. Their tasks need no abort.
    offered: HashSet<InboundKey>,
    ended: HashSet<InboundKey>,
    settled: HashSet<InboundKey>,
    signalled: HashSet<InboundKey>,
    aborted: HashSet<InboundKey>,
    gone: HashSet<InboundKey>,
    accepted: HashSet<InboundKey>,
    calls: Vec<OutboundKey>,
    written: HashSet<OutboundKey>,
    taken_back: HashSet<OutboundKey>,
    reported: HashSet<OutboundKey>,
    outcomes: HashMap<OutboundKey, Settlement>,
    foreign: Vec<(InboundKey, ForeignChild)>,
    next_child: u64,
    acks_owed: HashSet<RequestId>,
    next_ack: i64,
    lost: bool,
    closed: bool,
}

impl Watch {
    fn new(dialect: Dialect, exchange_scoped: bool, role: Role, tight: bool) -> Self {
        let bench = Bench::with(dialect, |config| {
            config.role = role;
            config.exchange_scoped = exchange_scoped;
            config.ordered = !exchange_scoped;
            config.limits.max_running_handlers = 3;
            config.limits.max_blocking_handlers = 1;
            config.limits.max_queued_requests = 2;
            config.limits.max_cancels_per_step = 2;
            config.limits.max_settled_ids = 3;
            config.limits.max_early_cancels = 2;
            if tight {
                config.limits.max_running_handlers = 1;
                config.limits.max_blocking_handlers = 0;
                config.limits.cancel_grace = Duration::ZERO;
                config.limits.max_shield_time = Duration::ZERO;
                config.limits.max_settled_ids = 0;
                config.limits.max_cancels_per_step = 0;
            }
        });
        Self {
            bench,
            open: Vec::new(),
            started: HashSet::new(),
            offered: HashSet::new(),
            ended: HashSet::new(),
            settled: HashSet::new(),
            signalled: HashSet::new(),
            aborted: HashSet::new(),
            gone: HashSet::new(),
            accepted: HashSet::new(),
            calls: Vec::new(),
            written: HashSet::new(),
            taken_back: HashSet::new(),
            reported: HashSet::new(),
            outcomes: HashMap::new(),
            foreign: Vec::new(),
            next_child: 0,
            acks_owed: HashSet::new(),
            next_ack: 1_000_000,
            lost: false,
            closed: false,
        }
    }

    fn request(&self, which: usize) -> Option<InboundKey> {
        let at = self.open.len().checked_sub(1 + which)?;
        self.open.get(at).copied()
    }

    fn call(&self, which: usize) -> Option<OutboundKey> {
        let at = self.calls.len().checked_sub(1 + which)?;
        self.calls.get(at).copied()
    }

    fn origin(&self, exchange: u64, who: u8) -> Origin {
        let exchange = ExchangeId(exchange);
        let scope = if self.bench.session.config.exchange_scoped {
            Scope::Exchange(exchange)
        } else {
            Scope::Session
        };
        let principal = (who == 0).then(|| Principal("other".into()));
        Origin { scope, exchange, principal, client: None }
    }

    fn step(&mut self, input: &Input) -> TestCaseResult {
        match *input {
            Input::Request { .. } | Input::Cancel { .. } => self.recv(input),
            Input::Call { .. } => self.make_call(input),
            Input::Written { which } => {
                if let Some(call) = self.call(which).filter(|call| !self.outcomes.contains_key(call)) {
                    self.bench.session.local_written(self.bench.now, call);
                    self.written.insert(call);
                }
            }
            Input::Ended { which } => {
                // A driver reports the end of a task once, and only of a task that it started.
                if let Some(key) = self.request(which).filter(|key| self.started.contains(key)) {
                    self.end(key);
                }
            }
            Input::Release { which } => {
                if which < self.foreign.len() {
                    let (parent, child) = self.foreign.swap_remove(which);
                    self.bench.session.local_release(parent, child);
                }
            }
            Input::Adopt { which } => {
                if let Some(parent) = self.request(which) {
                    let (now, child) = (self.bench.now, ForeignChild(self.next_child));
                    self.next_child += 1;
                    if self.bench.session.local_adopt(now, parent, child).is_ok() {
                        self.foreign.push((parent, child));
                    }
                }
            }
            Input::Lost { how } => {
                self.bench.session.recv_lost(self.bench.now, how);
                self.check()?;
                self.lost = true;
                return Ok(());
            }
            Input::Pass { millis } => {
                self.bench.now += Duration::from_millis(millis);
                self.bench.session.handle_timeout(self.bench.now);
            }
            Input::Open => {
                let said = Handshake::new(Some(true), None);
                self.bench.session.handshake(HandshakePart::Params, &said);
                self.bench.session.handshake(HandshakePart::Result, &said);
            }
            _ => self.plain(input),
        }
        self.check()
    }

    fn end(&mut self, key: InboundKey) {
        if self.ended.insert(key) {
            self.bench.session.local_ended(self.bench.now, key);
        }
    }

    fn recv(&mut self, input: &Input) {
        let now = self.bench.now;
        let acknowledged = self.bench.session.dialect().rules().ack == AckStyle::Acknowledged;
        match *input {
            Input::Request { id, key, exchange, kind } => {
                let named = RequestId::text(&key.to_string()).unwrap();
                let methods = ["a", "initialize", "$/reserved", "subscriptions/listen"];
                let arrival = InboundRequest {
                    cancel_key: match (acknowledged, key) {
                        (true, 0) => CancelKey::None,
                        (true, _) => CancelKey::Named(named),
                        (false, _) => CancelKey::SameAsId,
                    },
                    exempt: if kind & 0x03 == 0x03 {
                        CancelExemption::FromCancelMessages
                    } else {
                        CancelExemption::No
                    },
                    work: if kind & 0x0c == 0x0c { Work::Blocking } else { Work::Task },
                    admission: if kind == 255 { Err("server") } else { Ok(()) },
                    origin: self.origin(exchange, u8::from(kind & 0x70 != 0)),
                    ..Bench::arrival(id, if kind & 0x81 == 0x81 { methods[usize::from(key)] } else { "a" })
                };
                if let Some(key) = self.bench.session.recv_request(now, arrival) {
                    assert!(self.accepted.insert(key), "I14: a key came back");
                    self.open.push(key);
                }
            }
            Input::Cancel { id, who, kind } => {
                let key = match (kind, acknowledged) {
                    (0, _) => None,
                    (_, true) => Some(RequestId::text(&id.to_string()).unwrap()),
                    (_, false) => Some(id.into()),
                };
                let ack = acknowledged.then(|| RequestId::number(self.next_ack));
                self.next_ack += 1;
                self.acks_owed.extend(ack.clone());
                let origin = self.origin(u64::from(kind), who);
                self.bench.session.recv_cancel(now, key, Some("why"), ack, &origin);
            }
            _ => {}
        }
    }

    fn make_call(&mut self, input: &Input) {
        let Input::Call { parent, deadline, staged, method } = *input else { return };
        let now = self.bench.now;
        let spec = CallSpec {
            parent: parent.and_then(|which| self.request(which)),
            deadline: deadline.map(|seconds| now + Duration::from_secs(seconds)),
            ..CallSpec::new(["a", "initialize", "subscriptions/listen"][usize::from(method)])
        };
        if let Ok((call, _)) = self.bench.session.local_call(now, &spec) {
            self.calls.push(call);
            if !staged {
                self.bench.session.local_written(now, call);
                self.written.insert(call);
            }
        }
    }

    fn plain(&mut self, input: &Input) {
        let now = self.bench.now;
        let running = |which: usize| self.request(which).filter(|key| self.started.contains(key));
        let on_request = match *input {
            Input::Answer { which, .. } | Input::Shield { which } | Input::Unshield { which } => {
                running(which)
            }
            _ => None,
        };
        let session = &mut self.bench.session;
        match *input {
            Input::Answer { end, .. } => {
                if let Some(key) = on_request {
                    self.offered.insert(key);
                    session.local_answer(now, key, end);
                }
            }
            Input::LocalCancel { which, kind } => {
                if let Some(key) = self.open.iter().rev().nth(which) {
                    let _ = session.local_cancel(now, *key, kind.into());
                }
            }
            Input::Shield { .. } => {
                if let Some(key) = on_request {
                    session.local_shield(now, key);
                }
            }
            Input::Unshield { .. } => {
                if let Some(key) = on_request {
                    session.local_unshield(now, key);
                }
            }
            Input::CancelCall { which, after } => {
                if let Some(call) = self.calls.iter().rev().nth(which) {
                    let _ = session.local_cancel_call(now, *call, CauseKind::Caller.into(), after);
                }
            }
            Input::CancelWritten { which } => {
                if let Some(call) = self.calls.iter().rev().nth(which) {
                    if session.wants_cancel(*call) {
                        session.local_cancel_written(now, *call);
                    }
                }
            }
            Input::PeerAnswer { number, kind } => {
                let _ = session.recv_answer(now, Some(CallNumber(number)), kind);
            }
            Input::Ack { number, cancelled } => session.recv_ack(now, Some(CallNumber(number)), cancelled),
            Input::CallFailed { which, sent } => {
                if let Some(call) = self.calls.iter().rev().nth(which) {
                    session.recv_call_failed(now, *call, sent);
                }
            }
            Input::Detach { which } => {
                if let Some(call) = self.calls.iter().rev().nth(which) {
                    session.local_detach(*call);
                }
            }
            Input::ExchangeClosed { exchange } => session.recv_exchange_closed(now, ExchangeId(exchange)),
            Input::ExchangeResumed { exchange } => session.recv_exchange_resumed(now, ExchangeId(exchange)),
            Input::Bad { exchange } => {
                session.recv_bad(now, crate::message::BadMessage::NotJson, ExchangeId(exchange));
            }
            Input::Advance => session.advance(now),
            Input::HalfClose => session.recv_half_close(now),
            Input::Shutdown { seconds } => session.local_shutdown(now, Duration::from_secs(seconds)),
            _ => {}
        }
    }

    /// What must be true after every step.
    fn check(&mut self) -> TestCaseResult {
        for output in self.bench.outputs() {
            let shown = format!("{output:?}");
            match output {
                Output::Start(key) => {
                    prop_assert!(self.accepted.contains(&key) || self.open.last() == Some(&key));
                    prop_assert!(!self.settled.contains(&key), "started after its answer: {shown}");
                    prop_assert!(self.started.insert(key), "started twice: {shown}");
                }
                Output::Reply(Reply { key, .. }) | Output::Silence { key, .. } => {
                    prop_assert!(!self.lost && !self.closed, "answered behind the end: {shown}");
                    prop_assert!(self.settled.insert(key), "I1: {shown}");
                    prop_assert!(!self.bench.session.may_notify(key), "I2: {shown}");
                }
                Output::Signal { key, .. } => {
                    prop_assert!(self.started.contains(&key), "signalled unstarted: {shown}");
                    prop_assert!(self.signalled.insert(key), "I5: {shown}");
                }
                Output::Abort(key) => {
                    prop_assert!(self.started.contains(&key) && self.aborted.insert(key), "{shown}");
                }
                Output::Released(key) => {
                    prop_assert!(self.gone.insert(key), "gone twice: {shown}");
                    let never_ran = !self.started.contains(&key);
                    prop_assert!(never_ran || self.ended.contains(&key), "I10: {shown}");
                    self.open.retain(|open| *open != key);
                }
                Output::SendCancel { call, .. } => {
                    prop_assert!(self.written.contains(&call), "I12: {shown}");
                    prop_assert!(!self.outcomes.contains_key(&call), "cancelled after its end: {shown}");
                    prop_assert!(self.reported.insert(call), "I7: {shown}");
                }
                Output::TakeBack(call) => {
                    prop_assert!(!self.written.contains(&call), "I12: {shown}");
                    self.taken_back.insert(call);
                }
                Output::Settle { call, settlement } => {
                    let unsent = !self.written.contains(&call);
                    prop_assert_eq!(unsent, self.taken_back.contains(&call), "left on its way: {}", shown);
                    prop_assert!(self.outcomes.insert(call, settlement).is_none(), "I13: {shown}");
                }
                Output::Ack { ack, .. } => {
                    prop_assert!(!self.lost, "{shown}");
                    prop_assert!(self.acks_owed.remove(&ack), "I7: acknowledged twice: {shown}");
                }
                Output::CancelForeign(child) => {
                    let before = self.foreign.len();
                    self.foreign.retain(|(_, open)| *open != child);
                    prop_assert!(self.foreign.len() + 1 == before, "I5: {shown}");
                }
                Output::Close(_) => {
                    prop_assert!(!std::mem::replace(&mut self.closed, true), "closed twice");
                    let open = self.started.iter().any(|key| !self.settled.contains(key));
                    prop_assert!(self.lost || !open, "I1: closed without an answer");
                    for call in &self.calls {
                        prop_assert!(self.outcomes.contains_key(call), "I13: {call:?} was left open");
                    }
                }
                _ => {}
            }
        }
        let stats = self.bench.session.stats();
        let alive = (self.started.len() - self.ended.len()) as u64;
        prop_assert_eq!(self.bench.session.permits.held() as u64, alive, "I10");
        prop_assert_eq!(stats.running + stats.draining, alive, "I10");
        prop_assert_eq!(stats.queued, self.bench.session.queue.len() as u64);
        prop_assert_eq!(stats.slots, (self.accepted.len() - self.gone.len()) as u64, "I3");
        prop_assert!(
            stats.running + stats.draining <= self.bench.session.limits().max_running_handlers as u64,
            "I11"
        );
        let open = self.calls.iter().filter(|call| !self.outcomes.contains_key(call)).count();
        prop_assert_eq!(self.bench.session.open_calls, open, "I13");
        prop_assert!(self.bench.session.timers.len() <= 4 * self.open.len() + 2 * self.calls.len() + 1, "I3");
        Ok(())
    }

    /// Ends everything in time: a shutdown, the loss of the connection, and the end of each aborted task.
    fn finish(&mut self) -> TestCaseResult {
        self.step(&Input::Shutdown { seconds: 1 })?;
        self.step(&Input::Pass { millis: 120_000 })?;
        self.step(&Input::Pass { millis: 120_000 })?;
        for key in self.started.difference(&self.ended) {
            let reported = self.aborted.contains(key) || self.offered.contains(key);
            prop_assert!(reported, "L3: {key:?} was never signalled");
        }
        if !self.lost {
            prop_assert_eq!(&self.settled, &self.accepted, "I1: not all were answered");
            prop_assert!(self.acks_owed.is_empty(), "I7: {:?} were not acknowledged", self.acks_owed);
        }
        self.step(&Input::Lost { how: DisconnectPolicy::CancelNow })?;
        let alive: Vec<_> = self.started.difference(&self.ended).copied().collect();
        for key in alive {
            self.end(key);
            self.check()?;
        }
        for _ in 0..10_000 {
            if !self.bench.session.has_work() {
                break;
            }
            self.step(&Input::Advance)?;
        }
        prop_assert!(self.bench.session.is_finished(), "I3: not finished");
        prop_assert_eq!(self.bench.session.next_timeout(), None, "I3: a timer is left");
        self.bench.assert_no_residue();
        prop_assert!(self.foreign.is_empty(), "I5: a child was never cancelled");
        prop_assert_eq!(self.gone.len(), self.accepted.len(), "I3: not all are gone");
        prop_assert_eq!(self.outcomes.len(), self.calls.len(), "I13");
        Ok(())
    }
}

/// Every dialect, and a dialect whose rules have a form of their own.
fn dialects() -> Vec<Dialect> {
    let patient = MCP.to_builder().answer_after_cancel(AnswerAfterCancel::ResultIfFinished).build();
    ALL.iter().cloned().chain([patient]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn no_order_of_inputs_breaks_an_invariant(
        inputs in proptest::collection::vec(input(), 160..=200),
        exchange_scoped in any::<bool>(),
        server in any::<bool>(),
        tight in any::<bool>(),
    ) {
        for dialect in dialects() {
            let name = dialect.name();
            let role = if server { Role::Server } else { Role::Client };
            let mut watch = Watch::new(dialect, exchange_scoped, role, tight);
            let run = inputs.iter().try_for_each(|input| watch.step(input)).and_then(|()| watch.finish());
            run.map_err(|error| TestCaseError::fail(format!("{name}: {error}")))?;
        }
    }
}
