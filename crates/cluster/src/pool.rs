//! The connections to other nodes: HTTP/2, a few for each node, opened when they are needed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rescind_http::RoutedBody;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

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
    nodes: Mutex<HashMap<String, Arc<NodeConnections>>>,
    #[cfg(feature = "rustls")]
    tls: Mutex<Option<rescind_http::ClientTls>>,
}

/// The connections to one node.
#[derive(Default)]
struct NodeConnections {
    open: Mutex<Vec<NodeConnection>>,
    /// Held while one is opened.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct NodeConnection {
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
            let (body, again) = keep(body);
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

    fn lines(&self, to: &Uri) -> Arc<NodeConnections> {
        let name =
            format!("{}://{}", to.scheme_str().unwrap_or("http"), to.authority().map_or("", |a| a.as_str()));
        let mut nodes = self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(nodes.entry(name).or_default())
    }

    /// A connection with room for a request.
    async fn line(&self, lines: &NodeConnections, to: &Uri) -> io::Result<NodeConnection> {
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

    async fn open(&self, to: &Uri) -> io::Result<NodeConnection> {
        let is_encrypted = to.scheme_str() == Some("https");
        let host = to.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = to.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if is_encrypted { self.encrypt(host, stream).await } else { handshake(stream).await }
    }

    #[cfg(feature = "rustls")]
    async fn encrypt(&self, host: &str, stream: TcpStream) -> io::Result<NodeConnection> {
        let tls = self.0.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tls = tls.unwrap_or_else(rescind_http::ClientTls::system);
        handshake(tls.connect(host, stream, &[b"h2"]).await?).await
    }

    #[cfg(not(feature = "rustls"))]
    #[expect(clippy::unused_async, reason = "it waits where TLS is built in")]
    async fn encrypt(&self, _: &str, _: TcpStream) -> io::Result<NodeConnection> {
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

impl NodeConnections {
    /// Sends no further request on this connection.
    fn forget(&self, line: &NodeConnection) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| !Arc::ptr_eq(&other.streams, &line.streams));
    }

    /// The open connection with the fewest requests, if it has room for another.
    fn free(&self) -> Option<NodeConnection> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|line| !line.sender.is_closed());
        let least = open.iter().min_by_key(|line| line.streams.load(Ordering::Relaxed))?;
        (least.streams.load(Ordering::Relaxed) < STREAMS).then(|| least.clone())
    }
}

/// A connection on which the other node has said something. A port that is about to close accepts connections that nobody
/// serves; no request must be sent there, because it would be unknown whether it was begun.
async fn handshake<S>(stream: S) -> io::Result<NodeConnection>
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
    Ok(NodeConnection { sender, streams: Arc::default() })
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

// The body of a request that can be sent again if the other node shows that it has not begun with it.

/// The most bytes of a body that are kept.
const MAX_KEPT: usize = 64 * 1024;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A body on its way. The part that was read is kept, and the rest goes back when it is dropped.
struct KeptBody {
    /// What is sent first, and was read from `rest` in an earlier attempt.
    first: Vec<Bytes>,
    /// `None`: it has ended.
    rest: Option<RoutedBody>,
    kept: Arc<Mutex<Kept>>,
}

/// What is known of the body of a request.
#[derive(Default)]
struct Kept {
    read: Vec<Bytes>,
    bytes: usize,
    is_lost: bool,
    rest: Rest,
}

/// What was not read of a body.
#[derive(Default)]
enum Rest {
    /// It is being read.
    #[default]
    InUse,
    Nothing,
    Unread(RoutedBody),
}

/// The way to the body of a request that was not sent.
struct Again(Arc<Mutex<Kept>>);

/// A body that can be had again.
fn keep(body: RoutedBody) -> (RoutedBody, Again) {
    keep_from(Vec::new(), Some(body))
}

