//! Calls the bare machine makes, for role `call` and for `test/nested`.

use std::time::{Duration, Instant};

use rescind_core::dialect::{CallFrame, HandshakePart};
use rescind_core::{
    AfterCancel, CallRefused, CallSpec, CancelResult, Cause, CauseKind, OutboundKey, RequestId, Settlement,
};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::connection::Connection;
use super::inputs::OwnedAnswer;
use crate::runner::{Ended, SubjectError};
use crate::step::{AfterCancelStep, CallStep, CancelWord, OutcomeWord};

/// The data of a call until it is settled.
#[derive(Debug)]
pub(super) struct OwnCall {
    /// The vector's name for it. Empty: a handler made it.
    pub(super) name: String,
    pub(super) frame: Vec<u8>,
    pub(super) is_handshake: bool,
    pub(super) acked: Option<bool>,
    pub(super) params: Option<Box<RawValue>>,
}

/// The seed of a connection's call keys. It is fixed, so that every run is the same.
pub(super) const SEED: u128 = 0x5eed;

impl Connection {
    pub(super) fn call(&mut self, now: Instant, call: &CallStep) -> Result<(), SubjectError> {
        if call.token_cancelled {
            // A call that is cancelled before it starts never reaches the machine.
            let cause = Cause::new(CauseKind::Caller);
            self.outcomes.insert(call.name.clone(), cancelled(&cause, true));
            return Ok(());
        }
        let mut spec = CallSpec::new(&call.method);
        spec.deadline = call.timeout_ms.map(|ms| now + Duration::from_millis(ms));
        spec.after_cancel = call.after_cancel.map(|after| match after {
            AfterCancelStep::Wait => AfterCancel::WaitForPeer,
            AfterCancelStep::ReturnNow => AfterCancel::ReturnNow,
        });
        spec.parent = match &call.child_of {
            None => None,
            Some(id) => {
                let id = RequestId::from_json(&id.to_string())
                    .map_err(|error| SubjectError::Failed(error.to_string()))?;
                let key = self.ids.get(&id).copied();
                Some(key.ok_or_else(|| SubjectError::Failed(format!("no request {id} is served")))?)
            }
        };
        if let Some(key) = self.stage(now, &spec, call).filter(|_| call.detach) {
            self.session.local_detach(key);
        }
        self.pump(now);
        Ok(())
    }

    /// Passes a call to the session and queues its frame.
    pub(super) fn stage(
        &mut self,
        now: Instant,
        spec: &CallSpec<'_>,
        call: &CallStep,
    ) -> Option<OutboundKey> {
        let (key, number) = match self.session.local_call(now, spec) {
            Ok(staged) => staged,
            Err(refused) => {
                self.refused(&call.name, &refused);
                return None;
            }
        };
        let dialect = self.dialect.clone();
        let is_handshake = dialect.rules().handshake == Some(spec.method);
        let mut params = call.params.as_ref().and_then(|params| to_raw_value(params).ok());
        if let (true, Some(own)) = (is_handshake, &params) {
            params = dialect.codec().declare(HandshakePart::Params, own, self.handles_cancels).or(params);
        }
        let mut frame = Vec::new();
        let mut shape = CallFrame::new(number, SEED, spec.method, params.as_deref());
        shape.timeout = call.timeout_ms.map(Duration::from_millis);
        dialect.codec().encode_request(dialect.rules(), &mut frame, &shape);
        let name = call.name.clone();
        self.calls.insert(key, OwnCall { name, frame, is_handshake, acked: None, params });
        self.staged.push_back(key);
        Some(key)
    }

    fn refused(&mut self, name: &str, refused: &CallRefused) {
        let ended = match refused {
            CallRefused::AlreadyCancelled(cause) => cancelled(cause, true),
            CallRefused::Disconnected => {
                Ended { may_have_run: Some(false), ..Ended::new(OutcomeWord::Disconnected) }
            }
            CallRefused::TooMany => Ended::new(OutcomeWord::Failed),
        };
        self.outcomes.insert(name.to_owned(), ended);
    }

    pub(super) fn cancel_call(&mut self, now: Instant, name: &str, reason: Option<&str>) -> CancelWord {
        let cause = Cause::new(CauseKind::Caller);
        let cause = reason.map_or(cause.clone(), |reason| cause.with_reason(reason));
        let Some(key) = self.named(name) else { return CancelWord::AlreadySettled };
        let result = self.session.local_cancel_call(now, key, cause, None);
        self.pump(now);
        match result {
            CancelResult::Sent => CancelWord::Sent,
            CancelResult::TakenBack => CancelWord::TakenBack,
            CancelResult::NotSupported => CancelWord::NotSupported,
            CancelResult::AlreadySettled => CancelWord::AlreadySettled,
        }
    }

    pub(super) fn drop_call(&mut self, now: Instant, name: &str) {
        if let Some(key) = self.named(name) {
            let cause = Cause::new(CauseKind::Dropped);
            let _ = self.session.local_cancel_call(now, key, cause, Some(AfterCancel::ReturnNow));
            self.pump(now);
        }
    }

    pub(super) fn take_outcome(&mut self, name: &str) -> Option<Ended> {
        self.outcomes.remove(name)
    }

    fn named(&self, name: &str) -> Option<OutboundKey> {
        self.calls.iter().find(|(_, call)| call.name == name).map(|(key, _)| *key)
    }

    pub(super) fn settled(&mut self, now: Instant, key: OutboundKey, settlement: &Settlement) {
        let Some(call) = self.calls.remove(&key) else { return };
        self.staged.retain(|staged| *staged != key);
        let mut ended = match settlement {
            Settlement::Answered { cancelled } => answered(self.answer.take(), cancelled.is_some()),
            Settlement::Cancelled { cause, confirmed } => cancelled(cause, *confirmed),
            Settlement::Disconnected { may_have_run } => {
                Ended { may_have_run: Some(*may_have_run), ..Ended::new(OutcomeWord::Disconnected) }
            }
        };
        ended.acked = call.acked;
        if let (true, Some(result)) = (call.is_handshake, &ended.value) {
            if let Ok(raw) = to_raw_value(result) {
                let said = self.dialect.codec().read_handshake(HandshakePart::Result, &raw);
                self.session.handshake(HandshakePart::Result, &said);
            }
        }
        if call.name.is_empty() {
            self.child_ended(now, key);
        } else {
            self.outcomes.insert(call.name, ended);
        }
    }
}

fn answered(answer: Option<OwnedAnswer>, asked: bool) -> Ended {
    match answer {
        Some(OwnedAnswer::Value(value)) => {
            let word = if asked { OutcomeWord::CompletedAfterCancel } else { OutcomeWord::Completed };
            Ended { value: Some(value), ..Ended::new(word) }
        }
        Some(OwnedAnswer::Error(error)) => {
            Ended { code: Some(error.code.0), ..Ended::new(OutcomeWord::Failed) }
        }
        Some(OwnedAnswer::Unreadable) => Ended::new(OutcomeWord::Unreadable),
        Some(OwnedAnswer::Cancelled) | None => Ended::new(OutcomeWord::Cancelled),
    }
}

fn cancelled(cause: &Cause, confirmed: bool) -> Ended {
    let cause = format!("{:?}", cause.kind()).to_ascii_lowercase();
    Ended { cause: Some(cause), confirmed: Some(confirmed), ..Ended::new(OutcomeWord::Cancelled) }
}

/// The value as JSON text.
pub(super) fn raw(value: &Value) -> Option<Box<RawValue>> {
    to_raw_value(value).ok()
}
