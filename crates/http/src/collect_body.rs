//! Reads a whole body, with a size limit.

use std::future::poll_fn;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http_body::{Body, SizeHint};
use http_body_util::BodyExt;
use rescind_core::{ByteBudget, MemoryFull, Outbound, PartialFrame, TransportError, TransportErrorKind};

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum CollectError<E> {
    /// It is over the limit.
    TooLarge,
    /// It broke off after these bytes.
    Broken(E, Bytes),
    /// There was no memory for the rest of it in time.
    MemoryFull,
}

/// Reads a body to its end. A body that arrives in one piece, as nearly all do, is not copied. The limit, in bytes,
/// bounds the memory, whatever length was announced.
///
/// # Cancel safety
/// If the future is dropped, the bytes that were read are lost.
pub(crate) async fn whole<B: Body<Data = Bytes>>(
    body: B,
    limit: usize,
) -> Result<Bytes, CollectError<B::Error>> {
    whole_within(body, limit, &ByteBudget::default()).await
}

/// The same, with a budget that counts the bytes. If the budget is full, reading waits, except for small bodies.
pub(crate) async fn whole_within<B: Body<Data = Bytes>>(
    body: B,
    limit: usize,
    budget: &ByteBudget,
) -> Result<Bytes, CollectError<B::Error>> {
    let mut body = pin!(body);
    let announced = announced(&body.size_hint(), limit);
    let mut partial: Option<PartialFrame> = None;
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let data = match frame {
            Ok(frame) => frame.into_data(),
            Err(error) => {
                let read = if more.is_empty() { first } else { more.freeze() };
                return Err(CollectError::Broken(error, read));
            }
        };
        let Ok(data) = data else { continue };
        let read = first.len() + more.len();
        if read + data.len() > limit {
            return Err(CollectError::TooLarge);
        }
        if read > 0 {
            let partial = partial.get_or_insert_with(|| PartialFrame::new(&budget.child(usize::MAX)));
            let grown = poll_fn(|cx| partial.poll_grow(read, data.len(), cx)).await;
            grown.map_err(|MemoryFull| CollectError::MemoryFull)?;
        }
        if first.is_empty() && more.is_empty() {
            first = data;
            continue;
        }
        make_room(&mut more, read + data.len(), announced);
        if more.is_empty() {
            more.extend_from_slice(&std::mem::take(&mut first));
        }
        more.extend_from_slice(&data);
    }
    Ok(if more.is_empty() { first } else { more.freeze() })
}

/// The length that was announced, but no more than can be taken: a longer body is refused.
fn announced(hint: &SizeHint, limit: usize) -> Option<usize> {
    hint.exact().and_then(|length| usize::try_from(length).ok()).map(|length| length.min(limit))
}

/// Makes room for this many bytes. A body whose length was announced gets exact memory, as it arrives. A buffer that
/// doubles would take up to three times as much.
fn make_room(more: &mut BytesMut, needed: usize, announced: Option<usize>) {
    let Some(announced) = announced.filter(|announced| *announced >= needed) else { return };
    if more.capacity() < needed {
        let mut larger = BytesMut::with_capacity(PartialFrame::buffer_size(announced, needed));
        larger.extend_from_slice(more);
        *more = larger;
    }
}

/// Checks that a frame is within the limit, in bytes.
///
/// # Errors
/// The frame is larger. The error names its exchange; nothing was sent.
pub(crate) fn check_size(out: &Outbound, limit: usize) -> Result<(), TransportError> {
    if out.body.len() <= limit {
        return Ok(());
    }
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    let error = TransportError::new(TransportErrorKind::TooLarge, text);
    Err(TransportError { exchange: Some(out.exchange), ..error })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    async fn of(pieces: &'static [&'static str], limit: usize) -> Result<Bytes, CollectError<Infallible>> {
        let frames = pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        whole(StreamBody::new(stream::iter(frames)), limit).await
    }

    /// A body that announces this length, whatever it has.
    struct Announcing(u64, Vec<Bytes>);

    impl Body for Announcing {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.1.pop().map(|piece| Ok(Frame::data(piece))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    #[tokio::test]
    async fn no_room_is_made_for_more_than_the_limit() {
        const LIMIT: usize = 100_000;
        let pieces = || vec![Bytes::from(vec![b'x'; 40_000]); 2];
        for announced in [80_000, 400_000] {
            let body = whole(Announcing(announced, pieces()), LIMIT).await.unwrap();
            assert_eq!(body.len(), 80_000);
            let room = Vec::from(body).capacity();
            assert!(room <= LIMIT, "{announced} were announced, and {room} reserved");
        }
    }

    #[tokio::test]
    async fn pieces_are_put_together_up_to_the_limit() {
        for (pieces, whole) in [
            (&[][..], Some("")),
            (&["", "", "a"], Some("a")),
            (&["one"], Some("one")),
            (&["one", "", "two"], Some("onetwo")),
            (&["on", "e", "tw", "o"], Some("onetwo")),
            (&["onetwo", "3"], None),
            (&["onetwo3"], None),
        ] {
            let read = of(pieces, 6).await;
            match whole {
                Some(whole) => assert_eq!(read.unwrap(), whole, "{pieces:?}"),
                None => assert!(matches!(read, Err(CollectError::TooLarge)), "{pieces:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_body_whose_length_was_announced_gets_exact_memory() {
        /// A body that announces this length.
        struct Announced<B>(B, u64);
        impl<B: Body<Data = Bytes> + Unpin> Body for Announced<B> {
            type Data = Bytes;
            type Error = B::Error;

            fn poll_frame(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<Frame<Bytes>, B::Error>>> {
                std::pin::Pin::new(&mut self.0).poll_frame(cx)
            }

            fn size_hint(&self) -> http_body::SizeHint {
                http_body::SizeHint::with_exact(self.1)
            }
        }
        let text: Vec<u8> = (b'a'..=b'z').cycle().take(1_000_003).collect();
        for (announced, is_exact) in [(text.len(), true), (1, false), (1 << 30, false)] {
            let frames: Vec<_> = text
                .chunks(10_000)
                .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
                .collect();
            let body = Announced(StreamBody::new(stream::iter(frames)), announced as u64);
            let read = whole(body, 1 << 30).await.unwrap();
            assert_eq!(read, text, "{announced}");
            let room = read.try_into_mut().unwrap().capacity();
            assert!(
                if is_exact { room == text.len() } else { room <= 5 * text.len() },
                "{announced}: {room}"
            );
        }
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"one");
        let read = whole(Full::new(piece.clone()), 3).await.unwrap();
        assert_eq!(read.as_ptr(), piece.as_ptr());
    }
}
