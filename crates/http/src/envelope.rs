//! The parts of a body that the bindings read: the envelope, and single members of its params or result. Everything is
//! borrowed, and reading a member never fails. The data of the protocol
//! ([`SessionBodies`](rescind_core::SessionBodies), [`MirroredBodies`](rescind_core::MirroredBodies)) defines which
//! methods and members are read.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use rescind_core::members::{self, PickedMembers, Shape, may_name, present, shape, string};
use rescind_core::{Deviation, RequestId, TransportEvent};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::inbound_queue::InboundQueue;

/// The members of a message. A member that is `null` is absent, except for `id` and `result`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Envelope<'a> {
    pub(crate) jsonrpc: Option<&'a RawValue>,
    pub(crate) id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    kind: Option<&'a RawValue>,
    pub(crate) params: Option<&'a RawValue>,
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<&'a RawValue>,
}

/// The names of its members.
const MEMBERS: [&str; 7] = ["jsonrpc", "id", "method", "type", "params", "result", "error"];

/// Why a body is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnvelopeError {
    Empty,
    NotUtf8,
    NotJson,
    /// JSON, but neither an object nor an array of messages. An empty array is not a batch: it holds no message.
    NotAnObject,
    Batch,
}

impl<'a> Envelope<'a> {
    /// Reads a body. An object with a duplicate member, or whose method is not a string, is read as one without
    /// members: the driver refuses it.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, EnvelopeError> {
        let text = members::text(body).map_err(|_| EnvelopeError::NotUtf8)?;
        let is_json = || serde_json::from_str::<IgnoredAny>(text).is_ok();
        match shape(text) {
            Shape::Object => {
                let read = PickedMembers::read(text, MEMBERS).map_err(|_| EnvelopeError::NotJson)?;
                let [jsonrpc, id, method, kind, params, result, error] = read.values;
                let [jsonrpc, method, kind, params, error] =
                    [jsonrpc, method, kind, params, error].map(present);
                let is_readable = !read.twice && method.is_none_or(|method| string(method).is_some());
                let envelope = Self { jsonrpc, id, method, kind, params, result, error };
                Ok(if is_readable { envelope } else { Self::default() })
            }
            Shape::Array => match serde_json::from_str::<Vec<IgnoredAny>>(text) {
                Ok(messages) if messages.is_empty() => Err(EnvelopeError::NotAnObject),
                Ok(_) => Err(EnvelopeError::Batch),
                Err(_) => Err(EnvelopeError::NotJson),
            },
            Shape::Other if text.trim_ascii_start().is_empty() => Err(EnvelopeError::Empty),
            Shape::Other if is_json() => Err(EnvelopeError::NotAnObject),
            Shape::Other => Err(EnvelopeError::NotJson),
        }
    }

    /// The same for a body that may not be a message: then the envelope has no members.
    pub(crate) fn of(body: &'a [u8]) -> Self {
        Self::read(body).unwrap_or_default()
    }

    /// The id, if it is valid.
    pub(crate) fn id(&self) -> Option<RequestId> {
        RequestId::from_json(self.id?.get()).ok()
    }

    pub(crate) fn method(&self) -> Option<Cow<'a, str>> {
        self.method.and_then(string)
    }

    /// The `type` of an envelope that is not JSON-RPC (ABP).
    fn kind(&self) -> Option<Cow<'a, str>> {
        self.kind.filter(|_| self.jsonrpc.is_none()).and_then(string)
    }

    pub(crate) fn has_id(&self) -> bool {
        present(self.id).is_some()
    }

    /// Whether it is a request.
    pub(crate) fn is_request(&self) -> bool {
        self.has_id() && (self.method.is_some() || self.kind().is_some())
    }

    /// Whether it is a request with one of these methods, or of one of these `type`s.
    pub(crate) fn is_request_of<M: AsRef<str>>(&self, methods: &[M]) -> bool {
        let name = self.method().or_else(|| self.kind());
        self.has_id() && name.is_some_and(|name| methods.iter().any(|method| method.as_ref() == name))
    }

    /// Whether it is an answer. `null` is a result too.
    pub(crate) fn is_answer(&self) -> bool {
        match self.kind() {
            Some(kind) => kind.ends_with("-result"),
            None => self.method.is_none() && (self.result.is_some() || self.error.is_some()),
        }
    }

    /// Whether its error is one of JSON-RPC, and not that of a framework.
    fn has_error_code(&self) -> bool {
        let [code] = once(self.error, ["code"]);
        code.is_some_and(|code| code.get().parse::<i64>().is_ok())
    }

    /// A string in the result.
    pub(crate) fn result_text(&self, name: &str) -> Option<Cow<'a, str>> {
        text(self.result, name)
    }
}

