//! The machine, driven by the same events, with the ledger that every engine keeps.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rescind_core::dialect::{AckStyle, CancelFrom, Handshake, HandshakePart, Role};
use rescind_core::{
    CallNumber, CallRefused, CallSpec, CancelExemption, Cause, CauseKind, DisconnectPolicy, Event as Noted,
    InboundKey, InboundRequest, NoTask, Origin, OutboundKey, Output, ReplyBody, RequestId, Session,
    SessionConfig, Settlement,
};
use rescind_verification::{Kind, Ledger, holds as claim_holds};

use super::caller::{CallEvent, CancelFrame, Own};
use super::model::{BY_US, Case, Event, Reference, Seen, in_no_order};

pub(super) struct Machine {
    session: Session,
    ledger: Ledger,
    hears_cancels: bool,
    acknowledges: bool,
    start: Instant,
    now: Instant,
    requests: Vec<(InboundKey, u8)>,
    calls: Vec<OwnCall>,
    seen: Vec<Seen>,
    /// How many of the observations were compared with the reference.
    held: Cell<usize>,
}

struct OwnCall {
    key: OutboundKey,
    number: CallNumber,
    cancel: Option<CallNumber>,
}

impl Machine {
    pub(super) fn new(case: &Case) -> Self {
        let rules = case.dialect.rules();
        let mut config = SessionConfig::new(case.dialect.clone(), case.role);
        config.ordered = case.ordered;
        let mut session = Session::new(config);
        let yes = Handshake::new(Some(true), None);
        session.handshake(HandshakePart::Params, &yes);
        session.handshake(HandshakePart::Result, &yes);
        let start = Instant::now();
        Self {
            hears_cancels: rules.cancel_from == CancelFrom::Both || case.role == Role::Server,
            acknowledges: rules.ack == AckStyle::Acknowledged,
            session,
            ledger: Ledger::default(),
            start,
            now: start,
            requests: Vec::new(),
            calls: Vec::new(),
            seen: Vec::new(),
            held: Cell::new(0),
        }
    }

