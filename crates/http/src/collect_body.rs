//! Reads a whole body, with a size limit.

use std::future::poll_fn;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use rescind_core::{ByteBudget, MemoryFull, PartialFrame};

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum CollectError<E> {
    /// It is over the limit.
    TooLarge,
    /// It broke off.
    Broken(E),
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
    let mut partial: Option<PartialFrame> = None;
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let Ok(data) = frame.map_err(CollectError::Broken)?.into_data() else { continue };
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
        if more.is_empty() {
            more.extend_from_slice(&std::mem::take(&mut first));
        }
        more.extend_from_slice(&data);
    }
    Ok(if more.is_empty() { first } else { more.freeze() })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    async fn of(pieces: &'static [&'static str], limit: usize) -> Result<Bytes, CollectError<Infallible>> {
        let frames = pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        whole(StreamBody::new(stream::iter(frames)), limit).await
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
    async fn one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"one");
        let read = whole(Full::new(piece.clone()), 3).await.unwrap();
        assert_eq!(read.as_ptr(), piece.as_ptr());
    }
}
