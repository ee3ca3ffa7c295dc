//! Our own HTTP server: accepts sockets and runs one task for each connection. All of them end with the listener.
//!
//! # The version of HTTP
//!
//! A client shows it by its first bytes. Then the connection of that version serves them.
//!
//! # Sources of streams
//!
//! Sockets, or the streams of a test that has its own network (feature `verify`).

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rescind_net::{PeerAddress, PeerCertificates};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::inbound_queue::OwnWaker;
use crate::server::body::Stalling;
use crate::server::builder::HalfClose;
use crate::server::listener::{HeadTimer, Leave, ShutdownSignal, Socket, Sockets};
use crate::server::service::{ConnectionMemo, Responding};
use crate::server::{HttpService, RequestBody, ResponseBody, Settings, Stalled};
use crate::sync::LazySleep;

/// How long connections may finish their writes after the listener has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The most fields in a head of HTTP/1.1. The library has its own limit of 100. Another limit in the library costs as
/// much as the rest of parsing a head.
const FIELDS: usize = 64;
/// The most open requests on one HTTP/2 connection.
const STREAMS: u32 = 1024;
/// The most streams that a client may have reset before we have handled them. The library's default of 20 ends the
/// connection of a client that cancels many calls at once by resets. The driver's limits bound the work, not this
/// number.
const RESETS: usize = 4096;

/// A socket and the settings with which it is served.
pub(super) struct Serving {
    pub(super) source: Source,
    pub(super) path: String,
    #[cfg(feature = "rustls")]
    pub(super) tls: Option<crate::ServerTls>,
}

impl Serving {
    /// Serves until the listener is dropped, then gives connections a short time to finish their writes.
    pub(super) async fn run(mut self, service: HttpService, open: ShutdownSignal) {
        let settings = Arc::clone(service.settings());
        let mut sockets = Sockets::new(settings.connections);
        let mut builders = builders(&settings);
        if self.source.is_given() {
            builders.http1.auto_date_header(false);
            builders.http2.auto_date_header(false);
        }
        let builders = Arc::new(builders);
        let path: Arc<str> = self.path.as_str().into();
        let mut tasks = JoinSet::new();
        'accepting: loop {
            let accepted = tokio::select! {
                biased;
                () = open.ended() => break,
                // The port stays open: cancels and answers still arrive on new connections.
                () = open.draining() => {
                    sockets.drain();
                    continue;
                }
                // The resources of a task are released when it ends, even if no other connection arrives.
                Some(_) = tasks.join_next() => continue,
                accepted = self.source.accept() => accepted,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(error = %rescind_core::LogText::text(&error), "a connection could not be accepted");
                    // For example, no file descriptors are left. The only way to continue is to wait.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            let peer = stream.peer();
            let client = settings.clients.client(None, peer.map(|peer| peer.0));
            let place = loop {
                tokio::select! {
                    biased;
                    () = open.ended() => break 'accepting,
                    () = open.draining() => {}
                    place = sockets.place(&client, settings.connections) => break place,
                }
                sockets.drain();
            };
            let Some((socket, place)) = place else {
                tracing::debug!("a client has reached its limit of connections");
                continue;
            };
            let connection = AcceptedConnection {
                service: service.clone(),
                builders: Arc::clone(&builders),
                path: Arc::clone(&path),
                open: open.clone(),
                peer,
                certificates: PeerCertificates::default(),
                socket,
                #[cfg(feature = "rustls")]
                tls: self.tls.clone(),
            };
            tasks.spawn(async move {
                // Dropped last: the connection that gets this permit finds the client's own permit free.
                let _place = place;
                connection.begin(stream).await;
            });
        }
        drop(self.source);
        let last_words = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
        tasks.shutdown().await;
    }
}

fn builders(settings: &Settings) -> Builders {
    let mut http1 = http1::Builder::new();
    http1
        .half_close(settings.half_close == HalfClose::Waits)
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(32 * 1024);
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.idle_timeout / 2)
        .keep_alive_timeout(settings.header_timeout)
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS)
        .max_header_list_size(32 * 1024);
    Builders { http1, http2 }
}

/// One connection and what serves it.
struct AcceptedConnection {
    service: HttpService,
    builders: Arc<Builders>,
    path: Arc<str>,
    open: ShutdownSignal,
    /// The address of the client.
    peer: Option<PeerAddress>,
    /// The certificates that the client presented.
    certificates: PeerCertificates,
    socket: Arc<Socket>,
    #[cfg(feature = "rustls")]
    tls: Option<crate::ServerTls>,
}

