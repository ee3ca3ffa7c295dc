//! The machine alone: each test names the transition and cites the invariant that it would violate.
//!
//! Limits at their ends: zero and infinite.

mod cancels;
mod ending;
mod random;
mod requests;
mod tasks;

use std::time::{Duration, Instant};

use super::*;
use crate::cause::{Cause, CauseKind};
use crate::dialect::{ABP, ACP, Dialect, Handshake, MCP, Refusal};
use crate::id::{ClientNumber, Principal, RequestId, Scope};
use crate::message::{AckStatus, BadMessage, CancelExemption, CancelKey};

/// A session and its clock.
struct Bench {
    session: Session,
    now: Instant,
}

impl Bench {
    fn new(dialect: Dialect) -> Self {
        Self::with(dialect, |_| {})
    }

    fn with(dialect: Dialect, change: impl FnOnce(&mut SessionConfig)) -> Self {
        let mut config = SessionConfig::new(dialect, Role::Server);
        change(&mut config);
        Self { session: Session::new(config), now: Instant::now() }
    }

    fn client(dialect: Dialect) -> Self {
        Self::with(dialect, |config| config.role = Role::Client)
    }

    /// The same after the handshake.
    fn open(dialect: Dialect) -> Self {
        let mut bench = Self::new(dialect);
        bench.session.handshake(HandshakePart::Params, &Handshake::default());
        bench.session.handshake(HandshakePart::Result, &Handshake::default());
        bench
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.session.poll_output()).collect()
    }

    fn arrival(id: i64, method: &str) -> InboundRequest<'_> {
        InboundRequest::new(id.into(), method)
    }

    /// A request that starts at once.
    fn running(&mut self, id: i64) -> InboundKey {
        let key = self.session.recv_request(self.now, Self::arrival(id, "test/wait")).unwrap();
        assert_eq!(self.outputs(), [Output::Start(key)]);
        key
    }

    fn cancel(&mut self, id: i64) -> Vec<Output> {
        self.session.recv_cancel(self.now, Some(id.into()), None, None, &Origin::STREAM);
        self.outputs()
    }

    fn answer(&mut self, key: InboundKey, end: HandlerResult) -> Vec<Output> {
        self.session.local_answer(self.now, key, end);
        self.outputs()
    }

    fn ended(&mut self, key: InboundKey) -> Vec<Output> {
        self.session.local_ended(self.now, key);
        self.outputs()
    }

    /// A call that has been written.
    fn written(&mut self, spec: &CallSpec<'_>) -> OutboundKey {
        let (call, _) = self.session.local_call(self.now, spec).unwrap();
        self.session.local_written(self.now, call);
        assert_eq!(self.outputs(), []);
        call
    }

    fn pass(&mut self, time: Duration) -> Vec<Output> {
        self.now += time;
        self.session.handle_timeout(self.now);
        self.outputs()
    }

    /// I3: nothing is left of any request.
    fn assert_no_residue(&self) {
        let session = &self.session;
        assert_eq!(session.requests.len(), 0, "I3: a request's slot is left");
        assert_eq!(session.calls.len(), 0, "I3: a call's slot is left");
        assert!(session.ids.is_empty() && session.cancel_keys.is_empty(), "I3: an id is left");
        assert!(session.numbers.is_empty() && session.cancels.is_empty(), "I3: a number is left");
        assert!(session.exchanges.is_empty(), "I3: an exchange is left");
        assert_eq!(session.timers.len(), 0, "I3: a timer is left");
        assert_eq!(session.queue.len(), 0, "I3: a place in the queue is left");
        assert_eq!(session.permits.held(), 0, "I3, I10: a permit is left");
        assert!(session.shares.is_empty(), "I3: a client's share is left");
        assert_eq!(session.held_acks, 0, "I3: an ack is left");
        assert!(!session.has_work(), "I3: a cascade is left");
    }
}

fn peer() -> Cause {
    Cause::new(crate::cause::CauseKind::Peer)
}

/// The reply to a request with a numeric id on a byte stream.
fn reply(key: InboundKey, id: i64, body: ReplyBody) -> Output {
    Output::Reply(Reply {
        key,
        id: id.into(),
        tag: 0,
        server_cancellable: false,
        exchange: ExchangeId::NONE,
        body,
    })
}

/// The refusal of a request on a byte stream that would start cancelled.
fn refused_cancelled(id: RequestId, cause: Cause) -> Output {
    let exchange = ExchangeId::NONE;
    Output::RefuseCancelled { id, tag: 0, server_cancellable: false, exchange, graceful: None, cause }
}

