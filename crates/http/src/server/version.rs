//! The version of HTTP that a client speaks, by its first bytes, and the connection of that version.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Tracked;
use crate::server::listener::HeadTimer;

/// The first bytes of a client of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How connections of either version are served.
pub(super) struct Builders {
    pub(super) http1: http1::Builder,
    pub(super) http2: http2::Builder<TokioExecutor>,
}

/// What answers the requests of a connection.
pub(super) trait Answers:
    Service<Request<Incoming>, Response = Response<Tracked>, Error = Infallible, Future: Send + 'static> + Unpin
{
}

impl<V> Answers for V where
    V: Service<Request<Incoming>, Response = Response<Tracked>, Error = Infallible, Future: Send + 'static>
        + Unpin
{
}

/// A connection. Its version is known after its first bytes.
pub(super) struct HttpConnection<S, V: Answers> {
    builders: Arc<Builders>,
    state: State<S, V>,
}

type Io<S> = TokioIo<FirstBytes<S>>;
type Http1<S, V> = http1::UpgradeableConnection<Io<S>, V>;
type Http2<S, V> = http2::Connection<Io<S>, V, TokioExecutor>;

#[expect(clippy::large_enum_variant, reason = "a connection is in its first state only for a moment")]
enum State<S, V: Answers> {
    /// The version is not known.
    First {
        io: FirstBytes<S>,
        service: V,
    },
    Http1(Http1<S, V>),
    /// Boxed: it is much larger.
    Http2(Pin<Box<Http2<S, V>>>),
    Ended,
}

impl<S, V> HttpConnection<S, V>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: Answers,
{
    pub(super) const fn new(builders: Arc<Builders>, stream: S, service: V) -> Self {
        let io = FirstBytes { io: stream, bytes: [0; PREFACE.len()], read: 0, given: 0 };
        Self { builders, state: State::First { io, service } }
    }

    /// Ends after the open requests. HTTP/2 sends GOAWAY; HTTP/1.1 ends after the response.
    pub(super) fn graceful_shutdown(&mut self) {
        match &mut self.state {
            State::First { .. } => self.state = State::Ended,
            State::Http1(connection) => Pin::new(connection).graceful_shutdown(),
            State::Http2(connection) => connection.as_mut().graceful_shutdown(),
            State::Ended => {}
        }
    }

    fn begin(&mut self, is_http2: bool) {
        let State::First { io, service } = std::mem::replace(&mut self.state, State::Ended) else { return };
        let io = TokioIo::new(io);
        self.state = if is_http2 {
            State::Http2(Box::pin(self.builders.http2.serve_connection(io, service)))
        } else {
            let mut builder = self.builders.http1.clone();
            let connection = builder.timer(HeadTimer::default()).serve_connection(io, service);
            State::Http1(connection.with_upgrades())
        };
    }
}

impl<S, V> Future for HttpConnection<S, V>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: Answers,
{
    type Output = Result<(), Box<dyn Error + Send + Sync>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::First { io, .. } = &mut this.state {
            let is_http2 = ready!(io.poll_is_http2(cx))?;
            this.begin(is_http2);
        }
        match &mut this.state {
            State::Http1(connection) => Pin::new(connection).poll(cx).map_err(Into::into),
            State::Http2(connection) => connection.as_mut().poll(cx).map_err(Into::into),
            State::First { .. } | State::Ended => Poll::Ready(Ok(())),
        }
    }
}

/// A stream whose first bytes were looked at. They are read again, together with what has arrived after them: HTTP/1.1
/// would double its buffer for a head that arrives in two pieces.
struct FirstBytes<S> {
    io: S,
    bytes: [u8; PREFACE.len()],
    /// How many of them were read from the stream.
    read: usize,
    /// How many of these were read again.
    given: usize,
}

impl<S: AsyncRead + Unpin> FirstBytes<S> {
    /// Whether the client speaks HTTP/2. A stream that ends before that is one of HTTP/1.1.
    fn poll_is_http2(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.read < PREFACE.len() {
            let mut buffer = ReadBuf::new(self.bytes.get_mut(self.read..).unwrap_or_default());
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            let new = buffer.filled().len();
            let is_preface = new > 0 && PREFACE.get(self.read..self.read + new) == Some(buffer.filled());
            self.read += new;
            if !is_preface {
                return Poll::Ready(Ok(false));
            }
        }
        Poll::Ready(Ok(true))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.given == this.read {
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        let again = this.bytes.get(this.given..this.read).unwrap_or_default();
        let again = again.get(..buffer.remaining()).unwrap_or(again);
        buffer.put_slice(again);
        this.given += again.len();
        if buffer.remaining() > 0 {
            // Nothing more may have arrived.
            if let Poll::Ready(Err(error)) = Pin::new(&mut this.io).poll_read(cx, buffer) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Whether a client speaks HTTP/2 whose bytes arrive in pieces of this size, and the bytes as they are read then.
    async fn read(bytes: &[u8], piece: usize) -> (bool, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(piece);
        let client = async {
            client.write_all(bytes).await.unwrap();
            drop(client);
        };
        let server = async {
            let mut stream = FirstBytes { io: server, bytes: [0; PREFACE.len()], read: 0, given: 0 };
            let is_http2 = std::future::poll_fn(|cx| stream.poll_is_http2(cx)).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            (is_http2, all)
        };
        tokio::join!(client, server).1
    }

    #[tokio::test]
    async fn the_first_bytes_show_the_version_and_are_read_again() {
        let long = [PREFACE.as_slice(), b"and more"].concat();
        for (bytes, is_http2) in [
            (&b""[..], false),
            (b"P", false),
            (b"POST / HTTP/1.1\r\n\r\n", false),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", false),
            (b"PRI * HTTP/1.1\r\nHost: a.example\r\n\r\n", false),
            (PREFACE, true),
            (&long, true),
        ] {
            for piece in [1, 7, 64] {
                assert_eq!(read(bytes, piece).await, (is_http2, bytes.to_vec()), "{piece} at a time");
            }
        }
    }
}
