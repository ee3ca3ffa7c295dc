//! An account, kept beside a session, of what was asked of it and what it had done.

use std::collections::BTreeMap;

use rescind_core::dialect::{CancelledReply, Refusal};
use rescind_core::{
    AckStatus, CallNumber, Cause, CauseKind, InboundKey, OutboundKey, Output, Reply, ReplyBody, RequestId,
    Session, Settlement,
};

use super::invariants::{Broken, holds};

/// What is known of a request of the peer that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they come in any order")]
pub struct Served {
    /// Its id, and what a cancel names it by.
    pub name: Option<Name>,
    /// What it is.
    pub kind: Kind,
    /// It was decided when another came under what cancels name it by: that is the other's now.
    nameless: bool,
    /// Its handler was started.
    pub started: bool,
    /// Its handler has said how it ends.
    pub offered: bool,
    /// Its task is gone: only now are its id and its permit free.
    pub ended: bool,
    /// Its task was told to end.
    pub aborted: bool,
    /// Critical sections it is in.
    pub shields: u8,
    /// Why it was cancelled first, if it was.
    pub first: Option<CauseKind>,
    /// Its stream is lost, and may be taken up again.
    pub detached: bool,
    signalled: bool,
    /// Its cancel was acknowledged so, in this step: its end has to be of that kind.
    pub(super) told: Option<AckStatus>,
    /// A cancel counted while it was in a critical section.
    held: bool,
    settled: Option<Settled>,
}

/// What a request is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Its id.
    pub id: RequestId,
    /// What a cancel names it by; the two need not be the same.
    pub key: RequestId,
}

impl From<RequestId> for Name {
    fn from(id: RequestId) -> Self {
        Self { key: id.clone(), id }
    }
}

/// What a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anything that can be cancelled.
    #[default]
    Work,
    /// The handshake.
    Handshake,
}

/// An acknowledgement that is owed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwedAck {
    /// What it goes under.
    pub(super) ack: RequestId,
    /// What the cancel named.
    pub(super) key: Option<RequestId>,
    pub(super) says: Says,
}

/// What an acknowledgement has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Says {
    /// This, in the step of the cancel.
    Now(AckStatus),
    /// What becomes of this request, in the step of its end.
    End(InboundKey),
}

/// What this side and the wire have begun that ends all requests sooner or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ending {
    /// The input has ended.
    pub half_closed: bool,
    /// This side shuts down.
    pub shutdown: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Settled {
    /// It was answered with what its handler returned.
    ByHandler,
    /// It was answered by the machine.
    ByMachine,
    Silenced,
}

impl Served {
    /// What becomes of it is decided.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled.is_some()
    }
}

/// What is known of a call of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    /// Its number.
    pub number: CallNumber,
    /// The request it belongs to.
    pub parent: Option<InboundKey>,
    /// Its frame was written.
    pub written: bool,
    /// Its cancel: its number, and whether it was written.
    pub cancel: Option<(CallNumber, bool)>,
    /// A cancel was acknowledged.
    pub acked: bool,
    /// It has ended.
    pub settled: bool,
}

/// What was asked of a session and what it had done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The requests whose tasks or answers are still owed.
    pub served: BTreeMap<InboundKey, Served>,
    /// The calls that may still have something to come.
    pub made: BTreeMap<OutboundKey, Made>,
    /// Children on other connections, and the requests they belong to.
    pub foreign: BTreeMap<u64, InboundKey>,
    /// The acknowledgements that are owed.
    pub(super) acks: Vec<OwedAck>,
    /// What has begun to end.
    pub ending: Ending,
    /// The connection is lost.
    pub lost: bool,
    /// `Close` was output.
    pub closed: bool,
}

impl Ledger {
    /// A request was accepted.
    ///
    /// # Errors
    /// Its key or its id is in use.
    pub fn accept(&mut self, key: InboundKey, name: Name, kind: Kind) -> Result<(), Broken> {
        let owner = self.owner(&name.id);
        holds(owner.is_none(), "I4", || format!("{key:?} got the id {:?}, which {owner:?} has", name.id))?;
        for other in self.served.values_mut() {
            other.nameless |= other.name.as_ref().is_some_and(|other| other.key == name.key);
        }
        let served = Served { name: Some(name), kind, ..Served::default() };
        let before = self.served.insert(key, served);
        holds(before.is_none(), "I14", || format!("{key:?} was given out while it was in use"))
    }

