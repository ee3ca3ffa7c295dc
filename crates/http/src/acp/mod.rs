//! The binding `acp`: ACP's streamable HTTP. POSTs are taken with 202; answers, requests and notifications of the agent
//! come on event streams, one a connection and one for each session.
//!
//! - A1 `initialize` opens a connection and is answered on its own POST. Every other message belongs to its connection,
//!   whichever POST brought it, so that a cancel counts with or without a session's header.
//! - A2 An answer goes by the stream of the session its request named, and so does what its handler says before it; a
//!   message whose params name a session goes by that one's; a cancel goes by the stream of the request it names and
//!   cannot overtake it. All else goes by the connection's own stream.
//! - A3 What waits for a stream is bounded: notifications give way, then its reader, then the connection.
//! - A4 A connection is unknown to anyone but the principal who opened it.

mod client;
mod connection;
mod jar;
mod link;
mod peek;
mod server;

use std::sync::Arc;

pub use client::AcpTransport;

use self::server::AcpServer;
use crate::server::{Door, Responder, ServerBinding, Settings, sealed};

/// The serving side of the binding `acp`, for an [`HttpServer`](crate::HttpServer). Its path is `/acp` by custom.
///
/// The upgrade to a WebSocket under the same path is another wire's: the facade joins the two.
#[derive(Clone, Debug, Default)]
#[must_use = "a binding serves as part of a server"]
#[non_exhaustive]
pub struct Acp {}

impl Acp {
    /// Serves ACP's draft of June 2026.
    pub const fn new() -> Self {
        Self {}
    }
}

impl sealed::Sealed for Acp {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for Acp {
    fn responder(self, settings: &Arc<Settings>, door: Door) -> Arc<dyn Responder> {
        Arc::new(AcpServer::new(settings, door))
    }
}
