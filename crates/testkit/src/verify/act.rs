//! What each input does to the session, and what the account learns of it. Calls of this side have a file of their own.

use rescind_core::dialect::{AckStyle, Handshake, HandshakePart, LostStream};
use rescind_core::inspect::Inspection;
use rescind_core::{
    Arrival, CancelKey, Cause, CauseKind, ExchangeId, Exempt, HandlerEnd, InboundKey, Origin, Principal,
    RequestId, Work,
};

use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::{Kind, Name, OwedAck};
use super::world::{BLOCKING, CANCELS_COME_ON, DRAIN, GENERATIONS, HELLO, World};

impl World {
    pub(super) fn give(&mut self, input: Input, before: &Inspection) -> Result<Option<InboundKey>, Broken> {
        let now = self.now;
        match input {
            Input::Request(id) => return self.request(id),
            Input::Hello => {
                self.done.hello = true;
                let method = self.session.dialect().rules().handshake.unwrap_or_default();
                let arrival = self.arrival(RequestId::number(HELLO), method, ExchangeId(800));
                let key = self.session.recv_request(now, arrival);
                return self.accept(key, RequestId::number(HELLO).into(), Kind::Handshake);
            }
            Input::Agreed => {
                self.done.agreed = true;
                let yes = Handshake::new(Some(true), None);
                self.session.handshake(HandshakePart::Params, &yes);
                self.session.handshake(HandshakePart::Result, &yes);
            }
            Input::Cancel(id) => {
                self.cancel(Some(self.named(id)), None);
            }
            Input::CancelHello => self.cancel(Some(RequestId::number(HELLO)), None),
            Input::CancelByStranger => self.cancel(Some(self.named(0)), Some(Principal("stranger".into()))),
            Input::CancelNothing => self.cancel(None, None),
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
                self.shields(key, 1);
                self.session.local_shield(now, key);
            }
            Input::Unshield(key) => {
                self.shields(key, 0);
                self.session.local_unshield(now, key);
            }
            Input::LocalCancel(key) => self.local_cancel(key, CauseKind::Local),
            Input::Deadline(key) => self.local_cancel(key, CauseKind::Deadline),
            Input::Stale(key) => {
                let _ = self.session.local_cancel(now, key, Cause::new(CauseKind::Local));
                self.session.local_shield(now, key);
                self.session.local_unshield(now, key);
                self.session.local_answer(now, key, HandlerEnd::Value);
                self.session.local_ended(now, key);
            }
            Input::StreamLost(key) | Input::StreamBack(key) => self.stream(key, input, before),
            Input::Time => {
                self.now = self.session.next_timeout().map_or(now, |due| due.max(now));
                self.session.handle_timeout(self.now);
                let spins = self.session.next_timeout().is_some_and(|due| due <= self.now);
                holds(!spins, "L4", || "what was due is due again at once".to_owned())?;
            }
            Input::Wait => {
                self.now += self.session.limits().parked_time;
                self.session.handle_timeout(self.now);
            }
            Input::HalfClose => {
                self.ledger.ending.half_closed = true;
                self.session.recv_half_close(now);
            }
            Input::Lost(lost) => {
                self.ledger.lost = true;
                self.ledger.acks.clear();
                self.session.recv_lost(now, lost);
            }
            Input::Shutdown => {
                self.ledger.ending.shutdown = true;
                self.session.local_shutdown(now, DRAIN);
            }
            Input::Call(input) => self.give_to_call(input)?,
        }
        Ok(None)
    }

    fn request(&mut self, id: u8) -> Result<Option<InboundKey>, Broken> {
        let exchange = self.next_exchange(id);
        let Some(asked) = self.done.requests.get_mut(usize::from(id)) else { return Ok(None) };
        *asked += 1;
        let name = self.name(id);
        let mut arrival = self.arrival(name.id.clone(), "work", exchange);
        if self.names_keys() {
            arrival.cancel_key = CancelKey::Named(name.key.clone());
        }
        if id == BLOCKING {
            arrival.work = Work::Blocking;
        }
        let key = self.session.recv_request(self.now, arrival);
        self.accept(key, name, Kind::Work)
    }

    /// The exchange that the next request under an id comes on, where there are such.
    pub(super) fn next_exchange(&self, id: u8) -> ExchangeId {
        let asked = self.done.requests.get(usize::from(id)).copied().unwrap_or_default();
        ExchangeId(u64::from(id) * u64::from(GENERATIONS) + u64::from(asked) + 1)
    }

    fn arrival<'a>(&self, id: RequestId, method: &'a str, exchange: ExchangeId) -> Arrival<'a> {
        Arrival {
            id,
            cancel_key: CancelKey::SameAsId,
            method,
            exempt: Exempt::No,
            tag: 0,
            origin: self.origin(exchange),
            server_cancellable: false,
            work: Work::Task,
            admission: Ok(()),
        }
    }

    fn accept(
        &mut self,
        key: Option<InboundKey>,
        name: Name,
        kind: Kind,
    ) -> Result<Option<InboundKey>, Broken> {
        if let Some(key) = key {
            self.ledger.accept(key, name, kind)?;
        }
        Ok(key)
    }

    /// What a cancel of one of the ids names. Where keys are shared, the last names a request by its id, which is no key.
    pub(super) fn named(&self, id: u8) -> RequestId {
        if self.names_keys() && id < 2 { RequestId::number(id.into()) } else { self.name(id).id }
    }

    fn cancel(&mut self, key: Option<RequestId>, principal: Option<Principal>) {
        let ack = (self.session.dialect().rules().ack == AckStyle::Acknowledged).then(|| match &key {
            Some(key) => RequestId::number(500 + key.as_number().unwrap_or(99)),
            None => RequestId::number(700),
        });
        let is_strange = principal.is_some();
        if let Some(ack) = ack.clone() {
            let says = self.says(key.as_ref().filter(|_| !is_strange), key.is_some());
            self.ledger.acks.push(OwedAck { ack, key: key.clone(), says });
        }
        let counts = self.hears_cancels() && !self.is_called_off() && !is_strange;
        let named = key.as_ref().filter(|_| counts).and_then(|key| self.ledger.named(key));
        if let Some(named) = named.map(|(named, _)| named) {
            self.ledger.cancel(named, CauseKind::Peer);
        }
        let origin = Origin { principal, ..self.origin(CANCELS_COME_ON) };
        self.session.recv_cancel(self.now, key, None, ack, &origin);
    }

    fn local_cancel(&mut self, key: InboundKey, cause: CauseKind) {
        self.ledger.cancel(key, cause);
        let _ = self.session.local_cancel(self.now, key, Cause::new(cause));
    }

    fn shields(&mut self, key: InboundKey, shields: u8) {
        if let Some(served) = self.ledger.served.get_mut(&key) {
            served.shields = shields;
        }
    }

    fn stream(&mut self, key: InboundKey, input: Input, seen: &Inspection) {
        let Some((exchange, _)) = seen.exchanges.iter().find(|(_, on)| *on == key) else { return };
        let is_lost = matches!(input, Input::StreamLost(_));
        let cancels = self.session.dialect().rules().lost_stream == LostStream::Cancel;
        if is_lost && cancels {
            self.ledger.cancel(key, CauseKind::Peer);
        } else if let Some(served) = self.ledger.served.get_mut(&key) {
            served.detached = is_lost;
        }
        if is_lost {
            self.session.recv_exchange_closed(self.now, *exchange);
        } else {
            self.session.recv_exchange_resumed(self.now, *exchange);
        }
    }
}
