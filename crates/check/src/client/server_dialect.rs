//! The server's part in each dialect: which requests are slow and quick, and what it answers.

use rescind_testkit::dialects::{self, ClientCheck, DialectFacts, Offers};
use rescind_testkit::wire_format::{Shape, WireFormat};
use serde_json::{Value, json};

use super::record::Play;

/// A dialect with a server's frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerDialect {
    pub(super) check: &'static ClientCheck,
    pub(super) wire: WireFormat,
}

/// The part of a request in this check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Initialize,
    Slow,
    Quick,
    Other,
}

/// A cancel as it came.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CancelForm {
    /// It names a request.
    OfRequest {
        id: Value,
        /// What is wrong with its form.
        misspelled: Option<String>,
    },
    /// It names a session of ACP: `session/cancel`.
    OfSession(Value),
}

impl CancelForm {
    /// Whether it means this request, by whatever spelling.
    pub(super) fn means(&self, request: &Value, session: &Value) -> bool {
        match self {
            Self::OfRequest { id, .. } => id == request || looks_like(id, request),
            Self::OfSession(named) => named == session && !session.is_null(),
        }
    }
}

/// Whether two ids differ only in their type.
pub(super) fn looks_like(one: &Value, other: &Value) -> bool {
    let bare = |id: &Value| match id {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => {
            Some(number.as_f64().map_or_else(|| number.to_string(), |it| it.to_string()))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    bare(one).is_some_and(|one| bare(other) == Some(one))
}

impl ServerDialect {
    /// The names of the dialects that have this check.
    pub(super) fn names() -> String {
        let checked = dialects::ALL.iter().filter(|facts| facts.client_check.is_some());
        checked.map(DialectFacts::name).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn of(facts: &'static DialectFacts) -> Option<Self> {
        facts.client_check.map(|check| Self { check, wire: WireFormat { facts } })
    }

    /// Whether the protocol has what this run needs. Without sessions it has no handshake and no requests of servers.
    pub(super) fn plays(self, kind: Play) -> bool {
        match kind {
            Play::Serve | Play::Initialize => self.wire.facts.opening.is_some(),
            _ => true,
        }
    }

    /// Whether a cancelled request must not be answered.
    pub(super) fn owes_silence(self) -> bool {
        self.wire.owes_silence()
    }

    /// Whether an id may not be used again in a session, even after its request was answered.
    pub(super) fn never_reuses_ids(self) -> bool {
        self.check.never_reuses_ids
    }

    pub(super) fn slow(self) -> Value {
        self.named("slow")
    }

    pub(super) fn quick(self) -> Value {
        self.named("quick")
    }

    fn named(self, word: &str) -> Value {
        json!({"method": self.check.method, "params": (self.check.params)(word)})
    }

    pub(super) fn role(self, method: &str, params: &Value) -> Role {
        match (self.check.word)(params).and_then(Value::as_str) {
            Some("slow") if method == self.check.method => Role::Slow,
            Some("quick") if method == self.check.method => Role::Quick,
            _ if method == self.wire.opening_method() => Role::Initialize,
            _ => Role::Other,
        }
    }

    /// A frame as a cancel, if it is one in any dialect's spelling.
    pub(super) fn cancel_form(self, frame: &Value) -> Option<CancelForm> {
        let method = frame.get("method").and_then(Value::as_str)?;
        if self.wire.facts.offers == Offers::Prompts && method == "session/cancel" {
            return Some(CancelForm::OfSession(
                frame.pointer("/params/sessionId").cloned().unwrap_or_default(),
            ));
        }
        if !self.wire.facts.is_cancel(method) {
            return None;
        }
        let (wanted, member) = self.wire.facts.cancel_name().map(|name| (name.method, name.key))?;
        let params = frame.get("params");
        let named = |member: &str| params.and_then(|params| params.get(member)).cloned();
        let misspelled = if method != wanted {
            Some(format!("its method is `{method}`, not `{wanted}`"))
        } else if frame.get("id").is_some() {
            Some("it has an `id` of its own, and a notification has none".to_owned())
        } else if named(member).is_none() {
            Some(format!("its params have no `{member}`"))
        } else {
            None
        };
        let other = if member == "id" { "requestId" } else { "id" };
        let id = named(member).or_else(|| named(other)).unwrap_or_default();
        Some(CancelForm::OfRequest { id, misspelled })
    }

    pub(super) fn shape(self, frame: &Value) -> Shape {
        self.wire.shape(frame)
    }

    /// The answer to the handshake or another request that the check does not ask for.
    pub(super) fn answer_to(self, id: &Value, method: &str, params: &Value, sessions: &mut usize) -> Value {
        let is_opening = self.wire.facts.opening.is_some() && method == self.wire.opening_method();
        let result = (self.check.result)(method, params, sessions)
            .or_else(|| is_opening.then(|| self.wire.opening_result()));
        match result {
            Some(result) => self.wire.answer(id, method, &result),
            None => self.wire.refusal(id),
        }
    }

    /// The normal answer to the slow or the quick request.
    pub(super) fn normal(self, id: &Value, word: &str) -> Value {
        self.wire.answer(id, "", &(self.check.normal)(word))
    }

    /// The answer to a request that was cancelled, where one is due.
    pub(super) fn cancelled(self, id: &Value, by_session: bool) -> Value {
        if by_session {
            return self.wire.answer(id, "", &json!({"stopReason": "cancelled"}));
        }
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32800, "message": "Request cancelled"}})
    }

    /// What shows the program that its request runs, if the request asks for it.
    pub(super) fn progress(self, params: &Value) -> Option<Value> {
        let (method, said) = (self.check.progress)(params)?;
        Some(json!({"jsonrpc": "2.0", "method": method, "params": said}))
    }

    /// The server's own request.
    pub(super) fn own_request(self, session: &Value) -> Value {
        let (method, params) = (self.check.own_request)(session);
        json!({"jsonrpc": "2.0", "id": OWN_ID, "method": method, "params": params})
    }

    pub(super) fn own_cancel(self) -> Value {
        self.wire.cancel(&Value::from(OWN_ID))
    }
}

