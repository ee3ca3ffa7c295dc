//! Rules for frames that the transport has not accepted: they can be overtaken and taken back.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;

use rescind_core::{FrameKind, Lane, Link, Outbound};

use super::harness::{Harness, body, flush, frame, note, send};
use crate::support::in_time;

const QUEUED: usize = 4000;

/// Passes data frames to the transport until it accepts no more, at most `count`. Returns how many it accepted.
///
/// It flushes continuously, so that the operating system takes as much as it can.
async fn fill(link: &mut Link, count: usize, make: impl Fn(usize) -> Outbound) -> usize {
    let mut taken = 0;
    poll_fn(|cx| {
        while taken < count {
            match link.tx.as_mut().poll_ready(Lane::Data, cx) {
                Poll::Ready(ready) => ready.expect("the wire is open"),
                Poll::Pending => break,
            }
            link.tx.as_mut().start_send(make(taken)).expect("the wire is open");
            taken += 1;
            if let Poll::Ready(flushed) = link.tx.as_mut().poll_flush(cx) {
                flushed.expect("the wire is open");
            }
        }
        Poll::Ready(taken)
    })
    .await
}

fn bulk(number: usize) -> Outbound {
    note(format!("\"{number} {}\"", "x".repeat(1024)))
}

/// A cancel arrives directly after the frames that the transport had accepted, before all that wait. It needs no
/// reader if the transport has room for control frames.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_cancel_overtakes_four_thousand_queued_frames(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    let taken = in_time("filling the wire", fill(&mut a, QUEUED, bulk)).await;
    let ordered = a.traits.ordered;
    // Each frame has a limit of its own: how long 4,000 POSTs take depends on the machine.
    let write = async {
        let cancel = frame(FrameKind::Cancel, Lane::Control, "\"cancel\"");
        in_time("sending the cancel", send(&mut a, cancel)).await.expect("the wire is open");
        for number in taken..QUEUED {
            in_time("sending a frame", send(&mut a, bulk(number))).await.expect("the wire is open");
        }
    };
    let read = async {
        let mut place = None;
        let mut next = 0;
        for position in 0..=QUEUED {
            let body = in_time("the next frame", body(&mut b)).await;
            if body == "\"cancel\"" {
                place = Some(position);
            } else if ordered {
                assert!(body.starts_with(format!("\"{next} ").as_bytes()), "frame {next} is out of order");
                next += 1;
            }
        }
        place.expect("the cancel arrived")
    };
    let ((), place) = tokio::join!(write, read);
    assert!(!ordered || place == taken, "the cancel came {place}th, the wire had taken {taken} frames");
}

/// A request that was never passed to the transport leaves no trace, even after the transport reported that it is
/// ready.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_request_taken_back_never_appears(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    // The transport is ready, and nothing is sent: the request was taken back.
    poll_fn(|cx| a.tx.as_mut().poll_ready(Lane::Data, cx)).await.expect("the wire is open");
    in_time("flushing nothing", flush(&mut a)).await.expect("the wire is open");
    // The transport is not ready, and the waiting request is taken back.
    let taken = in_time("filling the wire", fill(&mut a, QUEUED, bulk)).await;
    let marker = frame(FrameKind::Cancel, Lane::Control, "\"marker\"");
    let ordered = a.traits.ordered;
    let write = async {
        send(&mut a, marker).await.expect("the wire is open");
    };
    let read = async {
        // Without an order the marker may arrive before frames that were accepted earlier. Each frame arrives exactly
        // once.
        let mut missing: BTreeSet<usize> = (0..taken).collect();
        let mut has_come = false;
        while !missing.is_empty() || !has_come {
            let body = body(&mut b).await;
            if body == "\"marker\"" {
                assert!(!ordered || missing.is_empty(), "the marker overtook {missing:?}");
                assert!(!std::mem::replace(&mut has_come, true), "the marker came twice");
                continue;
            }
            let number = number_of(&body).expect("a data frame has its number");
            assert!(!ordered || missing.first() == Some(&number), "frame {number} is out of order");
            assert!(missing.remove(&number), "frame {number} was not taken, or came twice");
        }
    };
    in_time("what the wire had taken", async { tokio::join!(write, read) }).await;
    // After all accepted frames, nothing of the request is left.
    let last = async { send(&mut a, note("\"last\"")).await.expect("the wire is open") };
    let ((), last) = in_time("the last frame", async { tokio::join!(last, body(&mut b)) }).await;
    assert_eq!(last, "\"last\"");
}

fn number_of(body: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(body).ok()?;
    text.strip_prefix('"')?.split(' ').next()?.parse().ok()
}
