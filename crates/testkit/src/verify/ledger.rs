//! An account, kept beside a session, of what was asked of it and what it had done.

use std::collections::BTreeMap;

use rescind_core::dialect::CancelledReply;
use rescind_core::{
    CallNumber, Cause, CauseKind, InboundKey, OutboundKey, Output, Reply, ReplyBody, RequestId, Session,
    Settlement,
};

use super::invariants::{Broken, holds};

/// What is known of a request of the peer that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they come in any order")]
pub struct Served {
    /// Its id.
    pub id: Option<RequestId>,
    /// It is the handshake.
    pub is_handshake: bool,
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
    signalled: bool,
    /// A cancel counted while it was in a critical section.
    held: bool,
    settled: Option<Settled>,
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
    /// Cancels that are owed an acknowledgement.
    pub acks: usize,
    /// The connection is lost.
    pub lost: bool,
    /// `Close` was output.
    pub closed: bool,
}

impl Ledger {
    /// A request was accepted.
    ///
    /// # Errors
    /// Its key is in use.
    pub fn accept(&mut self, key: InboundKey, id: RequestId, is_handshake: bool) -> Result<(), Broken> {
        let owner = self.served.iter().find(|(_, served)| served.id.as_ref() == Some(&id) && !served.ended);
        let owner = owner.map(|(owner, _)| *owner);
        holds(owner.is_none(), "I4", || format!("{key:?} got the id {id:?}, which {owner:?} has"))?;
        let served = Served { id: Some(id), is_handshake, ..Served::default() };
        let before = self.served.insert(key, served);
        holds(before.is_none(), "I14", || format!("{key:?} was given out while it was in use"))
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

    /// A cancel of a request came that counts; a critical section may hold its signal off.
    pub(super) fn cancel(&mut self, key: InboundKey) {
        if let Some(served) = self.served.get_mut(&key) {
            // One that has said how it ends has nothing left to stop.
            let runs = served.started && !served.offered && !served.ended;
            let counts = runs && !served.is_handshake && !served.is_settled();
            served.held |= counts && served.shields > 0 && !served.signalled;
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
            Output::Ack { ack, .. } => {
                let owed = self.acks.checked_sub(1);
                self.acks = owed.unwrap_or_default();
                holds(owed.is_some(), "I7", || {
                    format!("{ack:?} was acknowledged, and no cancel waits for it")
                })
            }
            Output::Close(_) => {
                let fresh = !self.closed;
                self.closed = true;
                holds(fresh, "I13", || "the connection was closed twice".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn take_signal(&mut self, key: InboundKey, cause: &Cause) -> Result<(), Broken> {
        let ends_all = matches!(cause.kind(), CauseKind::Shutdown | CauseKind::Disconnected);
        let request = self.of(key)?;
        let (fresh, started) = (!request.signalled, request.started);
        let late = request.settled == Some(Settled::ByHandler);
        request.signalled = true;
        holds(fresh, "I5", || format!("{key:?} was signalled twice"))?;
        holds(started, "I5", || format!("{key:?} was signalled before it was started"))?;
        holds(!late, "I6", || format!("{key:?} was signalled after its answer"))?;
        let spared = request.is_handshake && !ends_all;
        holds(!spared, "I9", || format!("the handshake was cancelled: {cause:?}"))
    }

    fn take_reply(&mut self, session: &Session, reply: &Reply) -> Result<(), Broken> {
        let (lost, key) = (self.lost, reply.key);
        let request = self.of(key)?;
        let (fresh, offered) = (!request.is_settled(), request.offered);
        let by_handler = matches!(reply.body, ReplyBody::Handler);
        request.settled = Some(if by_handler { Settled::ByHandler } else { Settled::ByMachine });
        holds(fresh, "I1", || format!("{key:?} was answered twice"))?;
        holds(!lost, "I1", || format!("{key:?} was answered on a lost connection"))?;
        let by_peer = matches!(&reply.body, ReplyBody::Cancelled(cause) if cause.kind() == CauseKind::Peer);
        holds(!by_peer || !owes_silence(session), "I1", || {
            format!("{key:?} is owed silence, and was answered")
        })?;
        holds(request.id.as_ref() == Some(&reply.id), "I4", || {
            format!("{key:?} was answered as {:?}", reply.id)
        })?;
        holds(!by_handler || offered, "I6", || format!("{key:?} had nothing to answer with"))?;
        holds(!session.may_notify(key), "I2", || format!("{key:?} may still write, behind its answer"))
    }

    fn take_silence(&mut self, session: &Session, key: InboundKey) -> Result<(), Broken> {
        let owed = owes_silence(session);
        let lost = self.lost;
        let request = self.of(key)?;
        let fresh = !request.is_settled();
        request.settled = Some(Settled::Silenced);
        holds(fresh, "I1", || format!("{key:?} was silenced after its answer"))?;
        let by_peer = session.request_cause(key).is_none_or(|cause| cause.kind() == CauseKind::Peer);
        holds(lost || (owed && by_peer), "I1", || format!("{key:?} is owed an answer, and was silenced"))?;
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