    /// The request that has this id.
    pub(super) fn owner(&self, id: &RequestId) -> Option<(InboundKey, &Served)> {
        self.alive().find(|(_, served)| served.name.as_ref().is_some_and(|name| name.id == *id))
    }

    /// The request that a cancel of this key names.
    pub(super) fn named(&self, key: &RequestId) -> Option<(InboundKey, &Served)> {
        let has = |served: &Served| served.name.as_ref().is_some_and(|name| name.key == *key);
        self.alive().find(|(_, served)| has(served) && !served.nameless)
    }

    fn alive(&self) -> impl Iterator<Item = (InboundKey, &Served)> {
        self.served.iter().filter(|(_, served)| !served.ended).map(|(key, served)| (*key, served))
    }

    /// A call was staged.
    ///
    /// # Errors
    /// Its key is in use, or its parent is cancelled.
    pub fn make(
        &mut self,
        key: OutboundKey,
        number: CallNumber,
        parent: Option<InboundKey>,
    ) -> Result<(), Broken> {
        if let Some(parent) = parent {
            let open =
                self.served.get(&parent).is_some_and(|parent| !parent.signalled && !parent.is_settled());
            holds(open, "I5", || format!("{key:?} was not born cancelled, though {parent:?} is"))?;
        }
        let made = Made { number, parent, written: false, cancel: None, acked: false, settled: false };
        let before = self.made.insert(key, made);
        holds(before.is_none_or(|before| before.settled), "I14", || {
            format!("{key:?} was given out while it was in use")
        })
    }

    /// A cancel of a request came. The first counts, while nothing is decided; a critical section may hold its signal off.
    pub fn cancel(&mut self, key: InboundKey, cause: CauseKind) {
        let Some(served) = self.served.get_mut(&key) else { return };
        // One that has said how it ends has nothing left to stop, though a lost connection is told nothing of it.
        let is_decided = served.is_settled() || served.offered || served.ended;
        if served.kind == Kind::Work && !is_decided && served.first.is_none() {
            served.first = Some(cause);
            served.held |= served.started && served.shields > 0 && !served.signalled;
        }
    }

    /// Whether the end of its critical section has to bring the signal.
    pub(super) fn owes_signal(&self, key: InboundKey) -> bool {
        self.served.get(&key).is_some_and(|served| {
            let runs = !served.offered && !served.ended;
            served.held && !served.signalled && runs && served.settled != Some(Settled::ByHandler)
        })
    }

    /// The task of a request is gone.
    pub fn end(&mut self, key: InboundKey) {
        if let Some(served) = self.served.get_mut(&key) {
            served.ended = true;
        }
    }

    fn of(&mut self, key: InboundKey) -> Result<&mut Served, Broken> {
        self.served
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }

    fn of_call(&mut self, key: OutboundKey) -> Result<&mut Made, Broken> {
        self.made
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }

    /// Takes in one output.
    ///
    /// # Errors
    /// It breaks an invariant.
    pub fn take(&mut self, session: &Session, output: &Output) -> Result<(), Broken> {
        match output {
            Output::Start(key) => {
                let request = self.of(*key)?;
                let fresh = !request.started && !request.is_settled();
                request.started = true;
                holds(fresh, "I1", || format!("{key:?} was started twice, or when it was settled"))
            }
            Output::Signal { key, cause } => self.take_signal(*key, cause),
            Output::Abort(key) => {
                let request = self.of(*key)?;
                let (started, fresh) = (request.started, !request.aborted);
                request.aborted = true;
                holds(started && fresh, "L1", || {
                    format!("{key:?} was aborted twice, or before it was started")
                })
            }
            Output::Reply(reply) => self.take_reply(session, reply),
            Output::Silence { key, .. } => self.take_silence(session, *key),
            Output::Gone(key) => self.take_gone(session, *key),
            Output::SendCancel { call, number, cancel, .. } => {
                let made = self.of_call(*call)?;
                let (fresh, written) = (made.cancel.is_none(), made.written);
                made.cancel = Some((*cancel, false));
                holds(written, "I12", || format!("the cancel of {call:?} goes before its request"))?;
                holds(fresh, "I5", || format!("{call:?} was cancelled twice"))?;
                holds(made.number == *number, "I4", || format!("the cancel of {call:?} names {number:?}"))
            }
            Output::TakeBack(call) => {
                let made = self.of_call(*call)?;
                holds(!made.written, "I12", || format!("{call:?} was taken back after it was written"))
            }
            Output::Acked { call, .. } => {
                let made = self.of_call(*call)?;
                let fresh = !made.acked && made.cancel.is_some();
                made.acked = true;
                holds(fresh, "I7", || format!("the cancel of {call:?} was acknowledged twice, or never sent"))
            }
            Output::Settle { call, settlement } => self.take_settle(session, *call, settlement),
            Output::CancelForeign(child) => {
                let known = self.foreign.remove(&child.0).is_some();
                holds(known, "I5", || format!("the child {child:?} elsewhere was cancelled twice"))
            }
            Output::Ack { ack, key, status, .. } => self.take_ack(ack, key.as_ref(), *status),
            Output::Close(_) => {
                let fresh = !self.closed;
                self.closed = true;
                holds(fresh, "I13", || "the connection was closed twice".to_owned())
            }
            // What an input is refused with, and which exchanges it ends, is held against the input.
            Output::Refuse { .. }
            | Output::RefuseCancelled { .. }
            | Output::Finish { .. }
            | Output::Event(_) => Ok(()),
            other => holds(false, "I1", || format!("the account knows nothing of {other:?}")),
        }
    }

