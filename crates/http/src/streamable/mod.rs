//! The binding `streamable`: MCP's streamable HTTP, for every protocol.

mod client;
mod link;
mod server;
mod session_state;

use std::sync::Arc;
use std::time::Duration;

pub use self::client::StreamableTransport;

use rescind_core::MCP_OPENING;

use self::server::StreamableServer;
use crate::envelope::Envelope;
use crate::server::{AcceptQueue, Responder, ServerBinding, Settings, sealed};

/// What opens a session.
#[derive(Clone, Debug)]
pub(crate) enum FirstMessage {
    /// A request of one of these methods, or of this `type` if the envelope has one.
    Methods(Vec<String>),
    /// Any message without a session id.
    Any,
}

impl FirstMessage {
    /// Whether this message opens a session.
    pub(crate) fn is_begun_by(&self, body: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Methods(methods) => Envelope::of(body).is_request_of(methods),
        }
    }
}

/// What happens when a session opens a second event stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondStream {
    /// It replaces the first, whose connection may be dead.
    #[default]
    Displaces,
    /// It is refused with 409.
    Refused,
}

/// The server side of the binding `streamable`, for an [`HttpServer`](crate::HttpServer).
#[derive(Clone, Debug)]
#[must_use = "a binding serves as part of a server"]
pub struct Streamable {
    opening: FirstMessage,
    versions: Vec<String>,
    /// `None`: the defaults of [`StreamDelay`](crate::server::json_or_event_stream::StreamDelay).
    stream_after: Option<Duration>,
    poll_after: Option<Duration>,
    retry: Duration,
    second_stream: SecondStream,
}

impl Default for Streamable {
    fn default() -> Self {
        Self::new()
    }
}

impl Streamable {
    /// A binding whose sessions `initialize` opens, for MCP 2025-06-18 and 2025-11-25.
    pub fn new() -> Self {
        Self {
            opening: FirstMessage::Methods(vec![MCP_OPENING.to_owned()]),
            versions: ["2025-06-18", "2025-11-25"].map(ToOwned::to_owned).to_vec(),
            stream_after: None,
            poll_after: None,
            retry: Duration::from_secs(1),
            second_stream: SecondStream::default(),
        }
    }

    /// The methods of the requests that open a session, or their types, if the envelope has a `type`. Another message
    /// without a session id gets
    /// 400.
    pub fn opened_by<'a>(mut self, methods: impl IntoIterator<Item = &'a str>) -> Self {
        self.opening = FirstMessage::Methods(methods.into_iter().map(ToOwned::to_owned).collect());
        self
    }

    /// Any message without a session id opens a session: the protocol decides what may come before the handshake. MCP
    /// does not allow it.
    pub fn opened_by_any_message(mut self) -> Self {
        self.opening = FirstMessage::Any;
        self
    }

    /// The values of `MCP-Protocol-Version` that are served. Other values get 400. A message without the header is
    /// served.
    pub fn versions<'a>(mut self, versions: impl IntoIterator<Item = &'a str>) -> Self {
        self.versions = versions.into_iter().map(ToOwned::to_owned).collect();
        self
    }

    pub(crate) fn known_versions(&self) -> &[String] {
        &self.versions
    }

    /// The time after which a request without an answer gets an event stream. The head of the stream tells the client
    /// that its request has arrived: the client sends no cancel before. Default: 10 ms, and 1 ms from when the handler
    /// first awaits something. With zero every request gets an event stream.
    pub const fn stream_after(mut self, wait: Duration) -> Self {
        self.stream_after = Some(wait);
        self
    }

    /// Ends each event stream of a request after this time, and the client resumes it, as MCP 2025-11-25 allows. It
    /// applies only to clients that negotiated that revision, and to protocols in which a lost stream is not a cancel.
    pub const fn poll_after(mut self, wait: Duration) -> Self {
        self.poll_after = Some(wait);
        self
    }

    /// The time after which a client should resume, which is sent to it. Default: 1 s.
    pub const fn retry(mut self, wait: Duration) -> Self {
        self.retry = wait;
        self
    }

    /// What happens when a session opens a second event stream. Default: it replaces the first.
    pub const fn second_stream(mut self, second: SecondStream) -> Self {
        self.second_stream = second;
        self
    }
}

impl sealed::Sealed for Streamable {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for Streamable {
    fn responder(self, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(StreamableServer::new(self, settings, accept_queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_handshake_opens_a_session() {
        let opening = Streamable::new().opening;
        for (body, opens) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, true),
            (r#"{"type":"initialize","id":"a","timestamp":1,"payload":{}}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, false),
            (r#"{"jsonrpc":"2.0","method":"initialize"}"#, false),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#, false),
            (r#"{"params":{"method":"initialize"},"id":1}"#, false),
            (r#"[1,"initialize"]"#, false),
            ("not json", false),
        ] {
            assert_eq!(opening.is_begun_by(body.as_bytes()), opens, "{body}");
            assert!(FirstMessage::Any.is_begun_by(body.as_bytes()));
        }
    }
}
