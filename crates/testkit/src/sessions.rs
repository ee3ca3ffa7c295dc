//! ACP's sessions, as the agent and its model both make and check them.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_core::ErrorObject;
use serde_json::Value;

/// The sessions that one connection made. Their names contain the connection, so that no other connection knows them
/// (I4).
#[derive(Debug)]
pub(crate) struct Sessions {
    prefix: String,
    made: AtomicU64,
}

impl Sessions {
    /// Creates an empty list for the connection with this number.
    pub(crate) fn of(connection: impl Display) -> Self {
        Self { prefix: format!("session-{connection}-"), made: AtomicU64::new(0) }
    }

    /// Makes the next one and returns its name.
    pub(crate) fn add(&self) -> String {
        self.name(self.made.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Finds the session of a prompt among those that were made.
    ///
    /// # Errors
    /// The answer to a prompt for another session.
    pub(crate) fn check<'a>(&self, params: &'a Value) -> Result<&'a str, ErrorObject> {
        let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default();
        let number = session.strip_prefix(&self.prefix).and_then(|number| number.parse().ok());
        let made = 1..=self.made.load(Ordering::SeqCst);
        match number.filter(|number| made.contains(number) && self.name(*number) == session) {
            Some(_) => Ok(session),
            None => Err(ErrorObject::invalid_params(
                "sessionId names no session that session/new made on this connection",
            )),
        }
    }

    fn name(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(sessions: &Sessions, session: &Value) -> bool {
        sessions.check(&json!({ "sessionId": session })).is_ok()
    }

    #[test]
    fn only_sessions_that_were_made_are_known() {
        let (some, none) = (Sessions::of(7), Sessions::of(7));
        let made = [some.add(), some.add()];
        assert_eq!(made, ["session-7-1", "session-7-2"]);
        for session in made {
            assert!(known(&some, &json!(session)) && !known(&none, &json!(session)), "{session}");
        }
        for session in [
            json!("session-7-3"),
            json!("session-7-0"),
            json!("session-7-01"),
            json!("session-7-+1"),
            json!("session-7-"),
            json!("nosuch"),
            json!(1),
            Value::Null,
        ] {
            assert!(!known(&some, &session), "{session}");
        }
    }

    #[test]
    fn a_session_of_another_connection_is_not_known() {
        let (one, eleven) = (Sessions::of(1), Sessions::of(11));
        let (of_one, of_eleven) = (json!(one.add()), json!(eleven.add()));
        assert!(known(&one, &of_one) && known(&eleven, &of_eleven));
        assert!(!known(&one, &of_eleven) && !known(&eleven, &of_one));
    }
}
