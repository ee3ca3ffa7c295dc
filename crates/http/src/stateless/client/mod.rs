//! The calling side: a POST for each frame; giving one up is the cancel of its request.

mod in_flight;
mod sender;
mod state;

use std::sync::Arc;

use rescind_core::{
    BoxFuture, Capabilities, Link, MCP_2026_BODIES, MirroredBodies, Transport, TransportError,
};

use self::sender::ClientSender;
use self::state::Client;
use super::mirror::Mirrors;
use crate::client::HttpClient;
use crate::inbound_queue::InboundReceiver;

/// The calling side of the binding `stateless`: a transport to one URL.
///
/// # What the caller adds The revision has no handshake: each request says in its `params._meta` what a handshake would
/// have said, and is refused without (400 and -32602). The wire never writes into a body, so this is the caller's to
/// do, in every call:
///
/// ```json
/// {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
///            "io.modelcontextprotocol/clientCapabilities": {}}}
/// ```
///
/// The headers that mirror a body (`MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`) are made here. Which arguments of
/// `tools/call` a server wants in `Mcp-Param-*` headers is in its tools' schemas (`x-mcp-header`), which a wire does
/// not read: say it with [`mirror`](Self::mirror), and leave out tools whose annotations it refuses, as the revision
/// asks.
///
/// # Cancels Giving a call up closes its stream; over HTTP/2 that is a reset. Servers end connections that reset much,
/// so after 200 at once each further reset waits for its turn, 30 ms apart; what still comes for such a call is
/// dropped, and calls that were given up count as in flight until then.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct StatelessTransport {
    client: HttpClient,
    mirrors: Mirrors,
    bodies: &'static MirroredBodies,
}

impl StatelessTransport {
    /// A transport that goes where this client goes.
    pub fn new(client: HttpClient) -> Self {
        Self { client, mirrors: Mirrors::default(), bodies: &MCP_2026_BODIES }
    }

    /// What headers repeat of a body, in a protocol of your own. Default: [`MCP_2026_BODIES`].
    pub const fn bodies(mut self, bodies: &'static MirroredBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Mirrors the argument in the header `Mcp-Param-{name}` of calls of this tool, where the argument is there and not
    /// null. It is a name, or the names from the outer one inwards: where the tool's schema has `"x-mcp-header": name`.
    ///
    /// # Errors
    /// The name cannot be part of a header's, or the tool has it already; the argument is empty.
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
            let meta = client.requester.reach().await?;
            let traits = Capabilities {
                ordered: false,
                opens_exchanges: true,
                exchange_scoped: true,
                batches: false,
                max_frame: client.max_frame,
            };
            let receiver = InboundReceiver(Arc::clone(&client.inbound_queue));
            Ok(Link::new(receiver, ClientSender(client), traits, meta))
        })
    }
}