    fn take_ack(
        &mut self,
        ack: &RequestId,
        key: Option<&RequestId>,
        status: AckStatus,
    ) -> Result<(), Broken> {
        let fits = |owed: &OwedAck| {
            let says = match owed.says {
                Says::Now(owed) => owed == status,
                Says::End(_) => matches!(status, AckStatus::Cancelled | AckStatus::AlreadyCompleted),
            };
            owed.ack == *ack && owed.key.as_ref() == key && says
        };
        let Some(place) = self.acks.iter().position(fits) else {
            let owed = &self.acks;
            return holds(false, "I7", || {
                format!("{ack:?} was acknowledged of {key:?} with {status:?}, and owed is {owed:?}")
            });
        };
        if let Says::End(request) = self.acks.swap_remove(place).says {
            let request = self.of(request)?;
            let same = request.told.is_none_or(|told| told == status);
            request.told = Some(status);
            holds(same, "I7", || format!("two cancels of one request were told two ends: {status:?}"))?;
        }
        Ok(())
    }

    fn take_signal(&mut self, key: InboundKey, cause: &Cause) -> Result<(), Broken> {
        self.take_cause(key, cause.kind())?;
        let request = self.of(key)?;
        let (fresh, started) = (!request.signalled, request.started);
        let late = request.settled == Some(Settled::ByHandler);
        request.signalled = true;
        holds(fresh, "I5", || format!("{key:?} was signalled twice"))?;
        holds(started, "I5", || format!("{key:?} was signalled before it was started"))?;
        holds(!late, "I6", || format!("{key:?} was signalled after its answer"))
    }

    /// What the session says a request was cancelled for. Who did it first is known here, but for the ends of all: of those the
    /// session knows when.
    pub(super) fn take_cause(&mut self, key: InboundKey, cause: CauseKind) -> Result<(), Broken> {
        let Ending { half_closed, shutdown } = self.ending;
        let ends = self.lost || half_closed;
        let request = self.of(key)?;
        let ends_all = matches!(cause, CauseKind::Shutdown | CauseKind::Disconnected);
        let spared = request.kind == Kind::Handshake && !ends_all;
        holds(!spared, "I9", || format!("the handshake was cancelled: {cause:?}"))?;
        let may_be = match cause {
            CauseKind::Shutdown => shutdown,
            CauseKind::Disconnected => ends || request.detached,
            _ => false,
        };
        if request.first.is_none() && may_be {
            request.first = Some(cause);
        }
        let first = request.first;
        holds(first == Some(cause), "I7", || {
            format!("{key:?} is said to be cancelled by {cause:?}, and first was {first:?}")
        })
    }

