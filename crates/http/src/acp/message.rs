//! A message of a connection, and the session that it belongs to. Only the answer to `initialize` is changed: it gets
//! the name of its connection.

use std::borrow::Cow;
use std::ops::Deref;

use bytes::Bytes;
use rescind_core::SessionBodies;
use rescind_core::members::PickedMembers;
use serde_json::value::RawValue;

use crate::envelope::{Envelope, EnvelopeError, text};

/// An envelope, and the protocol's data about the methods and members in it.
pub(super) struct Message<'a> {
    envelope: Envelope<'a>,
    bodies: &'static SessionBodies,
}

/// The answer to `initialize` with the connection's name in its result: the draft requires it there as well as in the
/// header. A result that already names a connection is not changed, and neither is a result that is not an object.
pub(super) fn naming(answer: &Bytes, connection: &str, bodies: &SessionBodies) -> Bytes {
    let result = Envelope::of(answer).result;
    let is_free = matches!(PickedMembers::of(result, [bodies.connection]).values, [None]);
    let members = result.map(RawValue::get).and_then(|result| result.strip_prefix('{'));
    let Some(members) = members.filter(|_| is_free) else { return answer.clone() };
    let at = members.as_ptr() as usize - answer.as_ptr() as usize;
    let comma = if members.trim_ascii_start().starts_with('}') { "" } else { "," };
    let (before, after) = answer.split_at(at);
    let named = format!(r#""{}":"{connection}"{comma}"#, bodies.connection);
    [before, named.as_bytes(), after].concat().into()
}

impl<'a> Message<'a> {
    pub(super) fn of(body: &'a [u8], bodies: &'static SessionBodies) -> Self {
        Self { envelope: Envelope::of(body), bodies }
    }

    /// Reads a body that a client posts. The connection itself checks anything that is an object.
    pub(super) fn read(body: &'a [u8], bodies: &'static SessionBodies) -> Result<Self, EnvelopeError> {
        Ok(Self { envelope: Envelope::read(body)?, bodies })
    }

    /// Whether it is a request that opens a connection.
    pub(super) fn opens(&self) -> bool {
        self.is_request_of(&[self.bodies.opening])
    }

    /// The session that its params name. The protocol's own methods (`$/`) belong to the connection.
    pub(super) fn session(&self) -> Option<Cow<'a, str>> {
        if self.method()?.starts_with(self.bodies.of_connection) {
            return None;
        }
        text(self.params, self.bodies.session)
    }

    /// The session that an answer created or resumed.
    pub(super) fn made(&self) -> Option<Cow<'a, str>> {
        self.result_text(self.bodies.session)
    }

    /// The connection that an answer to `initialize` names.
    pub(super) fn connection(&self) -> Option<Cow<'a, str>> {
        self.result_text(self.bodies.connection)
    }

    /// Whether it belongs to a session, by its method or because its params name one. Then its header must name the
    /// session.
    pub(super) fn needs_session(&self) -> bool {
        self.method().is_some_and(|method| self.bodies.of_session.contains(&&*method))
            || self.session().is_some()
    }

    /// Whether its answer is sent on the connection's own stream although it names a session.
    pub(super) fn is_answered_apart(&self) -> bool {
        self.method().is_some_and(|method| self.bodies.answered_on_connection.contains(&&*method))
    }
}

impl<'a> Deref for Message<'a> {
    type Target = Envelope<'a>;

    fn deref(&self) -> &Envelope<'a> {
        &self.envelope
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::ACP_BODIES;

    use super::*;

    #[test]
    fn the_session_of_a_message_is_the_one_its_params_name() {
        for (body, session, made) in [
            (r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#, Some("s"), None),
            (r#"{"method":"$/cancel_request","params":{"requestId":1,"sessionId":"s"}}"#, None, None),
            (r#"{"id":1,"result":{"sessionId":"s"}}"#, None, Some("s")),
            (r#"{"id":1,"result":null}"#, None, None),
            (r#"{"id":1,"method":"session/new","params":[]}"#, None, None),
            ("[", None, None),
            (r#"{"id":1,"method":"_own","params":["s"]}"#, None, None),
            (r#"[1,"_own",{"sessionId":"s"}]"#, None, None),
        ] {
            let message = Message::of(body.as_bytes(), &ACP_BODIES);
            assert_eq!((message.session().as_deref(), message.made().as_deref()), (session, made), "{body}");
        }
        assert!(Message::of(br#"{"id":1,"method":"initialize"}"#, &ACP_BODIES).opens());
        assert!(!Message::of(br#"{"method":"initialize"}"#, &ACP_BODIES).opens());
        for (body, needs) in [
            (r#"{"method":"session/cancel"}"#, true),
            (r#"{"method":"_own","params":{"sessionId":"s"}}"#, true),
            (r#"{"method":"$/cancel_request","params":{"requestId":1,"sessionId":"s"}}"#, false),
            (r#"{"method":"session/new","params":{}}"#, false),
            (r#"{"id":1,"result":{"sessionId":"s"}}"#, false),
        ] {
            assert_eq!(Message::of(body.as_bytes(), &ACP_BODIES).needs_session(), needs, "{body}");
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
            assert_eq!(naming(&Bytes::from_static(answer.as_bytes()), "c", &ACP_BODIES), named);
        }
        assert_eq!(
            Message::of(br#"{"result":{"connectionId":"c"}}"#, &ACP_BODIES).connection().as_deref(),
            Some("c")
        );
    }
}
