//! Reading the body of a request, with a limit of bytes and of time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use rescind_core::{ByteBudget, Deviation, HeldBytes, TransportEvent};

use super::refusal::Refused;
use crate::collect_body::{CollectError, whole_within};
use crate::inbound_queue::poll_piece;
use crate::server::checks::HeadFields;

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
        Err(CollectError::TooLarge) => Err(Refused::too_large(limit)),
        Err(CollectError::MemoryFull) => Err(Refused::memory()),
        Err(CollectError::Broken(_, _)) => Err(Refused::bad("the body broke off")),
    }
}
