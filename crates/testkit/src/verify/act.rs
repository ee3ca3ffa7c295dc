//! What each input does to the session, and what the account learns of it.

use rescind_core::dialect::{self, Handshake, HandshakePart};
use rescind_core::{
    AnswerKind, Arrival, CallNumber, CallRefused, CallSpec, CancelKey, Cause, CauseKind, ExchangeId, Exempt,
    ForeignChild, HandlerEnd, InboundKey, RequestId, Work,
};

use super::input::Input;
use super::invariants::{Broken, holds};
use super::world::{CANCELS_COME_ON, CHILD, DRAIN, GENERATIONS, HELLO, World};

impl World {
    pub(super) fn give(&mut self, input: Input) -> Result<Option<InboundKey>, Broken> {
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
            Input::Ended(key) => {
                self.ledger.end(key);
                self.session.local_ended(now, key);
            }
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
                self.ledger.cancel(key);
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
                let spins = self.session.next_timeout().is_some_and(|due| due <= self.now);
                holds(!spins, "L4", || "what was due is due again at once".to_owned())?;
            }
            Input::Wait => {
                self.done.waited = true;
                self.now += self.session.limits().parked_time;
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
            // As the driver does: a cancel that an answer has disarmed is not written.
            Input::CancelWritten(key) if self.session.wants_cancel(key) => {
                let cancel = self.ledger.made.get_mut(&key).and_then(|made| made.cancel.as_mut());
                if let Some((_, written)) = cancel {
                    *written = true;
                }
                self.session.local_cancel_written(now, key);
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
        if let Some(id) = id.as_ref().filter(|_| self.hears_cancels()) {
            let mut alive = self.ledger.served.iter().filter(|(_, served)| !served.ended);
            let named = alive.find(|(_, served)| served.id.as_ref() == Some(id)).map(|(key, _)| *key);
            if let Some(named) = named {
                self.ledger.cancel(named);
            }
        }
        let ack = (self.session.dialect().rules().ack == dialect::AckStyle::Acknowledged)
            .then(|| RequestId::number(500));
        self.ledger.acks += usize::from(ack.is_some() && !self.ledger.lost);
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
}
