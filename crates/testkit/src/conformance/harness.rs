use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use rescind_core::{
    BoxFuture, CloseReason, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, TransportError,
    TransportEvent,
};

use crate::support::in_time;

/// Connects the transport under test.
pub trait Harness: Debug + Sync {
    /// Returns two ends of a new connection.
    fn connect(&self) -> impl Future<Output = (Link, Link)> + Send;

    /// Returns one end of a new connection and the raw bytes of the other. A transport without raw bytes leaves out
    /// the rules that need them, by name.
    fn connect_raw(&self) -> impl Future<Output = Option<(Link, Box<dyn RawBytes>)>> + Send {
        async { None }
    }

    /// Whether frames of one lane keep their order. Return `false` for a transport that sends each frame separately:
    /// then each frame must arrive whole and once.
    fn keeps_order(&self) -> bool {
        true
    }
}

/// The raw bytes of one end. Bytes in the other direction are dropped.
pub trait RawBytes: Send {
    /// Returns a body with the framing of this transport.
    fn frame(&self, body: &[u8]) -> Vec<u8>;

    /// Writes bytes unchanged.
    ///
    /// # Errors
    /// If the stream fails.
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;

    /// Ends the output.
    ///
    /// # Errors
    /// If the stream fails.
    fn end(&mut self) -> BoxFuture<'_, io::Result<()>>;

    /// For a transport that itself answers a frame it does not accept, as HTTP does: waits for the answer to the last
    /// frame, and returns `true` if it refuses. `false`: the link reports the frame, and its driver answers.
    fn refused(&mut self) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
}

/// The bodies that have not arrived yet, in order if the transport keeps the order.
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

    /// Removes a body. Panics if it is not expected or out of order.
    pub(super) fn take(&mut self, body: &[u8]) {
        let place = self.bodies.iter().position(|expected| expected.as_bytes() == body);
        let is_next = place.is_some_and(|place| place == 0 || !self.in_order);
        assert!(is_next, "a frame is torn, missing, doubled or out of order: {:.40}", body.escape_ascii());
        place.and_then(|place| self.bodies.remove(place));
    }
}

/// Returns one end and the raw bytes of the other. Panics for a harness without raw bytes, so that no rule passes
/// without being run.
pub(super) async fn raw(harness: &impl Harness) -> (Link, Box<dyn RawBytes>) {
    let connected = in_time("connecting bare bytes", harness.connect_raw()).await;
    connected.unwrap_or_else(|| panic!("{harness:?} has no bare bytes: leave this rule out with a reason"))
}

/// A frame to send.
pub(super) fn frame(kind: FrameKind, lane: Lane, body: impl Into<Bytes>) -> Outbound {
    let method = Some(Arc::from("conformance"));
    let head = FrameInfo { kind, id: None, method, trace: None };
    Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
}

/// A notification on the data lane.
pub(super) fn note(body: impl Into<Bytes>) -> Outbound {
    frame(FrameKind::Notification, Lane::Data, body)
}

/// The next event.
pub(super) async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
}

/// The next frame. Any other event fails the test, except the events of a link with many clients about open requests.
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

/// Reads to the end and drops everything. An error is an end too.
pub(super) async fn read_to_end(link: &mut Link) {
    while let Some(Ok(_)) = event(link).await {}
}

/// Polls once and drops the poll, as the losing branch of a `select!`.
pub(super) async fn poll_once<T>(mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(poll(cx))).await
}
