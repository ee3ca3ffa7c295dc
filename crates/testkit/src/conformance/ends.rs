//! Rules for the end of connections.

use std::future::poll_fn;

use rescind_core::{Lane, TransportEvent};

use super::harness::{Harness, body, close, event, note, read_to_end, ready, send};
use crate::support::in_time;

/// When the peer is gone, the input ends, and the output fails or closes.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_peer_that_is_gone_hangs_nobody(harness: &impl Harness) {
    let (mut a, b) = harness.connect().await;
    drop(b);
    let filler = "x".repeat(4096);
    let write = async {
        for _ in 0..4000 {
            if send(&mut a, note(format!("\"{filler}\""))).await.is_err() {
                break;
            }
        }
        // The write may fail or close, but it ends.
        let _ = close(&mut a).await;
    };
    in_time("writing to a peer that is gone", write).await;
    in_time("reading from a peer that is gone", read_to_end(&mut a)).await;
}

/// A peer that closes its output is reported as half closed and still receives what is sent to it. The link is closed
/// when both sides are.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_closed_side_still_reads(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    let ours = async {
        assert_eq!(body(&mut a).await, "\"before\"");
        match event(&mut a).await {
            Some(Ok(TransportEvent::HalfClosed)) => {}
            other => panic!("expected HalfClosed, got {other:?}"),
        }
        send(&mut a, note("\"after\"")).await.expect("output is still open");
        close(&mut a).await.expect("the wire closes");
        let end = event(&mut a).await;
        assert!(end.is_none(), "expected the end, got {end:?}");
    };
    let theirs = async {
        send(&mut b, note("\"before\"")).await.expect("the wire is open");
        close(&mut b).await.expect("the wire closes");
        assert_eq!(body(&mut b).await, "\"after\"");
        let end = event(&mut b).await;
        assert!(end.is_none(), "expected the end, got {end:?}");
    };
    let steps = async { tokio::join!(ours, theirs) };
    in_time("closing one side after the other", steps).await;
}

/// What was sent before the close arrives, and then the peer sees the end. Nothing can be sent after the close.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_closed_link_sends_nothing_more(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    let steps = async {
        poll_fn(|cx| a.tx.as_mut().poll_ready(Lane::Data, cx)).await.expect("the wire is open");
        a.tx.as_mut().start_send(note("\"last\"")).expect("the wire is open");
        let ours = async {
            close(&mut a).await.expect("the wire closes");
            close(&mut a).await.expect("closing twice is closing once");
            assert!(ready(&mut a, Lane::Data).await.is_err(), "a closed wire is not ready");
            assert!(a.tx.as_mut().start_send(note("\"late\"")).is_err(), "a closed wire takes nothing");
        };
        let theirs = async {
            let (traits, mut ended) = (b.traits, false);
            let mut reported = false;
            loop {
                match event(&mut b).await {
                    Some(Ok(TransportEvent::Message(inbound))) if !reported => {
                        assert_eq!(inbound.body, "\"last\"");
                        reported = true;
                    }
                    Some(Ok(TransportEvent::HalfClosed)) | None if reported => break,
                    // Each open exchange is reported as closed. On a link of many clients, which stays open, this is
                    // the end of the client.
                    Some(Ok(TransportEvent::ExchangeClosed { .. })) if !traits.ordered && !ended => {
                        ended = traits.exchange_scoped;
                    }
                    other => panic!("expected the last frame and the end, got {other:?}"),
                }
                if reported && ended {
                    break;
                }
            }
        };
        tokio::join!(ours, theirs);
    };
    in_time("closing", steps).await;
    drop(b);
    in_time("reading to the end", read_to_end(&mut a)).await;
}
