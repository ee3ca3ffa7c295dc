//! The machine against a naive reference, a dialect each (VERIFICATION: "proptest-state-machine").
//!
//! The reference knows nothing of slots, timers or queues: it says for each event what the peer and the handlers must see.
//! What fails is kept in `reference.regressions` beside this file, and tried first from then on: commit it with the mend.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use rescind_core::dialect::{CancelledReply, HandshakePart, Role};
use rescind_core::dialect::{Dialect, Handshake};
use rescind_core::{
    Arrival, CancelKey, Exempt, HandlerEnd, InboundKey, Origin, Output, ReplyBody, RequestId, Session,
    SessionConfig, Work,
};
use rescind_testkit::verify::{Ledger, page};

const IDS: u8 = 4;
const GRACE: Duration = Duration::from_secs(2);

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    Ask(u8),
    Cancel(u8),
    /// The handler of the n-th request says how it ends.
    End(usize, HandlerEnd),
    /// Its task is gone.
    Gone(usize),
    Pass(Duration),
}

/// What must be seen, by the number of the request in the order of their coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Started(usize),
    Signalled(usize),
    Value(usize),
    Cancelled(usize),
    Failed(usize),
    Silence(usize),
    Aborted(usize),
    Refused(u8),
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u8,
    signalled_at: Option<Duration>,
    settled: bool,
    aborted: bool,
    alive: bool,
}

#[derive(Clone, Debug)]
struct Reference {
    /// The answer to a cancelled request is decided when its cancel comes.
    at_once: bool,
    silence: bool,
    now: Duration,
    asked: Vec<Asked>,
    seen: Vec<Seen>,
}

impl Reference {
    fn of(dialect: &Dialect) -> Self {
        let silence = dialect.rules().peer_cancelled == CancelledReply::Silence;
        let at_once = silence || dialect.rules().peer_cancelled == CancelledReply::OwnShape;
        Self { at_once, silence, now: Duration::ZERO, asked: Vec::new(), seen: Vec::new() }
    }

    fn occupied(&self, id: u8) -> Option<usize> {
        self.asked.iter().position(|asked| asked.alive && asked.id == id)
    }

    /// The cancelled answer, or the silence in its place.
    fn cancelled(&mut self, number: usize) {
        self.asked[number].settled = true;
        self.seen.push(if self.silence { Seen::Silence(number) } else { Seen::Cancelled(number) });
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(id) if self.occupied(id).is_some() => self.seen.push(Seen::Refused(id)),
            Event::Ask(id) => {
                let alive = Asked { id, signalled_at: None, settled: false, aborted: false, alive: true };
                self.asked.push(alive);
                self.seen.push(Seen::Started(self.asked.len() - 1));
            }
            Event::Cancel(id) => {
                let Some(number) = self.occupied(id) else { return };
                let asked = &mut self.asked[number];
                if asked.settled || asked.signalled_at.is_some() {
                    return;
                }
                asked.signalled_at = Some(self.now);
                if self.at_once {
                    self.cancelled(number);
                }
                self.seen.push(Seen::Signalled(number));
            }
            Event::End(number, end) => {
                let asked = self.asked[number];
                if !asked.alive || asked.settled {
                    return;
                }
                match (asked.signalled_at, end) {
                    (_, HandlerEnd::Value) | (None, HandlerEnd::Error) => {
                        self.asked[number].settled = true;
                        self.seen.push(Seen::Value(number));
                    }
                    (None, HandlerEnd::Panicked) => {
                        self.asked[number].settled = true;
                        self.seen.push(Seen::Failed(number));
                    }
                    // A handler that stops by itself is not silenced: its peer did not cancel it.
                    (None, HandlerEnd::Stopped) => {
                        self.asked[number].settled = true;
                        self.seen.push(Seen::Cancelled(number));
                    }
                    (Some(_), _) => self.cancelled(number),
                }
            }
            Event::Gone(number) => {
                self.happen(Event::End(number, HandlerEnd::Panicked));
                self.asked[number].alive = false;
            }
            Event::Pass(time) => {
                self.now += time;
                let from = self.seen.len();
                let mut due: Vec<(Duration, usize)> = Vec::new();
                for (number, asked) in self.asked.iter().enumerate() {
                    let until = asked.signalled_at.map(|at| at + GRACE).filter(|until| *until <= self.now);
                    if let Some(until) = until.filter(|_| asked.alive && !asked.aborted) {
                        due.push((until, number));
                    }
                }
                due.sort_unstable();
                for (_, number) in due {
                    if !self.asked[number].settled {
                        self.cancelled(number);
                    }
                    self.asked[number].aborted = true;
                    self.seen.push(Seen::Aborted(number));
                }
                // What is due at one moment has no order.
                self.seen[from..].sort_unstable();
            }
        }
    }
}

