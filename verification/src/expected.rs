//! The required immediate result of an input, derived from the ledger and not from the machine's own state.

use rescind_core::dialect::{
    CancelFrom, CancelledReply, CapabilityGate, DecidedBy, EarlyCancel, Refusal, Role,
};
use rescind_core::inspect::{Inspection, RequestState, RequestView};
use rescind_core::{
    AckStatus, AfterCancel, AnswerKind, CallNumber, CancelResult, CauseKind, HandlerResult, InboundKey,
    OutboundKey, Output, ReplyBody, RequestId, Settlement,
};

use super::input::{CallInput, Declared, Input};
use super::invariants::{Broken, holds};
use super::oracle::{Kind, Name, Says};
use super::state::{IDS, MachineState};

/// The required result of an input, from the state before it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owed {
    Nothing,
    /// This call ends with this answer.
    Answer(OutboundKey, AnswerKind),
    /// This call is cancelled, with this effect.
    Cancel(OutboundKey, Cancels),
    /// This call ends, because it fails on its way to the peer.
    Fail(OutboundKey, Fails),
    /// A handler gets the signal that its critical section delayed.
    Signal(InboundKey),
    /// A handler is still in a critical section and gets no signal.
    NoSignal(InboundKey),
    /// This request ends with this result.
    End(InboundKey, Ends),
}

/// The effect of a cancel of a call of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancels {
    /// None: it has ended, or it is already cancelled and its caller continues to wait.
    Nothing,
    /// Its caller stops waiting.
    Return,
    /// It was not sent and never will be.
    TakenBack,
    /// The peer does not accept cancels, so the call ends on this side only.
    Untold,
    /// The peer gets a cancel, and the caller waits.
    Sent,
    /// The peer gets a cancel, and the caller does not wait.
    SentAndReturn,
}

impl Cancels {
    /// The result that the canceller gets.
    pub(super) const fn result(self) -> CancelResult {
        match self {
            Self::Nothing | Self::Return => CancelResult::AlreadySettled,
            Self::TakenBack => CancelResult::TakenBack,
            Self::Untold => CancelResult::NotSupported,
            Self::Sent | Self::SentAndReturn => CancelResult::Sent,
        }
    }
}

/// The result for the caller of a call that fails on its way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fails {
    /// None: it has ended.
    Nothing,
    /// It was cancelled before.
    Cancelled,
    /// It is lost, and may have run if it was written.
    Disconnected(bool),
}

/// How the end of a handler is reported to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ends {
    /// Not at all: the result was decided before, or the connection is gone.
    Untold,
    /// With the result of the handler.
    Handler,
    /// As cancelled, for this cause.
    Cancelled(CauseKind),
    /// As a failure of this side.
    Failed,
    /// Without an answer.
    Silence,
}

impl MachineState {
    pub(super) fn owed(&self, input: Input, before: &Inspection) -> Owed {
        let is_walked = |key: &OutboundKey| {
            let parent = self.ledger.made.get(key).and_then(|made| made.parent);
            parent.is_some_and(|parent| before.cascades.contains(&parent))
        };
        let waits = |key: &OutboundKey| self.ledger.made.get(key).is_some_and(|made| !made.settled);
        match input {
            Input::Call(CallInput::Answer(key, kind))
                if waits(&key) && self.ledger.made.get(&key).is_some_and(|made| made.written) =>
            {
                Owed::Answer(key, kind)
            }
            // A cascade may reach it in the same step, and then it returns as usual.
            Input::Call(CallInput::Cancel(key, _)) if is_walked(&key) => Owed::Nothing,
            Input::Call(CallInput::Cancel(key, after)) => Owed::Cancel(key, self.cancel_ends(key, after)),
            Input::Call(CallInput::Failed(key) | CallInput::ExchangeFailed(key)) => {
                Owed::Fail(key, self.fails(key))
            }
            Input::Unshield(key) if self.ledger.owes_signal(key) => {
                let is_last = self.ledger.served.get(&key).is_none_or(|served| served.shields <= 1);
                if is_last { Owed::Signal(key) } else { Owed::NoSignal(key) }
            }
            Input::Offer(key, end) => Owed::End(key, self.owed_end(key, end)),
            Input::Ended(key) => Owed::End(key, self.owed_end(key, HandlerResult::Panicked)),
            Input::Cancel(_) if self.is_called_off() => {
                self.meaning(input).map_or(Owed::Nothing, |name| self.called_off(&name.key))
            }
            _ => Owed::Nothing,
        }
    }