fn replies(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Reply(_) | Output::Silence { .. })).count()
}

fn signals(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Signal { .. })).count()
}

fn principal(name: &str) -> Origin {
    Origin { principal: Some(Principal(name.into())), ..Origin::STREAM }
}

fn abp() -> Bench {
    let mut bench = Bench::new(ABP);
    bench.session.handshake(HandshakePart::Result, &Handshake::default());
    bench
}

impl Bench {
    fn running_call(&mut self, id: i64, call_id: &str) -> InboundKey {
        let named = CancelKey::Named(RequestId::text(call_id).unwrap());
        let arrival = InboundRequest { cancel_key: named, ..Self::arrival(id, "test/wait") };
        let key = self.session.recv_request(self.now, arrival).unwrap();
        let _ = self.outputs();
        key
    }

    fn cancel_call_id(&mut self, call_id: &str, ack: i64) -> Vec<Output> {
        let key = RequestId::text(call_id).unwrap();
        self.session.recv_cancel(self.now, Some(key), None, Some(ack.into()), &Origin::STREAM);
        self.outputs()
    }
}

fn ack(outputs: &[Output]) -> Option<AckStatus> {
    outputs.iter().find_map(|output| match output {
        Output::Ack { status, .. } => Some(*status),
        _ => None,
    })
}

// Limits at their ends: zero and infinite.

#[test]
fn a_cascade_with_a_slice_size_of_zero_still_completes() {
    // L4
    let mut bench = Bench::with(ACP, |config| config.limits.max_cancels_per_step = 0);
    let parent = bench.running(1);
    let child = CallSpec { parent: Some(parent), ..CallSpec::new("child") };
    let _ = bench.written(&child);
    let _ = bench.written(&child);
    bench.cancel(1);
    for _ in 0..10 {
        bench.session.advance(bench.now);
    }
    assert!(!bench.session.has_work(), "L4: the cascade never ends");
}

#[test]
fn a_maximal_duration_does_not_panic() {
    let mut bench = Bench::with(MCP, |config| {
        let limits = &mut config.limits;
        limits.max_running_handlers = 1;
        for time in [
            &mut limits.queue_timeout,
            &mut limits.early_cancel_timeout,
            &mut limits.settled_id_lifetime,
            &mut limits.cancel_grace,
            &mut limits.half_close_grace,
            &mut limits.detach_grace,
            &mut limits.cancel_response_timeout,
            &mut limits.max_shield_time,
        ] {
            *time = Duration::MAX;
        }
    });
    bench.cancel(9);
    let key = bench.running(1);
    let _queued = bench.session.recv_request(bench.now, Bench::arrival(2, "a")).unwrap();
    bench.session.local_shield(bench.now, key);
    let call = bench.written(&CallSpec::new("a"));
    let wait = Some(AfterCancel::WaitForPeer);
    let _ = bench.session.local_cancel_call(bench.now, call, CauseKind::Caller.into(), wait);
    bench.session.recv_half_close(bench.now);
    bench.cancel(1);
    bench.session.local_unshield(bench.now, key);
    bench.session.local_shutdown(bench.now, Duration::MAX);
    let _ = bench.outputs();
    assert_eq!(signals(&bench.pass(Duration::from_secs(86_400 * 365))), 0);
    bench.session.recv_lost(bench.now, DisconnectPolicy::Detach);
}

#[test]
fn without_permits_a_half_closed_connection_closes_with_its_last_request() {
    let mut bench = Bench::with(ACP, |config| {
        config.limits.max_blocking_handlers = 0;
        config.limits.queue_timeout = Duration::from_secs(10);
    });
    let blocking = InboundRequest { work: Work::Blocking, ..Bench::arrival(1, "test/block") };
    let _queued = bench.session.recv_request(bench.now, blocking).unwrap();
    bench.session.recv_half_close(bench.now);
    let outputs = bench.pass(Duration::from_secs(10));
    assert!(outputs.contains(&Output::Close(CloseCause::InputEnded)), "{outputs:?}");
    bench.assert_no_residue();
}

#[test]
fn a_drained_connection_closes_when_its_last_queued_request_is_cancelled() {
    let mut bench = Bench::with(ACP, |config| config.limits.max_running_handlers = 0);
    let _queued = bench.session.recv_request(bench.now, Bench::arrival(1, "a")).unwrap();
    bench.session.local_shutdown(bench.now, Duration::from_secs(10));
    let outputs = bench.cancel(1);
    assert!(outputs.contains(&Output::Close(CloseCause::Shutdown)), "{outputs:?}");
}

