//! The parts of a body that the bindings read: the envelope, and single members of its params or result. Everything is
//! borrowed, and reading a member never fails. The data of the protocol
//! ([`SessionBodies`](rescind_core::SessionBodies), [`MirroredBodies`](rescind_core::MirroredBodies)) defines which
//! methods and members are read.

use std::borrow::Cow;

use rescind_core::RequestId;
use rescind_core::members::{self, PickedMembers, Shape, may_name, present, shape, string};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

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

    fn has_id(&self) -> bool {
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

    /// Whether it answers a request that it names. The refusal of a message that could not be read names none.
    pub(crate) fn answers_one(&self) -> bool {
        self.has_id() && self.is_answer()
    }

    /// A string in the result.
    pub(crate) fn result_text(&self, name: &str) -> Option<Cow<'a, str>> {
        text(self.result, name)
    }
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
