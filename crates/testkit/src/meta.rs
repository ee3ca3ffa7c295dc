//! What the two eras of MCP declare: each request of 2026-07-28 declares its version, and the handshake of 2025-11-25
//! declares what can be a task. The agent and its model both use this module.

use rescind_core::{ErrorCode, ErrorObject};
use serde_json::{Value, json};

/// The revision of MCP without a handshake.
pub(crate) const STATELESS: &str = "2026-07-28";

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const UNSUPPORTED_VERSION: ErrorCode = ErrorCode(-32_022);

/// Checks that `_meta` has the revision and the client's capabilities, which each request must carry (RULE-11).
///
/// # Errors
/// The answer to a request that lacks one of them or names a revision that is not served.
pub(crate) fn check(params: &Value) -> Result<(), ErrorObject> {
    let meta = |name: &str| params.get("_meta").and_then(|meta| meta.get(name));
    let Some(version) = meta(VERSION).and_then(Value::as_str) else {
        return Err(ErrorObject::invalid_params(format!("_meta lacks {VERSION}")));
    };
    if !meta(CAPABILITIES).is_some_and(Value::is_object) {
        return Err(ErrorObject::invalid_params(format!("_meta lacks {CAPABILITIES}")));
    }
    if version == STATELESS {
        return Ok(());
    }
    let data = json!({ "supported": [STATELESS], "requested": version });
    Err(ErrorObject::new(UNSUPPORTED_VERSION, "Unsupported protocol version").with_data(&data))
}

/// Adds to an answer to `initialize` that `test/sleep` can be a task.
pub(crate) fn declare_tasks(answer: &mut Value) {
    if let Some(capabilities) = answer.get_mut("capabilities").and_then(Value::as_object_mut) {
        capabilities.insert("tasks".to_owned(), json!({ "requests": {"test": {"sleep": {}}} }));
    }
}