    fn take_reply(&mut self, session: &Session, reply: &Reply) -> Result<(), Broken> {
        let (lost, key) = (self.lost, reply.key);
        if let ReplyBody::Cancelled(cause) = &reply.body {
            // One that was never cancelled may stop by itself.
            let stopped = self.of(key)?.first.is_none() && cause.kind() == CauseKind::Local;
            if !stopped {
                self.take_cause(key, cause.kind())?;
            }
        }
        let request = self.of(key)?;
        let (fresh, offered, first) = (!request.is_settled(), request.offered, request.first);
        let by_handler = matches!(reply.body, ReplyBody::Handler);
        request.settled = Some(if by_handler { Settled::ByHandler } else { Settled::ByMachine });
        let told = request.told.take();
        let ended = offered || request.ended;
        let started = request.started;
        holds(fresh, "I1", || format!("{key:?} was answered twice"))?;
        holds(!lost, "I1", || format!("{key:?} was answered on a lost connection"))?;
        let silence = owes_silence(session) && first == Some(CauseKind::Peer) && !by_handler;
        holds(!silence, "I1", || format!("{key:?} is owed silence, and was answered"))?;
        holds(request.name.as_ref().is_some_and(|name| name.id == reply.id), "I4", || {
            format!("{key:?} was answered as {:?}", reply.id)
        })?;
        let has_cause = match &reply.body {
            ReplyBody::Handler => offered,
            ReplyBody::Cancelled(_) => first.is_some() || offered,
            ReplyBody::Graceful(_) => first != Some(CauseKind::Peer) && (first.is_some() || offered),
            ReplyBody::Refused(Refusal::Internal) => ended && first.is_none(),
            ReplyBody::Refused(_) => !started && first.is_none(),
        };
        holds(has_cause, "I6", || format!("{key:?} had no cause for {:?}", reply.body))?;
        let completed = matches!(reply.body, ReplyBody::Handler | ReplyBody::Refused(_));
        let status = if completed { AckStatus::AlreadyCompleted } else { AckStatus::Cancelled };
        holds(told.is_none_or(|told| told == status), "I7", || {
            format!("a cancel of {key:?} was told {told:?}, and it ends with {:?}", reply.body)
        })?;
        holds(!session.may_notify(key), "I2", || format!("{key:?} may still write, behind its answer"))
    }

    fn take_silence(&mut self, session: &Session, key: InboundKey) -> Result<(), Broken> {
        let owed = owes_silence(session);
        let lost = self.lost;
        let request = self.of(key)?;
        let (fresh, first) = (!request.is_settled(), request.first);
        request.settled = Some(Settled::Silenced);
        let told = request.told.take();
        holds(fresh, "I1", || format!("{key:?} was silenced after its answer"))?;
        holds(owed && first == Some(CauseKind::Peer) && !lost, "I1", || {
            format!("{key:?} is owed an answer, and was silenced; first it was cancelled by {first:?}")
        })?;
        holds(told != Some(AckStatus::AlreadyCompleted), "I7", || {
            format!("a cancel of {key:?} was told that it had ended, and it is silenced")
        })?;
        holds(!session.may_notify(key), "I2", || format!("{key:?} may still write, though it is silenced"))
    }

    fn take_gone(&mut self, session: &Session, key: InboundKey) -> Result<(), Broken> {
        let lost = self.lost;
        let request = self.of(key)?;
        let (settled, runs) = (request.is_settled(), request.started && !request.ended);
        self.served.remove(&key);
        holds(!runs, "I3", || format!("{key:?} is gone while its task runs"))?;
        holds(lost || settled, "I1", || format!("{key:?} is gone without an answer"))?;
        let unknown = session.request_cause(key).is_none() && !session.may_notify(key);
        holds(unknown, "I3", || format!("{key:?} is gone and still known"))
    }

    fn take_settle(
        &mut self,
        session: &Session,
        call: OutboundKey,
        settlement: &Settlement,
    ) -> Result<(), Broken> {
        let made = self.of_call(call)?;
        let (fresh, written) = (!made.settled, made.written);
        made.settled = true;
        holds(fresh, "I13", || format!("{call:?} was settled twice"))?;
        let answered = matches!(settlement, Settlement::Answered { .. });
        holds(!answered || written, "I12", || format!("{call:?} was answered before it was written"))?;
        let by_peer = answered || matches!(settlement, Settlement::Cancelled { confirmed: true, .. });
        holds(!by_peer || !session.wants_cancel(call), "I2", || {
            format!("{call:?} is answered, and its cancel is still to be written")
        })?;
        let may_have_run = matches!(settlement, Settlement::Disconnected { may_have_run: true });
        holds(!may_have_run || written, "I13", || format!("{call:?} was never written, and may have run"))
    }
}

/// A peer that cancelled is owed silence.
fn owes_silence(session: &Session) -> bool {
    session.dialect().rules().peer_cancelled == CancelledReply::Silence
}
