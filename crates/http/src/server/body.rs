//! Reading the body of a request, with a limit of bytes and of time.
//!
//! # The body of a response
//!
//! It is empty, one message, or a stream of events.
//!
//! # A response of one message
//!
//! It is sent in pieces, and dropped if its reader takes nothing for too long.
//!
//! Over HTTP/2 a client can leave one stream unread forever on a healthy connection. The HTTP library does not poll
//! the body of such a stream, so a separate task watches the time.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use rescind_core::{ByteBudget, Deviation, HeldBytes, TransportEvent};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::envelope::{CollectError, EVENT_STREAM, JSON, whole_within};
use crate::inbound_queue::poll_piece;
use crate::server::checks::{HeadFields, Refused};
use crate::server::sessions::RoutedBody;
use crate::sync::{AbortHandle, LazySleep, Mutex, MutexGuard, spawn};

/// A body of at most this many bytes is read even if memory is full: cancels and common answers are not larger.
const SMALL: usize = 16 * 1024;
/// The largest message that opens a session, in bytes.
pub(crate) const OPENING: usize = 64 * 1024;

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// The most bytes of a body that a report about its byte order mark keeps.
const SHOWN: usize = 200;

/// The body of a request, from our own HTTP server or another one.
pub(crate) enum RequestBody {
    /// From our own HTTP server.
    Http1(Incoming),
    /// The same, over HTTP/2.
    Http2(Incoming),
    /// From the HTTP server in which the service is mounted.
    Other(UnsyncBoxBody<Bytes, Broken>),
}

/// A body that broke off. The cause is not used.
#[derive(Debug, thiserror::Error)]
#[error("the body broke off")]
pub(crate) struct Broken;

impl RequestBody {
    /// The body of a request that our own HTTP server received.
    pub(super) fn own(version: Version, body: Incoming) -> Self {
        if version < Version::HTTP_2 { Self::Http1(body) } else { Self::Http2(body) }
    }

    /// The body of a request that another HTTP server received.
    pub(crate) fn other<B: Body<Data = Bytes> + Send + 'static>(body: B) -> Self {
        Self::Other(body.map_err(|_| Broken).boxed_unsync())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Http1(body) => poll_piece(body, cx).map_err(|_| Broken),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(|_| Broken),
            Self::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) | Self::Http2(body) => body.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) | Self::Http2(body) => body.size_hint(),
            Self::Other(body) => body.size_hint(),
        }
    }
}

/// Refuses a length over the limit before a byte is read. HTTP/1.1 must declare how the body ends.
pub(crate) fn check_length(version: Version, fields: &HeadFields<'_>, limit: usize) -> Result<(), Refused> {
    let is_open = fields.content_length.is_absent() && fields.transfer_encoding.is_absent();
    if is_open && version < Version::HTTP_2 {
        return Err(Refused::length_required());
    }
    if fields.length().is_some_and(|length| length > limit.try_into().unwrap_or(u64::MAX)) {
        return Err(Refused::too_large(limit));
    }
    Ok(())
}

/// Refuses a large body before a byte is read, if its session has no room for it. A small body is read, because it may
/// be a cancel.
pub(crate) fn check_room(fields: &HeadFields<'_>, budget: &ByteBudget) -> Result<(), Refused> {
    let length = fields.length().and_then(|length| length.try_into().ok()).unwrap_or(0);
    if length > SMALL && !budget.has_room(length) { Err(Refused::memory()) } else { Ok(()) }
}

/// A body without the byte order mark before it, which some libraries write.
pub(crate) fn without_mark(body: &Bytes) -> Bytes {
    if body.starts_with(BYTE_ORDER_MARK) { body.slice(BYTE_ORDER_MARK.len()..) } else { body.clone() }
}

