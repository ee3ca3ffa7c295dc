//! The body of a response, which holds its connection until it is read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response::Parts;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use rescind_core::{TransportError, TransportErrorKind};

use super::Failed;
use super::pool::Pool;
use super::refusal::cut;
use super::requester::Posted;
use crate::collect_body::CollectError;
use crate::inbound_queue::poll_piece;

/// The body of a response. If it is dropped before its end, the exchange is aborted.
pub(crate) struct ResponseBody {
    body: Incoming,
    ended: bool,
    held: Option<Held>,
}

struct Held {
    pool: Arc<Pool>,
    sender: http1::SendRequest<Posted>,
    /// Whether it is an event stream. While it is open, one connection is kept for urgent requests.
    goes_on: bool,
}

impl ResponseBody {
    pub(super) const fn shared(body: Incoming) -> Self {
        Self { body, ended: false, held: None }
    }

    pub(super) fn own(
        body: Incoming,
        pool: &Arc<Pool>,
        sender: http1::SendRequest<Posted>,
        goes_on: bool,
    ) -> Self {
        if goes_on {
            pool.begin_going_on();
        }
        let held = Held { pool: Arc::clone(pool), sender, goes_on };
        Self { body, ended: false, held: Some(held) }
    }

    fn end(&mut self) {
        let Some(Held { pool, sender, goes_on }) = self.held.take() else { return };
        if goes_on {
            pool.end_going_on();
        }
        if self.is_end_stream() {
            pool.give_back(sender);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let frame = match this.held {
            Some(_) => poll_piece(&mut this.body, cx),
            None => Pin::new(&mut this.body).poll_frame(cx),
        };
        self.ended |= matches!(frame, Poll::Ready(None));
        // From now on another request can use the connection.
        if frame.is_ready() && self.is_end_stream() {
            self.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.end();
    }
}

/// The error of a response without a complete message. `address` is the one that was asked first.
pub(crate) fn unread(head: &Parts, address: &str, error: CollectError<hyper::Error>) -> Failed {
    let error = match error {
        CollectError::TooLarge => {
            TransportError::new(TransportErrorKind::Io, "the response is over the limit")
        }
        CollectError::Broken(error, read) => return cut(head, address, &error, &read),
        CollectError::MemoryFull => {
            TransportError::new(TransportErrorKind::TooLarge, "the limit memory is reached")
        }
    };
    Failed { sent: true, error }
}
