//! JSON-RPC 2.0 as an envelope, with the differences between protocols as data.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::dialect::json::{self, PickedMembers, push};
use crate::dialect::rules::{CallFrame, Codec, Handshake, HandshakePart, Refusal, ReplyTo, Rules};
use crate::id::{CallNumber, RequestId};
use crate::message::{AckStatus, AnswerFault, BadMessage, ErrorCode, ErrorObject, Incoming};

pub(super) use crate::dialect::jsonrpc::decode::{is_placeholder_id, padded_number, respelled_number};

/// The JSON-RPC 2.0 codec. Its fields define what a protocol adds to the envelope.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JsonRpc {
    /// The cancel that is written and read.
    pub cancel: CancelName,
    /// Other cancels that are read.
    pub also_accepted: &'static [CancelName],
    /// Where a cancel carries its reason.
    pub reason: ReasonField,
    /// The error codes that say "it was cancelled".
    pub cancelled_codes: &'static [ErrorCode],
    /// How progress is requested and reported, if the protocol has progress.
    pub progress: Option<Progress>,
    /// Where each side declares that it handles cancels, if the protocol has such a declaration.
    pub declaration: Option<Declaration>,
    /// A text member that every result has, and its value if the handler's result has none.
    pub result_mark: Option<(&'static str, &'static str)>,
    /// The member of a graceful result's `_meta` that repeats the request's id.
    pub graceful_id: Option<&'static str>,
    /// How the first message is recognised.
    pub opening: FirstMessage,
    /// The code of a refusal because of a limit.
    pub overloaded: ErrorCode,
    /// The code of a refusal because the session is not open.
    pub not_initialized: ErrorCode,
    /// A copy of [`Rules::uncancellable_param`], which the builder sets.
    pub uncancellable_param: Option<&'static str>,
    /// The member of each side's `capabilities` that lists, under `requests`, the methods for which that param counts
    /// (MCP: `tasks.requests.tools.call`). `None`: it counts for all methods.
    pub exempting: Option<&'static str>,
}

/// A cancel notification: its method, and the member of params that names the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelName {
    /// The method.
    pub method: &'static str,
    /// The member of params.
    pub key: &'static str,
}

/// Where a cancel carries its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonField {
    /// It has no reason.
    Nowhere,
    /// In this member of params.
    Param(&'static str),
}

/// How progress is requested and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Where a request carries its token.
    pub token: TokenField,
    /// The notification that reports progress.
    pub notification: &'static str,
    /// The member of that notification's params that repeats the token.
    pub token_key: &'static str,
    /// The member of params in which a request has a token for partial results. The same notification reports them.
    pub partial: Option<&'static str>,
    /// The request that announces a token of its sender, in the same member of params.
    pub create: Option<&'static str>,
    /// The notification by which the peer cancels the request that reports with a token, in the same member of params.
    pub cancel: Option<&'static str>,
}

/// Where a request carries its progress token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenField {
    /// In this member of params.
    Param(&'static str),
    /// In this member of `params._meta`.
    Meta(&'static str),
}

/// The member of each part of the handshake that contains the writer's capabilities, with `cancellation.request` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// In the request's params.
    pub in_params: &'static str,
    /// In the answer's result.
    pub in_result: &'static str,
}

/// How the first message of a dialect is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstMessage {
    /// By its envelope, and by the handshake's method if the rules name one.
    Envelope,
    /// By a handshake whose `protocolVersion` is this number. If the dialect has a [`Declaration`], the message must
    /// contain one too.
    NumberedVersion(i64),
    /// By a handshake whose `protocolVersion` is a text.
    TextVersion,
    /// By a handshake without `protocolVersion`.
    NoVersion,
    /// By this member of `params._meta` in any request or notification. It is a text.
    MetaVersion(&'static str),
}

impl JsonRpc {
    /// JSON-RPC 2.0 with this cancel notification and nothing else: no reasons, no progress, no declaration. The code
    /// -32800 says "cancelled".
    #[must_use]
    pub const fn new(cancel: CancelName) -> Self {
        Self {
            cancel,
            also_accepted: &[],
            reason: ReasonField::Nowhere,
            cancelled_codes: &[ErrorCode::REQUEST_CANCELLED],
            progress: None,
            declaration: None,
            result_mark: None,
            graceful_id: None,
            opening: FirstMessage::Envelope,
            overloaded: ErrorCode::INTERNAL_ERROR,
            not_initialized: ErrorCode::INVALID_REQUEST,
            uncancellable_param: None,
            exempting: None,
        }
    }