    pub(super) fn happen(&mut self, event: Event, events: &AtomicU64) {
        events.fetch_add(1, Ordering::Relaxed);
        let from = self.seen.len();
        let mut last = None;
        match event {
            Event::Ask(id) => self.ask(id, Kind::Work),
            Event::AskForTask(id) => self.ask(id, Kind::CancelExemption),
            Event::Cancel(id) => self.cancel(id),
            Event::End(number, end) => {
                let key = self.requests[number].0;
                if let Some(served) = self.ledger.served.get_mut(&key) {
                    served.offered = true;
                }
                self.session.local_answer(self.now, key, end);
            }
            Event::Gone(number) => {
                let key = self.requests[number].0;
                self.ledger.end(key);
                self.session.local_ended(self.now, key);
            }
            Event::BecomeTask(number) => self.become_task(number),
            Event::CancelTask(number, cause) => {
                let key = self.requests[number].0;
                self.ledger.cancel(key, cause);
                let took_effect = self.session.local_cancel(self.now, key, Cause::new(cause));
                self.seen.push(Seen::TaskCancelled(number, took_effect));
            }
            Event::ShutDown => {
                self.ledger.ending.shutdown = true;
                self.session.local_shutdown(self.now, Duration::ZERO);
            }
            Event::Own(own) => last = self.own(own),
            Event::Lost => {
                self.ledger.lost = true;
                self.session.recv_lost(self.now, DisconnectPolicy::CancelNow);
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
        if let (Event::Ask(id), true) = (event, outputs.is_empty()) {
            self.seen.push(Seen::UnbornInSilence(id));
        }
        for output in &outputs {
            self.ledger.take(&self.session, output).unwrap_or_else(|broken| panic!("{broken}"));
            self.see(event, output);
        }
        self.seen.extend(last.map(Seen::CallEvent));
        in_no_order(event, &mut self.seen[from..]);
        let inspection = self.session.inspect(self.now);
        self.ledger.check(&self.session, &inspection).unwrap_or_else(|broken| panic!("{broken}"));
    }

    fn ask(&mut self, id: u8, kind: Kind) {
        let mut arrival = InboundRequest::new(RequestId::number(id.into()), "work");
        if kind == Kind::CancelExemption {
            arrival.exempt = CancelExemption::FromCancelMessages;
        }
        if let Some(key) = self.session.recv_request(self.now, arrival) {
            let accepted = self.ledger.accept(key, RequestId::number(id.into()).into(), kind);
            accepted.unwrap_or_else(|broken| panic!("{broken}"));
            self.requests.push((key, id));
        }
    }

    fn become_task(&mut self, number: usize) {
        let key = self.requests[number].0;
        match self.session.local_become_task(self.now, key) {
            Ok(()) => self.ledger.served.get_mut(&key).expect("it runs").is_task = true,
            Err(NoTask::Ended) => self.seen.push(Seen::NotATask(number)),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Whether this request became a task, or has ended as one.
    fn is_task(&self, key: InboundKey) -> bool {
        self.ledger.served.get(&key).is_some_and(|served| served.is_task)
    }

    fn cancel(&mut self, id: u8) {
        let is_named = |key: InboundKey| {
            self.ledger
                .served
                .get(&key)
                .is_some_and(|served| !served.is_task && served.kind != Kind::CancelExemption)
        };
        let named = self.requests.iter().rev().find(|(key, asked)| *asked == id && is_named(*key));
        if let (Some((key, _)), true) = (named, self.hears_cancels) {
            self.ledger.cancel(*key, CauseKind::Peer);
        }
        let ack = self.acknowledges.then(|| RequestId::number(1000));
        let key = RequestId::number(id.into());
        // The model defines the status of the acknowledgement.
        if let Some(ack) = ack.clone() {
            self.ledger.owe_ack(ack, Some(key.clone()));
        }
        self.session.recv_cancel(self.now, Some(key), None, ack, &Origin::STREAM);
    }

    /// Returns the result that is recorded last, after the effects of the machine.
    fn own(&mut self, own: Own) -> Option<CallEvent> {
        let now = self.now;
        match own {
            Own::Call(parent, time, after_cancel) => {
                let parent = parent.map(|parent| self.requests[parent].0);
                let mut spec = CallSpec::new("work");
                spec.parent = parent;
                (spec.deadline, spec.after_cancel) = (time.map(|time| now + time), after_cancel);
                match self.session.local_call(now, &spec) {
                    Ok((key, number)) => {
                        let made = self.ledger.make(key, number, parent);
                        made.unwrap_or_else(|broken| panic!("{broken}"));
                        self.calls.push(OwnCall { key, number, cancel: None });
                    }
                    Err(CallRefused::Disconnected) => return Some(CallEvent::NotMade),
                    Err(CallRefused::AlreadyCancelled(_)) => return Some(CallEvent::AlreadyCancelled),
                    Err(other) => panic!("{other:?}"),
                }
            }
            Own::Write(number) => {
                let key = self.calls[number].key;
                self.ledger.made.get_mut(&key).expect("it is staged").written = true;
                self.session.local_written(now, key);
            }
            Own::Cancel(number, after) => {
                let key = self.calls[number].key;
                let result = self.session.local_cancel_call(now, key, Cause::new(BY_US), after);
                return Some(CallEvent::Canceller(result));
            }
            Own::WriteCancel(number) => {
                let key = self.calls[number].key;
                let made = self.ledger.made.get_mut(&key).and_then(|made| made.cancel.as_mut());
                made.expect("its cancel was asked for").1 = true;
                self.session.local_cancel_written(now, key);
            }
            Own::Answer(number, kind) => {
                let call = &self.calls[number];
                let settled = self.session.recv_answer(now, Some(call.number), kind);
                assert!(settled.is_none_or(|settled| settled == call.key), "I4: another call is settled");
            }
            Own::Ack(number, cancelled) => {
                self.session.recv_ack(now, self.calls[number].cancel, cancelled);
            }
        }
        None
    }

    fn request(&self, key: InboundKey) -> usize {
        self.requests.iter().position(|(known, _)| *known == key).expect("a request that was asked")
    }

    fn call(&self, key: OutboundKey) -> usize {
        self.calls.iter().position(|known| known.key == key).expect("a call that was made")
    }

    fn see(&mut self, event: Event, output: &Output) {
        let seen = match output {
            Output::Start(key) => Seen::Started(self.request(*key)),
            Output::Signal { key, .. } if self.is_task(*key) => Seen::TaskSignalled(self.request(*key)),
            Output::Signal { key, .. } => Seen::Signalled(self.request(*key)),
            Output::TaskEnded { key, cancelled } => {
                Seen::TaskEnded(self.request(*key), cancelled.as_ref().map(Cause::kind))
            }
            Output::Abort(key) => Seen::Aborted(self.request(*key)),
            Output::Silence { key, .. } => Seen::Silence(self.request(*key)),
            Output::Reply(reply) => {
                let number = self.request(reply.key);
                match reply.body {
                    ReplyBody::Handler => Seen::Value(number),
                    ReplyBody::TaskHandle => Seen::Handed(number),
                    ReplyBody::Cancelled(_) | ReplyBody::Graceful(_) => Seen::Cancelled(number),
                    ReplyBody::Refused(_) => Seen::Failed(number),
                }
            }
            Output::Refuse { .. } | Output::RefuseCancelled { .. } => {
                let (Event::Ask(id) | Event::AskForTask(id)) = event else {
                    panic!("{output:?} in {event:?}")
                };
                if matches!(output, Output::Refuse { .. }) { Seen::Refused(id) } else { Seen::Unborn(id) }
            }
            Output::Ack { status, .. } => Seen::Acknowledged(*status),
            Output::SendCancel { call, cancel, .. } => {
                let number = self.call(*call);
                self.calls[number].cancel = Some(*cancel);
                Seen::CallEvent(CallEvent::CancelSent(number))
            }
            Output::TakeBack(call) => Seen::CallEvent(CallEvent::TakenBack(self.call(*call))),
            Output::Acked { call, cancelled } => {
                Seen::CallEvent(CallEvent::Acked(self.call(*call), *cancelled))
            }
            Output::Settle { call, settlement } => Seen::CallEvent(settled(self.call(*call), settlement)),
            Output::Event(Noted::UnknownCancel) => Seen::Nothing,
            Output::Event(Noted::ParkedCancel) => Seen::Waits,
            Output::Event(Noted::IgnoredCancel) => Seen::Unheard,
            Output::Event(Noted::LateAnswer) => Seen::CallEvent(CallEvent::Late),
            Output::Event(Noted::UnknownAnswer) => Seen::CallEvent(CallEvent::Unknown),
            Output::Event(Noted::Unresponsive(call)) => {
                Seen::CallEvent(CallEvent::Unresponsive(self.call(*call)))
            }
            _ => return,
        };
        self.seen.push(seen);
    }

    /// Compares all observations, and what is still to be written, with the reference.
    pub(super) fn is_as(&self, reference: &Reference) {
        // The earlier observations were already compared.
        let held = self.held.replace(self.seen.len());
        let (seen, model) = (&self.seen[held..], &reference.seen[held.min(reference.seen.len())..]);
        for (place, (real, model)) in seen.iter().zip(model).enumerate() {
            let place = held + place;
            let invariant = if real == model { model.invariant() } else { model.broken_by(*real) };
            judge(real == model, invariant, || {
                format!("as number {place} the reference says {model:?}, and the machine {real:?}")
            });
        }
        let (more, missing) = (seen.get(model.len()), model.get(seen.len()));
        if let Some(more) = more {
            judge(false, more.invariant(), || {
                format!("the machine brought {more:?}, and the reference nothing")
            });
        }
        if let Some(missing) = missing {
            judge(false, missing.invariant(), || {
                format!("the reference says {missing:?}, and the machine nothing")
            });
        }
        assert_eq!(self.now - self.start, reference.now);
        for (call, model) in self.calls.iter().zip(&reference.caller.calls) {
            let wants = self.session.wants_cancel(call.key);
            let is_owed = model.cancel == CancelFrame::Waits;
            if wants || is_owed {
                judge(wants == is_owed, "I2", || {
                    format!(
                        "the cancel of {:?} waits to be written: {wants}, in the reference {is_owed}",
                        call.number
                    )
                });
            }
        }
        let (is_finished, is_over) = (self.session.is_finished(), reference.is_finished());
        if is_finished || is_over {
            judge(is_finished == is_over, "L3", || {
                format!("all of it is gone: {is_finished}, in the reference {is_over}")
            });
        }
    }
}

/// Counts a comparison, and fails with the invariant's number.
fn judge(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) {
    if let Err(broken) = claim_holds(holds, invariant, what) {
        panic!("{broken}");
    }
}

fn settled(call: usize, settlement: &Settlement) -> CallEvent {
    match settlement {
        Settlement::Answered { cancelled } => CallEvent::Answered(call, cancelled.as_ref().map(Cause::kind)),
        Settlement::Cancelled { cause, confirmed } => {
            CallEvent::Cancelled { call, cause: cause.kind(), confirmed: *confirmed }
        }
        Settlement::Disconnected { may_have_run } => {
            CallEvent::Disconnected { call, may_have_run: *may_have_run }
        }
    }
}
