//! The little this binding must know of a body: shallow, borrowed, and never an error of its own.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::envelope::object;

/// What opens a session.
#[derive(Clone, Debug)]
pub(crate) enum FirstMessage {
    /// A message of one of these methods, or of this `type` where the envelope has one.
    Methods(Vec<String>),
    /// Any message without a session id.
    Any,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Shape<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    /// `null` is a result too.
    #[serde(borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

impl Shape<'_> {
    fn answers(&self) -> bool {
        match &self.kind {
            Some(kind) => kind.ends_with("-result"),
            None => self.method.is_none() && (self.result.is_some() || self.error.is_some()),
        }
    }
}

fn shape(body: &[u8]) -> Shape<'_> {
    object(body).unwrap_or_default()
}

impl FirstMessage {
    /// Whether this message opens a session.
    pub(crate) fn is_begun_by(&self, body: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Methods(methods) => {
                let shape = shape(body);
                let named = shape.method.or(shape.kind);
                shape.id.is_some() && named.is_some_and(|name| methods.iter().any(|method| *method == name))
            }
        }
    }
}

/// Whether a message asks for an answer, so that an event stream may be opened for it.
pub(crate) fn asks(body: &[u8]) -> bool {
    let shape = shape(body);
    shape.id.is_some() && (shape.method.is_some() || shape.kind.is_some())
}

/// Whether a message is an answer, so that its exchange may end.
pub(crate) fn answers(body: &[u8]) -> bool {
    shape(body).answers()
}

/// Whether a message answers a request that it names, which a refusal of what could not be read does not.
pub(crate) fn answers_one(body: &[u8]) -> bool {
    let shape = shape(body);
    shape.id.is_some() && shape.answers()
}

/// The revision an answer to MCP's `initialize` settles on.
pub(crate) fn settled_version(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Settled {
        protocol_version: String,
    }
    let result = shape(body).result?;
    Some(object::<Settled>(result.get().as_bytes())?.protocol_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_opened_by_its_handshake_alone() {
        let opening = FirstMessage::Methods(vec!["initialize".to_owned()]);
        for (body, opens) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, true),
            (r#"{"type":"initialize","id":"a","timestamp":1,"payload":{}}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, false),
            (r#"{"jsonrpc":"2.0","method":"initialize"}"#, false),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#, false),
            (r#"{"params":{"method":"initialize"},"id":1}"#, false),
            (r#"[1,"initialize"]"#, false),
            ("not json", false),
        ] {
            assert_eq!(opening.is_begun_by(body.as_bytes()), opens, "{body}");
            assert!(FirstMessage::Any.is_begun_by(body.as_bytes()));
        }
    }

    #[test]
    fn answers_and_requests_are_told_apart() {
        for (body, is_request, is_answer) in [
            (r#"{"id":1,"method":"x"}"#, true, false),
            (r#"{"method":"x"}"#, false, false),
            (r#"{"id":1,"result":null}"#, false, true),
            (r#"{"id":1,"result":{"method":"x"}}"#, false, true),
            (r#"{"id":1,"error":{}}"#, false, true),
            (r#"{"type":"capabilities/call","id":"a"}"#, true, false),
            (r#"{"type":"capabilities/call-result","id":"a"}"#, true, true),
            ("{", false, false),
            (r#"[1,"x"]"#, false, false),
            ("[1,null,null,0]", false, false),
        ] {
            assert_eq!((asks(body.as_bytes()), answers(body.as_bytes())), (is_request, is_answer), "{body}");
        }
        let initialized = br#"{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
        assert_eq!(settled_version(initialized).as_deref(), Some("2025-11-25"));
        assert_eq!(settled_version(br#"{"id":1,"result":{"protocolVersion":1}}"#), None);
    }
}