    /// The same codec, adapted to changed rules.
    pub(super) fn following(mut self, rules: &Rules) -> Self {
        self.uncancellable_param = rules.uncancellable_param;
        self
    }
}

impl Codec for JsonRpc {
    fn decode<'a>(&self, frame: &'a [u8]) -> Incoming<'a> {
        self.read(frame).unwrap_or_else(Incoming::Bad)
    }

    fn unreadable_answer(&self, frame: &[u8], why: BadMessage) -> Option<(Option<CallNumber>, AnswerFault)> {
        self.read_unreadable(frame, why)
    }

    fn encode_request(&self, _: &Rules, out: &mut Vec<u8>, call: &CallFrame<'_>) {
        self.write_request(out, call);
    }

    fn encode_notification(&self, _: &Rules, out: &mut Vec<u8>, method: &str, params: Option<&RawValue>) {
        encode::notification(out, method, params);
    }

    fn encode_value(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue) {
        self.write_value(out, to, value);
    }

    fn encode_graceful(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, result: &'static str) {
        self.write_graceful(out, to, result);
    }

    fn encode_error(&self, _: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject) {
        encode::error(out, to, error);
    }

    fn encode_cancelled(&self, rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause) {
        encode::cancelled(rules, out, to, cause);
    }

    fn encode_refusal(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        to: Option<&ReplyTo<'_>>,
        why: Refusal,
    ) -> bool {
        self.write_refusal(rules, out, to, why)
    }

    fn encode_cancel(
        &self,
        _: &Rules,
        out: &mut Vec<u8>,
        call: CallNumber,
        _: CallNumber,
        _: u128,
        reason: Option<&str>,
    ) {
        self.write_cancel(out, call, reason);
    }

    fn encode_ack(
        &self,
        _: &Rules,
        _: &mut Vec<u8>,
        _: &RequestId,
        _: Option<&RequestId>,
        _: AckStatus,
    ) -> bool {
        false
    }

    fn read_handshake(&self, part: HandshakePart, body: &RawValue) -> Handshake {
        self.handshake(part, body)
    }

    fn declare(&self, part: HandshakePart, body: &RawValue, handles_cancels: bool) -> Option<Box<RawValue>> {
        self.declared(part, body, handles_cancels)
    }

    fn recognises(&self, rules: &Rules, frame: &[u8]) -> bool {
        self.opens(rules, frame)
    }

    fn progressed_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        self.read_progressed_call(method, params)
    }

    fn reported_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        self.read_reported_token(method, params)
    }

    fn cancelled_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        self.token_of_cancel(method, params)
    }

    fn as_json_rpc(&self) -> Option<&JsonRpc> {
        Some(self)
    }
}

/// The name of the flag in the source's interfaces, inside of `cancellation`.
const REQUEST: &str = "request";
/// The name of the flag in the prose of the same source.
const PROSE_NAME: &str = "supportsRequestCancellation";
const CANCELLATION: &str = "cancellation";
const VERSION: &str = "protocolVersion";
const CAPABILITIES: &str = "capabilities";
/// The most methods of a declaration that are kept. Protocols have a handful.
const MAX_DECLARED_METHODS: usize = 64;

impl JsonRpc {
    fn handshake(&self, part: HandshakePart, body: &RawValue) -> Handshake {
        let version = json::member(Some(body), VERSION);
        let revision = version.and_then(|version| match json::string(version) {
            Some(text) => Some(text.into_owned()),
            None => version.get().parse::<i64>().ok().map(|number| number.to_string()),
        });
        // Without a declaration the default is `false` (ACPDRAFT-14).
        let handles_cancels = self.declaration.map(|place| declared_flag(place, part, body).unwrap_or(false));
        let exempting = self.exempting.map(|name| declared_requests(name, body));
        Handshake::new(handles_cancels, revision).with_exempting(exempting)
    }

