//! Params and answers with types.

use serde::{Deserialize, Serialize};

use crate::cross_process::Wire;

/// The params of an echo.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Params {
    text: &'static str,
    /// Required by the stateless revision.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Meta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: &'static str,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Capabilities,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Capabilities {}

/// The text that a handler reads and answers with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Text {
    pub(super) text: String,
}

pub(super) const fn params(wire: Wire, text: &'static str) -> Params {
    let meta = Meta { version: "2026-07-28", capabilities: Capabilities {} };
    Params { text, meta: if wire.is_two_way() { None } else { Some(meta) } }
}
