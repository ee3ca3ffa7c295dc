//! What an input is owed at once, told from the account and not from what the machine says of itself.

use rescind_core::dialect::{CancelledReply, DecidedBy, Refusal};
use rescind_core::{
    AckStatus, AfterCancel, AnswerKind, CallNumber, CauseKind, HandlerEnd, InboundKey, OutboundKey, Output,
    ReplyBody, RequestId, Settlement,
};

use super::calls::CallInput;
use super::input::Input;
use super::invariants::{Broken, holds};
use super::ledger::{Kind, Says};
use super::world::World;

/// What has to come of an input, as it stood before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owed {
    Nothing,
    /// This call ends, by this answer.
    Answer(OutboundKey, AnswerKind),
    /// This call ends for its caller.
    Return(OutboundKey),
    /// A handler hears of the cancel that its critical section held off.
    Signal(InboundKey),
    /// This request ends so.
    End(InboundKey, Ends),
}

/// How the end of a handler is told to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ends {
    /// Not at all: it was decided before, or nobody is there.
    Untold,
    /// With what the handler gave.
    Handler,
    /// As cancelled, for this cause.
    Cancelled(CauseKind),
    /// As a failure of this side.
    Failed,
    /// With silence.
    Silence,
}

impl World {
    pub(super) fn owed(&self, input: Input) -> Owed {
        let waits = |key: &OutboundKey| self.ledger.made.get(key).is_some_and(|made| !made.settled);
        match input {
            Input::Call(CallInput::Answer(key, kind))
                if waits(&key) && self.ledger.made.get(&key).is_some_and(|made| made.written) =>
            {
                Owed::Answer(key, kind)
            }
            Input::Call(CallInput::Cancel(key, AfterCancel::ReturnNow)) if waits(&key) => Owed::Return(key),
            Input::Unshield(key) if self.ledger.owes_signal(key) => Owed::Signal(key),
            Input::Offer(key, end) => Owed::End(key, self.owed_end(key, end)),
            Input::Ended(key) => Owed::End(key, self.owed_end(key, HandlerEnd::Panicked)),
            Input::Cancel(id) if self.is_called_off() => self.called_off(&self.named(id)),
            _ => Owed::Nothing,
        }
    }

    fn owed_end(&self, key: InboundKey, end: HandlerEnd) -> Ends {
        let Some(served) = self.ledger.served.get(&key) else { return Ends::Untold };
        if self.ledger.lost || served.is_settled() {
            return Ends::Untold;
        }
        let silence = self.session.dialect().rules().peer_cancelled == CancelledReply::Silence;
        match (served.first, end) {
            (_, HandlerEnd::Value) | (None, HandlerEnd::Error) => Ends::Handler,
            (None, HandlerEnd::Panicked) => Ends::Failed,
            (None, HandlerEnd::Stopped) => Ends::Cancelled(CauseKind::Local),
            (Some(CauseKind::Peer), _) if silence => Ends::Silence,
            (Some(first), _) => Ends::Cancelled(first),
        }
    }

    /// The peer names a call of this side: it ends, where its dialect lets the peer end it.
    fn called_off(&self, id: &RequestId) -> Owed {
        let number = id.as_number().and_then(|number| u64::try_from(number).ok()).map(CallNumber);
        let open = |made: &&super::ledger::Made| Some(made.number) == number && made.written && !made.settled;
        let call = self.ledger.made.iter().find(|(_, made)| open(made)).map(|(key, _)| *key);
        let may_end = !self.session.dialect().rules().peer_may_end.is_empty();
        match call.filter(|_| may_end) {
            Some(call) => Owed::Answer(call, AnswerKind::Cancelled),
            None => Owed::Nothing,
        }
    }

    /// What an acknowledgement of a cancel has to say. `key`: what it names that its sender may cancel.
    pub(super) fn says(&self, key: Option<&RequestId>, is_a_key: bool) -> Says {
        let rules = self.session.dialect().rules();
        if !is_a_key {
            return Says::Now(AckStatus::InvalidKey);
        }
        if rules.session_required && !self.done.agreed {
            return Says::Now(AckStatus::NotInitialized);
        }
        let Some(key) = key else { return Says::Now(AckStatus::NotFound) };
        let named = self.ledger.named(key);
        if self.is_called_off() {
            let status = if named.is_some() { AckStatus::NotCancellable } else { AckStatus::NotFound };
            return Says::Now(status);
        }
        match named {
            Some((_, served)) if served.kind == Kind::Handshake => Says::Now(AckStatus::NotCancellable),
            Some((request, served)) if !served.is_settled() => {
                let holds_off = served.started && served.shields > 0 && rules.decided == DecidedBy::Cancel;
                let is_full = self.ledger.acks.len() >= self.session.limits().parked;
                match (holds_off, served.first) {
                    (false, _) => Says::Now(AckStatus::Cancelled),
                    (true, Some(_)) if is_full => Says::Now(AckStatus::Overloaded),
                    (true, _) => Says::End(request),
                }
            }
            _ => Says::Now(self.recall(key).unwrap_or(AckStatus::NotFound)),
        }
    }

