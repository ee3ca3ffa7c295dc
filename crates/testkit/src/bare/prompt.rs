//! Prompts of the ACP dialects: a prompt's text says what the fixture does.

use std::time::Instant;

use rescind_core::{Cause, CauseKind, InboundKey};
use serde_json::{Value, json};

use super::connection::Connection;
use super::handler::Task;

/// A prompt's text is the name of a method of the fixture and its numbers: `wait`, `sleep 200`, `nested 1 2`.
pub(super) fn task_of(params: &Value) -> Option<Task> {
    let text = params.pointer("/prompt/0/text")?.as_str()?;
    let mut words = text.split_whitespace();
    let name = words.next()?;
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
    let params = match name {
        "sleep" | "ignore" | "block" => json!({"ms": number()}),
        "progress" => json!({"count": number(), "every_ms": number()}),
        "nested" => json!({"depth": number(), "width": number()}),
        _ => json!({}),
    };
    Task::read(name, &params)
}

impl Connection {
    /// `session/cancel`: user code stops the prompts of that session.
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
