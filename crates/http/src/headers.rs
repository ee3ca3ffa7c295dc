//! Header names and media types, spelled as in the specifications of the bindings.

use http::HeaderName;

/// Names a session of MCP's streamable HTTP.
pub(crate) const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The negotiated revision, on every request after the first.
pub(crate) const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method of the message, on every request of revision 2026-07-28.
pub(crate) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The name in the message: of a tool, a prompt, a resource or a task.
pub(crate) const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The prefix of headers that mirror arguments of tools.
pub(crate) const MCP_PARAM: &str = "mcp-param-";
/// The last event that a client received from a stream that was cut.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The media types that a client of MCP accepts, in the usual spelling.
pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// Names a connection of ACP's streamable HTTP.
pub(crate) const ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
/// Names one session of the connection.
pub(crate) const ACP_SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");

/// One message, or a refusal.
pub(crate) const JSON: &str = "application/json";
/// A stream of messages.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
