//! Opens TCP and TLS connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::client::HttpClient;
use crate::client::requester::default_port;

#[derive(Clone, Debug)]
pub(super) struct Connector {
    host: Arc<str>,
    port: u16,
    encrypted: bool,
    /// Whether to use HTTP/2. Over TLS the handshake decides instead.
    http2: bool,
    timeout: Duration,
    /// Whether a server has answered HTTP/2 with something else.
    misunderstood: Arc<AtomicBool>,
    #[cfg(feature = "rustls")]
    tls: crate::ClientTls,
    #[cfg(feature = "verify")]
    dial: Option<Dial>,
}

impl Connector {
    /// Connects to the server of this address, with the options of the client.
    pub(super) fn new(client: &HttpClient, uri: &Uri) -> Self {
        let encrypted = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        Self {
            host: host.trim_start_matches('[').trim_end_matches(']').into(),
            port: uri.port_u16().unwrap_or_else(|| default_port(uri)),
            encrypted,
            http2: client.http2,
            timeout: client.connect_timeout,
            misunderstood: Arc::default(),
            #[cfg(feature = "rustls")]
            tls: client.tls.clone(),
            #[cfg(feature = "verify")]
            dial: client.dial.clone(),
        }
    }

    /// Whether a connection ended because its server does not support HTTP/2. Returns `true` once for each such
    /// connection.
    pub(super) fn was_misunderstood(&self) -> bool {
        self.misunderstood.swap(false, Ordering::Relaxed)
    }

    /// Opens a connection, including TLS.
    pub(super) async fn open(self) -> io::Result<Socket> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the connection did not open in time");
        tokio::time::timeout(self.timeout, self.connect()).await.map_err(late)?
    }

    async fn connect(self) -> io::Result<Socket> {
        #[cfg(feature = "verify")]
        if let Some(dial) = &self.dial {
            let stream = Stream::Given(TokioIo::new((dial.0)()?));
            return Ok(Socket::new(self.http2, self.misunderstood, stream));
        }
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        // Without it an HTTP/2 POST waits for the peer's delayed acknowledgement: 44 ms instead of 0.05 ms.
        stream.set_nodelay(true)?;
        if !self.encrypted {
            let (http2, misunderstood) = (self.http2, self.misunderstood);
            return Ok(Socket::new(http2, misunderstood, Stream::Plain(TokioIo::new(stream))));
        }
        self.encrypt(stream).await
    }

    #[cfg(feature = "rustls")]
    async fn encrypt(self, stream: TcpStream) -> io::Result<Socket> {
        let stream = self.tls.connect(&self.host, stream, crate::PROTOCOLS).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Socket::new(http2, self.misunderstood, Stream::Encrypted(TokioIo::new(Box::new(stream)))))
    }

    #[cfg(not(feature = "rustls"))]
    #[expect(clippy::unused_async, reason = "it waits where TLS is built in")]
    async fn encrypt(self, _: TcpStream) -> io::Result<Socket> {
        Err(io::Error::other("https needs the feature `rustls`"))
    }
}

/// An open connection.
pub(super) struct Socket {
    http2: bool,
    /// Whether the server has sent a byte.
    heard: bool,
    misunderstood: Arc<AtomicBool>,
    stream: Stream,
}

impl Socket {
    const fn new(http2: bool, misunderstood: Arc<AtomicBool>, stream: Stream) -> Self {
        Self { http2, heard: false, misunderstood, stream }
    }

    /// Whether the connection uses HTTP/2.
    pub(super) const fn is_http2(&self) -> bool {
        self.http2
    }
}

enum Stream {
    Plain(TokioIo<TcpStream>),
    #[cfg(feature = "rustls")]
    Encrypted(TokioIo<Box<tokio_rustls::client::TlsStream<TcpStream>>>),
    #[cfg(feature = "verify")]
    Given(TokioIo<Box<dyn crate::GivenStream>>),
}