/// The machine, driven by the same events.
struct Machine {
    session: Session,
    ledger: Ledger,
    start: Instant,
    now: Instant,
    keys: Vec<(InboundKey, u8)>,
    seen: Vec<Seen>,
}

impl Machine {
    fn new(dialect: &Dialect) -> Self {
        let mut session = Session::new(SessionConfig::new(dialect.clone(), Role::Server));
        let yes = Handshake::new(Some(true), None);
        session.handshake(HandshakePart::Params, &yes);
        session.handshake(HandshakePart::Result, &yes);
        let start = Instant::now();
        Self { session, ledger: Ledger::default(), start, now: start, keys: Vec::new(), seen: Vec::new() }
    }

    fn happen(&mut self, event: Event, events: &AtomicU64) {
        events.fetch_add(1, Ordering::Relaxed);
        let from = self.seen.len();
        match event {
            Event::Ask(id) => {
                let arrival = Arrival {
                    id: RequestId::number(id.into()),
                    cancel_key: CancelKey::SameAsId,
                    method: "work",
                    exempt: Exempt::No,
                    tag: 0,
                    origin: Origin::STREAM,
                    server_cancellable: false,
                    work: Work::Task,
                    admission: Ok(()),
                };
                match self.session.recv_request(self.now, arrival) {
                    Some(key) => {
                        let accepted = self.ledger.accept(key, RequestId::number(id.into()), false);
                        accepted.unwrap_or_else(|broken| panic!("{broken}"));
                        self.keys.push((key, id));
                    }
                    // Refused with a frame or, where the dialect has none, without.
                    None => self.seen.push(Seen::Refused(id)),
                }
            }
            Event::Cancel(id) => {
                self.session.recv_cancel(
                    self.now,
                    Some(RequestId::number(id.into())),
                    None,
                    None,
                    &Origin::STREAM,
                );
            }
            Event::End(number, end) => {
                let key = self.keys[number].0;
                if let Some(served) = self.ledger.served.get_mut(&key) {
                    served.offered = true;
                }
                self.session.local_answer(self.now, key, end);
            }
            Event::Gone(number) => {
                let key = self.keys[number].0;
                self.ledger.end(key);
                self.session.local_ended(self.now, key);
            }
            Event::Pass(time) => {
                self.now += time;
                self.session.handle_timeout(self.now);
            }
        }
        let mut outputs = Vec::new();
        while let Some(output) = self.session.poll_output() {
            outputs.push(output);
        }
        for output in &outputs {
            self.ledger.take(&self.session, output).unwrap_or_else(|broken| panic!("{broken}"));
            self.see(output);
        }
        if matches!(event, Event::Pass(_)) {
            self.seen[from..].sort_unstable();
        }
        let inspection = self.session.inspect(self.now);
        self.ledger.check(&self.session, &inspection).unwrap_or_else(|broken| panic!("{broken}"));
    }

    fn number(&self, key: InboundKey) -> usize {
        self.keys.iter().position(|(known, _)| *known == key).expect("a request that was asked")
    }

    fn see(&mut self, output: &Output) {
        let seen = match output {
            Output::Start(key) => Seen::Started(self.number(*key)),
            Output::Signal { key, .. } => Seen::Signalled(self.number(*key)),
            Output::Abort(key) => Seen::Aborted(self.number(*key)),
            Output::Silence { key, .. } => Seen::Silence(self.number(*key)),
            Output::Reply(reply) => {
                let number = self.number(reply.key);
                match reply.body {
                    ReplyBody::Handler => Seen::Value(number),
                    ReplyBody::Cancelled(_) | ReplyBody::Graceful(_) => Seen::Cancelled(number),
                    ReplyBody::Refused(_) => Seen::Failed(number),
                }
            }
            _ => return,
        };
        self.seen.push(seen);
    }
}