fn keep_from(first: Vec<Bytes>, rest: Option<RoutedBody>) -> (RoutedBody, Again) {
    let kept = Arc::<Mutex<Kept>>::default();
    let mut first = first;
    // The last one is taken first.
    first.reverse();
    let body = KeptBody { first, rest, kept: Arc::clone(&kept) };
    (body.boxed_unsync(), Again(kept))
}

impl Again {
    /// The same body from its start. `None`: it was too long to be kept, or is still in use.
    fn body(self) -> Option<(RoutedBody, Self)> {
        let (read, rest) = {
            let mut kept = lock(&self.0);
            if kept.is_lost {
                return None;
            }
            let rest = match std::mem::take(&mut kept.rest) {
                Rest::InUse => return None,
                Rest::Nothing => None,
                Rest::Unread(rest) => Some(rest),
            };
            (std::mem::take(&mut kept.read), rest)
        };
        Some(keep_from(read, rest))
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn add(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if self.bytes > MAX_KEPT {
            self.is_lost = true;
            self.read = Vec::new();
        } else {
            self.read.push(data.clone());
        }
    }
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(data) = self.first.pop() {
            lock(&self.kept).add(&data);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(rest).poll_frame(cx) else { return Poll::Pending };
        match &frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => lock(&self.kept).add(data),
                // Trailers are not kept.
                None => lock(&self.kept).is_lost = true,
            },
            Some(Err(_)) => lock(&self.kept).is_lost = true,
            None => self.rest = None,
        }
        if self.rest.as_ref().is_none_or(Body::is_end_stream) {
            self.rest = None;
            if self.first.is_empty() {
                lock(&self.kept).rest = Rest::Nothing;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let first: u64 = self.first.iter().map(|data| u64::try_from(data.len()).unwrap_or(u64::MAX)).sum();
        let Some(rest) = &self.rest else { return SizeHint::with_exact(first) };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint
    }
}

impl Drop for KeptBody {
    fn drop(&mut self) {
        let mut kept = lock(&self.kept);
        // What was not sent of the first attempt's part follows what was.
        while let Some(data) = self.first.pop() {
            kept.add(&data);
        }
        kept.rest = self.rest.take().map_or(Rest::Nothing, Rest::Unread);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn full(text: &'static str) -> RoutedBody {
        Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed_unsync()
    }

    fn in_parts(parts: &[&'static str]) -> RoutedBody {
        let frames: Vec<_> =
            parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect();
        StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
    }

    async fn text(body: RoutedBody) -> Vec<u8> {
        body.collect().await.unwrap().to_bytes().to_vec()
    }

    #[tokio::test]
    async fn a_body_is_the_same_again_wherever_it_was_left() {
        for read in 0..4 {
            let (mut body, mut again) = keep(in_parts(&["a", "b", "c"]));
            // Also after several attempts.
            for _ in 0..3 {
                for _ in 0..read {
                    body.frame().await;
                }
                drop(body);
                (body, again) = again.body().unwrap();
            }
            assert_eq!(text(body).await, b"abc", "{read}");
        }
    }

    #[tokio::test]
    async fn a_body_that_was_sent_whole_is_there_again_before_it_is_dropped() {
        let (mut body, again) = keep(full("whole"));
        assert!(!body.is_end_stream());
        body.frame().await.unwrap().unwrap();
        assert!(body.is_end_stream());
        let (second, again) = again.body().unwrap();
        assert_eq!(text(second).await, b"whole");
        assert_eq!(text(again.body().unwrap().0).await, b"whole");
    }

    #[tokio::test]
    async fn a_body_in_use_or_too_long_is_not_there_again() {
        let (mut body, again) = keep(in_parts(&["a", "b"]));
        body.frame().await.unwrap().unwrap();
        assert!(again.body().is_none(), "it is being read");
        let long = Bytes::from(vec![0; MAX_KEPT + 1]);
        let (body, again) = keep(Full::new(long).map_err(|never| match never {}).boxed_unsync());
        assert_eq!(text(body).await.len(), MAX_KEPT + 1);
        assert!(again.body().is_none());
    }
}
