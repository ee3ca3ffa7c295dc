//! The binding `stateless`: MCP 2026-07-28, where POSTs are independent of each other.
//!
//! - N1 Ids are unique within a POST. One link serves all clients of a listener, and nothing is kept between two POSTs.
//! - N2 Headers that repeat a part of the body are compared with the body before the message is passed on.
//! - N3 If a client disconnects before the end of the response, its request is cancelled at once and nothing more is
//!   sent.
//! - N4 A slow reader affects only its own request: the messages that wait for it are bounded, and its notifications
//!   are dropped first.

mod client;
mod mirror;
mod mirrored_headers;
mod server;

use std::sync::Arc;
use std::time::Duration;

pub use client::StatelessTransport;

use rescind_core::{MCP_2026_BODIES, MirroredBodies, TransportError};

use self::mirror::Mirrors;
use self::mirrored_headers::Message;
#[cfg(feature = "verify")]
pub(crate) use self::mirrored_headers::verify;
use self::server::StatelessServer;
use crate::server::{AcceptQueue, Responder, ServerBinding, Settings, sealed};

/// The server side of the binding `stateless`, for an [`HttpServer`](crate::HttpServer).
#[derive(Clone, Debug)]
#[must_use = "a binding serves as part of a server"]
pub struct Stateless {
    pub(crate) bodies: &'static MirroredBodies,
    versions: Vec<String>,
    mirrors: Mirrors,
    /// `None`: the defaults of [`StreamDelay`](crate::server::json_or_event_stream::StreamDelay).
    stream_after: Option<Duration>,
}

impl Default for Stateless {
    fn default() -> Self {
        Self::new()
    }
}

impl Stateless {
    /// A binding that serves revision 2026-07-28.
    pub fn new() -> Self {
        Self {
            bodies: &MCP_2026_BODIES,
            versions: vec![MCP_2026_BODIES.revision.to_owned()],
            mirrors: Mirrors::default(),
            stream_after: None,
        }
    }

    /// Sets which parts of a body the headers repeat, for a protocol of your own. Default: [`MCP_2026_BODIES`].
    pub const fn bodies(mut self, bodies: &'static MirroredBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// The revisions that are served. A request of another revision gets 400 and -32022, which lists these.
    pub fn versions<'a>(mut self, versions: impl IntoIterator<Item = &'a str>) -> Self {
        self.versions = versions.into_iter().map(ToOwned::to_owned).collect();
        self
    }

    /// Compares the header `Mcp-Param-{name}` of calls of this tool with an argument. The argument is given by its
    /// name, or by the names from the outermost object inwards. A server must do this for each argument with
    /// `"x-mcp-header": name` in the tool's schema. A call whose header differs, or has the argument without the
    /// header, gets 400 and -32020.
    ///
    /// # Errors
    /// The name is not valid in a header name, the tool has it already, or the argument is empty.
    pub fn mirror(mut self, tool: &str, argument: &[&str], name: &str) -> Result<Self, TransportError> {
        self.mirrors.add(tool, argument, name)?;
        Ok(self)
    }

    pub(crate) fn versions_served(&self) -> &[String] {
        &self.versions
    }

    /// The time in which a handler that has started may refuse its request with an HTTP status (400 for a missing
    /// capability). After this time the server sends the head of an event stream. The head tells the client that its
    /// request has arrived; the client sends no cancel before it. Default: 10 ms, and 1 ms from when the handler first
    /// awaits something.
    pub const fn stream_after(mut self, wait: Duration) -> Self {
        self.stream_after = Some(wait);
        self
    }
}

/// Whether a message names a revision, as messages of 2026-07-28 do.
pub(crate) fn names_a_version(body: &[u8], bodies: &'static MirroredBodies) -> bool {
    Message::read(body, bodies).is_ok_and(|message| message.names_a_revision())
}

impl sealed::Sealed for Stateless {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for Stateless {
    fn responder(self, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(StatelessServer::new(self, settings, accept_queue))
    }
}
