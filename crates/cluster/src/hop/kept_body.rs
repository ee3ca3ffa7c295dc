//! The body of a request that can be sent again if the other node shows that it has not begun with it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use rescind_http::RoutedBody;

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
pub(super) struct Again(Arc<Mutex<Kept>>);

/// A body that can be had again.
pub(super) fn keep(body: RoutedBody) -> (RoutedBody, Again) {
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
    pub(super) fn body(self) -> Option<(RoutedBody, Self)> {
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
    use super::*;
    use http_body_util::{Full, StreamBody};

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
