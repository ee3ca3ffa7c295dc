//! The effect of each input on the session, and what the ledger records of it. The calls of this side are in
//! `input.rs`.

use rescind_core::dialect::{AckStyle, CancelledReply, Handshake, HandshakePart, LostStream, Role};
use rescind_core::inspect::Inspection;
use rescind_core::{
    BadMessage, CancelExemption, CancelKey, Cause, CauseKind, ExchangeId, HandlerResult, InboundKey,
    InboundRequest, RequestId, Scope, Work,
};

use super::input::Input;
use super::invariants::{Broken, holds, holds_and_counts};
use super::oracle::{Kind, Name, OwedAck};
use super::state::{
    BLOCKING, CANCEL_EXCHANGE, DRAIN, GENERATIONS, HANDSHAKE_EXCHANGE, IDS, MachineState, OVER,
};

/// More timers than there can be.
const DUE_MEANWHILE: u32 = 100;

impl MachineState {
    pub(super) fn give(&mut self, input: Input, before: &Inspection) -> Result<Option<InboundKey>, Broken> {
        let now = self.now;
        match input {
            Input::Request(id) => return self.request(id, Kind::Work, Ok(())),
            Input::RequestOver => return self.request(0, Kind::Work, Err(OVER)),
            Input::RequestExempt => return self.request(IDS - 1, Kind::CancelExemption, Ok(())),
            Input::Hello => {
                self.done.hello = true;
                let method = self.session.dialect().rules().handshake.unwrap_or_default();
                let name = self.hello();
                let arrival = self.arrival(&name, method, HANDSHAKE_EXCHANGE);
                let key = self.session.recv_request(now, arrival);
                return self.accept(key, name, Kind::Handshake);
            }
            Input::Agreed(declared) => {
                self.done.agreed = Some(declared);
                let said = |handles| Handshake::new(Some(handles), None);
                let (params, result) = match self.session.role() {
                    Role::Server => (declared.peers(), declared.ours()),
                    Role::Client => (declared.ours(), declared.peers()),
                };
                self.session.handshake(HandshakePart::Params, &said(params));
                self.session.handshake(HandshakePart::Result, &said(result));
            }
            Input::Cancel(_)
            | Input::CancelHello
            | Input::CancelByStranger
            | Input::CancelByNobody
            | Input::CancelElsewhere
            | Input::CancelNothing => self.cancel(input),
            Input::Bad => {
                self.bad_frames += 1;
                self.session.recv_bad(now, BadMessage::NotJson, self.on(CANCEL_EXCHANGE));
            }
            Input::BadRequest => {
                let origin = self.origin(&self.last_name(0), self.last_exchange(0));
                self.session.recv_bad_request(self.name(0).id, 0, BadMessage::NotJson, &origin);
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
            Input::BecomeTask(key) => {
                let may = self.ledger.may_become_task(key);
                let became = self.session.local_become_task(now, key).is_ok();
                holds_and_counts(may, became == may, "I16", || {
                    format!("{key:?} may become a task: {may}, and became one: {became}")
                })?;
                if let Some(served) = self.ledger.served.get_mut(&key).filter(|_| became) {
                    served.is_task = true;
                }
            }
            Input::Shield(key) => {
                if let Some(served) = self.ledger.served.get_mut(&key) {
                    served.shields += 1;
                }
                self.begun.shielded();
                self.session.local_shield(now, key);
            }
            Input::Unshield(key) => {
                if let Some(served) = self.ledger.served.get_mut(&key) {
                    served.shields = served.shields.saturating_sub(1);
                }
                self.session.local_unshield(now, key);
            }
            Input::LocalCancel(key) => self.local_cancel(key, CauseKind::Local),
            Input::Deadline(key) => self.local_cancel(key, CauseKind::Deadline),
            Input::Stale(key) => {
                let _ = self.session.local_cancel(now, key, Cause::new(CauseKind::Local));
                self.session.local_shield(now, key);
                self.session.local_unshield(now, key);
                self.session.local_answer(now, key, HandlerResult::Value);
                self.session.local_ended(now, key);
            }
            Input::StreamLost(key) | Input::StreamBack(key) => self.stream(key, input, before),
            Input::Time
            | Input::Wait
            | Input::HalfClose
            | Input::Lost(_)
            | Input::Shutdown
            | Input::Idle
            | Input::Advance => self.give_to_all(input)?,
            Input::Call(input) => self.give_to_call(input)?,
        }
        Ok(None)
    }

    /// Applies the inputs that concern no single request: time, and the end of the connection.
    fn give_to_all(&mut self, input: Input) -> Result<(), Broken> {
        let now = self.now;
        match input {
            Input::Time => {
                self.now = self.session.next_timeout().map_or(now, |due| due.max(now));
                self.session.handle_timeout(self.now);
                let spins = self.session.next_timeout().is_some_and(|due| due <= self.now);
                holds(!spins, "L4", || "what was due is due again at once".to_owned())?;
            }
            Input::Wait => {
                // Timers that are due in between are handled on time: one grace can begin when another ends.
                let until = now + self.session.limits().early_cancel_timeout;
                let mut steps = 0;
                while let Some(due) = self.session.next_timeout().filter(|due| *due < until) {
                    self.now = due.max(self.now);
                    self.session.handle_timeout(self.now);
                    steps += 1;
                    holds(steps < DUE_MEANWHILE, "L4", || "what is due meanwhile has no end".to_owned())?;
                }
                self.now = until;
                self.session.handle_timeout(self.now);
            }
            Input::HalfClose => {
                self.ledger.ending.half_closed = true;
                self.begun.half_closed.get_or_insert(now);
                self.session.recv_half_close(now);
            }
            Input::Lost(lost) => {
                self.ledger.lost = true;
                self.ledger.acks.clear();
                let shielded = self.ledger.served.values().filter(|served| served.shields > 0).count();
                self.begun.lose(now, lost, shielded);
                self.session.recv_lost(now, lost);
            }
            Input::Shutdown => {
                self.ledger.ending.shutdown = true;
                self.begun.shut_down(now + DRAIN);
                self.session.local_shutdown(now, DRAIN);
            }
            Input::Idle => {
                self.ledger.ending.shutdown = true;
                self.begun.shut_down(now);
                self.session.local_idle(now);
            }
            Input::Advance => self.session.advance(now),
            _ => {}
        }
        Ok(())
    }

    fn request(
        &mut self,
        id: u8,
        kind: Kind,
        admission: Result<(), &'static str>,
    ) -> Result<Option<InboundKey>, Broken> {
        let (name, exchange) = (self.name(id), self.next_exchange(id));
        let Some(asked) = self.done.requests.get_mut(usize::from(id)) else { return Ok(None) };
        *asked += 1;
        let mut arrival = self.arrival(&name, "work", exchange);
        arrival.admission = admission;
        if kind == Kind::CancelExemption {
            arrival.exempt = CancelExemption::FromCancelMessages;
        }
        if self.names_keys() {
            arrival.cancel_key = CancelKey::Named(name.key.clone());
        }
        if id == BLOCKING {
            arrival.work = Work::Blocking;
        }
        let key = self.session.recv_request(self.now, arrival);
        self.accept(key, name, kind)
    }

    /// The exchange of the next request with an id, if there are exchanges.
    pub(super) fn next_exchange(&self, id: u8) -> ExchangeId {
        let asked = self.done.requests.get(usize::from(id)).copied().unwrap_or_default();
        ExchangeId(u64::from(id) * u64::from(GENERATIONS) + u64::from(asked) + 1)
    }

    /// The exchange of the last request with an id, if there was one.
    pub(super) fn last_exchange(&self, id: u8) -> ExchangeId {
        let ExchangeId(next) = self.next_exchange(id);
        ExchangeId(next - 1)
    }

    fn arrival<'a>(&self, name: &Name, method: &'a str, exchange: ExchangeId) -> InboundRequest<'a> {
        let origin = self.origin(name, exchange);
        InboundRequest { origin, ..InboundRequest::new(name.id.clone(), method) }
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

