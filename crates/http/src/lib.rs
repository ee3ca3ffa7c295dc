//! HTTP as a wire: a module a binding, each with its client and its server.

mod acp;
mod client;
mod intake;
mod names;
mod revisions;
mod server;
mod stateless;
mod streamable;
#[cfg(feature = "rustls")]
mod tls;

pub use acp::{Acp, AcpTransport};
pub use client::HttpClient;
pub use revisions::McpRevisions;
pub use server::{HttpListener, HttpServer, HttpService, ReplyBody, ServerBinding};
pub use stateless::{Stateless, StatelessTransport};
pub use streamable::{SecondStream, Streamable, StreamableTransport};