#[test]
fn a_bad_frame_with_an_exchange_of_its_own_is_always_answered_there() {
    // I3: each exchange ends, and the peer pays for it.
    let mut bench = Bench::new(ACP);
    for exchange in 1..=1000 {
        bench.session.recv_bad(bench.now, BadMessage::NotJson, ExchangeId(exchange));
    }
    let refused = bench.outputs().iter().filter(|output| matches!(output, Output::Refuse { .. })).count();
    assert_eq!(refused, 1000);
}

#[test]
fn cancels_of_a_shielded_call_wait_for_its_end_up_to_a_bound() {
    // I11
    let mut bench = Bench::with(ABP, |config| config.limits.max_early_cancels = 3);
    bench.session.handshake(HandshakePart::Result, &Handshake::default());
    let (first, second) = (bench.running_call(1, "c1"), bench.running_call(2, "c2"));
    bench.session.local_shield(bench.now, first);
    bench.session.local_shield(bench.now, second);
    for number in 10..13 {
        assert_eq!(bench.cancel_call_id("c1", number), [], "there is room for its ack");
    }
    for number in 13..1000 {
        let outputs = bench.cancel_call_id("c1", number);
        assert_eq!(
            ack(&outputs),
            Some(AckStatus::Overloaded),
            "I11: cancel {number} of a shielded call waits"
        );
    }
    assert_eq!(bench.session.stats().refused, 987, "the limit is counted when it fires");
    assert_eq!(bench.cancel_call_id("c2", 1000), [], "I4: the first cancel of another call is heard as ever");
    assert_eq!(ack(&bench.cancel_call_id("c2", 1001)), Some(AckStatus::Overloaded));
    for (key, owed) in [(first, 3), (second, 1)] {
        bench.session.local_unshield(bench.now, key);
        let outputs = bench.outputs();
        let reported = |output: &&Output| matches!(output, Output::Ack { status: AckStatus::Cancelled, .. });
        assert_eq!(outputs.iter().filter(reported).count(), owed, "{outputs:?}");
        let _ = bench.ended(key);
    }
    bench.assert_no_residue();
    let third = bench.running_call(3, "c3");
    bench.session.local_shield(bench.now, third);
    for number in 10..13 {
        assert_eq!(bench.cancel_call_id("c3", number), [], "I3: a place of an ended call is free again");
    }
}

#[test]
fn a_maximal_grace_does_not_expire() {
    let mut bench = Bench::with(ACP, |config| config.limits.cancel_grace = Duration::MAX);
    let key = bench.running(1);
    bench.cancel(1);
    assert_eq!(bench.pass(Duration::from_secs(10 * 365 * 86_400)), []);
    assert_eq!(bench.answer(key, HandlerResult::Value), [reply(key, 1, ReplyBody::Handler)]);
}

#[test]
fn a_request_that_cannot_be_read_is_refused_under_its_id_unless_that_is_in_use() {
    // I4
    let mut bench = Bench::new(ACP);
    let key = bench.running(1);
    let why = || Refusal::Bad(BadMessage::NotJson);
    let exchange = ExchangeId::NONE;
    for (id, to) in [(1, None), (2, Some((RequestId::number(2), 0)))] {
        bench.session.recv_bad_request(id.into(), 0, BadMessage::NotJson, &Origin::STREAM);
        let expected = [Output::Event(Event::BadFrame), Output::Refuse { to, exchange, why: why() }];
        assert_eq!(bench.outputs(), expected, "{id}");
    }
    bench.session.recv_lost(bench.now, DisconnectPolicy::Keep);
    bench.session.recv_bad_request(3.into(), 0, BadMessage::NotJson, &Origin::STREAM);
    assert_eq!(bench.outputs(), [Output::Event(Event::BadFrame)], "there is no peer to answer");
    let _ = bench.ended(key);
}

#[test]
fn the_next_timeout_is_that_of_the_earliest_timer() {
    let mut bench = Bench::new(ACP);
    assert_eq!(bench.session.next_timeout(), None);
    let _first = bench.running(1);
    let _second = bench.running(2);
    let grace = bench.session.limits().cancel_grace;
    let first = bench.now + grace;
    bench.cancel(1);
    bench.now += grace / 2;
    bench.cancel(2);
    assert_eq!(bench.session.next_timeout(), Some(first));
    let _ = bench.pass(grace / 2);
    assert_eq!(bench.session.next_timeout(), Some(first + grace / 2));
    let _ = bench.pass(grace / 2);
    assert_eq!(bench.session.next_timeout(), None);
}