/// Drops the byte order mark before a body. Returns the report of it, for the driver of a link that takes the message.
pub(crate) fn drop_mark(body: &mut Bytes) -> Option<TransportEvent> {
    if !body.starts_with(BYTE_ORDER_MARK) {
        return None;
    }
    let start = body.get(..SHOWN).unwrap_or(body);
    let sent = Bytes::copy_from_slice(start);
    *body = without_mark(body);
    Some(TransportEvent::Deviation { deviation: Deviation::ByteOrderMark, sent })
}

/// Reads the whole body and holds its bytes in the budget. A small body is read even if the budget is full.
pub(crate) async fn read(
    body: RequestBody,
    limit: usize,
    within: Duration,
    budget: &ByteBudget,
) -> Result<(Bytes, HeldBytes), Refused> {
    let mut reading = pin!(whole_within(body, limit, budget));
    // Most bodies arrive with the head and are complete at the second poll at the latest. Only the others need a timer.
    let mut looked = false;
    let early = poll_fn(|cx| match reading.as_mut().poll(cx) {
        Poll::Ready(read) => Poll::Ready(Some(read)),
        Poll::Pending if std::mem::replace(&mut looked, true) => Poll::Ready(None),
        Poll::Pending => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    });
    let read = match early.await {
        Some(read) => read,
        // Boxed, so that the future of each request is smaller.
        None => {
            Box::pin(tokio::time::timeout(within, reading)).await.map_err(|_| Refused::body_too_slow())?
        }
    };
    match read {
        Ok(body) => {
            let held = budget.hold(body.len());
            Ok((body, held))
        }
        Err(CollectError::TooLarge(..)) => Err(Refused::too_large(limit)),
        Err(CollectError::MemoryFull) => Err(Refused::memory()),
        Err(CollectError::Broken(_, _) | CollectError::Silent(_)) => Err(Refused::bad("the body broke off")),
    }
}

/// The source of the events of a stream.
pub(crate) trait EventSource: Send + Sync + 'static {
    /// The next event, encoded. `None`: the stream has ended. A reader that was displaced by another gets `None`.
    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;

    /// Called once, when the response is dropped, however much of it was read.
    fn left(&self, reader: u64);
}

/// The most bytes of a body that hyper gets at once. It takes a whole piece even if the client's window has room for
/// only one byte, so this bounds what it holds for a client that does not read.
const PIECE: usize = 64 * 1024;
/// As many headers as requests usually have.
const USUAL_HEADERS: usize = 12;

/// The body of every response of this crate.
#[must_use]
pub struct ResponseBody(Inner);

enum Inner {
    Full(Full),
    Events(Events),
    /// The response of another process, passed on as it arrives.
    Routed(RoutedBody),
}

struct Events {
    feed: Arc<dyn EventSource>,
    reader: u64,
    /// The rest of the event that is being sent.
    rest: Bytes,
    over: bool,
    keep_alive: Duration,
    /// When to check whether a comment is due. Created with the first wait.
    due: Option<LazySleep>,
    /// When the last event arrived, if that was after the timer was set.
    silent_since: Option<Instant>,
    /// When the response ends even though the stream has not ended.
    until: Option<LazySleep>,
    /// The same, even while there are events: the credential of its request expires.
    expires: Option<LazySleep>,
}

impl ResponseBody {
    pub(crate) const fn empty() -> Self {
        Self(Inner::Full(Full::empty()))
    }

    pub(crate) fn full(body: Bytes) -> Self {
        Self(Inner::Full(Full::new(body)))
    }

    pub(crate) fn routed(body: RoutedBody) -> Self {
        Self(Inner::Routed(body))
    }

    /// Drops a message if its reader takes nothing for this time.
    pub(crate) fn cut_after(mut self, stall_timeout: Duration) -> Self {
        if let Inner::Full(body) = &mut self.0 {
            body.cut_after(stall_timeout);
        }
        self
    }