/// The role of a message in the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Its answer.
    Own,
    /// An answer, but only the codec can tell whose: its id is spelled differently or missing, it is one of several, or
    /// it cannot be read. The driver ends the call if it is meant.
    Unclear,
    /// An error that names no request. The driver ends the only call of its exchange with it.
    UnnamedError,
    /// A request, a notification, or the answer to another request.
    Other,
    /// Nothing for the driver.
    Nothing,
}

impl Reply {
    /// The role in a response with this status. Most statuses of a refusal say more than an error that names no request:
    /// that credentials are missing, or whether the request may have run. Then the call ends with an error that shows
    /// the status and the body.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        // 409 says that an id is in use, as the error does.
        let says_nothing = status.is_success()
            || matches!(status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::NOT_IMPLEMENTED);
        match self {
            Self::UnnamedError if !says_nothing => Self::Nothing,
            reply => reply,
        }
    }

    /// Whether only the driver can tell whose answer it is.
    pub(crate) const fn is_unclear(self) -> bool {
        matches!(self, Self::Unclear | Self::UnnamedError)
    }

    /// The role of this body in the response to the request with this id.
    pub(crate) fn of(body: &[u8], own: Option<&RequestId>) -> Self {
        if own.is_some_and(|own| is_usual_answer(body, own)) {
            return Self::Own;
        }
        let envelope = match Envelope::read(body) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Batch) => return Self::Unclear,
            Err(EnvelopeError::NotJson | EnvelopeError::NotUtf8) if may_name_an_id(body) => {
                return Self::Unclear;
            }
            Err(_) => return Self::Nothing,
        };
        if envelope.method.is_some() || (envelope.kind().is_some() && !envelope.is_answer()) {
            return Self::Other;
        }
        match (envelope.is_answer(), envelope.has_id()) {
            (true, true) => match (envelope.id(), own) {
                (Some(id), Some(own)) if id == *own || is_text_of(&envelope, &id, own) => Self::Own,
                (Some(id), Some(own)) if id.as_number().is_some() || own.as_number().is_none() => Self::Other,
                (_, _) => Self::Unclear,
            },
            (true, false) if envelope.has_error_code() => Self::UnnamedError,
            (true, false) | (false, true) if envelope.jsonrpc.is_some() => Self::Unclear,
            (_, _) => Self::Nothing,
        }
    }
}

/// Whether the id of an envelope that is not JSON-RPC is this number as a text, as ABP writes it.
fn is_text_of(envelope: &Envelope<'_>, id: &RequestId, number: &RequestId) -> bool {
    envelope.kind.is_some()
        && number.as_number().is_some_and(|number| id.as_text() == Some(&number.to_string()))
}

/// A body without the byte order mark before it, which is counted.
pub(crate) fn unmarked(inbound_queue: &InboundQueue, body: Bytes) -> Bytes {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if !body.starts_with(MARK) {
        return body;
    }
    let sent = body.slice(..MARK.len());
    let deviation = Deviation::ByteOrderMark;
    inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
    body.slice(MARK.len()..)
}

/// Whether a body begins as nearly all answers to the request with this id do.
fn is_usual_answer(body: &[u8], own: &RequestId) -> bool {
    let Some(number) = own.as_number().and_then(|number| u64::try_from(number).ok()) else { return false };
    let Some(rest) = body.strip_prefix(br#"{"jsonrpc":"2.0","id":"#) else { return false };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let Some((id, rest)) = rest.split_at_checked(digits) else { return false };
    let value = id.iter().try_fold(0_u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
    });
    !id.is_empty()
        && value == Some(number)
        && (rest.starts_with(br#","result":"#) || rest.starts_with(br#","error":"#))
}

/// Whether a text that is not JSON may be an answer that names its request.
fn may_name_an_id(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'['))
        && memchr::memmem::find(body, b"id").is_some()
}

/// A string in params, in a result or in another object.
pub(crate) fn text<'a>(object: Option<&'a RawValue>, name: &str) -> Option<Cow<'a, str>> {
    let object = object.filter(|object| may_name(object.get(), [name]))?;
    once(Some(object), [name])[0].and_then(string)
}