impl AcceptedConnection {
    /// Serves the connection, after the TLS handshake if there is one.
    async fn begin(self, stream: Accepted) {
        #[cfg(feature = "verify")]
        let stream = match stream {
            Accepted::Socket(stream) => stream,
            Accepted::Given(stream) => return self.serve(stream).await,
        };
        #[cfg(not(feature = "verify"))]
        let Accepted::Socket(stream) = stream;
        let _ = stream.set_nodelay(true);
        #[cfg(feature = "rustls")]
        if let Some(tls) = &self.tls {
            let within = self.service.settings().header_timeout;
            match tokio::time::timeout(within, tls.accept(stream, crate::PROTOCOLS)).await {
                Ok(Ok(stream)) => {
                    let certificates = PeerCertificates::of(&stream);
                    Self { certificates, ..self }.serve(stream).await;
                }
                Ok(Err(error)) => {
                    tracing::debug!(error = %rescind_core::LogText::text(&error), "a TLS handshake failed");
                }
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
            return;
        }
        self.serve::<TcpStream>(stream).await;
    }

    async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::clone(&self.socket.activity);
        let (service, path, seen) = (self.service.clone(), Arc::clone(&self.path), Arc::clone(&activity));
        let (peer, certificates) = (self.peer, self.certificates);
        let memo = ConnectionMemo::default();
        // The auth hook and the router get the request. They read the address and the certificates in it.
        let shows_peer =
            self.service.settings().auth.is_some() || self.service.settings().session_router.is_some();
        let handle = service_fn(move |mut request: Request<Incoming>| {
            let busy = Busy::new(&seen);
            if shows_peer {
                request.extensions_mut().insert(certificates.clone());
                if let Some(peer) = peer {
                    request.extensions_mut().insert(peer);
                }
            }
            let response = respond(&service, &path, request, peer, &memo);
            async move { Ok::<_, Infallible>(response.await.map(|body| Tracked { body, _busy: busy })) }
        });
        let settings = self.service.settings();
        let (stream, limit) = Stalling::new(stream, settings.stall_timeout);
        let mut serving = HttpConnection::new(Arc::clone(&self.builders), stream, handle);
        let waker = OwnWaker::default();
        // Checked in time for either limit. Whether a first request has arrived decides which limit applies.
        let mut due = LazySleep::until(activity.last() + settings.header_timeout.min(settings.idle_timeout));
        let mut gone = pin!(self.open.ended());
        let mut leave = pin!(self.socket.leave_asked());
        let asked = loop {
            tokio::select! {
                biased;
                ended = poll_fn(|cx| waker.poll(&mut serving, cx)) => {
                    // If the connection continues, it uses another protocol.
                    limit.disarm();
                    if let Err(error) = ended {
                        tracing::debug!(error = %rescind_core::LogText::text(&error), "a connection broke");
                    }
                    return;
                }
                () = gone.as_mut() => break "the listener is gone",
                asked = leave.as_mut() => match asked {
                    Leave::Displaced => break "it made room for another",
                    // HTTP/2 sends GOAWAY; HTTP/1.1 ends after the response.
                    Leave::Drains => {
                        serving.graceful_shutdown();
                        leave.set(self.socket.leave_asked());
                    }
                },
                () = poll_fn(|cx| due.poll(cx)) => {}
            }
            let wait = if activity.requests() == 0 { settings.header_timeout } else { settings.idle_timeout };
            if activity.idle() && activity.last() + wait <= Instant::now() {
                break "nothing was asked for too long";
            }
            if !activity.idle() {
                activity.touch();
            }
            due.reset((activity.last() + wait).min(Instant::now() + settings.idle_timeout));
        };
        tracing::trace!(why = asked, "a connection is closed");
        serving.graceful_shutdown();
        let _ = tokio::time::timeout(LAST_WORDS, &mut serving).await;
    }
}

fn respond(
    service: &HttpService,
    path: &str,
    request: Request<Incoming>,
    peer: Option<PeerAddress>,
    memo: &ConnectionMemo,
) -> Responding {
    if request.version() < Version::HTTP_2 && request.headers().len() > FIELDS {
        return Responding::closing(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let version = request.version();
    let request = request.map(|body| RequestBody::own(version, body));
    service.respond(request, path, peer.map(|peer| peer.0), memo)
}

/// When a connection was last in use.
#[derive(Debug)]
pub(super) struct Activity {
    open: AtomicUsize,
    requests: AtomicUsize,
    last: Mutex<Instant>,
}

impl Default for Activity {
    fn default() -> Self {
        Self { open: AtomicUsize::new(0), requests: AtomicUsize::new(0), last: Mutex::new(Instant::now()) }
    }
}

impl Activity {
    fn idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A request whose response is not complete yet.
struct Busy(Arc<Activity>);

impl Busy {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.open.fetch_add(1, Ordering::Relaxed);
        activity.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that prevents its connection from counting as idle.
pub(super) struct Tracked {
    body: ResponseBody,
    _busy: Busy,
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Stalled;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stalled>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

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

/// The source of a server's streams.
pub(super) enum Source {
    Socket(TcpListener),
    #[cfg(feature = "verify")]
    Given(tokio::sync::mpsc::UnboundedReceiver<Box<dyn crate::GivenStream>>),
}

/// A stream that a server accepted.
pub(super) enum Accepted {
    Socket(TcpStream),
    #[cfg(feature = "verify")]
    Given(Box<dyn crate::GivenStream>),
}

impl Accepted {
    /// The address of the client.
    pub(super) fn peer(&self) -> Option<PeerAddress> {
        match self {
            Self::Socket(stream) => stream.peer_addr().ok().map(|peer| PeerAddress(peer.ip())),
            #[cfg(feature = "verify")]
            Self::Given(_) => None,
        }
    }
}

impl Source {
    /// Whether the streams are supplied by a test. Then the sent bytes must not depend on the time of day.
    pub(super) const fn is_given(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            #[cfg(feature = "verify")]
            Self::Given(_) => true,
        }
    }

    /// The next stream.
    ///
    /// # Cancel safety
    /// Dropping the future loses no stream.
    pub(super) async fn accept(&mut self) -> io::Result<Accepted> {
        match self {
            Self::Socket(socket) => socket.accept().await.map(|(stream, _)| Accepted::Socket(stream)),
            #[cfg(feature = "verify")]
            Self::Given(given) => match given.recv().await {
                Some(stream) => Ok(Accepted::Given(stream)),
                None => std::future::pending().await,
            },
        }
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
