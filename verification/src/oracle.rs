//! A ledger, kept next to a session, of its inputs and of its outputs.

use std::collections::BTreeMap;

use rescind_core::dialect::{CancelledReply, Refusal};
use rescind_core::{
    AckStatus, CallNumber, Cause, CauseKind, InboundKey, OutboundKey, Output, Principal, Reply, ReplyBody,
    RequestId, Scope, Session, Settlement,
};

use super::invariants::{self, Broken, holds, holds_and_counts};

/// What is known of an accepted request of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they come in any order")]
pub struct Served {
    /// Its id, and the key by which a cancel names it.
    pub name: Option<Name>,
    /// Its kind.
    pub kind: Kind,
    /// Whether it was decided when another request arrived with the same cancel key. The key then belongs to that
    /// request.
    nameless: bool,
    /// Whether its handler was started.
    pub started: bool,
    /// Whether its handler has reported its result.
    pub offered: bool,
    /// Whether its task has ended. Only then are its id and its permit free.
    pub ended: bool,
    /// Whether its task was aborted.
    pub aborted: bool,
    /// Whether it became a task. Its id is free then, and it is settled when the task has ended.
    pub is_task: bool,
    /// Whether the task's handle was sent.
    is_handed: bool,
    /// The number of critical sections that it is in.
    pub shields: u8,
    /// The cause of its first cancel, if there is one.
    pub first: Option<CauseKind>,
    /// Whether its stream is lost, which cancels it after a grace.
    pub detached: bool,
    pub(super) signalled: bool,
    /// The status with which its cancel was acknowledged in this step. Its end must fit it.
    pub(super) reported: Option<AckStatus>,
    /// Whether a cancel took effect while it was in a critical section.
    held: bool,
    pub(super) settled: Option<Settled>,
}

/// The identity of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The scope in which its id and its key are unique.
    pub scope: Scope,
    /// The principal that sent it. Only this principal may cancel it.
    pub principal: Option<Principal>,
    /// Its id.
    pub id: RequestId,
    /// The key by which a cancel names it. It may differ from the id.
    pub key: RequestId,
}

impl Name {
    /// Whether one cancel could mean either.
    fn is_keyed_as(&self, other: &Self) -> bool {
        self.scope == other.scope && self.key == other.key
    }
}

impl From<RequestId> for Name {
    fn from(id: RequestId) -> Self {
        Self { scope: Scope::Session, principal: None, key: id.clone(), id }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request that can be cancelled.
    #[default]
    Work,
    /// A request that no cancel message can cancel.
    CancelExemption,
    /// The handshake.
    Handshake,
}

/// An acknowledgement that must be sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwedAck {
    /// Its id.
    pub(super) ack: RequestId,
    /// The key that the cancel named.
    pub(super) key: Option<RequestId>,
    pub(super) says: Says,
}

/// The required status of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Says {
    /// This status, in the step of the cancel.
    Now(AckStatus),
    /// The result of this request, in the step of its end.
    End(InboundKey),
    /// Some status, in the step of the cancel. The status is checked elsewhere.
    Something,
}

/// The started events of this side and of the transport that end all requests at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ending {
    /// Whether the input has ended.
    pub half_closed: bool,
    /// Whether this side shuts down.
    pub shutdown: bool,
}

/// How a request was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Settled {
    /// It was answered with the result of its handler.
    ByHandler,
    /// It was answered by the machine.
    ByMachine,
    Silenced,
}

impl Served {
    /// Whether its result is decided.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled.is_some()
    }
}

/// What is known of a call of this side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    /// Its number.
    pub number: CallNumber,
    /// The request it belongs to.
    pub parent: Option<InboundKey>,
    /// Whether its frame was written.
    pub written: bool,
    /// Its cancel: its number, and whether it was written.
    pub cancel: Option<(CallNumber, bool)>,
    /// Whether a cancel was acknowledged.
    pub acked: bool,
    /// Whether it has ended.
    pub settled: bool,
}