    /// The request that a cancel names: its sender, its scope and its key. If keys are shared, the last of the ids
    /// names a request by its id, which is not a key. `None`: it names no request.
    pub(super) fn meaning(&self, input: Input) -> Option<Name> {
        let meant = |id: u8| {
            let last = self.last_name(id);
            let key = if self.names_keys() && id < 2 { RequestId::number(id.into()) } else { last.id };
            Name { scope: last.scope, ..self.meant(&key) }
        };
        let first_with = |known: bool| (0..IDS).map(meant).find(|name| name.principal.is_some() == known);
        match input {
            Input::Cancel(id) => Some(meant(id)),
            Input::CancelHello => Some(self.hello()),
            Input::CancelByStranger => {
                first_with(false).map(|name| Name { principal: Some(self.stranger.clone()), ..name })
            }
            Input::CancelByNobody => first_with(true).map(|name| Name { principal: None, ..name }),
            Input::CancelElsewhere => {
                first_with(false).map(|name| Name { scope: Scope::Exchange(ExchangeId(901)), ..name })
            }
            _ => None,
        }
    }

    /// Whether the sender of a cancel may not cancel the request it names, or whether it names none in its scope.
    pub(super) const fn is_strange(input: Input) -> bool {
        matches!(input, Input::CancelByStranger | Input::CancelByNobody | Input::CancelElsewhere)
    }

