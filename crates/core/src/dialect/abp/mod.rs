//! ABP 0.1, which has an envelope of its own: `{type, id, timestamp, payload}`.
//!
//! It has three ids, which are never mistaken for each other: the `id` of the envelope pairs a message with its result,
//! a cancel names the `callId`, and progress names the `progressToken`.
//!
//! Where the sources are silent, this codec does the following: an `initialize-result` has the session as its bare
//! payload; the payload of a notification is `{event, data}`, as the reference's `notify(event, data)` names them
//! (`{method, params}` is read too); notifications have no envelope id; a frame of an unknown type is counted and not
//! answered, because ABP has no message for that.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use serde_json::value::RawValue;

use super::rules::{
    AckStyle, BASE, CancelFrom, CancelledReply, DecidedBy, LostStream, Refusal, RefusalStyle, Rules,
    SettledMemory, ShownMembers,
};
use super::{Dialect, json};
use crate::cause::Cause;
use crate::dialect::rules::{CallFrame, Codec, Handshake, HandshakePart, ReplyTo};
use crate::id::{CallNumber, RequestId};
use crate::message::{AckStatus, AnswerFault, BadMessage, ErrorObject, Incoming};

/// ABP 0.1. Cancels are requests of the agent, and each has an acknowledgement of its own.
///
/// Cites the rows `ABP` of the testkit's COVERAGE.md.
pub const ABP: Dialect = Dialect::from_static(&RULES, &Abp);

static RULES: Rules = Rules {
    name: "abp",
    shown: ShownMembers::new(&[]).with_client("/agent"),
    handshake: Some(INITIALIZE),
    // ABP-26: a call or a cancel without a session gets NOT_INITIALIZED.
    session_required: true,
    // ABP-05: there are no partial results. ABP-25: the acknowledgement and the result follow from one decision.
    decided: DecidedBy::Cancel,
    peer_cancelled: CancelledReply::OwnShape,
    ack: AckStyle::Acknowledged,
    // ABP-13: agent to app.
    cancel_from: CancelFrom::Client,
    // ABP's document does not say what a lost stream means. Rescind cancels the request.
    lost_stream: LostStream::Cancel,
    // ABP-22 and ABP-23: late and repeated cancels are answered with the result of the call.
    settled_memory: SettledMemory::ForAcks,
    refusal: RefusalStyle::Nothing,
    // Its envelope is not JSON-RPC.
    subprotocols: &[],
    ..BASE
};

const INITIALIZE: &str = "initialize";
const CALL: &str = "capabilities/call";
const CANCEL: &str = "capabilities/cancel";
const CANCEL_RESULT: &str = "capabilities/cancel-result";
const NOTIFICATION: &str = "notification";
const PROGRESS: &str = "progress";
const SHUTDOWN: &str = "shutdown";

/// [`IncomingRequest::tag`](crate::IncomingRequest::tag) of a capability call.
const TAG_CALL: u8 = 0;
/// [`IncomingRequest::tag`](crate::IncomingRequest::tag) of `initialize`.
const TAG_INITIALIZE: u8 = 1;

/// ABP's error words, and the JSON-RPC code for each.
mod word {
    use crate::message::ErrorCode;

    pub(super) const CANCELLED: &str = "CANCELLED";
    pub(super) const INTERNAL_ERROR: &str = "INTERNAL_ERROR";
    pub(super) const INVALID_PARAMS: &str = "INVALID_PARAMS";
    pub(super) const NOT_INITIALIZED: &str = "NOT_INITIALIZED";
    pub(super) const OPERATION_FAILED: &str = "OPERATION_FAILED";
    pub(super) const RATE_LIMITED: &str = "RATE_LIMITED";
    pub(super) const TIMEOUT: &str = "TIMEOUT";
    pub(super) const UNKNOWN_CAPABILITY: &str = "UNKNOWN_CAPABILITY";

    /// The code for a word.
    pub(super) fn code(word: &str) -> ErrorCode {
        match word {
            UNKNOWN_CAPABILITY => ErrorCode::METHOD_NOT_FOUND,
            INVALID_PARAMS => ErrorCode::INVALID_PARAMS,
            _ => ErrorCode::INTERNAL_ERROR,
        }
    }

    /// The word for a code that has no word.
    pub(super) fn of(code: ErrorCode) -> &'static str {
        match code {
            ErrorCode::METHOD_NOT_FOUND => UNKNOWN_CAPABILITY,
            ErrorCode::INVALID_PARAMS => INVALID_PARAMS,
            ErrorCode::INTERNAL_ERROR => INTERNAL_ERROR,
            _ => OPERATION_FAILED,
        }
    }

    /// Whether the same call may succeed later.
    pub(super) fn is_retryable(word: &str) -> bool {
        matches!(word, NOT_INITIALIZED | RATE_LIMITED | TIMEOUT)
    }
}

/// ABP's codec.
#[derive(Clone, Copy, Debug)]
struct Abp;

impl Codec for Abp {
    fn decode<'a>(&self, frame: &'a [u8]) -> Incoming<'a> {
        decode::read(frame).unwrap_or_else(Incoming::Bad)
    }

    fn unreadable_answer(&self, frame: &[u8], why: BadMessage) -> Option<(Option<CallNumber>, AnswerFault)> {
        decode::read_unreadable(frame, why)
    }

    fn encode_request(&self, _: &Rules, out: &mut Vec<u8>, call: &CallFrame<'_>) {
        encode::request(out, call);
    }

    fn encode_notification(&self, _: &Rules, out: &mut Vec<u8>, method: &str, params: Option<&RawValue>) {
        encode::notification(out, method, params);
    }

    fn encode_value(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue) {
        encode::value(out, to, value);
    }

    fn encode_error(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject) {
        encode::error(out, to, error);
    }

    fn encode_cancelled(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause) {
        encode::cancelled(out, to, cause);
    }

    fn encode_refusal(&self, _: &Rules, out: &mut Vec<u8>, to: Option<&ReplyTo<'_>>, why: Refusal) -> bool {
        encode::refusal(out, to, why)
    }

    fn encode_cancel(
        &self,
        _: &Rules,
        out: &mut Vec<u8>,
        call: CallNumber,
        cancel: CallNumber,
        seed: u128,
        reason: Option<&str>,
    ) {
        encode::cancel(out, call, cancel, seed, reason);
    }

    fn encode_ack(
        &self,
        _: &Rules,
        out: &mut Vec<u8>,
        ack: &RequestId,
        key: Option<&RequestId>,
        status: AckStatus,
    ) -> bool {
        encode::ack(out, ack, key, status);
        true
    }

    fn read_handshake(&self, _: HandshakePart, body: &RawValue) -> Handshake {
        let version = json::member(Some(body), "protocolVersion").and_then(json::string);
        Handshake::new(None, version.map(std::borrow::Cow::into_owned))
    }

    fn declare(&self, _: HandshakePart, _: &RawValue, _: bool) -> Option<Box<RawValue>> {
        // ABP-06: there is no flag.
        None
    }

    fn recognises(&self, _: &Rules, frame: &[u8]) -> bool {
        decode::has_type(frame)
    }

    fn progressed_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        decode::read_progressed_call(method, params)
    }
}