/// The id of the server's own request.
pub(super) const OWN_ID: &str = "of-the-server";

#[cfg(test)]
mod tests {
    use super::*;

    fn known(dialect: &str) -> ServerDialect {
        ServerDialect::of(DialectFacts::by_name(dialect).unwrap()).unwrap()
    }

    #[test]
    fn the_cancel_of_another_dialect_is_known_and_misspelled() {
        let misspelled = |dialect, frame: &Value| match known(dialect).cancel_form(frame) {
            Some(CancelForm::OfRequest { id, misspelled }) => Some((id, misspelled.unwrap_or_default())),
            Some(CancelForm::OfSession(_)) | None => None,
        };
        let lsp = json!({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 3}});
        assert_eq!(misspelled("lsp", &lsp), Some((json!(3), String::new())));
        let (id, why) = misspelled("acp", &lsp).unwrap();
        assert_eq!((id, why.contains("$/cancel_request")), (json!(3), true));
        let member = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"id": 3}});
        assert!(misspelled("mcp", &member).unwrap().1.contains("`requestId`"));
        let request = json!({"jsonrpc": "2.0", "id": 4, "method": "$/cancelRequest", "params": {"id": 3}});
        assert!(misspelled("lsp", &request).unwrap().1.contains("of its own"));
        assert_eq!(misspelled("lsp", &json!({"method": "initialized"})), None);
    }

    #[test]
    fn a_request_is_known_by_its_word() {
        let lsp = known("lsp");
        assert_eq!(lsp.role("workspace/symbol", &json!({"query": "slow"})), Role::Slow);
        assert_eq!(lsp.role("workspace/symbol", &json!([{"query": "quick"}, null])), Role::Quick);
        assert_eq!(lsp.role("textDocument/hover", &json!({"query": "slow"})), Role::Other);
        let acp = known("acp");
        let prompt =
            json!({"sessionId": "s", "prompt": [{"type": "image"}, {"type": "text", "text": "quick"}]});
        assert_eq!(acp.role("session/prompt", &prompt), Role::Quick);
        assert_eq!(acp.role("initialize", &Value::Null), Role::Initialize);
    }

    #[test]
    fn ids_look_alike_only_if_their_text_is_the_same() {
        assert!(looks_like(&json!("1"), &json!(1)) && looks_like(&json!(1.0), &json!(1)));
        assert!(!looks_like(&json!("2"), &json!(1)) && !looks_like(&Value::Null, &Value::Null));
    }
}
