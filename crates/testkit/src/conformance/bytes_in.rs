//! Rules for incoming bytes.

use rescind_core::TransportEvent;

use super::harness::{Harness, body, event, raw};
use crate::support::in_time;

/// Frames that arrive one byte at a time are read as the same frames.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn one_byte_at_a_time(harness: &impl Harness) {
    let (mut link, mut raw) = raw(harness).await;
    let bodies: [&[u8]; 3] = [b"{\"id\":1}", b"{\"method\":\"m\"}", b"[1,2,3]"];
    let wire: Vec<u8> = bodies.iter().flat_map(|body| raw.frame(body)).collect();
    let write = async {
        for byte in wire {
            raw.write(&[byte]).await.expect("the peer can write");
            tokio::task::yield_now().await;
        }
    };
    let read = async {
        for expected in bodies {
            assert_eq!(body(&mut link).await, expected);
        }
    };
    in_time("frames one byte at a time", async { tokio::join!(write, read) }).await;
}

/// Input that ends inside a frame ends the input. It does not hang, and at most one refusal or one part of a frame
/// comes before the end.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn end_of_input_inside_a_frame(harness: &impl Harness) {
    let (mut link, mut raw) = raw(harness).await;
    let whole = raw.frame(b"{\"id\":1}");
    let cut = whole.len() - 3;
    let wire = [&raw.frame(b"[]"), whole.get(..cut).unwrap_or_default()].concat();
    let write = async {
        raw.write(&wire).await.expect("the peer can write");
        raw.end().await.expect("the peer can end its output");
    };
    let read = async {
        assert_eq!(body(&mut link).await, "[]", "the whole frame before the cut one");
        let mut parts = 0;
        loop {
            match event(&mut link).await {
                Some(Ok(TransportEvent::Message(inbound))) => {
                    assert!(whole.windows(inbound.body.len()).any(|part| part == inbound.body));
                    parts += 1;
                }
                Some(Ok(TransportEvent::Rejected { .. })) => parts += 1,
                Some(Ok(TransportEvent::HalfClosed) | Err(_)) | None => break,
                Some(Ok(other)) => panic!("unexpected {other:?}"),
            }
        }
        assert!(parts <= 1, "a truncated frame was reported {parts} times");
    };
    in_time("the end of input inside a frame", async { tokio::join!(write, read) }).await;
}

/// A frame over the limit is refused once, by its link or by the transport, and the next frame is read.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn oversize_then_a_valid_frame(harness: &impl Harness) {
    let (mut link, mut raw) = raw(harness).await;
    let oversize = raw.frame(&vec![b'x'; link.traits.max_frame + 1]);
    let valid = raw.frame(b"{\"id\":2}");
    let write = async {
        raw.write(&oversize).await.expect("the peer can write");
        let refused = raw.refused().await;
        raw.write(&valid).await.expect("the peer can write");
        refused
    };
    let read = async {
        let mut reported = 0;
        loop {
            match event(&mut link).await {
                Some(Ok(TransportEvent::Rejected { .. })) => reported += 1,
                Some(Ok(TransportEvent::Message(inbound))) => break (reported, inbound.body),
                other => panic!("expected a refusal or the next frame, got {other:?}"),
            }
        }
    };
    let both = async { tokio::join!(write, read) };
    let (refused, (reported, next)) = in_time("an oversize frame", both).await;
    assert_eq!(reported + usize::from(refused), 1, "refusals of the oversize frame");
    assert_eq!(next, "{\"id\":2}");
}

/// Bytes that are not valid UTF-8 are passed on or refused, and the next frame is read.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn bad_utf8_then_a_valid_frame(harness: &impl Harness) {
    let (mut link, mut raw) = raw(harness).await;
    let bad: &[u8] = b"{\"id\":\"\xff\xc3\x28\"}";
    let (bad_frame, valid) = (raw.frame(bad), raw.frame(b"{\"id\":2}"));
    let write = async {
        raw.write(&bad_frame).await.expect("the peer can write");
        let refused = raw.refused().await;
        raw.write(&valid).await.expect("the peer can write");
        refused
    };
    let read = async {
        let mut reported = 0;
        loop {
            match event(&mut link).await {
                Some(Ok(TransportEvent::Message(inbound))) if inbound.body == "{\"id\":2}" => break reported,
                Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body, bad),
                Some(Ok(TransportEvent::Rejected { .. })) => {}
                other => panic!("expected the frame or its refusal, got {other:?}"),
            }
            reported += 1;
        }
    };
    let both = async { tokio::join!(write, read) };
    let (refused, reported) = in_time("bytes that are no text", both).await;
    assert_eq!(reported + usize::from(refused), 1, "the bad frame is passed on or refused, once");
}