    /// A stream that informs its feed when it is dropped.
    pub(crate) fn events(
        feed: Arc<dyn EventSource>,
        reader: u64,
        keep_alive: Duration,
        until: Option<Duration>,
    ) -> Self {
        let until = until.map(LazySleep::new);
        Self(Inner::Events(Events {
            feed,
            reader,
            rest: Bytes::new(),
            over: false,
            keep_alive,
            due: None,
            silent_since: None,
            until,
            expires: None,
        }))
    }

    /// Ends a stream at this time, as if its client had lost it.
    pub(crate) fn expires(mut self, at: Instant) -> Self {
        match &mut self.0 {
            Inner::Full(_) | Inner::Routed(_) => {}
            Inner::Events(events) => events.expires = Some(LazySleep::until(at)),
        }
        self
    }
}

impl Events {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.rest.is_empty() {
            match ready!(self.poll_event(cx)) {
                Some(event) => self.rest = event,
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(piece(&mut self.rest)))
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.over {
            return Poll::Ready(None);
        }
        if self.expires.as_mut().is_some_and(|expires| expires.poll(cx).is_ready()) {
            self.over = true;
            return Poll::Ready(None);
        }
        match self.feed.poll_next(self.reader, cx) {
            Poll::Ready(event) => {
                self.over = event.is_none();
                self.silent_since = self.due.as_ref().map(|_| Instant::now());
                Poll::Ready(event)
            }
            Poll::Pending => {
                if self.until.as_mut().is_some_and(|until| until.poll(cx).is_ready()) {
                    self.over = true;
                    return Poll::Ready(None);
                }
                let wait = self.keep_alive;
                let due = self.due.get_or_insert_with(|| LazySleep::new(wait));
                loop {
                    if due.poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    // The timer is not moved with each event, so it may end too early.
                    let Some(since) = self.silent_since.take() else { break };
                    due.reset(since + wait);
                }
                due.reset(Instant::now() + wait);
                // The connection polls again after this is written. That poll registers the waker with the timer.
                Poll::Ready(Some(Bytes::from_static(b":\n\n")))
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.feed.left(self.reader);
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Stalled;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stalled>>> {
        let next = match &mut self.0 {
            Inner::Full(body) => Poll::Ready(body.next().transpose()),
            Inner::Events(events) => events.poll_next(cx).map(|event| event.map(Ok)),
            Inner::Routed(body) => return Pin::new(body).poll_frame(cx).map_err(|_| Stalled),
        };
        next.map(|bytes| bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Full(body) => body.left() == 0,
            Inner::Events(events) => events.over && events.rest.is_empty(),
            Inner::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(body) => SizeHint::with_exact(body.left().try_into().unwrap_or(u64::MAX)),
            Inner::Events(_) => SizeHint::default(),
            Inner::Routed(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            Inner::Full(_) => "Full",
            Inner::Events(_) => "Events",
            Inner::Routed(_) => "Routed",
        };
        f.debug_tuple("ResponseBody").field(&name).finish()
    }
}

/// Takes the next piece of the rest.
pub(super) fn piece(rest: &mut Bytes) -> Bytes {
    if rest.len() <= PIECE { std::mem::take(rest) } else { rest.split_to(PIECE) }
}

/// A response without a body.
pub(crate) fn plain(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    response
}

/// A response without a body that closes its connection.
pub(crate) fn closing(status: StatusCode) -> Response<ResponseBody> {
    let mut response = plain(status);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A response with one message.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = status;
    // The connection keeps the map for the headers of its next request.
    let mut headers = HeaderMap::with_capacity(USUAL_HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    *response.headers_mut() = headers;
    response
}

/// A response with a stream of events.
pub(crate) fn events(
    feed: Arc<dyn EventSource>,
    reader: u64,
    keep_alive: Duration,
    until: Option<Duration>,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::events(feed, reader, keep_alive, until));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    // A buffering proxy would hold events back.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The task that waits is woken at the end of the wait and polls at once. If it polls later than this, it had no data
/// frames to send in between, or its runtime was blocked, which is not the client's fault. Then the wait starts again.
const SOON: Duration = Duration::from_secs(1);

/// How long data frames have had no room, and when that is too long. It is only checked when a data frame is to be
/// sent.
#[derive(Debug, Default)]
pub(crate) struct StallTimer(Option<(Instant, Pin<Box<Sleep>>)>);

impl StallTimer {
    /// Called when data frames have room.
    pub(crate) fn renew(&mut self) {
        self.0 = None;
    }

    /// Ready when there was no room for this time; returns when that began. Then it starts again.
    pub(crate) fn poll_end(&mut self, wait: Duration, cx: &mut Context<'_>) -> Poll<Instant> {
        loop {
            let (since, due) =
                self.0.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(wait))));
            ready!(due.as_mut().poll(cx));
            let (since, late) = (*since, due.deadline().elapsed());
            self.0 = None;
            if late < SOON {
                return Poll::Ready(since);
            }
        }
    }
}

/// Fails a write that makes no progress for this time, which frees the socket and the data that waits for it.
pub(super) struct Stalling<S> {
    io: S,
    limit: Duration,
    /// When the pending write has waited too long.
    due: Option<Pin<Box<Sleep>>>,
    lifted: Arc<AtomicBool>,
}

/// Removes the limit of a socket that now uses another protocol with its own limits.
#[derive(Clone, Debug)]
pub(super) struct Disarm(Arc<AtomicBool>);

impl Disarm {
    pub(super) fn disarm(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<S> Stalling<S> {
    pub(super) fn new(io: S, limit: Duration) -> (Self, Disarm) {
        let lifted = Arc::<AtomicBool>::default();
        (Self { io, limit, due: None, lifted: Arc::clone(&lifted) }, Disarm(lifted))
    }

    /// Checks the result of a write.
    fn watch<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() || self.lifted.load(Ordering::Relaxed) {
            self.due = None;
            return wrote;
        }
        let limit = self.limit;
        let due = self.due.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if due.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.watch(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.watch(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.watch(cx, shut)
    }
}

/// A message of at most this many bytes is not watched: a connection has at most 1024 streams, and the bytes that they
/// hold are counted.
const UNWATCHED: usize = 4 * 1024;

/// The rest of a response was dropped: its reader took nothing for too long, or the process that sent it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response was dropped before its end")]
pub struct Stalled;

/// A message that is being sent.
pub(super) struct Full {
    /// The announced bytes that the reader has not received yet.
    left: usize,
    body: Pieces,
}

enum Pieces {
    Small(Bytes),
    Watched { shared: Arc<Mutex<Shared>>, watch: AbortHandle },
}

struct Shared {
    /// `None`: it was dropped.
    rest: Option<Bytes>,
    moved: Instant,
}

impl Full {
    pub(super) const fn empty() -> Self {
        Self { left: 0, body: Pieces::Small(Bytes::new()) }
    }

    pub(super) fn new(body: Bytes) -> Self {
        Self { left: body.len(), body: Pieces::Small(body) }
    }

    /// The bytes that are still to be sent.
    pub(super) const fn left(&self) -> usize {
        self.left
    }

    /// Drops the message if none of it is taken for this time.
    pub(super) fn cut_after(&mut self, stall_timeout: Duration) {
        let Pieces::Small(rest) = &mut self.body else { return };
        if rest.len() <= UNWATCHED {
            return;
        }
        let rest = Some(std::mem::take(rest));
        let shared = Arc::new(Mutex::new(Shared { rest, moved: Instant::now() }));
        let watched = Arc::clone(&shared);
        let watch = spawn(async move {
            loop {
                let moved = lock(&watched).moved;
                tokio::time::sleep_until(moved + stall_timeout).await;
                let mut shared = lock(&watched);
                if shared.moved == moved {
                    let rest = shared.rest.take();
                    drop(shared);
                    drop(rest);
                    return;
                }
            }
        });
        self.body = Pieces::Watched { shared, watch: watch.abort_handle() };
    }

    /// The next piece. `None`: all pieces were sent.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Stalled> {
        if self.left == 0 {
            return Ok(None);
        }
        let piece = match &mut self.body {
            Pieces::Small(rest) => piece(rest),
            Pieces::Watched { shared, .. } => {
                let mut shared = lock(shared);
                shared.moved = Instant::now();
                piece(shared.rest.as_mut().ok_or(Stalled)?)
            }
        };
        self.left -= piece.len();
        Ok(Some(piece))
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Full {
    fn drop(&mut self) {
        if let Pieces::Watched { watch, .. } = &self.body {
            watch.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use rescind_core::ByteBudget;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    async fn end(timer: &mut StallTimer) -> Instant {
        poll_fn(|cx| timer.poll_end(WAIT, cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_expires_and_restarts() {
        let (mut timer, begun) = (StallTimer::default(), Instant::now());
        assert_eq!(end(&mut timer).await, begun);
        assert_eq!(begun.elapsed(), WAIT);
        assert_eq!(end(&mut timer).await, begun + WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unawaited_expiry_does_not_count() {
        let mut timer = StallTimer::default();
        assert!(tokio::time::timeout(WAIT / 2, end(&mut timer)).await.is_err());
        tokio::time::sleep(WAIT * 2).await;
        let again = Instant::now();
        assert_eq!(end(&mut timer).await, again);
        assert_eq!(again.elapsed(), WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn free_room_restarts_the_stall_timer() {
        let mut timer = StallTimer::default();
        assert!(tokio::time::timeout(WAIT / 2, end(&mut timer)).await.is_err());
        timer.renew();
        let again = Instant::now();
        assert_eq!(end(&mut timer).await, again);
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_makes_no_progress_fails_in_time() {
        let (near, mut far) = tokio::io::duplex(4);
        let (mut near, _lift) = Stalling::new(near, LIMIT);
        near.write_all(b"four").await.unwrap();
        let since = Instant::now();
        let slow = async {
            tokio::time::advance(LIMIT / 2).await;
            far.read_u8().await.unwrap();
        };
        let (wrote, ()) = tokio::join!(near.write_all(b"56"), slow);
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(since.elapsed(), LIMIT + LIMIT / 2, "each step begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_without_write_timeout_waits() {
        let (near, mut far) = tokio::io::duplex(4);
        let (mut near, disarm) = Stalling::new(near, LIMIT);
        disarm.disarm();
        let late = async {
            tokio::time::advance(LIMIT * 3).await;
            let mut all = [0; 6];
            far.read_exact(&mut all).await.unwrap();
        };
        let (wrote, ()) = tokio::join!(near.write_all(b"123456"), late);
        wrote.unwrap();
    }

    const STALL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn an_unread_message_is_dropped_and_a_slowly_read_one_is_not() {
        let budget = ByteBudget::default();
        let full = || {
            let mut full = Full::new(budget.hold_frame(Bytes::from(vec![b'x'; 200_000])));
            full.cut_after(STALL);
            full
        };
        let (mut unread, mut slow) = (full(), full());
        assert_eq!(budget.used(), 400_000);
        for _ in 0..2 {
            tokio::time::sleep(STALL * 2 / 3).await;
            assert_eq!(slow.next().unwrap().unwrap().len(), 64 * 1024);
        }
        assert_eq!(budget.used(), 200_000, "the bytes of the unread one are given back");
        assert_eq!(unread.next(), Err(Stalled), "its reader gets an error");
        let mut left = slow.left();
        while let Some(piece) = slow.next().unwrap() {
            left -= piece.len();
        }
        assert_eq!((left, slow.left()), (0, 0));
        drop((unread, slow));
        tokio::task::yield_now().await;
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_small_message_goes_in_one_piece() {
        let mut full = Full::new(Bytes::from_static(b"{}"));
        full.cut_after(STALL);
        assert_eq!(full.next(), Ok(Some(Bytes::from_static(b"{}"))));
        assert_eq!(full.next(), Ok(None));
    }
}
