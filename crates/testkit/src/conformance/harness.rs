use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{
    BoxFuture, CloseReason, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, TransportError,
    TransportEvent,
};

/// After so long a wait counts as a hang.
pub const HANG: Duration = Duration::from_secs(30);

/// Connects the wire under test.
pub trait Harness: Debug + Sync {
    /// Two ends of a fresh connection.
    fn connect(&self) -> impl Future<Output = (Link, Link)> + Send;

    /// One end of a fresh connection and the bare bytes of the other. A wire without them leaves out the rules that ask for
    /// them, by name.
    fn connect_raw(&self) -> impl Future<Output = Option<(Link, Box<dyn RawBytes>)>> + Send {
        async { None }
    }

    /// Whether frames of one lane keep their order. On a wire where each frame goes for itself, say `false`: then each comes
    /// whole and once.
    fn keeps_order(&self) -> bool {
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

    /// Where the wire itself answers a frame it does not take, as HTTP does: waits for that answer to the last frame, and says
    /// `true` if it refuses. `false`: the link is told, and its driver answers.
    fn refused(&mut self) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
}

/// What is still to come, in its order where the wire keeps one.
pub(super) struct Expected {
    bodies: VecDeque<String>,
    in_order: bool,
}

impl Expected {
    pub(super) fn new(harness: &impl Harness, bodies: impl IntoIterator<Item = String>) -> Self {
        Self { bodies: bodies.into_iter().collect(), in_order: harness.keeps_order() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Strikes a body out; one that is not expected, or not yet, fails the test.
    pub(super) fn take(&mut self, body: &[u8]) {
        let place = self.bodies.iter().position(|expected| expected.as_bytes() == body);
        let is_next = place.is_some_and(|place| place == 0 || !self.in_order);
        assert!(is_next, "a frame is torn, missing, doubled or out of order: {:.40}", body.escape_ascii());
        place.and_then(|place| self.bodies.remove(place));
    }
}

/// Fails a test that waits for ever.
pub(super) async fn in_time<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, wait).await.unwrap_or_else(|_| panic!("hangs: {what}"))
}

/// One end, and the bare bytes of the other. A harness without them fails, so that no rule passes without having run.
pub(super) async fn raw(harness: &impl Harness) -> (Link, Box<dyn RawBytes>) {
    let connected = in_time("connecting bare bytes", harness.connect_raw()).await;
    connected.unwrap_or_else(|| panic!("{harness:?} has no bare bytes: leave this rule out with a reason"))
}

/// A frame to send.
pub(super) fn frame(kind: FrameKind, lane: Lane, body: impl Into<Bytes>) -> Outbound {
    let method = Some(Arc::from("conformance"));
    let head = FrameInfo { kind, id: None, method };
    Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
}

/// A notification of the bulk lane.
pub(super) fn note(body: impl Into<Bytes>) -> Outbound {
    frame(FrameKind::Notification, Lane::Data, body)
}

/// The next event.
pub(super) async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
}

/// The next frame; anything else fails the test, but for what a link of many clients is told of requests that were open.
pub(super) async fn body(link: &mut Link) -> Bytes {
    loop {
        match event(link).await {
            Some(Ok(TransportEvent::Message(inbound))) => return inbound.body,
            Some(Ok(TransportEvent::ExchangeClosed { .. })) if link.traits.exchange_scoped => {}
            other => panic!("expected a frame, got {other:?}"),
        }
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