    /// The effect of a cancel of a call.
    pub(super) fn cancel_ends(&self, key: OutboundKey, after: Option<AfterCancel>) -> Cancels {
        let rules = self.session.dialect().rules();
        let is_server = self.session.role() == Role::Server;
        let tells = !(is_server && rules.cancel_from == CancelFrom::Client)
            && (rules.gate == CapabilityGate::None || self.done.agreed.is_some_and(Declared::peers));
        let returns = match after {
            Some(after) => after == AfterCancel::ReturnNow,
            None => rules.peer_cancelled == CancelledReply::Silence,
        };
        match self.ledger.made.get(&key) {
            Some(made) if made.settled => Cancels::Nothing,
            None => Cancels::Nothing,
            Some(made) if made.cancel.is_some() => {
                if returns {
                    Cancels::Return
                } else {
                    Cancels::Nothing
                }
            }
            Some(made) if !made.written => Cancels::TakenBack,
            Some(_) if !tells => Cancels::Untold,
            Some(_) if returns => Cancels::SentAndReturn,
            Some(_) => Cancels::Sent,
        }
    }

    fn fails(&self, key: OutboundKey) -> Fails {
        match self.ledger.made.get(&key) {
            Some(made) if !made.settled => {
                if made.cancel.is_some() {
                    Fails::Cancelled
                } else {
                    Fails::Disconnected(made.written)
                }
            }
            Some(_) | None => Fails::Nothing,
        }
    }

    fn owed_end(&self, key: InboundKey, end: HandlerResult) -> Ends {
        let Some(served) = self.ledger.served.get(&key) else { return Ends::Untold };
        if self.ledger.lost || served.is_settled() || served.is_task {
            return Ends::Untold;
        }
        let silence = self.session.dialect().rules().peer_cancelled == CancelledReply::Silence;
        match (served.first, end) {
            (_, HandlerResult::Value) | (None, HandlerResult::Error) => Ends::Handler,
            (None, HandlerResult::Panicked) => Ends::Failed,
            (None, HandlerResult::Stopped) => Ends::Cancelled(CauseKind::Local),
            (Some(CauseKind::Peer), _) if silence => Ends::Silence,
            (Some(first), _) => Ends::Cancelled(first),
        }
    }

    /// The peer names a call of this side: the call ends, if its dialect allows the peer to end it.
    fn called_off(&self, id: &RequestId) -> Owed {
        let number = id.as_number().and_then(|number| u64::try_from(number).ok()).map(CallNumber);
        let open = |made: &&super::oracle::Made| Some(made.number) == number && made.written && !made.settled;
        let call = self.ledger.made.iter().find(|(_, made)| open(made)).map(|(key, _)| *key);
        let may_end = !self.session.dialect().rules().peer_may_end.is_empty();
        match call.filter(|_| may_end) {
            Some(call) => Owed::Answer(call, AnswerKind::Cancelled),
            None => Owed::Nothing,
        }
    }

    /// The required status of an acknowledgement of a cancel. `key`: the request that it names and that its sender
    /// may cancel.
    pub(super) fn says(&self, key: Option<&RequestId>, is_a_key: bool) -> Says {
        let rules = self.session.dialect().rules();
        if !is_a_key {
            return Says::Now(AckStatus::InvalidKey);
        }
        if rules.session_required && self.done.agreed.is_none() {
            return Says::Now(AckStatus::NotInitialized);
        }
        let Some(key) = key else { return Says::Now(AckStatus::NotFound) };
        let named = self.ledger.named(&self.meant(key));
        if self.is_called_off() {
            let status = if named.is_some() { AckStatus::NotCancellable } else { AckStatus::NotFound };
            return Says::Now(status);
        }
        match named {
            Some((_, served)) if served.kind != Kind::Work => Says::Now(AckStatus::NotCancellable),
            Some((request, served)) if !served.is_settled() => {
                let holds_off = served.started && served.shields > 0 && rules.decided == DecidedBy::Cancel;
                let is_full = self.ledger.acks.len() >= self.session.limits().max_early_cancels;
                match (holds_off, served.first) {
                    (false, _) => Says::Now(AckStatus::Cancelled),
                    (true, Some(_)) if is_full => Says::Now(AckStatus::Overloaded),
                    (true, _) => Says::End(request),
                }
            }
            _ => Says::Now(self.recall(key).unwrap_or(AckStatus::NotFound)),
        }
    }

