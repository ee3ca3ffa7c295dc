//! The little this binding must know of a body: shallow, borrowed, and never an error of its own. One it changes: the answer to
//! `initialize` names its connection.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use rescind_core::RequestId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::envelope::object;

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

/// Why a body is refused before it is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    Empty,
    NotUtf8,
    NotJson,
    /// JSON, but neither an object nor messages in an array. An array of nothing is no batch, but a message that is none.
    NotAnObject,
    Batch,
}

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

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Opened<'a> {
    #[serde(borrow)]
    connection_id: Option<Cow<'a, str>>,
}

/// The answer to `initialize` with the connection's name in its result, where the draft has it as well as in the header. A
/// result that names one stays as it is, and so does one that is no object.
pub(super) fn naming(answer: &Bytes, connection: &str) -> Bytes {
    let message = Message::of(answer);
    let result = message.result.map(RawValue::get).unwrap_or_default();
    let named = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(result);
    let is_free = named.is_ok_and(|members| !members.contains_key("connectionId"));
    let Some(members) = result.strip_prefix('{').filter(|_| is_free) else { return answer.clone() };
    let at = members.as_ptr() as usize - answer.as_ptr() as usize;
    let comma = if members.trim_ascii_start().starts_with('}') { "" } else { "," };
    let (before, after) = answer.split_at(at);
    let named = format!(r#""connectionId":"{connection}"{comma}"#);
    [before, named.as_bytes(), after].concat().into()
}

fn named<'a>(inner: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
    let inner = inner?.get().as_bytes();
    // What names no session is not read for it: the name would stand there, or an escape.
    if memchr::memmem::find(inner, b"sessionId").is_none() && memchr::memchr(b'\\', inner).is_none() {
        return None;
    }
    object::<Named<'a>>(inner)?.session_id
}

impl<'a> Message<'a> {
    pub(super) fn of(body: &'a [u8]) -> Self {
        object(body).unwrap_or_default()
    }

    /// Reads what a client posts. What is an object is left to the connection to judge.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Unfit> {
        let text = std::str::from_utf8(body).map_err(|_| Unfit::NotUtf8)?;
        let is_json = || serde_json::from_str::<IgnoredAny>(text).is_ok();
        match text.trim_ascii_start().as_bytes().first() {
            None => Err(Unfit::Empty),
            Some(b'{') => match serde_json::from_str(text) {
                Ok(message) => Ok(message),
                Err(error) if error.is_data() && is_json() => Ok(Self::default()),
                Err(_) => Err(Unfit::NotJson),
            },
            Some(b'[') => match serde_json::from_str::<Vec<IgnoredAny>>(text) {
                Ok(messages) if messages.is_empty() => Err(Unfit::NotAnObject),
                Ok(_) => Err(Unfit::Batch),
                Err(_) => Err(Unfit::NotJson),
            },
            Some(_) if is_json() => Err(Unfit::NotAnObject),
            Some(_) => Err(Unfit::NotJson),
        }
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

    /// The connection an answer to `initialize` names.
    pub(super) fn connection(&self) -> Option<Cow<'a, str>> {
        object::<Opened<'a>>(self.result?.get().as_bytes())?.connection_id
    }

    /// It belongs to a session, which its header has to name: by its method, or as its params name one.
    pub(super) fn needs_session(&self) -> bool {
        self.method.as_deref().is_some_and(|method| OF_A_SESSION.contains(&method))
            || self.session().is_some()
    }

    /// The draft has it answered on the connection's own stream, though it names a session.
    pub(super) fn is_answered_apart(&self) -> bool {
        self.method.as_deref() == Some("session/load")
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
            (r#"{"id":1,"method":"_own","params":["s"]}"#, None, None),
            (r#"[1,"_own",{"sessionId":"s"}]"#, None, None),
        ] {
            let message = Message::of(body.as_bytes());
            assert_eq!((message.session().as_deref(), message.made().as_deref()), (session, made), "{body}");
        }
        assert!(Message::of(br#"{"id":1,"method":"initialize"}"#).opens());
        assert!(!Message::of(br#"{"method":"initialize"}"#).opens());
        for (body, needs) in [
            (r#"{"method":"session/cancel"}"#, true),
            (r#"{"method":"_own","params":{"sessionId":"s"}}"#, true),
            (r#"{"method":"$/cancel_request","params":{"requestId":1,"sessionId":"s"}}"#, false),
            (r#"{"method":"session/new","params":{}}"#, false),
            (r#"{"id":1,"result":{"sessionId":"s"}}"#, false),
        ] {
            assert_eq!(Message::of(body.as_bytes()).needs_session(), needs, "{body}");
        }
    }

    #[test]
    fn an_answer_names_its_connection() {
        for (answer, named) in [
            (r#"{"id":0,"result":{}}"#, r#"{"id":0,"result":{"connectionId":"c"}}"#),
            (
                r#"{"result": { "a":{"connectionId":"x"}},"id":0}"#,
                r#"{"result": {"connectionId":"c", "a":{"connectionId":"x"}},"id":0}"#,
            ),
            (r#"{"id":0,"result":{"connectionId":"own"}}"#, r#"{"id":0,"result":{"connectionId":"own"}}"#),
            (r#"{"id":0,"result":{"connectionId":null}}"#, r#"{"id":0,"result":{"connectionId":null}}"#),
            (r#"{"id":0,"result":[]}"#, r#"{"id":0,"result":[]}"#),
            (r#"{"id":0,"error":{}}"#, r#"{"id":0,"error":{}}"#),
        ] {
            assert_eq!(naming(&Bytes::from_static(answer.as_bytes()), "c"), named);
        }
        assert_eq!(Message::of(br#"{"result":{"connectionId":"c"}}"#).connection().as_deref(), Some("c"));
    }

    #[test]
    fn a_body_that_is_no_object_is_unfit() {
        let deep = format!("{}{}", "[".repeat(9_999), "]".repeat(9_999));
        for (body, why) in [
            ("", Unfit::Empty),
            (" \r\n", Unfit::Empty),
            ("{", Unfit::NotJson),
            (r#"{"id":1} x"#, Unfit::NotJson),
            (r#"{"method":7,}"#, Unfit::NotJson),
            ("text", Unfit::NotJson),
            ("[1,2", Unfit::NotJson),
            ("7", Unfit::NotAnObject),
            ("\"text\"", Unfit::NotAnObject),
            (" []", Unfit::NotAnObject),
            ("[{}]", Unfit::Batch),
            (&deep, Unfit::Batch),
        ] {
            assert_eq!(Message::read(body.as_bytes()).err(), Some(why), "{body:.20}");
        }
        assert_eq!(Message::read(b"{\"a\":\"\xff\"}").err(), Some(Unfit::NotUtf8));
        for body in ["{}", r#" {"method":7}"#, r#"{"id":1,"id":2}"#] {
            assert!(Message::read(body.as_bytes()).is_ok(), "{body}");
        }
    }
}