    fn cancel(&mut self, input: Input) {
        let name = self.meaning(input);
        let is_strange = Self::is_strange(input);
        let key = name.as_ref().map(|name| name.key.clone());
        let ack = (self.session.dialect().rules().ack == AckStyle::Acknowledged).then(|| match &key {
            Some(key) => RequestId::number(500 + key.as_number().unwrap_or(99)),
            None => RequestId::number(700),
        });
        if let Some(ack) = ack.clone() {
            let says = self.says(key.as_ref().filter(|_| !is_strange), key.is_some());
            self.ledger.acks.push(OwedAck { ack, key: key.clone(), says });
        }
        let counts = self.hears_cancels() && !self.is_called_off() && !is_strange;
        let named = name.as_ref().filter(|_| counts).and_then(|name| self.ledger.named(name));
        let named = named.filter(|(_, served)| served.kind == Kind::Work).map(|(named, _)| named);
        if let Some(named) = named {
            self.ledger.cancel(named, CauseKind::Peer);
        }
        let origin = match name {
            Some(name) => self.origin(&name, CANCEL_EXCHANGE),
            None => self.origin(&self.hello(), CANCEL_EXCHANGE),
        };
        self.session.recv_cancel(self.now, key, None, ack, &origin);
    }

    fn local_cancel(&mut self, key: InboundKey, cause: CauseKind) {
        self.ledger.cancel(key, cause);
        let _ = self.session.local_cancel(self.now, key, Cause::new(cause));
    }

    fn stream(&mut self, key: InboundKey, input: Input, seen: &Inspection) {
        let Some((exchange, _)) = seen.exchanges.iter().find(|(_, on)| *on == key) else { return };
        let is_lost = matches!(input, Input::StreamLost(_));
        let means = self.session.dialect().rules().lost_stream;
        if is_lost && means == LostStream::Cancel {
            let silent = self.session.dialect().rules().peer_cancelled == CancelledReply::Silence;
            self.ledger.cancel_by_stream(key, silent);
        } else if let Some(served) = self.ledger.served.get_mut(&key) {
            // A stream that is kept without a limit has no grace that can end. Only the end of the connection cancels
            // its request.
            let ends = means == LostStream::Detach || self.session.limits().lost_stream_grace.is_some();
            served.detached = is_lost && ends;
        }
        if is_lost {
            self.session.recv_exchange_closed(self.now, *exchange);
        } else {
            self.session.recv_exchange_resumed(self.now, *exchange);
        }
    }
}
