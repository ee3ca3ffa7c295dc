//! TLS for transports over TCP: what a server shows and requires, and what a client trusts and shows.
//!
//! Invariants:
//! 1. Once a configuration is loaded, no handshake waits for a lock that is held while files are read.
//! 2. A configuration is replaced as a whole: certificate, key and authorities belong to one reading of the files.
//! 3. A new configuration has a new session cache, so no session resumes under authorities that were replaced.

mod client;
mod pem;
mod reload;
mod server;

pub use client::ClientTls;
pub use pem::{Pem, TlsError};
pub use server::ServerTls;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The names of protocols (ALPN) as rustls takes them.
fn owned(protocols: &[&[u8]]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.to_vec()).collect()
}
