//! The connections to other nodes: HTTP/2, a few for each node, opened when they are needed.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rescind_http::RoutedBody;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::kept_body;

/// The time in which a connection to a node must open.
const CONNECT: Duration = Duration::from_secs(3);
/// A connection is asked for a sign of life this often, also while it waits for a response.
const PING: Duration = Duration::from_secs(3);
/// How long a node may take for it. With [`PING`] a stopped node is noticed within 10 s.
const PONG: Duration = Duration::from_secs(7);
/// The most requests on one connection. A server of this project takes 1024.
const STREAMS: usize = 512;
/// How often a connection is opened, or a request that the other node has not begun with is sent, again.
const ATTEMPTS: usize = 2;
/// The bytes that a node may send on one stream before a client reads them.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The same for a whole connection: no stream that is not read holds back another one.
const CONNECTION_WINDOW: u32 = 512 * STREAM_WINDOW;
/// The streams that may be reset before the other side has seen it. Each cancel of a client that leaves is one.
const RESETS: usize = 4096;

/// Connections to other nodes, by their addresses.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    nodes: Mutex<HashMap<String, Arc<Lines>>>,
    #[cfg(feature = "rustls")]
    tls: Mutex<Option<rescind_http::ClientTls>>,
}

/// The connections to one node.
#[derive(Default)]
struct Lines {
    open: Mutex<Vec<Line>>,
    /// Held while one is opened.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Line {
    sender: http2::SendRequest<RoutedBody>,
    streams: Arc<AtomicUsize>,
}

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// Nobody listens at the address.
    Refused(Box<Request<RoutedBody>>),
    /// No connection could be opened.
    Unreachable(Box<Request<RoutedBody>>, io::Error),
    /// The connection was lost while the request was under way: the node may have it.
    Lost(hyper::Error),
}

impl Pool {
    /// A pool for `https` addresses.
    #[cfg(feature = "rustls")]
    pub(crate) fn set_tls(&self, tls: rescind_http::ClientTls) {
        *self.0.tls.lock().unwrap_or_else(PoisonError::into_inner) = Some(tls);
    }

    /// Sends a request to the node at this URL, of which only scheme, host and port are used.
    ///
    /// # Cancel safety
    /// If the future is dropped, the node gets a `RST_STREAM`, as from a client that has left.
    pub(crate) async fn send(
        &self,
        to: &Uri,
        mut request: Request<RoutedBody>,
    ) -> Result<Response<NodeBody>, Unsent> {
        let lines = self.lines(to);
        // A connection can end before the request is sent, or the other node says that it does not begin with it. Then it is
        // sent again. In all other cases the node may have begun, even if it sent nothing.
        for attempt in 0.. {
            let mut line = match self.line(&lines, to).await {
                Ok(line) => line,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(Unsent::Refused(Box::new(request)));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && attempt < ATTEMPTS => {
                    continue;
                }
                Err(error) => return Err(Unsent::Unreachable(Box::new(request), error)),
            };
            let place = Place::new(&line.streams);
            let (head, body) = request.into_parts();
            let (body, again) = kept_body::keep(body);
            let copy = head.clone();
            match line.sender.try_send_request(Request::from_parts(head, body)).await {
                Ok(response) => return Ok(response.map(|body| NodeBody { body, _place: place })),
                Err(mut failed) => {
                    let unsent = failed.take_message();
                    let error = failed.into_error();
                    let unsent = match unsent {
                        Some(unsent) => unsent,
                        None if was_not_begun(&error) => {
                            lines.forget(&line);
                            let Some((body, _)) = again.body() else { return Err(Unsent::Lost(error)) };
                            Request::from_parts(copy, body)
                        }
                        None => return Err(Unsent::Lost(error)),
                    };
                    if attempt == ATTEMPTS {
                        return Err(Unsent::Unreachable(Box::new(unsent), io::Error::other(error)));
                    }
                    request = unsent;
                }
            }
        }
        unreachable!("the loop returns")
    }

    fn lines(&self, to: &Uri) -> Arc<Lines> {
        let name =
            format!("{}://{}", to.scheme_str().unwrap_or("http"), to.authority().map_or("", |a| a.as_str()));
        let mut nodes = self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(nodes.entry(name).or_default())
    }

    /// A connection with room for a request.
    async fn line(&self, lines: &Lines, to: &Uri) -> io::Result<Line> {
        if let Some(line) = lines.free() {
            return Ok(line);
        }
        let _opening = lines.opening.lock().await;
        if let Some(line) = lines.free() {
            return Ok(line);
        }
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the connection did not open in time");
        let line = tokio::time::timeout(CONNECT, Box::pin(self.open(to))).await.map_err(late)??;
        lines.open.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
        Ok(line)
    }

    async fn open(&self, to: &Uri) -> io::Result<Line> {
        let is_encrypted = to.scheme_str() == Some("https");
        let host = to.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = to.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if is_encrypted { self.encrypt(host, stream).await } else { handshake(stream).await }
    }

    #[cfg(feature = "rustls")]
    async fn encrypt(&self, host: &str, stream: TcpStream) -> io::Result<Line> {
        let tls = self.0.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tls = tls.unwrap_or_else(rescind_http::ClientTls::system);
        handshake(tls.connect(host, stream, &[b"h2"]).await?).await
    }

    #[cfg(not(feature = "rustls"))]
    #[expect(clippy::unused_async, reason = "it waits where TLS is built in")]
    async fn encrypt(&self, _: &str, _: TcpStream) -> io::Result<Line> {
        Err(io::Error::other("https between nodes needs the feature `rustls`"))
    }
}

/// Whether the other node has said that it ends the connection and does not begin with this request (RFC 9113, 6.8).
fn was_not_begun(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_go_away() && cause.is_remote() && cause.reason() == Some(h2::Reason::NO_ERROR)
    })
}

impl Lines {
    /// Sends no further request on this connection.
    fn forget(&self, line: &Line) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| !Arc::ptr_eq(&other.streams, &line.streams));
    }

    /// The open connection with the fewest requests, if it has room for another.
    fn free(&self) -> Option<Line> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|line| !line.sender.is_closed());
        let least = open.iter().min_by_key(|line| line.streams.load(Ordering::Relaxed))?;
        (least.streams.load(Ordering::Relaxed) < STREAMS).then(|| least.clone())
    }
}

/// A connection on which the other node has said something. A port that is about to close accepts connections that nobody
/// serves; no request must be sent there, because it would be unknown whether it was begun.
async fn handshake<S>(stream: S) -> io::Result<Line>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (hear, heard) = oneshot::channel();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_reset_streams(RESETS)
        .handshake(TokioIo::new(Listening { stream, hear: Some(hear) }))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %rescind_core::LogText::text(&error), "a connection to another node was lost");
        }
    });
    heard.await.map_err(|_| io::ErrorKind::ConnectionReset)?;
    Ok(Line { sender, streams: Arc::default() })
}

/// A stream that reports the first bytes of the other side.
struct Listening<S> {
    stream: S,
    hear: Option<oneshot::Sender<()>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            if let Some(hear) = self.hear.take() {
                let _ = hear.send(());
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A request on a connection, until its response is complete or dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn new(streams: &Arc<AtomicUsize>) -> Self {
        streams.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(streams))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a node's response.
pub(crate) struct NodeBody {
    body: Incoming,
    _place: Place,
}

impl Body for NodeBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("Pool").field("nodes", &nodes).finish_non_exhaustive()
    }
}
