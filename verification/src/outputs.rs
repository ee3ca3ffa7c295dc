//! How a ledger takes in the outputs of a session, and which outputs are violations.

use rescind_core::dialect::{CancelledReply, Refusal};
use rescind_core::{
    AckStatus, Cause, CauseKind, InboundKey, OutboundKey, Output, Reply, ReplyBody, RequestId, Session,
    Settlement,
};

use super::invariants::{Broken, holds, holds_and_counts};
use super::oracle::{Ending, Kind, Ledger, OwedAck, Says, Served, Settled};
use super::tally;

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
            Output::Reply(reply) => self.take_reply(session, reply),
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
        tally::count("I7");
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
            // A request that was never cancelled may stop voluntarily.
            let stopped = self.of(key)?.first.is_none() && cause.kind() == CauseKind::Local;
            if !stopped {
                self.take_cause(key, cause.kind())?;
            }
        }
        let request = self.of(key)?;
        let (fresh, offered, first) = (!request.is_settled(), request.offered, request.first);
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
