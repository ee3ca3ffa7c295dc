//! The end of a connection whose credential has expired (W4).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rescind_core::{TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tokio_tungstenite::tungstenite::Message;

use super::receiver::poll_drained;
use super::{CloseState, LinkInner, LinkState, codes};

/// The time for the peer to read the close frame and to answer it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The timer of the credential.
pub(super) struct Expiry(Pin<Box<Sleep>>);

impl Expiry {
    pub(super) fn new(at: Instant) -> Self {
        Self(Box::pin(tokio::time::sleep_until(at.into())))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

/// Ends the connection. Both halves get the error.
pub(super) fn expire<S>(inner: &Arc<LinkInner<S>>, state: &mut LinkState<S>) -> TransportError
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let closing = state.send(Message::Close(Some(codes::frame_of_expiry()))).is_ok();
    let error = TransportError::new(TransportErrorKind::Closed, "the credential of the client has expired");
    let error = state.fail(error);
    if closing {
        tokio::spawn(close(Arc::clone(inner)));
    }
    error
}

async fn close<S: AsyncRead + AsyncWrite + Unpin>(inner: Arc<LinkInner<S>>) {
    let closed = poll_fn(|cx| {
        let mut state = inner.lock();
        let stream = &mut state.stream;
        if futures_util::Sink::poll_flush(Pin::new(&mut *stream), cx)?.is_pending() {
            return Poll::Pending;
        }
        // The peer's close frame, or the end of its input, is the last input.
        let _ = Pin::new(stream.get_mut()).poll_shutdown(cx);
        poll_drained(stream.get_mut(), cx).map(Ok::<_, tokio_tungstenite::tungstenite::Error>)
    });
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    inner.lock().close_state = CloseState::Closed;
}