    /// The status of a key, while it is remembered.
    fn recall(&self, key: &RequestId) -> Option<AckStatus> {
        let longest = self.session.limits().settled_id_lifetime;
        let young = |at| self.now.saturating_duration_since(at) < longest;
        let last = self.remembered.iter().rev().find(|(known, ..)| known == key);
        last.filter(|(_, _, at)| young(*at)).map(|(_, status, _)| *status)
    }

    /// Records the status of a key from an output.
    pub(super) fn remember(&mut self, output: &Output) {
        let (key, status) = match output {
            Output::Reply(reply) => {
                let completed =
                    matches!(reply.body, ReplyBody::Handler | ReplyBody::TaskHandle | ReplyBody::Refused(_));
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
        while self.remembered.len() > self.session.limits().max_settled_ids {
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
        Owed::Cancel(key, cancels) => check_cancels(key, cancels, outputs),
        Owed::Fail(key, fails) => {
            let fits = |end: &Settlement| match (fails, end) {
                (Fails::Cancelled, Settlement::Cancelled { confirmed, .. }) => !confirmed,
                (Fails::Disconnected(written), Settlement::Disconnected { may_have_run }) => {
                    *may_have_run == written
                }
                _ => false,
            };
            let all_fit = ends(key).all(fits) && ends(key).count() == usize::from(fails != Fails::Nothing);
            holds(all_fit, "I13", || {
                format!("{key:?} fails on its way, which is {fails:?}, and its caller sees {outputs:?}")
            })
        }
        Owed::End(key, ends) => check_end_told(key, ends, outputs),
        Owed::NoSignal(key) => {
            let reported = outputs.iter().any(
                |output| matches!(output, Output::Signal { key: to, .. } | Output::Abort(to) if *to == key),
            );
            holds(!reported, "L1", || {
                format!("{key:?} is in a critical section within another, and heard of its cancel")
            })
        }
        Owed::Signal(key) => {
            let reported = |output: &Output| matches!(output, Output::Signal { key: to, .. } if *to == key);
            holds(outputs.iter().any(reported), "L1", || {
                format!("{key:?} left its critical section and did not hear of its cancel")
            })
        }
    }
}

/// I13: the cancel of a call has the required effect for its caller and on the transport.
fn check_cancels(key: OutboundKey, cancels: Cancels, outputs: &[Output]) -> Result<(), Broken> {
    let (mut sent, mut retracted, mut ends) = (0, 0, Vec::new());
    for output in outputs {
        match output {
            Output::SendCancel { call, .. } if *call == key => sent += 1,
            Output::TakeBack(call) if *call == key => retracted += 1,
            Output::Settle { call, settlement } if *call == key => ends.push(settlement),
            _ => {}
        }
    }
    let (sends, takes_back, confirms) = match cancels {
        Cancels::Nothing => (0, 0, None),
        Cancels::Return | Cancels::Untold => (0, 0, Some(false)),
        Cancels::TakenBack => (0, 1, Some(true)),
        Cancels::Sent => (1, 0, None),
        Cancels::SentAndReturn => (1, 0, Some(false)),
    };
    let fits = match (confirms, ends.as_slice()) {
        (None, []) => true,
        (Some(confirms), [Settlement::Cancelled { confirmed, .. }]) => *confirmed == confirms,
        (None | Some(_), _) => false,
    };
    holds(fits && sent == sends && retracted == takes_back, "I13", || {
        format!("the cancel of {key:?} was to come to {cancels:?}, and it came to {outputs:?}")
    })
}

/// I1: a handler's end is reported once and in the required form, or not at all.
fn check_end_told(key: InboundKey, ends: Ends, outputs: &[Output]) -> Result<(), Broken> {
    let mut reported = outputs.iter().filter(|output| match output {
        Output::Reply(reply) => reply.key == key,
        Output::Silence { key: to, .. } => *to == key,
        _ => false,
    });
    let (first, more) = (reported.next(), reported.next());
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

// The reach of one input: a cancel affects only its request.

impl MachineState {
    /// A cancel affects, at once, the request that it names and its descendants, and nothing else.
    pub(super) fn check_cancel(
        &self,
        cancelled: &Name,
        before: &Inspection,
        after: &Inspection,
        outputs: &[&Output],
    ) -> Result<(), Broken> {
        let id = &cancelled.key;
        if self.is_called_off() {
            return check_called_off(id, before, after, outputs);
        }
        let has = |view: &&RequestView| {
            view.id.0 == cancelled.scope
                && self.key_of(&view.id.1) == *id
                && view.state != RequestState::Ended
                && !self.ledger.is_task(view.key)
        };
        let is_open = |view: &&RequestView| !matches!(view.state, RequestState::Draining(_));
        let mut named = before.requests.iter().filter(has);
        // If two requests have the key, the draining one has passed it to the other.
        let target = named.clone().find(is_open).or_else(|| named.next());
        for output in outputs {
            let reached = match output {
                Output::Signal { key, .. } | Output::Silence { key, .. } | Output::Start(key) => Some(*key),
                Output::Reply(reply) => Some(reply.key),
                Output::SendCancel { call, .. } | Output::TakeBack(call) => {
                    before.calls.iter().find(|view| view.key == *call).and_then(|view| view.parent)
                }
                _ => continue,
            };
            let own = reached.is_some() && reached == target.map(|view| view.key);
            holds(own, "I4", || format!("a cancel of {id:?} brought {output:?}"))?;
        }
        let Some(target) = target else { return self.check_unknown(cancelled, before, after) };
        let key = target.key;
        let now = after.requests.iter().find(|view| view.key == key);
        let kind = self.ledger.served.get(&key).map_or(Kind::Work, |served| served.kind);
        if target.cause.is_some() || kind != Kind::Work || !self.hears_cancels() {
            let same = now.map(|now| (now.state, now.cause)) == Some((target.state, target.cause));
            let is_gated = kind == Kind::Handshake || !self.hears_cancels();
            return holds(same, if is_gated { "I9" } else { "I7" }, || {
                format!("a cancel that counts for nothing moved {key:?}: {target:?}, {now:?}")
            });
        }
        let signalled =
            outputs.iter().any(|output| matches!(output, Output::Signal { key: to, .. } if to == &key));
        match target.state {
            RequestState::Running if target.shields == 0 => {
                holds(signalled, "L1", || format!("{key:?} was cancelled and not signalled"))
            }
            RequestState::Queued => {
                let entered = outputs.iter().any(|output| matches!(output, Output::Start(to) if to == &key));
                holds(now.is_none() && !entered, "L1", || {
                    format!("{key:?} was cancelled in the queue and is there")
                })
            }
            _ => {
                holds(!signalled, "I6", || format!("{key:?} was signalled, though it is decided or shielded"))
            }
        }
    }

    /// I8: a cancel that names no request of its sender changes nothing, unless it may be early.
    pub(super) fn check_unknown(
        &self,
        cancelled: &Name,
        before: &Inspection,
        after: &Inspection,
    ) -> Result<(), Broken> {
        let id = &cancelled.key;
        let may_wait = match self.session.dialect().rules().early {
            EarlyCancel::Never => false,
            EarlyCancel::WhereUnordered => !self.ordered && !self.is_exchange_scoped,
            EarlyCancel::Always => !self.is_exchange_scoped,
        };
        let mut unknown = after.clone();
        if may_wait {
            unknown.parked.clone_from(&before.parked);
        }
        // Remembered entries may have expired meanwhile. No entry is added.
        let only_ages = after.remembered.iter().all(|entry| before.remembered.contains(entry));
        unknown.remembered.clone_from(&before.remembered);
        holds(only_ages && unknown == *before, "I8", || {
            format!("a cancel of {id:?}, which is unknown, left something")
        })
    }

    /// The key by which a cancel names the request with this id.
    fn key_of(&self, id: &RequestId) -> RequestId {
        let name = (0..IDS).map(|id| self.unscoped(id)).find(|name| name.id == *id);
        name.map_or_else(|| id.clone(), |name| name.key)
    }
}

/// A cancel that names a call of this side ends that call, if its dialect allows it, and nothing else (I4).
fn check_called_off(
    id: &RequestId,
    before: &Inspection,
    after: &Inspection,
    outputs: &[&Output],
) -> Result<(), Broken> {
    let number = id.as_number().and_then(|number| u64::try_from(number).ok()).map(CallNumber);
    let named = before.calls.iter().find(|view| Some(view.number) == number);
    let others = outputs.iter().find(|output| match output {
        Output::Settle { call, .. } => named.is_none_or(|view| view.key != *call),
        Output::Event(_) | Output::Ack { .. } | Output::ExchangeEnd { .. } | Output::Close(_) => false,
        _ => true,
    });
    holds(others.is_none(), "I4", || format!("the peer called {id:?} off, and it brought {others:?}"))?;
    let ended = outputs.iter().any(|output| matches!(output, Output::Settle { .. }));
    holds(ended || *before == *after, "I8", || {
        format!("the peer called {id:?} off, which ends nothing, and it left something")
    })
}