/// The inputs and outputs of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The requests whose tasks have not ended or whose answers are missing.
    pub served: BTreeMap<InboundKey, Served>,
    /// The calls that may still receive something.
    pub made: BTreeMap<OutboundKey, Made>,
    /// Children on other connections, and their requests.
    pub foreign: BTreeMap<u64, InboundKey>,
    /// The acknowledgements that must be sent.
    pub(super) acks: Vec<OwedAck>,
    /// The started ends.
    pub ending: Ending,
    /// Whether the connection is lost.
    pub lost: bool,
    /// Whether `Close` was output.
    pub closed: bool,
}

impl Ledger {
    /// Records that a request was accepted.
    ///
    /// # Errors
    /// If its key or its id is in use.
    pub fn accept(&mut self, key: InboundKey, name: Name, kind: Kind) -> Result<(), Broken> {
        let owner = self.owner(&name);
        holds(owner.is_none(), "I4", || format!("{key:?} got the id {:?}, which {owner:?} has", name.id))?;
        for other in self.served.values_mut() {
            other.nameless |= other.name.as_ref().is_some_and(|other| other.is_keyed_as(&name));
        }
        let served = Served { name: Some(name), kind, ..Served::default() };
        let before = self.served.insert(key, served);
        let is_again = key.0.generation > 0;
        holds_and_counts(is_again, before.is_none(), "I14", || {
            format!("{key:?} was given out while it was in use")
        })
    }

    /// The request with the id of this name.
    pub(super) fn owner(&self, asked: &Name) -> Option<(InboundKey, &Served)> {
        let has = |name: &Name| name.scope == asked.scope && name.id == asked.id;
        self.alive().find(|(_, served)| served.name.as_ref().is_some_and(has))
    }

    /// The request that a cancel with the key of this name means.
    pub(super) fn named(&self, asked: &Name) -> Option<(InboundKey, &Served)> {
        let has = |served: &Served| served.name.as_ref().is_some_and(|name| name.is_keyed_as(asked));
        self.alive().find(|(_, served)| has(served) && !served.nameless)
    }

    /// Whether this request became a task.
    pub(super) fn is_task(&self, key: InboundKey) -> bool {
        self.served.get(&key).is_some_and(|served| served.is_task)
    }

    /// Whether this request may become a task: it runs, and nothing is decided.
    pub(super) fn may_become_task(&self, key: InboundKey) -> bool {
        let runs = |served: &Served| {
            served.started
                && !(served.offered || served.ended || served.is_task)
                && !(served.is_settled() || served.signalled)
                && served.first.is_none()
        };
        // Of two handlers that may run.
        let is_full = self.served.values().any(|served| served.is_task && !served.is_settled());
        let is_open = !(self.lost || self.closed || self.ending.shutdown);
        is_open && !is_full && self.served.get(&key).is_some_and(runs)
    }

    /// Those that have not ended and whose ids are theirs.
    fn alive(&self) -> impl Iterator<Item = (InboundKey, &Served)> {
        self.served
            .iter()
            .filter(|(_, served)| !served.ended && !served.is_task)
            .map(|(key, served)| (*key, served))
    }

    /// Records a cancel that must be acknowledged with this id, in its step. The status is checked elsewhere.
    pub fn owe_ack(&mut self, ack: RequestId, key: Option<RequestId>) {
        self.acks.push(OwedAck { ack, key, says: Says::Something });
    }

