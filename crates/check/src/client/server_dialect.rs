//! The server's part in each dialect: which requests are slow and quick, and what it answers.

use rescind_testkit::wire_format::{Shape, WireFormat};
use serde_json::{Value, json};

use super::record::Play;

/// A dialect with a server's frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerDialect {
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) wire: WireFormat,
}

/// A family of dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Lsp,
    Mcp,
    /// MCP without a handshake and without requests of servers.
    Mcp2026,
    Acp,
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
    pub(super) const NAMES: &'static str = "lsp, mcp, mcp-2026, acp, acp-v2, acp-draft";

    pub(super) fn of(name: &'static str) -> Option<Self> {
        let family = match name {
            "lsp" => Family::Lsp,
            "mcp" => Family::Mcp,
            "mcp-2026" => Family::Mcp2026,
            "acp" | "acp-v2" | "acp-draft" => Family::Acp,
            _ => return None,
        };
        Some(Self { name, family, wire: WireFormat::of(name)? })
    }

    /// Whether the protocol has what this run needs.
    pub(super) fn plays(self, kind: Play) -> bool {
        match kind {
            Play::Serve | Play::Initialize => self.family != Family::Mcp2026,
            _ => true,
        }
    }

    /// Whether a cancelled request must not be answered.
    pub(super) fn owes_silence(self) -> bool {
        self.wire.owes_silence()
    }

    /// Whether an id may not be used again in a session, even after its request was answered.
    pub(super) fn never_reuses_ids(self) -> bool {
        matches!(self.family, Family::Mcp | Family::Mcp2026)
    }

    pub(super) fn slow(self) -> Value {
        self.named("slow")
    }

    pub(super) fn quick(self) -> Value {
        self.named("quick")
    }

    fn named(self, name: &str) -> Value {
        match self.family {
            Family::Lsp => json!({"method": "workspace/symbol", "params": {"query": name}}),
            Family::Mcp | Family::Mcp2026 => {
                json!({"method": "tools/call", "params": {"name": name, "arguments": {}}})
            }
            Family::Acp => {
                json!({"method": "session/prompt", "params": {"prompt": [{"type": "text", "text": name}]}})
            }
        }
    }

    pub(super) fn role(self, method: &str, params: &Value) -> Role {
        let (carrier, word) = match self.family {
            // Params may also be given by position.
            Family::Lsp => ("workspace/symbol", params.get(0).unwrap_or(params).get("query")),
            Family::Mcp | Family::Mcp2026 => ("tools/call", params.get("name")),
            Family::Acp => {
                let blocks = params.get("prompt").and_then(Value::as_array);
                let texts = blocks.into_iter().flatten().filter_map(|block| block.get("text"));
                ("session/prompt", texts.into_iter().find(|text| *text == "slow" || *text == "quick"))
            }
        };
        match word.and_then(Value::as_str) {
            Some("slow") if method == carrier => Role::Slow,
            Some("quick") if method == carrier => Role::Quick,
            _ if method == "initialize" => Role::Initialize,
            _ => Role::Other,
        }
    }

    /// A frame as a cancel, if it is one in any dialect's spelling.
    pub(super) fn cancel_form(self, frame: &Value) -> Option<CancelForm> {
        let method = frame.get("method").and_then(Value::as_str)?;
        if self.family == Family::Acp && method == "session/cancel" {
            return Some(CancelForm::OfSession(
                frame.pointer("/params/sessionId").cloned().unwrap_or_default(),
            ));
        }
        let known = ["$/cancel_request", "$/cancelRequest", "notifications/cancelled"];
        if !known.contains(&method) {
            return None;
        }
        let model = self.wire.cancel(&Value::Null);
        let wanted = model.get("method").and_then(Value::as_str).unwrap_or_default();
        let member = if model.pointer("/params/id").is_some() { "id" } else { "requestId" };
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
        let result = match (self.family, method) {
            (Family::Lsp, "initialize") => json!({
                "capabilities": {"workspaceSymbolProvider": true},
                "serverInfo": {"name": "rescind-check"},
            }),
            (Family::Lsp, "shutdown") => Value::Null,
            (Family::Mcp, "initialize") => json!({
                "protocolVersion": params.get("protocolVersion").cloned().unwrap_or_else(|| json!("2025-11-25")),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "rescind-check", "version": env!("CARGO_PKG_VERSION")},
            }),
            (Family::Mcp, "ping") | (Family::Acp, "authenticate") => json!({}),
            (Family::Mcp, "tools/list") => json!({"tools": tools()}),
            (Family::Mcp2026, "tools/list") => {
                json!({"resultType": "complete", "tools": tools(), "ttlMs": 0, "cacheScope": "private"})
            }
            (Family::Mcp2026, "server/discover") => json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "rescind-check", "version": env!("CARGO_PKG_VERSION")},
                "ttlMs": 0, "cacheScope": "private",
            }),
            (Family::Acp, "initialize") => self.wire.opening_result(),
            (Family::Acp, "session/new") => {
                *sessions += 1;
                json!({"sessionId": format!("session-{sessions}")})
            }
            _ => return self.wire.refusal(id),
        };
        self.wire.answer(id, method, &result)
    }

    /// The normal answer to the slow or the quick request.
    pub(super) fn normal(self, id: &Value, word: &str) -> Value {
        let content = || json!([{"type": "text", "text": word}]);
        let result = match self.family {
            Family::Lsp => {
                let at = json!({"line": 0, "character": 0});
                let location = json!({"uri": format!("file:///{word}"), "range": {"start": at, "end": at}});
                json!([{"name": word, "kind": 12, "location": location}])
            }
            Family::Mcp => json!({"content": content()}),
            Family::Mcp2026 => json!({"resultType": "complete", "content": content()}),
            Family::Acp => json!({"stopReason": "end_turn"}),
        };
        self.wire.answer(id, "", &result)
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
        let (method, said) = match self.family {
            Family::Lsp => {
                let token = params.get("workDoneToken")?;
                ("$/progress", json!({"token": token, "value": {"kind": "begin", "title": "slow"}}))
            }
            Family::Mcp | Family::Mcp2026 => {
                let token = params.pointer("/_meta/progressToken")?;
                ("notifications/progress", json!({"progressToken": token, "progress": 1}))
            }
            Family::Acp => {
                let update = json!({
                    "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "slow"},
                });
                ("session/update", json!({"sessionId": params.get("sessionId")?, "update": update}))
            }
        };
        Some(json!({"jsonrpc": "2.0", "method": method, "params": said}))
    }

    /// The server's own request.
    pub(super) fn own_request(self, session: &Value) -> Value {
        let (method, params) = match self.family {
            Family::Lsp => ("workspace/configuration", json!({"items": [{"section": "slow"}]})),
            Family::Mcp | Family::Mcp2026 => ("roots/list", json!({})),
            Family::Acp => ("fs/read_text_file", json!({"sessionId": session, "path": "/slow.txt"})),
        };
        json!({"jsonrpc": "2.0", "id": OWN_ID, "method": method, "params": params})
    }

    pub(super) fn own_cancel(self) -> Value {
        self.wire.cancel(&Value::from(OWN_ID))
    }
}

/// The id of the server's own request.
pub(super) const OWN_ID: &str = "of-the-server";

fn tools() -> Value {
    let tool = |name: &str, does: &str| json!({"name": name, "description": does, "inputSchema": {"type": "object"}});
    json!([tool("slow", "Is not answered before it is cancelled."), tool("quick", "Is answered at once.")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cancel_of_another_dialect_is_known_and_misspelled() {
        let misspelled = |dialect, frame: &Value| match ServerDialect::of(dialect).unwrap().cancel_form(frame)
        {
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
        let lsp = ServerDialect::of("lsp").unwrap();
        assert_eq!(lsp.role("workspace/symbol", &json!({"query": "slow"})), Role::Slow);
        assert_eq!(lsp.role("workspace/symbol", &json!([{"query": "quick"}, null])), Role::Quick);
        assert_eq!(lsp.role("textDocument/hover", &json!({"query": "slow"})), Role::Other);
        let acp = ServerDialect::of("acp").unwrap();
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
