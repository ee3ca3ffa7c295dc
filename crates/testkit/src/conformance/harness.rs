use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{
    BoxFuture, CloseReason, ExchangeId, FrameKind, Head, Lane, Link, Outbound, TransportError, TransportEvent,
};

/// After so long a wait counts as a hang.
pub const HANG: Duration = Duration::from_secs(30);

/// Connects the wire under test.
pub trait Harness: Debug + Sync {
    /// Two ends of a fresh connection.
    fn connect(&self) -> impl Future<Output = (Link, Link)> + Send;

    /// One end of a fresh connection and the bare bytes of the other, where the wire is a stream of bytes.
    fn connect_raw(&self) -> impl Future<Output = Option<(Link, Box<dyn RawBytes>)>> + Send {
        async { None }
    }

    /// Whether a side that closed its output still reads; on a wire where closing ends both ways, say `false`.
    fn half_closes(&self) -> bool {
        true
    }
}

/// The bare bytes of one end. What comes the other way is dropped.
pub trait RawBytes: Send {
    /// A body with the framing of this wire.
    fn frame(&self, body: &[u8]) -> Vec<u8>;

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// The stream broke.
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;

    /// Ends the output.
    ///
    /// # Errors
    /// The stream broke.
    fn end(&mut self) -> BoxFuture<'_, io::Result<()>>;
}

/// Fails a test that waits for ever.
pub(super) async fn in_time<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, wait).await.unwrap_or_else(|_| panic!("hangs: {what}"))
}

/// What a test with raw bytes says when there are none.
pub(super) fn skipped(harness: &impl Harness) {
    println!("skipped: this wire has no byte stream ({harness:?})");
}

/// A frame to send.
pub(super) fn frame(kind: FrameKind, lane: Lane, body: impl Into<Bytes>) -> Outbound {
    let method = Some(Arc::from("conformance"));
    let head = Head { kind, id: None, method };
    Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
}

/// A notification of the bulk lane.
pub(super) fn note(body: impl Into<Bytes>) -> Outbound {
    frame(FrameKind::Notification, Lane::Bulk, body)
}

/// The next event.
pub(super) async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
}

/// The next frame; anything else fails the test.
pub(super) async fn body(link: &mut Link) -> Bytes {
    match event(link).await {
        Some(Ok(TransportEvent::Message(inbound))) => inbound.body,
        other => panic!("expected a frame, got {other:?}"),
    }
}

/// Sends one frame and flushes.
pub(super) async fn send(link: &mut Link, out: Outbound) -> Result<(), TransportError> {
    ready(link, out.lane).await?;
    link.tx.as_mut().start_send(out)?;
    flush(link).await
}

pub(super) async fn ready(link: &mut Link, lane: Lane) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_ready(lane, cx)).await
}

pub(super) async fn flush(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

pub(super) async fn close(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await
}

/// Reads to the end and drops all; an error ends it too.
pub(super) async fn read_to_end(link: &mut Link) {
    while let Some(Ok(_)) = event(link).await {}
}

/// Polls once and drops the poll, as a losing branch of a select does.
pub(super) async fn poll_once<T>(mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(poll(cx))).await
}
