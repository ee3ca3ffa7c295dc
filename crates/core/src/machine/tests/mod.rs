//! The machine alone: each test names the transition and cites the invariant that it would violate.

mod bounds;
mod calls;
mod cancels;
mod early;
mod ending;
mod races;
mod random;
mod requests;

use std::time::{Duration, Instant};

use super::*;
use crate::cause::Cause;
use crate::dialect::{ABP, Dialect, Handshake};
use crate::id::{ClientNumber, Principal, RequestId, Scope};
use crate::message::{AckStatus, CancelExemption, CancelKey};

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
