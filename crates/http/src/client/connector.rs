//! Opens TCP and TLS connections for the pool.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rescind_core::BoxFuture;
use tokio::net::TcpStream;
use tower_service::Service;

#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) timeout: Duration,
    #[cfg(feature = "rustls")]
    pub(super) tls: Option<crate::tls::Connector>,
}

impl Service<Uri> for Connector {
    type Response = Socket;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Socket>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let timeout = connector.timeout;
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the connection did not open in time");
            tokio::time::timeout(timeout, connector.connect(uri)).await.map_err(late)?
        })
    }
}

impl Connector {
    async fn connect(self, uri: Uri) -> io::Result<Socket> {
        let host = uri.host().unwrap_or_default();
        let encrypted = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((name, port)).await?;
        // Without it an HTTP/2 POST waits for the peer's delayed acknowledgement: 44 ms against 0.05.
        stream.set_nodelay(true)?;
        if !encrypted {
            return Ok(Socket::Plain(TokioIo::new(stream)));
        }
        self.encrypt(name, stream).await
    }

    #[cfg(feature = "rustls")]
    async fn encrypt(self, name: &str, stream: TcpStream) -> io::Result<Socket> {
        let tls = match self.tls {
            Some(tls) => tls,
            None => crate::tls::Connector::system().await?,
        };
        let stream = tls.connect(name, stream).await?;
        Ok(Socket::Encrypted(TokioIo::new(Box::new(stream))))
    }

    #[cfg(not(feature = "rustls"))]
    #[expect(clippy::unused_async, reason = "it waits where TLS is built in")]
    async fn encrypt(self, _: &str, _: TcpStream) -> io::Result<Socket> {
        Err(io::Error::other("https needs the feature `rustls`"))
    }
}

/// A connection of the pool.
pub(super) enum Socket {
    Plain(TokioIo<TcpStream>),
    #[cfg(feature = "rustls")]
    Encrypted(TokioIo<Box<tokio_rustls::client::TlsStream<TcpStream>>>),
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(_) => Connected::new(),
            #[cfg(feature = "rustls")]
            Self::Encrypted(stream) => {
                let (_, state) = stream.inner().get_ref();
                if state.alpn_protocol() == Some(b"h2") {
                    Connected::new().negotiated_h2()
                } else {
                    Connected::new()
                }
            }
        }
    }
}

macro_rules! on_stream {
    ($socket:expr, $stream:ident => $what:expr) => {
        match $socket.get_mut() {
            Self::Plain($stream) => $what,
            #[cfg(feature = "rustls")]
            Self::Encrypted($stream) => $what,
        }
    };
}

impl Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl Write for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            #[cfg(feature = "rustls")]
            Self::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => Pin::new(stream).poll_write_vectored(cx, slices))
    }
}