/// Members of an object, without those that are `null`. If one of these names occurs twice, there are none.
pub(crate) fn once<'a, const N: usize>(
    object: Option<&'a RawValue>,
    names: [&str; N],
) -> [Option<&'a RawValue>; N] {
    let PickedMembers { values, twice } = PickedMembers::of(object, names);
    if twice { [None; N] } else { values.map(present) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_not_an_object_is_not_a_message() {
        let deep = format!("{}{}", "[".repeat(9_999), "]".repeat(9_999));
        for (body, why) in [
            ("", EnvelopeError::Empty),
            (" \r\n", EnvelopeError::Empty),
            ("{", EnvelopeError::NotJson),
            (r#"{"id":1} x"#, EnvelopeError::NotJson),
            (r#"{"method":7,}"#, EnvelopeError::NotJson),
            (r#"{"id":1,"id":2"#, EnvelopeError::NotJson),
            ("text", EnvelopeError::NotJson),
            ("[1,2", EnvelopeError::NotJson),
            ("7", EnvelopeError::NotAnObject),
            ("\"text\"", EnvelopeError::NotAnObject),
            (" []", EnvelopeError::NotAnObject),
            ("[{}]", EnvelopeError::Batch),
            (&deep, EnvelopeError::Batch),
        ] {
            assert_eq!(Envelope::read(body.as_bytes()).err(), Some(why), "{body:.20}");
        }
        assert_eq!(Envelope::read(b"{\"a\":\"\xff\"}").err(), Some(EnvelopeError::NotUtf8));
        for body in ["{}", r#" {"method":7}"#, r#"{"id":1,"id":2}"#] {
            let read = Envelope::read(body.as_bytes()).unwrap();
            assert!(!read.is_request() && read.id.is_none(), "{body}");
        }
    }

    #[test]
    fn answers_and_requests_are_distinguished() {
        for (body, is_request, is_answer) in [
            (r#"{"id":1,"method":"x"}"#, true, false),
            (r#"{"method":"x"}"#, false, false),
            (r#"{"id":null,"method":"x"}"#, false, false),
            (r#"{"id":1,"result":null}"#, false, true),
            (r#"{"id":1,"result":{"method":"x"}}"#, false, true),
            (r#"{"id":1,"error":{}}"#, false, true),
            (r#"{"id":1,"error":null}"#, false, false),
            (r#"{"type":"capabilities/call","id":"a"}"#, true, false),
            (r#"{"type":"capabilities/call-result","id":"a"}"#, true, true),
            (r#"{"jsonrpc":"2.0","type":"note","id":1,"result":{}}"#, false, true),
            ("{", false, false),
            (r#"[1,"x"]"#, false, false),
            ("[1,null,null,0]", false, false),
        ] {
            let read = Envelope::of(body.as_bytes());
            assert_eq!((read.is_request(), read.is_answer()), (is_request, is_answer), "{body}");
        }
        let initialized = br#"{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
        assert_eq!(Envelope::of(initialized).result_text("protocolVersion").as_deref(), Some("2025-11-25"));
        let numbered = br#"{"id":1,"result":{"protocolVersion":1}}"#;
        assert_eq!(Envelope::of(numbered).result_text("protocolVersion"), None);
    }

    #[test]
    fn a_body_is_read_as_the_answer_to_one_request() {
        let own = RequestId::number(12);
        for (body, reply) in [
            (r#"{"jsonrpc":"2.0","id":12,"result":{}}"#, Reply::Own),
            (r#"{"jsonrpc":"2.0","id":12,"error":{"code":1,"message":""}}"#, Reply::Own),
            (r#" {"result":null, "id" : 12}"#, Reply::Own),
            (r#"{"jsonrpc":"2.0","id":12.0,"result":{}}"#, Reply::Own),
            (r#"{"jsonrpc":"2.0","id":"12","result":{}}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":12}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":12,"result":NaN}"#, Reply::Own),
            (r#"{"result":NaN,"id":12}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":""}}"#, Reply::UnnamedError),
            (r#"{"error":{"code":-32600,"message":""}}"#, Reply::UnnamedError),
            (r#"[{"jsonrpc":"2.0","id":12,"result":{}}]"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Reply::Other),
            (r#"{"jsonrpc":"2.0","id":123,"result":{}}"#, Reply::Other),
            (r#"{"jsonrpc":"2.0","id":99999999999999999999,"result":{}}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":12,"method":"ask"}"#, Reply::Other),
            (r#"{"jsonrpc":"2.0","method":"told"}"#, Reply::Other),
            (r#"{"detail":"Not authenticated"}"#, Reply::Nothing),
            (r#"{"error":"invalid_token"}"#, Reply::Nothing),
            (r#"{"error":{"message":"no","code":null}}"#, Reply::Nothing),
            (r#"{"id":12,"name":"a user"}"#, Reply::Nothing),
            (r#"{"result":"ok"}"#, Reply::Nothing),
            ("<html>id</html>", Reply::Nothing),
            ("{", Reply::Nothing),
            ("[]", Reply::Nothing),
            ("null", Reply::Nothing),
            ("", Reply::Nothing),
        ] {
            assert_eq!(Reply::of(body.as_bytes(), Some(&own)), reply, "{body}");
        }
    }

    #[test]
    fn a_member_that_is_there_twice_is_not_read() {
        for (params, name) in [
            (r#"{"name":"a"}"#, Some("a")),
            (r#"{"\u006eame":"a"}"#, Some("a")),
            (r#"{"name":"a","name":"b"}"#, None),
            (r#"{"name":7}"#, None),
            (r#"{"other":"name"}"#, None),
            (r#"["name"]"#, None),
        ] {
            let params: &RawValue = serde_json::from_str(params).unwrap();
            assert_eq!(text(Some(params), "name").as_deref(), name, "{params}");
        }
    }
}