macro_rules! on_stream {
    ($socket:expr, $stream:ident => $what:expr) => {
        match &mut $socket.get_mut().stream {
            Stream::Plain($stream) => $what,
            #[cfg(feature = "rustls")]
            Stream::Encrypted($stream) => $what,
            #[cfg(feature = "verify")]
            Stream::Given($stream) => $what,
        }
    };
}

impl Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.http2 || self.heard {
            return on_stream!(self, stream => Pin::new(stream).poll_read(cx, buffer));
        }
        let this = self.get_mut();
        let mut first = [0; 1];
        let mut read = ReadBuf::new(first.get_mut(..buffer.remaining().min(1)).unwrap_or_default());
        ready!(on_stream!(Pin::new(&mut *this), stream => Pin::new(stream).poll_read(cx, read.unfilled())))?;
        // HTTP/2 starts with a SETTINGS frame, whose length begins with a zero byte. Text begins with another byte.
        if read.filled().iter().any(|byte| *byte != 0) {
            // The waiting request only gets an error that the connection has ended. This flag keeps the reason.
            this.misunderstood.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other("the server does not speak HTTP/2")));
        }
        this.heard = true;
        buffer.put_slice(read.filled());
        Poll::Ready(Ok(()))
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
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            #[cfg(feature = "rustls")]
            Stream::Encrypted(stream) => stream.is_write_vectored(),
            #[cfg(feature = "verify")]
            Stream::Given(stream) => stream.is_write_vectored(),
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

/// A token bucket. It is full at first, and one token after another comes back.
#[derive(Debug)]
pub(crate) struct Resets {
    /// The time in which the empty bucket becomes full.
    whole: Duration,
    /// The time in which one token comes back.
    every: Duration,
    full_at: Instant,
}

impl Resets {
    /// Allows `burst` resets at once, and then one in each interval `every`.
    pub(crate) fn new(burst: u32, every: Duration) -> Self {
        Self { whole: every * burst, every, full_at: Instant::now() }
    }

    /// Takes a token, or returns the time until there is one.
    pub(crate) fn take(&mut self) -> Result<(), Duration> {
        let now = Instant::now();
        let full_at = self.full_at.max(now) + self.every;
        if let Some(wait) = (full_at - now).checked_sub(self.whole).filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        self.full_at = full_at;
        Ok(())
    }
}

/// Creates the streams of a client.
#[cfg(feature = "verify")]
#[derive(Clone)]
pub(crate) struct Dial(pub(crate) Arc<dyn Fn() -> io::Result<Box<dyn crate::GivenStream>> + Send + Sync>);

#[cfg(feature = "verify")]
impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::requester::Requester;
    use crate::inbound_queue::InboundQueue;

    #[tokio::test]
    async fn a_server_without_http_2_has_its_own_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            let mut rest = Vec::new();
            // The client disconnects, with or without an orderly close.
            let _ended = socket.read_to_end(&mut rest).await;
        });
        let requester = Requester::new(&HttpClient::new(&url).unwrap().http2(), &InboundQueue::new(1024));
        let sent = requester.send(http::Method::POST, http::HeaderMap::new(), bytes::Bytes::new()).await;
        let Err(failed) = sent else { panic!("the server has not understood it") };
        assert_eq!(failed.error.kind, rescind_core::TransportErrorKind::Open, "{failed:?}");
        assert_eq!(failed.error.source.to_string(), "the server does not speak HTTP/2");
        assert!(!failed.sent);
        drop(requester);
        server.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_that_is_empty_fills_again() {
        let every = Duration::from_millis(100);
        let mut resets = Resets::new(3, every);
        for _ in 0..3 {
            assert_eq!(resets.take(), Ok(()));
        }
        assert_eq!(resets.take(), Err(every));
        tokio::time::advance(every / 2).await;
        assert_eq!(resets.take(), Err(every / 2));
        tokio::time::advance(every / 2).await;
        assert_eq!((resets.take(), resets.take()), (Ok(()), Err(every)));
        tokio::time::advance(every * 100).await;
        let taken = std::iter::repeat_with(|| resets.take()).take_while(Result::is_ok).count();
        assert_eq!(taken, 3, "it holds no more than at first");
    }
}
