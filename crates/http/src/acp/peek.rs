//! The little this binding must know of a body: shallow, borrowed, and never an error of its own.

use std::borrow::Cow;

use rescind_core::RequestId;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Methods that mean one session, which has to be named.
const OF_A_SESSION: [&str; 10] = [
    "session/prompt",
    "session/cancel",
    "session/close",
    "session/delete",
    "session/fork",
    "session/load",
    "session/resume",
    "session/set_config_option",
    "session/set_mode",
    "session/set_model",
];

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Named<'a> {
    #[serde(borrow)]
    session_id: Option<Cow<'a, str>>,
}

fn named<'a>(inner: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
    serde_json::from_str::<Named<'a>>(inner?.get()).ok()?.session_id
}

impl<'a> Message<'a> {
    pub(super) fn of(body: &'a [u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    pub(super) fn id(&self) -> Option<RequestId> {
        RequestId::from_json(self.id?.get()).ok()
    }

    /// A request that opens a connection.
    pub(super) fn opens(&self) -> bool {
        self.id.is_some() && self.method.as_deref() == Some("initialize")
    }

    pub(super) fn is_request(&self) -> bool {
        self.id.is_some() && self.method.is_some()
    }

    pub(super) fn is_answer(&self) -> bool {
        self.method.is_none() && (self.result.is_some() || self.error.is_some())
    }

    pub(super) const fn is_refusal(&self) -> bool {
        self.error.is_some()
    }

    /// The session its params name. What is the protocol's own (`$/`) belongs to the connection.
    pub(super) fn session(&self) -> Option<Cow<'a, str>> {
        if self.method.as_deref()?.starts_with("$/") { None } else { named(self.params) }
    }

    /// The session an answer made or took up.
    pub(super) fn made(&self) -> Option<Cow<'a, str>> {
        named(self.result)
    }

    /// It has to name a session, by header or params.
    pub(super) fn needs_session(&self) -> bool {
        self.method.as_deref().is_some_and(|method| OF_A_SESSION.contains(&method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_of_a_message_is_the_one_its_params_name() {
        for (body, session, made) in [
            (r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#, Some("s"), None),
            (r#"{"method":"$/cancel_request","params":{"requestId":1,"sessionId":"s"}}"#, None, None),
            (r#"{"id":1,"result":{"sessionId":"s"}}"#, None, Some("s")),
            (r#"{"id":1,"method":"session/new","params":[]}"#, None, None),
            ("[", None, None),
        ] {
            let message = Message::of(body.as_bytes());
            assert_eq!((message.session().as_deref(), message.made().as_deref()), (session, made), "{body}");
        }
        assert!(Message::of(br#"{"id":1,"method":"initialize"}"#).opens());
        assert!(!Message::of(br#"{"method":"initialize"}"#).opens());
        assert!(Message::of(br#"{"method":"session/cancel"}"#).needs_session());
    }
}
