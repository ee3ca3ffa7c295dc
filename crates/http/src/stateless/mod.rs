//! The binding `stateless`: MCP 2026-07-28, where each POST stands for itself.
//!
//! - N1 A POST is the space of its ids. One link serves a listener; nothing is kept between two POSTs.
//! - N2 What the headers mirror of a body is held against the body before the message is handed on.
//! - N3 A client that leaves before the end cancels its request at once, whether events or one message were on their
//!   way, and nothing more is sent.
//! - N4 A slow reader costs its own request only: what waits for it is bounded, and its notifications give way.

mod client;
mod envelope;
mod exchange_table;
mod link;
mod mirror;
mod server;
#[cfg(feature = "verify")]
pub(crate) mod verify;

use std::sync::Arc;
use std::time::Duration;

pub use client::StatelessTransport;

use rescind_core::TransportError;

use self::mirror::Mirrors;
use self::server::StatelessServer;
use crate::server::{AcceptQueue, Responder, ServerBinding, Settings, sealed};

/// The serving side of the binding `stateless`, for an [`HttpServer`](crate::HttpServer).
#[derive(Clone, Debug)]
#[must_use = "a binding serves as part of a server"]
pub struct Stateless {
    versions: Vec<String>,
    mirrors: Mirrors,
    stream_after: Duration,
}

impl Default for Stateless {
    fn default() -> Self {
        Self::new()
    }
}

impl Stateless {
    /// Serves revision 2026-07-28.
    pub fn new() -> Self {
        Self {
            versions: vec!["2026-07-28".to_owned()],
            mirrors: Mirrors::default(),
            stream_after: Duration::from_millis(10),
        }
    }

    /// The revisions that are served; a request of any other gets 400 and -32022, which lists these.
    pub fn versions<'a>(mut self, versions: impl IntoIterator<Item = &'a str>) -> Self {
        self.versions = versions.into_iter().map(ToOwned::to_owned).collect();
        self
    }

    /// Holds the header `Mcp-Param-{name}` of calls of this tool against the argument, which is a name, or the names from
    /// the outer one inwards: what a server owes whose tool has `"x-mcp-header": name` in its schema there. A call whose
    /// header differs, or is missing though the argument is there, gets 400 and -32020.
    ///
    /// # Errors
    /// The name cannot be part of a header's, or the tool has it already; the argument is empty.
    pub fn mirror(mut self, tool: &str, argument: &[&str], name: &str) -> Result<Self, TransportError> {
        self.mirrors.add(tool, argument, name)?;
        Ok(self)
    }

    pub(crate) fn versions_served(&self) -> &[String] {
        &self.versions
    }

    /// How long a handler that has begun may take to refuse its request with a status of its own (400 for a missing
    /// capability); after that the head of an event stream is sent. Default: 10 ms.
    pub const fn stream_after(mut self, wait: Duration) -> Self {
        self.stream_after = wait;
        self
    }
}

/// Whether a message says that it is of a revision whose messages name it.
pub(crate) fn names_a_version(body: &[u8]) -> bool {
    envelope::Envelope::read(body).is_ok_and(|envelope| envelope.version().is_some())
}

impl sealed::Sealed for Stateless {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for Stateless {
    fn responder(self, settings: &Arc<Settings>, door: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(StatelessServer::new(self, settings, door))
    }
}