    /// What became of a key, while that is remembered.
    fn recall(&self, key: &RequestId) -> Option<AckStatus> {
        let longest = self.session.limits().remembered_time;
        let young = |at| self.now.saturating_duration_since(at) < longest;
        let last = self.remembered.iter().rev().find(|(known, ..)| known == key);
        last.filter(|(_, _, at)| young(*at)).map(|(_, status, _)| *status)
    }

    /// Notes what becomes of a key by an output.
    pub(super) fn remember(&mut self, output: &Output) {
        let (key, status) = match output {
            Output::Reply(reply) => {
                let completed = matches!(reply.body, ReplyBody::Handler | ReplyBody::Refused(_));
                (reply.key, if completed { AckStatus::AlreadyCompleted } else { AckStatus::Cancelled })
            }
            Output::Silence { key, .. } => (*key, AckStatus::Cancelled),
            _ => return,
        };
        let name = self.ledger.served.get(&key).and_then(|served| served.name.clone());
        if let Some(name) = name {
            self.remember_key(name.key, status);
        }
    }

    pub(super) fn remember_key(&mut self, key: RequestId, status: AckStatus) {
        self.remembered.push_back((key, status, self.now));
        while self.remembered.len() > self.session.limits().remembered {
            self.remembered.pop_front();
        }
    }
}

pub(super) fn check_owed(owed: Owed, outputs: &[Output]) -> Result<(), Broken> {
    let ends = |key: OutboundKey| {
        outputs.iter().filter_map(move |output| match output {
            Output::Settle { call, settlement } if *call == key => Some(settlement),
            _ => None,
        })
    };
    match owed {
        Owed::Nothing => Ok(()),
        Owed::Answer(key, kind) => {
            let fits = |end: &&Settlement| match kind {
                AnswerKind::Value | AnswerKind::Error => matches!(end, Settlement::Answered { .. }),
                AnswerKind::Cancelled => matches!(end, Settlement::Cancelled { confirmed: true, .. }),
            };
            holds(ends(key).filter(fits).count() == 1, "I13", || {
                format!("{key:?} was answered with {kind:?}, and its caller sees {outputs:?}")
            })
        }
        Owed::Return(key) => holds(ends(key).count() == 1, "I13", || {
            format!("{key:?} was to return at once, and its caller sees {outputs:?}")
        }),
        Owed::End(key, ends) => check_end_told(key, ends, outputs),
        Owed::Signal(key) => {
            let told = |output: &Output| matches!(output, Output::Signal { key: to, .. } if *to == key);
            holds(outputs.iter().any(told), "L1", || {
                format!("{key:?} left its critical section and did not hear of its cancel")
            })
        }
    }
}

/// I1: a handler's end is told once and as it is owed, or not at all.
fn check_end_told(key: InboundKey, ends: Ends, outputs: &[Output]) -> Result<(), Broken> {
    let mut told = outputs.iter().filter(|output| match output {
        Output::Reply(reply) => reply.key == key,
        Output::Silence { key: to, .. } => *to == key,
        _ => false,
    });
    let (first, more) = (told.next(), told.next());
    let fits = match (ends, first) {
        (Ends::Untold, None) | (Ends::Silence, Some(Output::Silence { .. })) => true,
        (Ends::Untold, Some(_)) | (_, None | Some(Output::Silence { .. })) => false,
        (_, Some(Output::Reply(reply))) => match (ends, &reply.body) {
            (Ends::Handler, ReplyBody::Handler)
            | (Ends::Failed, ReplyBody::Refused(Refusal::Internal))
            | (Ends::Cancelled(_), ReplyBody::Graceful(_)) => true,
            (Ends::Cancelled(cause), ReplyBody::Cancelled(said)) => said.kind() == cause,
            _ => false,
        },
        (_, Some(_)) => false,
    };
    holds(fits && more.is_none(), "I1", || {
        format!("{key:?} was to end with {ends:?}, and it ended with {outputs:?}")
    })
}
