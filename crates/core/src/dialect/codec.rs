//! The envelope codec: what reads frames and writes them.

use std::fmt;
use std::time::Duration;

use serde_json::value::RawValue;

use super::jsonrpc::JsonRpc;
use super::rules::{Refusal, Rules};
use crate::cause::Cause;
use crate::id::{CallNumber, RequestId};
use crate::machine::AckStatus;
use crate::message::{ErrorObject, Incoming};

/// Reads and writes the envelopes of a dialect. No method keeps state: what a connection must know stands in its
/// arguments.
///
/// Every `encode_*` appends one whole message, without framing and without a raw newline, to `out`. Those that
/// return `bool` say `false` when the dialect has no such message; then nothing was appended.
pub trait Codec: Send + Sync + fmt::Debug + 'static {
    /// Reads a frame. A bad frame is an [`Incoming::Bad`], never a panic.
    fn decode<'a>(&self, frame: &'a [u8]) -> Incoming<'a>;

    /// Writes a call of ours.
    fn encode_request(&self, rules: &Rules, out: &mut Vec<u8>, call: &CallFrame<'_>);

    /// Writes a notification.
    fn encode_notification(&self, rules: &Rules, out: &mut Vec<u8>, method: &str, params: Option<&RawValue>);

    /// Writes the value that answers a request of the peer.
    fn encode_value(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue);

    /// Writes a fixed result of [`Rules::graceful`]; a dialect may add what such a result must carry.
    fn encode_graceful(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, result: &'static str) {
        match super::json::raw(result) {
            Some(value) => self.encode_value(rules, out, to, value),
            None => self.encode_error(rules, out, to, &ErrorObject::internal()),
        }
    }

    /// Writes the error that answers a request of the peer.
    fn encode_error(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject);

    /// Writes the answer to a cancelled request: cancelled by the peer if `cause` says so, else by this side.
    fn encode_cancelled(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause);

    /// Writes a refusal, under the request's id if `to` is given, else as the dialect writes errors without one.
    fn encode_refusal(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        to: Option<&ReplyTo<'_>>,
        why: Refusal,
    ) -> bool;

    /// Writes a cancel of a call of ours. `cancel` is the number of the cancel itself, used where cancels are
    /// acknowledged; `seed` is the connection's, as in [`CallFrame::seed`].
    fn encode_cancel(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        call: CallNumber,
        cancel: CallNumber,
        seed: u128,
        reason: Option<&str>,
    );

    /// Writes the acknowledgement of a cancel, where the dialect has one. `key` is what the cancel named.
    fn encode_ack(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        ack: &RequestId,
        key: Option<&RequestId>,
        status: AckStatus,
    ) -> bool;

    /// Reads what the handshake says of cancelling, from either part of either side.
    fn read_handshake(&self, part: HandshakePart, body: &RawValue) -> Handshake;

    /// Adds our declaration to our own part of the handshake, where the dialect has one and the user gave none.
    /// `None`: nothing to add.
    fn declare(&self, part: HandshakePart, body: &RawValue, handles_cancels: bool) -> Option<Box<RawValue>>;

    /// Whether a first frame belongs to this dialect, for [`negotiate`](super::negotiate).
    fn recognises(&self, rules: &Rules, frame: &[u8]) -> bool;

    /// The call of ours whose progress a notification tells, by the token that [`CallFrame::progress`] or [`CallFrame::partial`] added.
    fn progressed_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        let (_, _) = (method, params);
        None
    }

    /// The token under which a notification or a call of a handler of ours reports, where the peer can cancel by it.
    fn reported_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let (_, _) = (method, params);
        None
    }

    /// The token a notification of the peer cancels by: the request that reported under it is to stop.
    fn cancelled_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let (_, _) = (method, params);
        None
    }

    /// This codec, if it is [`JsonRpc`]: the builder then keeps it in step with the rules.
    fn as_json_rpc(&self) -> Option<&JsonRpc> {
        None
    }
}

/// A call of ours, to be written.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallFrame<'a> {
    /// Its number.
    pub number: CallNumber,
    /// A number drawn once for the connection, from which a dialect makes keys that are unique beyond it (ABP).
    pub seed: u128,
    /// The method.
    pub method: &'a str,
    /// The params.
    pub params: Option<&'a RawValue>,
    /// The caller's timeout, where the dialect tells the peer of it.
    pub timeout: Option<Duration>,
    /// The progress of this call is wanted: the codec adds the call's number as its progress token.
    pub progress: bool,
    /// Its results are wanted in parts, where the dialect has that (LSP): the codec adds a token for them, made of the call's number.
    pub partial: bool,
}

impl<'a> CallFrame<'a> {
    /// A call without timeout, progress or parts.
    #[must_use]
    pub const fn new(number: CallNumber, seed: u128, method: &'a str, params: Option<&'a RawValue>) -> Self {
        Self { number, seed, method, params, timeout: None, progress: false, partial: false }
    }
}

/// The request an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo<'a> {
    /// Its id.
    pub id: &'a RequestId,
    /// The codec's own mark from [`IncomingRequest::tag`](crate::IncomingRequest::tag).
    pub tag: u8,
    /// Its method, if known: picks `server_cancelled` where a rule names methods.
    pub server_cancellable: bool,
}

/// Which side of a connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// We opened the connection and asked for the handshake.
    Client,
    /// The peer did.
    Server,
}

/// Which half of the handshake a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePart {
    /// The request's params, written by the client.
    Params,
    /// The answer's result, written by the server.
    Result,
}

/// What one half of a handshake says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handshake {
    /// The writer handles cancels. `None`: it does not say.
    pub handles_cancels: Option<bool>,
    /// The protocol version, as text.
    pub revision: Option<String>,
    /// The methods whose requests the writer takes out of a cancel's reach where their params name what
    /// [`Rules::uncancellable_param`] says. `None`: the dialect declares none, and every method's are.
    pub exempting: Option<Vec<String>>,
}

impl Handshake {
    /// What one half of a handshake says.
    #[must_use]
    pub const fn new(handles_cancels: Option<bool>, revision: Option<String>) -> Self {
        Self { handles_cancels, revision, exempting: None }
    }

    /// The same, with what [`exempting`](Self::exempting) says.
    #[must_use]
    pub fn with_exempting(self, exempting: Option<Vec<String>>) -> Self {
        Self { exempting, ..self }
    }
}