    fn declared(&self, part: HandshakePart, body: &RawValue, handles_cancels: bool) -> Option<Box<RawValue>> {
        let place = self.declaration?;
        // An omitted flag means `false` (ACPDRAFT-63).
        if !handles_cancels || declared_flag(place, part, body).is_some() {
            return None;
        }
        let holder = place.holder(part);
        let PickedMembers { values: [capabilities], .. } = PickedMembers::of(Some(body), [holder]);
        let mut out = Vec::new();
        match capabilities {
            None => json::push_with_member(&mut out, body.get(), |out| {
                json::push_string(out, holder);
                push(out, r#":{"cancellation":{"request":true}}"#);
            }),
            Some(capabilities) => json::push_replacing(&mut out, body, capabilities, |out| {
                push_declared(out, capabilities);
            }),
        }
        json::into_raw(out)
    }

    fn opens(&self, rules: &Rules, frame: &[u8]) -> bool {
        let (method, params, is_request) = match self.read(frame) {
            Ok(Incoming::Request(request)) => (request.method, request.params, true),
            Ok(Incoming::Notification { method, params }) => (method, params, false),
            Ok(Incoming::BadRequest { .. }) | Err(_) => return false,
            Ok(_) => return self.opening == FirstMessage::Envelope && rules.handshake.is_none(),
        };
        let is_handshake = is_request && rules.handshake == Some(&*method);
        let version = || json::member(params, VERSION);
        match self.opening {
            FirstMessage::Envelope => is_handshake || rules.handshake.is_none(),
            FirstMessage::NumberedVersion(wanted) => {
                is_handshake
                    && version().and_then(|version| version.get().parse().ok()) == Some(wanted)
                    && self
                        .declaration
                        .is_none_or(|place| params.is_some_and(|params| holds_declaration(place, params)))
            }
            FirstMessage::TextVersion => is_handshake && version().and_then(json::string).is_some(),
            FirstMessage::NoVersion => is_handshake && version().is_none(),
            FirstMessage::MetaVersion(name) => {
                json::member(json::member(params, "_meta"), name).and_then(json::string).is_some()
            }
        }
    }
}

impl Declaration {
    fn holder(self, part: HandshakePart) -> &'static str {
        match part {
            HandshakePart::Params => self.in_params,
            HandshakePart::Result => self.in_result,
        }
    }
}

/// The flag, from the first of the places where a writer may have put it (ACPDRAFT-24).
fn declared_flag(place: Declaration, part: HandshakePart, body: &RawValue) -> Option<bool> {
    let PickedMembers { values: [capabilities, outermost], .. } =
        PickedMembers::of(Some(body), [place.holder(part), PROSE_NAME]);
    let PickedMembers { values: [cancellation, beside], .. } =
        PickedMembers::of(capabilities, [CANCELLATION, PROSE_NAME]);
    let PickedMembers { values: [request, inside], .. } =
        PickedMembers::of(cancellation, [REQUEST, PROSE_NAME]);
    let first = [request, inside, beside, outermost].into_iter().find_map(json::present)?;
    Some(first.get() == "true")
}

/// The methods that a capability lists as `requests.GROUP.NAME`. A member that is not an object lists nothing.
fn declared_requests(capability: &str, body: &RawValue) -> Vec<String> {
    type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;
    fn members(of: &RawValue) -> Members<'_> {
        serde_json::from_str(of.get()).unwrap_or_default()
    }
    let capability = json::member(json::member(Some(body), CAPABILITIES), capability);
    let groups = json::member(capability, "requests").map(members).unwrap_or_default();
    let named = groups.iter().flat_map(|(group, names)| {
        let said = members(names).into_iter().filter(|(_, said)| json::present(Some(said)).is_some());
        said.map(move |(name, _)| format!("{group}/{name}"))
    });
    named.take(MAX_DECLARED_METHODS).collect()
}

/// Whether the client's part says anything about cancelling, also if it denies it.
fn holds_declaration(place: Declaration, params: &RawValue) -> bool {
    let PickedMembers { values: [cancellation, beside], .. } =
        PickedMembers::of(json::member(Some(params), place.in_params), [CANCELLATION, PROSE_NAME]);
    let PickedMembers { values: [outermost], .. } = PickedMembers::of(Some(params), [PROSE_NAME]);
    cancellation.or(beside).or(outermost).is_some()
}

/// The capabilities with the declaration of this side. A value that is not an object is replaced.
fn push_declared(out: &mut Vec<u8>, capabilities: &RawValue) {
    if json::shape(capabilities.get()) != json::Shape::Object {
        return push(out, r#"{"cancellation":{"request":true}}"#);
    }
    let PickedMembers { values: [cancellation], .. } = PickedMembers::of(Some(capabilities), [CANCELLATION]);
    match cancellation {
        None => json::push_with_member(out, capabilities.get(), |out| {
            push(out, r#""cancellation":{"request":true}"#);
        }),
        Some(inner) => json::push_replacing(out, capabilities, inner, |out| {
            let PickedMembers { values: [request], .. } = PickedMembers::of(Some(inner), [REQUEST]);
            match request {
                None if json::shape(inner.get()) == json::Shape::Object => {
                    json::push_with_member(out, inner.get(), |out| push(out, r#""request":true"#));
                }
                _ => push(out, r#"{"request":true}"#),
            }
        }),
    }
}
