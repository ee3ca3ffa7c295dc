//! Header names and media types, as the bindings' documents spell them.

use http::HeaderName;

/// Names a session: MCP's streamable HTTP.
pub(crate) const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The revision spoken, on every request after the first.
pub(crate) const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method of the message, on every request of revision 2026-07-28.
pub(crate) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// What the message names: a tool, a prompt, a resource, a task.
pub(crate) const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// How the headers begin that mirror arguments of tools.
pub(crate) const MCP_PARAM: &str = "mcp-param-";
/// The last event a client has seen of a stream that was cut.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What a client of MCP takes, as most of them say it.
pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// Names a connection of ACP's streamable HTTP.
pub(crate) const ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
/// Names one of its sessions.
pub(crate) const ACP_SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");

/// One message, or a refusal.
pub(crate) const JSON: &str = "application/json";
/// A stream of messages.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