    /// Records that a call was staged.
    ///
    /// # Errors
    /// If its key is in use, or its parent is cancelled.
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
        let is_again = key.0.generation > 0;
        holds_and_counts(is_again, before.is_none_or(|before| before.settled), "I14", || {
            format!("{key:?} was given out while it was in use")
        })
    }

    /// Records a cancel of a request. The first one takes effect, while the result is not decided. A critical section
    /// may delay its signal.
    pub fn cancel(&mut self, key: InboundKey, cause: CauseKind) {
        let Some(served) = self.served.get_mut(&key) else { return };
        // A request with a reported result has nothing to cancel, but its answer is not sent on a lost connection.
        let is_decided = served.is_settled() || served.offered || served.ended;
        if served.kind != Kind::Handshake && !is_decided && served.first.is_none() {
            served.first = Some(cause);
            served.held |= served.started && served.shields > 0 && !served.signalled;
        }
    }

    /// Records that the stream of a request is lost, if that cancels it. A silent end is not reported to a lost
    /// connection.
    pub(super) fn cancel_by_stream(&mut self, key: InboundKey, silent: bool) {
        let was_held = self.served.get(&key).is_some_and(|served| served.held);
        self.cancel(key, CauseKind::Peer);
        let is_untold = self.lost && silent && !was_held;
        if let Some(served) = self.served.get_mut(&key).filter(|served| is_untold && served.held) {
            served.settled.get_or_insert(Settled::Silenced);
        }
    }

    /// Whether the end of its critical section must deliver the signal.
    pub(super) fn owes_signal(&self, key: InboundKey) -> bool {
        self.served.get(&key).is_some_and(|served| {
            let runs = !served.offered && !served.ended;
            served.held && !served.signalled && runs && served.settled != Some(Settled::ByHandler)
        })
    }

    /// Records that the task of a request has ended.
    pub fn end(&mut self, key: InboundKey) {
        if let Some(served) = self.served.get_mut(&key) {
            served.ended = true;
        }
    }

    pub(super) fn of(&mut self, key: InboundKey) -> Result<&mut Served, Broken> {
        self.served
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }

    fn of_call(&mut self, key: OutboundKey) -> Result<&mut Made, Broken> {
        self.made
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }
}

// How a ledger takes in the outputs of a session, and which outputs are violations.