fn ends() -> impl Strategy<Value = HandlerEnd> {
    prop_oneof![
        Just(HandlerEnd::Value),
        Just(HandlerEnd::Error),
        Just(HandlerEnd::Stopped),
        Just(HandlerEnd::Panicked)
    ]
}

/// What can happen now: it is drawn from, rather than drawn and rejected, or most long cases would be.
fn events(state: &Reference) -> BoxedStrategy<Event> {
    let ask = (0..IDS).prop_map(Event::Ask);
    let time = prop_oneof![Just(500), Just(2000)].prop_map(|ms| Event::Pass(Duration::from_millis(ms)));
    let alive: Vec<(usize, u8)> = state
        .asked
        .iter()
        .enumerate()
        .filter(|(_, asked)| asked.alive)
        .map(|(number, asked)| (number, asked.id))
        .collect();
    if alive.is_empty() {
        return prop_oneof![8 => ask, 1 => time].boxed();
    }
    let some = prop::sample::select(alive);
    let cancel = some.clone().prop_map(|(_, id)| Event::Cancel(id));
    let end = (some.clone(), ends()).prop_map(|((number, _), end)| Event::End(number, end));
    let gone = some.prop_map(|(number, _)| Event::Gone(number));
    prop_oneof![4 => ask, 4 => cancel, 3 => end, 2 => gone, 1 => time].boxed()
}

macro_rules! references {
    ($($name:ident: $dialect:ident;)*) => {
        $(
            mod $name {
                use super::*;

                static EVENTS: AtomicU64 = AtomicU64::new(0);

                struct Naive;

                impl ReferenceStateMachine for Naive {
                    type State = Reference;
                    type Transition = Event;

                    fn init_state() -> BoxedStrategy<Reference> {
                        Just(Reference::of(&rescind_core::dialect::$dialect)).boxed()
                    }

                    fn transitions(state: &Reference) -> BoxedStrategy<Event> {
                        events(state)
                    }

                    fn preconditions(state: &Reference, event: &Event) -> bool {
                        match event {
                            // An early cancel may wait for its request; the search and the vectors look at that.
                            Event::Cancel(id) => state.occupied(*id).is_some(),
                            Event::End(number, _) | Event::Gone(number) => {
                                state.asked.get(*number).is_some_and(|asked| asked.alive)
                            }
                            Event::Ask(_) | Event::Pass(_) => true,
                        }
                    }

                    fn apply(mut state: Reference, event: &Event) -> Reference {
                        state.happen(*event);
                        state
                    }
                }

                struct Real;

                impl StateMachineTest for Real {
                    type SystemUnderTest = Machine;
                    type Reference = Naive;

                    fn init_test(_: &Reference) -> Machine {
                        Machine::new(&rescind_core::dialect::$dialect)
                    }

                    fn apply(mut machine: Machine, _: &Reference, event: Event) -> Machine {
                        machine.happen(event, &EVENTS);
                        machine
                    }

                    fn check_invariants(machine: &Machine, reference: &Reference) {
                        assert_eq!(machine.seen, reference.seen);
                        assert_eq!(machine.now - machine.start, reference.now);
                    }
                }

                prop_state_machine! {
                    #![proptest_config(config())]

                    fn every_case(sequential 1..200 => Real);
                }

                #[test]
                fn does_as_the_reference_says() {
                    every_case();
                    let far = format!("{} cases, {} events", config().cases, EVENTS.load(Ordering::Relaxed));
                    page::reached("reference", stringify!($name), &far).expect("the page can be written");
                }
            }
        )*
    };
}

/// Cases for each dialect: in release what the design asks for.
const CASES: u32 = if cfg!(debug_assertions) { 64 } else { 10_000 };

fn config() -> ProptestConfig {
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    // What a planted bug breaks is no regression.
    if std::env::var_os("RESCIND_PLANT").is_some() {
        return config;
    }
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { failure_persistence: Some(Box::new(kept)), ..config }
}

references! {
    acp: ACP;
    acp_v2: ACP_V2;
    acp_draft: ACP_DRAFT;
    lsp: LSP;
    mcp: MCP;
    mcp_2026: MCP_2026;
    abp: ABP;
}
