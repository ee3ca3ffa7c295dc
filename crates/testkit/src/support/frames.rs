//! Frames at the end of a link that no peer drives.

use std::future::poll_fn;

use bytes::Bytes;
use rescind_core::{ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, TransportError, TransportEvent};

/// A notification without an exchange.
pub fn note(lane: Lane, body: impl Into<Bytes>) -> Outbound {
    let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
    Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
}

/// Sends a note on the data lane, and flushes it.
///
/// # Errors
/// Those of the link.
///
/// # Cancel safety
/// The frame may have been sent if the future is dropped.
pub async fn send(link: &mut Link, body: impl Into<Bytes>) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_ready(Lane::Data, cx)).await?;
    link.tx.as_mut().start_send(note(Lane::Data, body))?;
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

/// The next event. `None` at the end.
///
/// # Cancel safety
/// No event is lost if the future is dropped.
pub async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
}

/// The body of the next message.
///
/// # Panics
/// If another event comes, or the end.
///
/// # Cancel safety
/// No event is lost if the future is dropped.
pub async fn body(link: &mut Link) -> Bytes {
    match event(link).await {
        Some(Ok(TransportEvent::Message(inbound))) => inbound.body,
        other => panic!("expected a frame, got {other:?}"),
    }
}