impl Ledger {
    /// Takes in one output.
    ///
    /// # Errors
    /// If it violates an invariant.
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
                holds_and_counts(false, started && fresh, "L1", || {
                    format!("{key:?} was aborted twice, or before it was started")
                })
            }
            Output::Reply(reply) if reply.body == ReplyBody::TaskHandle => self.take_handle(session, reply),
            Output::Reply(reply) => self.take_reply(session, reply),
            Output::TaskEnded { key, cancelled } => self.take_end_of_task(session, *key, cancelled.as_ref()),
            Output::Silence { key, .. } => self.take_silence(session, *key),
            Output::Released(key) => self.take_released(session, *key),
            Output::SendCancel { call, number, cancel, .. } => {
                let made = self.of_call(*call)?;
                let (fresh, written, is_child) = (made.cancel.is_none(), made.written, made.parent.is_some());
                made.cancel = Some((*cancel, false));
                holds(written, "I12", || format!("the cancel of {call:?} goes before its request"))?;
                holds_and_counts(is_child, fresh, "I5", || format!("{call:?} was cancelled twice"))?;
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
                holds_and_counts(false, fresh, "I13", || "the connection was closed twice".to_owned())
            }
            // The admission oracle checks refusals and the ends of exchanges against the input.
            Output::Refuse { .. }
            | Output::RefuseCancelled { .. }
            | Output::ExchangeEnd { .. }
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
                Says::Something => true,
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
        invariants::count("I7");
        if let Says::End(request) = self.acks.swap_remove(place).says {
            let request = self.of(request)?;
            let same = request.reported.is_none_or(|reported| reported == status);
            request.reported = Some(status);
            holds(same, "I7", || {
                format!("two cancels of one request were acknowledged with different ends: {status:?}")
            })?;
        }
        Ok(())
    }

    fn take_signal(&mut self, key: InboundKey, cause: &Cause) -> Result<(), Broken> {
        self.take_cause(key, cause.kind())?;
        let request = self.of(key)?;
        let (fresh, started) = (!request.signalled, request.started);
        let late = request.settled == Some(Settled::ByHandler);
        request.signalled = true;
        holds_and_counts(false, fresh, "I5", || format!("{key:?} was signalled twice"))?;
        holds_and_counts(false, started, "I5", || format!("{key:?} was signalled before it was started"))?;
        holds_and_counts(late, !late, "I6", || format!("{key:?} was signalled after its answer"))
    }

    /// Checks the cause that the session reports for a request. The ledger knows the first cause, except for the end
    /// of the connection: the session knows when that cancelled the request.
    pub(super) fn take_cause(&mut self, key: InboundKey, cause: CauseKind) -> Result<(), Broken> {
        let Ending { half_closed, shutdown } = self.ending;
        let ends = self.lost || half_closed;
        let request = self.of(key)?;
        let ends_all = matches!(cause, CauseKind::Shutdown | CauseKind::Disconnected);
        let spared = request.kind == Kind::Handshake && !ends_all;
        holds_and_counts(spared, !spared, "I9", || format!("the handshake was cancelled: {cause:?}"))?;
        let may_be = match cause {
            CauseKind::Shutdown => shutdown,
            CauseKind::Disconnected => (ends || request.detached) && !request.is_task,
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

    /// I16: a request that becomes a task is answered with its handle, once.
    fn take_handle(&mut self, session: &Session, reply: &Reply) -> Result<(), Broken> {
        let lost = self.lost;
        let request = self.of(reply.key)?;
        let fresh = request.is_task && !request.is_handed && !request.is_settled();
        request.is_handed = true;
        let named = request.name.as_ref().is_some_and(|name| name.id == reply.id);
        holds_and_counts(true, fresh && named && !lost, "I16", || {
            format!("{:?} was answered with the handle of a task: {request:?}", reply.key)
        })?;
        holds(session.may_notify(reply.key), "I2", || format!("{:?} may not write as a task", reply.key))
    }

    /// I16: the end of a task is reported once. I17: one that is cancelled is signalled at once, or at the end of its
    /// critical section.
    fn take_end_of_task(
        &mut self,
        session: &Session,
        key: InboundKey,
        cancelled: Option<&Cause>,
    ) -> Result<(), Broken> {
        let request = self.of(key)?;
        let (fresh, ended) = (request.is_task && !request.is_settled(), request.offered || request.ended);
        holds_and_counts(true, fresh, "I16", || {
            format!("the end of {key:?} was reported twice: {request:?}")
        })?;
        let by_itself = ended && request.first.is_none();
        request.settled = Some(if by_itself { Settled::ByHandler } else { Settled::ByMachine });
        match cancelled {
            // A handler may stop voluntarily.
            Some(cause) if by_itself => holds(cause.kind() == CauseKind::Local, "I16", || {
                format!("{key:?} ended by itself, and is said to be cancelled by {cause:?}")
            })?,
            Some(cause) => self.take_cause(key, cause.kind())?,
            None => holds(by_itself, "I16", || format!("{key:?} was cancelled, and is said to have ended"))?,
        }
        holds(!session.may_notify(key), "I2", || format!("{key:?} may still write, after its end"))
    }

    /// I17: after a step, each task that is cancelled was signalled, or is in a critical section.
    pub(super) fn check_tasks(&self) -> Result<(), Broken> {
        for (key, served) in self.served.iter().filter(|(_, served)| served.is_task && !served.ended) {
            let is_cancelled = served.settled == Some(Settled::ByMachine);
            holds_and_counts(
                is_cancelled,
                !is_cancelled || served.signalled || served.shields > 0,
                "I17",
                || format!("the task {key:?} is cancelled, and its handler does not know it: {served:?}"),
            )?;
        }
        Ok(())
    }

    fn take_reply(&mut self, session: &Session, reply: &Reply) -> Result<(), Broken> {
        let (lost, key) = (self.lost, reply.key);
        if let ReplyBody::Cancelled(cause) = &reply.body {
            // A request that was never cancelled may stop voluntarily.
            let stopped = self.of(key)?.first.is_none() && cause.kind() == CauseKind::Local;
            if !stopped {
                self.take_cause(key, cause.kind())?;
            }
        }
        let request = self.of(key)?;
        let (fresh, offered, first) =
            (!request.is_settled() && !request.is_task, request.offered, request.first);
        let by_handler = matches!(reply.body, ReplyBody::Handler);
        request.settled = Some(if by_handler { Settled::ByHandler } else { Settled::ByMachine });
        let reported = request.reported.take();
        let ended = offered || request.ended;
        let started = request.started;
        holds(fresh, "I1", || format!("{key:?} was answered twice"))?;
        holds(!lost, "I1", || format!("{key:?} was answered on a lost connection"))?;
        let owes_silence = owes_silence(session);
        let silence = owes_silence && first == Some(CauseKind::Peer) && !by_handler;
        holds_and_counts(owes_silence, !silence, "I1", || {
            format!("{key:?} is owed silence, and was answered")
        })?;
        holds(request.name.as_ref().is_some_and(|name| name.id == reply.id), "I4", || {
            format!("{key:?} was answered as {:?}", reply.id)
        })?;
        let has_cause = match &reply.body {
            ReplyBody::Handler => offered,
            ReplyBody::Cancelled(_) => first.is_some() || offered,
            ReplyBody::Graceful(_) => first != Some(CauseKind::Peer) && (first.is_some() || offered),
            ReplyBody::TaskHandle => false,
            ReplyBody::Refused(Refusal::Internal) => ended && first.is_none(),
            ReplyBody::Refused(_) => !started && first.is_none(),
        };
        holds_and_counts(by_handler && first.is_some(), has_cause, "I6", || {
            format!("{key:?} had no cause for {:?}", reply.body)
        })?;
        let completed = matches!(reply.body, ReplyBody::Handler | ReplyBody::Refused(_));
        let status = if completed { AckStatus::AlreadyCompleted } else { AckStatus::Cancelled };
        holds_and_counts(
            reported.is_some(),
            reported.is_none_or(|reported| reported == status),
            "I7",
            || {
                format!(
                    "a cancel of {key:?} was acknowledged with {reported:?}, and it ends with {:?}",
                    reply.body
                )
            },
        )?;
        holds(!session.may_notify(key), "I2", || format!("{key:?} may still write, behind its answer"))
    }

    fn take_silence(&mut self, session: &Session, key: InboundKey) -> Result<(), Broken> {
        let owed = owes_silence(session);
        let lost = self.lost;
        let request = self.of(key)?;
        let (fresh, first) = (!request.is_settled(), request.first);
        request.settled = Some(Settled::Silenced);
        let reported = request.reported.take();
        holds(fresh, "I1", || format!("{key:?} was silenced after its answer"))?;
        holds(owed && first == Some(CauseKind::Peer) && !lost, "I1", || {
            format!("{key:?} is owed an answer, and was silenced; first it was cancelled by {first:?}")
        })?;
        holds_and_counts(reported.is_some(), reported != Some(AckStatus::AlreadyCompleted), "I7", || {
            format!("a cancel of {key:?} was acknowledged as already completed, and it is silenced")
        })?;
        holds(!session.may_notify(key), "I2", || format!("{key:?} may still write, though it is silenced"))
    }

    fn take_released(&mut self, session: &Session, key: InboundKey) -> Result<(), Broken> {
        let lost = self.lost;
        let request = self.of(key)?;
        let (settled, runs) = (request.is_settled(), request.started && !request.ended);
        self.served.remove(&key);
        holds(!runs, "I3", || format!("{key:?} is gone while its task runs"))?;
        holds_and_counts(!lost, lost || settled, "I1", || format!("{key:?} is gone without an answer"))?;
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
        let (fresh, written, parent) = (!made.settled, made.written, made.parent);
        made.settled = true;
        holds(fresh, "I13", || format!("{call:?} was settled twice"))?;
        let answered = matches!(settlement, Settlement::Answered { .. });
        holds_and_counts(answered, !answered || written, "I12", || {
            format!("{call:?} was answered before it was written")
        })?;
        let by_peer = answered || matches!(settlement, Settlement::Cancelled { confirmed: true, .. });
        holds_and_counts(by_peer, !by_peer || !session.wants_cancel(call), "I2", || {
            format!("{call:?} is answered, and its cancel is still to be written")
        })?;
        let may_have_run = matches!(settlement, Settlement::Disconnected { may_have_run: true });
        holds_and_counts(may_have_run, !may_have_run || written, "I13", || {
            format!("{call:?} was never written, and may have run")
        })?;
        let by_parent =
            matches!(settlement, Settlement::Cancelled { cause, .. } if cause.kind() == CauseKind::Parent);
        let is_over = |parent: &Served| parent.signalled || parent.is_settled();
        let told_so = parent.is_some_and(|parent| self.served.get(&parent).is_none_or(is_over));
        holds_and_counts(by_parent, !by_parent || told_so, "I5", || {
            format!("{call:?} was cancelled with its parent {parent:?}, which goes on")
        })
    }
}

/// Whether a request that the peer cancelled must not be answered.
fn owes_silence(session: &Session) -> bool {
    session.dialect().rules().peer_cancelled == CancelledReply::Silence
}
