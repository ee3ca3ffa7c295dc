//! The names of ACP's sessions: the agent and the model of it make and know them alike.

use rescind_core::ErrorObject;
use serde_json::Value;

/// The name of the session that was made as the so many-th, from 1.
pub(crate) fn name(number: u64) -> String {
    format!("session-{number}")
}

/// Looks for the session a prompt is for among those that were made.
///
/// # Errors
/// What a prompt for another is answered with.
pub(crate) fn check(params: &Value, made: u64) -> Result<&str, ErrorObject> {
    let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default();
    let number = session.strip_prefix("session-").and_then(|number| number.parse().ok());
    match number.filter(|number| (1..=made).contains(number) && name(*number) == session) {
        Some(_) => Ok(session),
        None => Err(ErrorObject::invalid_params("sessionId names no session that session/new made")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_sessions_that_were_made_are_known() {
        let known = |session: Value, made| check(&json!({ "sessionId": session }), made).is_ok();
        assert!(known(json!(name(1)), 2) && known(json!(name(2)), 2));
        for (session, made) in [
            (json!("session-3"), 2),
            (json!("session-0"), 2),
            (json!("session-01"), 2),
            (json!("session-+1"), 2),
            (json!("session-1"), 0),
            (json!("nosuch"), 2),
            (json!(1), 2),
            (Value::Null, 2),
        ] {
            assert!(!known(session.clone(), made), "{session}");
        }
    }
}
