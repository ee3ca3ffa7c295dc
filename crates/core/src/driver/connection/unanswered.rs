//! Ends calls whose answer will not come.

use bytes::Bytes;

use crate::driver::connection::ConnectionTask;
use crate::id::{CallNumber, ExchangeId};
use crate::log_text::LogText;
use crate::message::{AnswerBody, BadMessage, Deviation, Incoming};
use crate::transport::TransportError;

impl ConnectionTask {
    /// Ends the call of an answer which has begun and does not go on: the call that it names, or the only one that waits. If the rest
    /// of the answer comes all the same, it is a late answer. While several calls wait, an answer without an id ends none of them: its
    /// id may come last. A request of the peer may have the id of a call, so what begins as a request ends none, and what has no id
    /// must have a result or an error.
    pub(crate) fn recv_stalled(&self, head: &Bytes) {
        let connection = &self.connection;
        let has = |name: &str| memchr::memmem::find(head, name.as_bytes()).is_some();
        let has_answer = has("\"result\"") || has("\"error\"");
        if !has_answer && may_be_request(head) {
            return;
        }
        let answer = connection.dialect.codec().unreadable_answer(head, BadMessage::NotJson);
        let Some((named, fault)) = answer else { return };
        let only = || has_answer.then(|| self.only_call(ExchangeId::NONE)).flatten();
        let Some(call) = named.or_else(only) else { return };
        if connection.lock().session.awaits_answer(call) {
            connection.deviates(Deviation::InvalidAnswer, head);
            self.pass_answer(head, Some(call), AnswerBody::Malformed(fault.stalled()));
        }
    }

    /// Ends a call without an answer, unless its response held the answer, which needed the codec to be recognised as such.
    pub(crate) fn fail_call(&self, number: CallNumber, sent: bool, error: TransportError) {
        let connection = &self.connection;
        if connection.lock().session.call_of(number).is_none() {
            return;
        }
        tracing::debug!(error = %LogText::text(&error), "an exchange failed");
        if let Some(hook) = &connection.on_call_failure {
            hook(&TransportError { exchange: Some(ExchangeId::of_call(number)), ..error });
        }
        connection.step(|state, now, _| state.session.recv_exchange_failed(now, number, sent));
    }

    /// Ends the call that is named by what its peer sent instead of an answer, or the only one that waits.
    pub(crate) fn recv_unanswered(&self, sent: &Bytes, error: TransportError) {
        let connection = &self.connection;
        let codec = connection.dialect.codec();
        let named = match codec.decode(sent) {
            Incoming::Answer { call, .. } => call,
            Incoming::Bad(why) => codec.unreadable_answer(sent, why).and_then(|(call, _)| call),
            _ => None,
        };
        let named = named.filter(|call| connection.lock().session.awaits_answer(*call));
        match named.or_else(|| self.only_call(ExchangeId::NONE)) {
            Some(call) => {
                connection.deviates(Deviation::NoAnswer, error.source.to_string().as_bytes());
                self.fail_call(call, true, error);
            }
            None => connection.deviates(Deviation::Noise, sent),
        }
    }
}

/// Whether the beginning of a message has a method or params, or may have begun with the name of one of them.
fn may_be_request(head: &[u8]) -> bool {
    let last = head.rsplit(|byte| *byte == b'"').next().unwrap_or_default();
    [&b"method"[..], b"params"].into_iter().any(|name| {
        let begins = !last.is_empty() && name.starts_with(last);
        begins || memchr::memmem::find(head, name).is_some()
    })
}
