//! Given streams of bytes instead of sockets, for tests with a network of their own (feature `verify`).

use std::sync::Arc;

use rescind_core::{Link, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::accept::accept_stream;
use crate::client::{Target, WebSocketTransport};
use crate::handshake::UpgradeOptions;

/// Does the handshake of a client on an open stream, without connecting to a server.
///
/// # Errors
/// The server refused the handshake, or did not answer in time.
///
/// # Cancel safety
/// Dropping the future drops the stream.
pub async fn open_given<S>(transport: &WebSocketTransport, io: S) -> Result<Link, TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let target = Target::of(&transport.url)?;
    let request = transport.request(&target)?;
    tokio::time::timeout(transport.timeout, transport.handshake(&target, request, io))
        .await
        .map_err(timed_out)?
}

/// Does the handshake of a server on a stream that was accepted elsewhere.
///
/// # Errors
/// The client was refused, or sent no request in time.
///
/// # Cancel safety
/// Dropping the future drops the stream.
pub async fn accept_given<S>(options: UpgradeOptions, io: S) -> Result<Link, TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    accept_stream(io, Arc::new(options)).await
}

fn timed_out(_: tokio::time::error::Elapsed) -> TransportError {
    TransportError::new(TransportErrorKind::Open, "the handshake took too long")
}
