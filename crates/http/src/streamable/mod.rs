//! The binding `streamable`: MCP's streamable HTTP, for every protocol.

mod client;
mod server;
mod session;
mod sessionless;

use std::sync::Arc;
use std::time::Duration;

pub use self::client::StreamableTransport;

use rescind_core::{CancelBodies, MCP_CANCEL, MCP_OPENING};

use self::server::StreamableServer;
use crate::envelope::Envelope;
use crate::server::{AcceptQueue, Responder, ServerBinding, Settings, sealed};

/// The revisions of MCP that have sessions.
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

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

    /// Whether this message negotiates the revision of a session.
    pub(crate) fn is_handshake(&self, body: &[u8]) -> bool {
        match self {
            Self::Any => Envelope::of(body).is_request_of(&[MCP_OPENING]),
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
    /// What a server without sessions reads of cancels. `None`: the server has sessions.
    sessionless: Option<CancelBodies>,
}

impl Default for Streamable {
    fn default() -> Self {
        Self::new()
    }
}

impl Streamable {
    /// A binding whose sessions `initialize` opens, for MCP's revisions with sessions: 2024-11-05, 2025-03-26, 2025-06-18
    /// and 2025-11-25. The first had another transport; clients speak it over this one too.
    pub fn new() -> Self {
        Self {
            opening: FirstMessage::Methods(vec![MCP_OPENING.to_owned()]),
            versions: REVISIONS.map(ToOwned::to_owned).to_vec(),
            stream_after: None,
            poll_after: None,
            retry: Duration::from_secs(1),
            second_stream: SecondStream::default(),
            sessionless: None,
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

    /// The values of `MCP-Protocol-Version` that are served, until the answer to `initialize` has named the revision of
    /// its session. Then only that value is served, whether it is one of these or not. Other values get 400. A message
    /// without the header is served, and the header of `initialize` is not read. Default: the four revisions of MCP
    /// with sessions.
    pub fn versions<'a>(mut self, versions: impl IntoIterator<Item = &'a str>) -> Self {
        self.versions = versions.into_iter().map(ToOwned::to_owned).collect();
        self
    }

    /// Serves without sessions, as many deployments of MCP before its revision of 2026 do: any process answers any request.
    ///
    /// - Only POST is served; GET and DELETE get 405. No `Mcp-Session-Id` is issued, and one that a client sends is
    ///   ignored. No handshake is required. `initialize` is answered like any other request.
    /// - Each request has a session that only the server knows, and that ends with its response. If the client leaves
    ///   before, the request goes on, for at most [`HttpServer::session_idle`](crate::HttpServer::session_idle): in MCP a
    ///   lost stream does not cancel, and here it cannot be resumed. The limits of sessions apply to requests.
    /// - A cancel is found by the principal that the [auth hook](crate::HttpServer::auth) names, and the id of the
    ///   request. So the ids of one principal must be unique among all its clients: a cancel ends each request of the
    ///   principal with this id that runs in the process. A [`SessionRouter`](crate::SessionRouter) passes it to the
    ///   other processes if none runs in this one.
    /// - A cancel that comes before its request is kept for [`SHARED_CANCEL_KEPT`](crate::SHARED_CANCEL_KEPT), 2 s, at most
    ///   256 of a principal. So a cancel that comes after the end of its request cancels the next request with this id
    ///   if that comes within 2 s, and nothing later. A cancel over 4 KiB gets 413.
    /// - Without an auth hook there is no principal. Then cancels are answered with 202, ignored, and counted by
    ///   [`HttpCounts::ignored_cancels`](crate::HttpCounts::ignored_cancels): one client could cancel the requests of
    ///   another.
    /// - Other notifications are answered with 202 and dropped. Answers of clients get 400.
    /// - A handler cannot call its client: the call fails at once, and nothing is sent.
    ///
    /// MCP's `notifications/cancelled` is the cancel. [`sessionless_with`](Self::sessionless_with) sets that of another protocol.
    pub const fn sessionless(mut self) -> Self {
        self.sessionless = Some(MCP_CANCEL);
        self
    }

    /// Serves without sessions, as [`sessionless`](Self::sessionless) does, with the cancel of another protocol.
    pub const fn sessionless_with(mut self, cancel: CancelBodies) -> Self {
        self.sessionless = Some(cancel);
        self
    }

    pub(crate) fn known_versions(&self) -> &[String] {
        &self.versions
    }

    pub(crate) const fn opening(&self) -> &FirstMessage {
        &self.opening
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