fn shared() -> Bench {
    Bench::with(ACP, |config| {
        (
            config.limits.max_running_handlers,
            config.limits.max_blocking_handlers,
            config.limits.max_queued_requests,
        ) = (4, 2, 4);
        config.client_limits = Some(ClientLimits::new(2, 1, 2));
    })
}

fn ask(bench: &mut Bench, client: usize, id: i64, work: Work) -> Option<InboundKey> {
    let origin = Origin { client: Some(ClientNumber(client)), ..Origin::STREAM };
    let arrival = InboundRequest { origin, work, ..Bench::arrival(id, "test/wait") };
    bench.session.recv_request(bench.now, arrival)
}

fn end(bench: &mut Bench, key: InboundKey) -> Vec<Output> {
    bench.session.local_answer(bench.now, key, HandlerResult::Value);
    bench.session.local_ended(bench.now, key);
    bench.outputs()
}

fn started(outputs: &[Output]) -> Vec<InboundKey> {
    let key = |output: &Output| if let Output::Start(key) = output { Some(*key) } else { None };
    outputs.iter().filter_map(key).collect()
}

#[test]
fn a_client_that_hangs_leaves_permits_and_queue_to_others() {
    let mut bench = shared();
    let greedy: Vec<_> = (1..=4).map(|id| ask(&mut bench, 1, id, Work::Task).unwrap()).collect();
    assert_eq!(started(&bench.outputs()), greedy[..2], "its share; the rest waits");
    assert_eq!(ask(&mut bench, 1, 5, Work::Task), None);
    let outputs = bench.outputs();
    assert_eq!(outputs[0], Output::Event(Event::LimitReached("client_queued")));
    assert!(matches!(outputs[1], Output::Refuse { why: Refusal::Overloaded("client_queued"), .. }));
    let other = ask(&mut bench, 2, 6, Work::Task).unwrap();
    assert_eq!(started(&bench.outputs()), [other], "at once, before the queued ones");
    assert_eq!(started(&end(&mut bench, other)), [], "its permit is not for the other client");
    assert_eq!(started(&end(&mut bench, greedy[0])), [greedy[2]]);
    for key in [greedy[1], greedy[2], greedy[3]] {
        let _ = end(&mut bench, key);
    }
    bench.assert_no_residue();
}

#[test]
fn queued_requests_start_in_order_of_arrival_except_those_over_their_share() {
    let mut bench = shared();
    let running: Vec<_> = [(1, 1), (1, 2), (2, 3), (2, 4)]
        .map(|(client, id)| ask(&mut bench, client, id, Work::Task).unwrap())
        .into();
    let [first, third, again] =
        [(1, 5), (3, 6), (1, 7)].map(|(client, id)| ask(&mut bench, client, id, Work::Task).unwrap());
    assert_eq!(started(&bench.outputs()), running);
    assert_eq!(started(&end(&mut bench, running[2])), [third], "the first client has its share");
    assert_eq!(started(&end(&mut bench, running[0])), [first]);
    assert_eq!(started(&end(&mut bench, first)), [again]);
    for key in [running[1], running[3], third, again] {
        let _ = end(&mut bench, key);
    }
    bench.assert_no_residue();
}

#[test]
fn blocking_work_has_its_own_share_and_queue_entries_are_released() {
    let mut bench = shared();
    let blocking = ask(&mut bench, 1, 1, Work::Blocking).unwrap();
    let waiting = [2, 3].map(|id| ask(&mut bench, 1, id, Work::Blocking).unwrap());
    assert_eq!(started(&bench.outputs()), [blocking]);
    let other = ask(&mut bench, 2, 4, Work::Blocking).unwrap();
    assert_eq!(started(&bench.outputs()), [other]);
    assert_eq!(ask(&mut bench, 1, 5, Work::Blocking), None);
    let _ = bench.outputs();
    let time = bench.session.limits().queue_timeout;
    let _ = bench.pass(time);
    assert!(waiting.iter().all(|key| bench.session.request_cause(*key).is_none()));
    let again = ask(&mut bench, 1, 6, Work::Blocking).unwrap();
    assert_eq!(started(&bench.outputs()), []);
    assert_eq!(started(&end(&mut bench, blocking)), [again]);
    for key in [other, again] {
        let _ = end(&mut bench, key);
    }
    bench.assert_no_residue();
}
