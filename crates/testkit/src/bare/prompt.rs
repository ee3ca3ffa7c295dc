//! Prompts of the ACP dialects.

use std::time::Instant;

use rescind_core::{Cause, CauseKind, InboundKey};
use serde_json::Value;

use super::connection::Connection;

impl Connection {
    /// Handles `session/cancel`: application code cancels the prompts of that session.
    pub(super) fn session_cancelled(&mut self, now: Instant, params: &Value) {
        let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_its = |handler: &super::handler::Handler| handler.job.prompt.as_ref() == Some(&session);
        let prompts: Vec<InboundKey> =
            self.handlers.iter().filter(|(_, handler)| is_its(handler)).map(|(key, _)| *key).collect();
        for key in prompts {
            self.session.local_cancel(now, key, Cause::new(CauseKind::Local));
        }
    }
}
