//! The client side: one POST for each frame. To cancel a request, the client closes its response stream.

mod in_flight;
mod state;

use std::sync::Arc;

use rescind_core::{BoxFuture, Link, MCP_2026_BODIES, MirroredBodies, Transport, TransportError};

use self::state::Client;
use super::mirror::Mirrors;
use crate::client::HttpClient;
use crate::stateless::client::in_flight::ClientSender;

/// The client side of the binding `stateless`: a transport to one URL.
///
/// # What the caller adds
///
/// The revision has no handshake. Each request states in its `params._meta` what a handshake would have stated, and a
/// request without it is refused (400 and -32602). The transport never changes a body, so the caller must add this to
/// every call:
///
/// ```json
/// {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
///            "io.modelcontextprotocol/clientCapabilities": {}}}
/// ```
///
/// The transport itself adds the headers that mirror a body (`MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`). The
/// tools' schemas (`x-mcp-header`) define which arguments of `tools/call` a server expects in `Mcp-Param-*` headers.
/// The transport does not read these schemas: set the headers with [`mirror`](Self::mirror), and leave out tools whose
/// annotations it refuses, as the revision requires.
///
/// # Cancels
///
/// A cancelled call closes its stream; over HTTP/2 this is a reset. Servers close connections that reset many streams,
/// so 200 resets may be sent at once, and each further reset is sent 30 ms after the one before it. Until its reset is
/// sent, a cancelled call counts as in flight, and its messages are dropped.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct StatelessTransport {
    client: HttpClient,
    mirrors: Mirrors,
    bodies: &'static MirroredBodies,
}

impl StatelessTransport {
    /// A transport to this client's URL.
    pub fn new(client: HttpClient) -> Self {
        Self { client, mirrors: Mirrors::default(), bodies: &MCP_2026_BODIES }
    }

    /// Sets which parts of a body the headers repeat, for a protocol of your own. Default: [`MCP_2026_BODIES`].
    pub const fn bodies(mut self, bodies: &'static MirroredBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Mirrors the argument in the header `Mcp-Param-{name}` of calls of this tool, if the argument is present and not
    /// null. The argument is given by its name, or by the names from the outermost object inwards. It is the one with
    /// `"x-mcp-header": name` in the tool's schema.
    ///
    /// # Errors
    /// The name is not valid in a header name, the tool has it already, or the argument is empty.
    pub fn mirror(mut self, tool: &str, argument: &[&str], name: &str) -> Result<Self, TransportError> {
        self.mirrors.add(tool, argument, name)?;
        Ok(self)
    }
}

impl Transport for StatelessTransport {
    fn name(&self) -> &'static str {
        "http-stateless"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let client = Arc::new(Client::new(&self.client, self.mirrors, self.bodies));
            let peer = client.requester.reach().await?;
            Ok(client.link(ClientSender(Arc::clone(&client)), true, peer))
        })
    }
}
