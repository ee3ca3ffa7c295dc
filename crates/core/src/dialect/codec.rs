//! The envelope codec, which reads and writes frames.

use std::fmt;
use std::time::Duration;

use serde_json::value::RawValue;

use super::jsonrpc::JsonRpc;
use super::rules::{Refusal, Rules};
use crate::cause::Cause;
use crate::id::{CallNumber, RequestId};
use crate::message::{AckStatus, AnswerFault, BadMessage, ErrorObject, Incoming};

/// Reads and writes the envelopes of a dialect. No method keeps state: everything about the connection is in the
/// arguments.
///
/// Every `encode_*` appends one whole message to `out`, without framing and without a raw newline. A method with a
/// `bool` returns `false` if the dialect has no such message; then nothing was appended.
pub trait Codec: Send + Sync + fmt::Debug + 'static {
    /// Reads a frame. A bad frame is an [`Incoming::Bad`], never a panic.
    fn decode<'a>(&self, frame: &'a [u8]) -> Incoming<'a>;

    /// The call that a frame names which [`decode`](Self::decode) did not read for this reason, and what is wrong with it.
    /// `None`: it may be something else than an answer, or it is not certain which call is meant.
    fn unreadable_answer(&self, frame: &[u8], why: BadMessage) -> Option<(CallNumber, AnswerFault)> {
        let (_, _) = (frame, why);
        None
    }

    /// Writes a call of this side.
    fn encode_request(&self, rules: &Rules, out: &mut Vec<u8>, call: &CallFrame<'_>);

    /// Writes a notification.
    fn encode_notification(&self, rules: &Rules, out: &mut Vec<u8>, method: &str, params: Option<&RawValue>);

    /// Writes the value that answers a request of the peer.
    fn encode_value(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue);

    /// Writes a fixed result of [`Rules::graceful`]. A dialect may add members that such a result must have.
    fn encode_graceful(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, result: &'static str) {
        match super::json::raw(result) {
            Some(value) => self.encode_value(rules, out, to, value),
            None => self.encode_error(rules, out, to, &ErrorObject::internal()),
        }
    }

    /// Writes the error that answers a request of the peer.
    fn encode_error(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject);

    /// Writes the answer to a cancelled request. `cause` says whether the peer or this side cancelled it.
    fn encode_cancelled(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause);

    /// Writes a refusal: with the request's id if `to` is given, else in the dialect's form for errors without an id.
    fn encode_refusal(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        to: Option<&ReplyTo<'_>>,
        why: Refusal,
    ) -> bool;

    /// Writes a cancel of a call of this side. `cancel` is the number of the cancel itself, in dialects that
    /// acknowledge cancels. `seed` is that of the connection, as in [`CallFrame::seed`].
    fn encode_cancel(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        call: CallNumber,
        cancel: CallNumber,
        seed: u128,
        reason: Option<&str>,
    );

    /// Writes the acknowledgement of a cancel, if the dialect has one. `key` is the key that the cancel named.
    fn encode_ack(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        ack: &RequestId,
        key: Option<&RequestId>,
        status: AckStatus,
    ) -> bool;

    /// Reads what the handshake says about cancelling, from either part and either side.
    fn read_handshake(&self, part: HandshakePart, body: &RawValue) -> Handshake;

    /// Adds the declaration of this side to its own part of the handshake, if the dialect has a declaration and the
    /// user gave none. `None`: nothing is added.
    fn declare(&self, part: HandshakePart, body: &RawValue, handles_cancels: bool) -> Option<Box<RawValue>>;

    /// Whether a first frame belongs to this dialect, for [`negotiate`](super::negotiate).
    fn recognises(&self, rules: &Rules, frame: &[u8]) -> bool;

    /// The call of this side whose progress a notification reports, found by the token that [`CallFrame::progress`] or
    /// [`CallFrame::partial`] added.
    fn progressed_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        let (_, _) = (method, params);
        None
    }

    /// The progress token in a notification or a call of a handler of this side, if the peer can cancel the handler's
    /// request by it.
    fn reported_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let (_, _) = (method, params);
        None
    }

    /// The progress token by which a notification of the peer cancels the request that reports with it.
    fn cancelled_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let (_, _) = (method, params);
        None
    }

    /// This codec, if it is [`JsonRpc`]. The builder then copies some of the rules into it.
    fn as_json_rpc(&self) -> Option<&JsonRpc> {
        None
    }
}

/// A call of this side, to be written.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallFrame<'a> {
    /// Its number.
    pub number: CallNumber,
    /// A number that is drawn once for each connection. A dialect makes keys from it that are unique across connections
    /// (ABP).
    pub seed: u128,
    /// The method.
    pub method: &'a str,
    /// The params.
    pub params: Option<&'a RawValue>,
    /// The caller's timeout, in dialects that send it to the peer.
    pub timeout: Option<Duration>,
    /// Whether the caller requests progress. The codec then adds the call's number as its progress token.
    pub progress: bool,
    /// Whether the caller requests partial results, in dialects that have them (LSP). The codec then adds a token for
    /// them, made from the call's number.
    pub partial: bool,
}

impl<'a> CallFrame<'a> {
    /// A call without timeout, progress or parts.
    #[must_use]
    pub const fn new(number: CallNumber, seed: u128, method: &'a str, params: Option<&'a RawValue>) -> Self {
        Self { number, seed, method, params, timeout: None, progress: false, partial: false }
    }
}

/// The request to which an answer belongs.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo<'a> {
    /// Its id.
    pub id: &'a RequestId,
    /// The codec's mark from [`IncomingRequest::tag`](crate::IncomingRequest::tag).
    pub tag: u8,
    /// Whether its method is declared as server-cancellable. If this side cancels it, its error is
    /// [`Rules::server_cancelled`], if there is one.
    pub server_cancellable: bool,
}

/// The role of this side on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// This side opened the connection and sends the handshake.
    Client,
    /// The peer opened the connection and sends the handshake.
    Server,
}

/// A part of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePart {
    /// The params of the request, which the client writes.
    Params,
    /// The result of the answer, which the server writes.
    Result,
}

/// The content of one part of a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handshake {
    /// Whether the writer handles cancels. `None`: it does not say.
    pub handles_cancels: Option<bool>,
    /// The protocol version, as text.
    pub revision: Option<String>,
    /// The methods for which the writer declares that [`Rules::uncancellable_param`] makes a request uncancellable.
    /// `None`: the dialect has no such declaration, and the param counts for every method.
    pub exempting: Option<Vec<String>>,
}

impl Handshake {
    /// One part of a handshake, without [`exempting`](Self::exempting).
    #[must_use]
    pub const fn new(handles_cancels: Option<bool>, revision: Option<String>) -> Self {
        Self { handles_cancels, revision, exempting: None }
    }

    /// The same part with [`exempting`](Self::exempting).
    #[must_use]
    pub fn with_exempting(self, exempting: Option<Vec<String>>) -> Self {
        Self { exempting, ..self }
    }
}
