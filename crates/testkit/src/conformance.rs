//! The contract of a transport, as tests for any transport: [`conformance!`](crate::conformance!) runs them all.
//!
//! No test waits for time to pass. A wait that takes longer than [`HANG`] counts as a hang.

#![expect(clippy::expect_used, reason = "these are tests: a broken contract is a panic")]

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use rescind_core::{
    BoxFuture, CloseReason, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, TransportError,
    TransportEvent,
};

pub use crate::support::HANG;
use crate::support::in_time;

/// Makes a `#[tokio::test]` for each rule of the contract, for the transport that a [`Harness`] connects.
///
/// A rule that a transport cannot meet is left out by its name, with a reason: the macro makes no test of it, and the
/// reason is in the source. Put the macro into a separate module. The crate that uses it needs tokio with `macros`
/// and `rt`.
///
/// ```
/// use rescind_core::{Link, memory_pair};
///
/// #[derive(Debug)]
/// struct Memory;
///
/// impl rescind_testkit::conformance::Harness for Memory {
///     async fn connect(&self) -> (Link, Link) {
///         memory_pair()
///     }
/// }
///
/// mod memory {
///     rescind_testkit::conformance!(super::Memory, without {
///         one_byte_at_a_time: "frames are handed over, there are no bytes",
///         end_of_input_inside_a_frame: "frames are handed over, there are no bytes",
///         oversize_then_a_valid_frame: "frames are handed over, there are no bytes",
///         bad_utf8_then_a_valid_frame: "frames are handed over, there are no bytes",
///     });
/// }
/// ```
#[macro_export]
macro_rules! conformance {
    ($harness:expr $(,)?) => {
        $crate::conformance!($harness, without {});
    };
    ($harness:expr, without { $($rule:ident: $why:literal),* $(,)? }) => {
        // A name that is not a rule does not compile.
        $(
            #[expect(unused_imports, reason = "only that there is such a rule")]
            use $crate::conformance::$rule as _;
        )*
        macro_rules! rule {
            $(
                ($rule) => {};
            )*
            ($other:ident) => {
                #[::tokio::test]
                async fn $other() {
                    $crate::conformance::$other(&$harness).await;
                }
            };
        }
        rule!(one_byte_at_a_time);
        rule!(end_of_input_inside_a_frame);
        rule!(oversize_then_a_valid_frame);
        rule!(bad_utf8_then_a_valid_frame);
        rule!(frames_arrive_whole_and_in_order);
        rule!(dropped_polls_lose_nothing);
        rule!(a_slow_reader_loses_nothing);
        rule!(a_cancel_overtakes_four_thousand_queued_frames);
        rule!(a_request_taken_back_never_appears);
        rule!(a_peer_that_is_gone_hangs_nobody);
        rule!(a_closed_side_still_reads);
        rule!(a_closed_link_sends_nothing_more);
    };
}

/// Connects the transport under test.
pub trait Harness: Debug + Sync {
    /// Returns two ends of a new connection.
    fn connect(&self) -> impl Future<Output = (Link, Link)> + Send;

    /// Returns one end of a new connection and the raw bytes of the other. A transport without raw bytes leaves out
    /// the rules that need them, by name.
    fn connect_raw(&self) -> impl Future<Output = Option<(Link, Box<dyn RawBytes>)>> + Send {
        async { None }
    }

    /// Whether frames of one lane keep their order. Return `false` for a transport that sends each frame separately:
    /// then each frame must arrive whole and once.
    fn keeps_order(&self) -> bool {
        true
    }
}

/// The raw bytes of one end. Bytes in the other direction are dropped.
pub trait RawBytes: Send {
    /// Returns a body with the framing of this transport.
    fn frame(&self, body: &[u8]) -> Vec<u8>;

    /// Writes bytes unchanged.
    ///
    /// # Errors
    /// If the stream fails.
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;

    /// Ends the output.
    ///
    /// # Errors
    /// If the stream fails.
    fn end(&mut self) -> BoxFuture<'_, io::Result<()>>;

    /// For a transport that itself answers a frame it does not accept, as HTTP does: waits for the answer to the last
    /// frame, and returns `true` if it refuses. `false`: the link reports the frame, and its driver answers.
    fn refused(&mut self) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
}

/// The bodies that have not arrived yet, in order if the transport keeps the order.
struct Expected {
    bodies: VecDeque<String>,
    in_order: bool,
}

impl Expected {
    fn new(harness: &impl Harness, bodies: impl IntoIterator<Item = String>) -> Self {
        Self { bodies: bodies.into_iter().collect(), in_order: harness.keeps_order() }
    }

    fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Removes a body. Panics if it is not expected or out of order.
    fn take(&mut self, body: &[u8]) {
        let place = self.bodies.iter().position(|expected| expected.as_bytes() == body);
        let is_next = place.is_some_and(|place| place == 0 || !self.in_order);
        assert!(is_next, "a frame is torn, missing, doubled or out of order: {:.40}", body.escape_ascii());
        place.and_then(|place| self.bodies.remove(place));
    }
}

/// Returns one end and the raw bytes of the other. Panics for a harness without raw bytes, so that no rule passes
/// without being run.
async fn raw(harness: &impl Harness) -> (Link, Box<dyn RawBytes>) {
    let connected = in_time("connecting bare bytes", harness.connect_raw()).await;
    connected.unwrap_or_else(|| panic!("{harness:?} has no bare bytes: leave this rule out with a reason"))
}

/// A frame to send.
fn frame(kind: FrameKind, lane: Lane, body: impl Into<Bytes>) -> Outbound {
    let method = Some(Arc::from("conformance"));
    let head = FrameInfo { kind, id: None, method, trace: None };
    Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
}

/// A notification on the data lane.
fn note(body: impl Into<Bytes>) -> Outbound {
    frame(FrameKind::Notification, Lane::Data, body)
}

/// The next event.
async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
}

/// The next frame. Any other event fails the test, except the events of a link with many clients about open requests.
async fn body(link: &mut Link) -> Bytes {
    loop {
        match event(link).await {
            Some(Ok(TransportEvent::Message(inbound))) => return inbound.body,
            Some(Ok(TransportEvent::ExchangeClosed { .. })) if link.traits.exchange_scoped => {}
            other => panic!("expected a frame, got {other:?}"),
        }
    }
}

/// Sends one frame and flushes.
async fn send(link: &mut Link, out: Outbound) -> Result<(), TransportError> {
    ready(link, out.lane).await?;
    link.tx.as_mut().start_send(out)?;
    flush(link).await
}

async fn ready(link: &mut Link, lane: Lane) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_ready(lane, cx)).await
}

async fn flush(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

async fn close(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await
}

/// Reads to the end and drops everything. An error is an end too.
async fn read_to_end(link: &mut Link) {
    while let Some(Ok(_)) = event(link).await {}
}

/// Polls once and drops the poll, as the losing branch of a `select!`.
async fn poll_once<T>(mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(poll(cx))).await
}

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

/// Small frames, empty objects and frames of a few hundred KiB arrive whole and in order.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn frames_arrive_whole_and_in_order(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    let large = a.traits.max_frame.min(b.traits.max_frame).min(300 * 1024) - 2;
    let bodies: Vec<String> = (0..100)
        .map(|number| format!("[{}]", "7".repeat(if number % 20 == 7 { large } else { number })))
        .collect();
    let forth = async {
        for body in &bodies {
            send(&mut a, note(body.clone())).await.expect("the wire is open");
        }
    };
    let back = async {
        let mut expected = Expected::new(harness, bodies.clone());
        while !expected.is_empty() {
            expected.take(&body(&mut b).await);
        }
    };
    in_time("a hundred frames", async { tokio::join!(forth, back) }).await;
    let answer = async { send(&mut b, note("{}")).await.expect("the wire is open") };
    let ((), answer) = in_time("the answer", async { tokio::join!(answer, body(&mut a)) }).await;
    assert_eq!(answer, "{}");
}

/// Dropped polls lose no frame and no wake-up, also if another task polls next.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn dropped_polls_lose_nothing(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    // The waker of another task, which becomes stale.
    let mut b = tokio::spawn(async move {
        assert!(poll_once(|cx| b.rx.as_mut().poll_event(cx)).await.is_pending(), "nothing was sent yet");
        b
    })
    .await
    .expect("the first task ends");
    let mut expected = Expected::new(harness, (0..200).map(|number| number.to_string()));
    let read = tokio::spawn(async move {
        while !expected.is_empty() {
            let event = match poll_once(|cx| b.rx.as_mut().poll_event(cx)).await {
                Poll::Ready(event) => event,
                Poll::Pending => std::future::poll_fn(|cx| b.rx.as_mut().poll_event(cx)).await,
            };
            match event {
                Some(Ok(TransportEvent::Message(inbound))) => expected.take(&inbound.body),
                other => panic!("expected a frame, got {other:?}"),
            }
        }
    });
    let write = async {
        for number in 0..200 {
            let _ = poll_once(|cx| a.tx.as_mut().poll_ready(Lane::Data, cx)).await;
            ready(&mut a, Lane::Data).await.expect("the wire is open");
            a.tx.as_mut().start_send(note(format!("{number}"))).expect("the wire is open");
            let _ = poll_once(|cx| a.tx.as_mut().poll_flush(cx)).await;
            flush(&mut a).await.expect("the wire is open");
            tokio::task::yield_now().await;
        }
        read.await.expect("every frame arrived");
    };
    in_time("frames between dropped polls", write).await;
}

/// A slow reader loses nothing. The sender waits, and the transport does not accept data frames without limit.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_slow_reader_loses_nothing(harness: &impl Harness) {
    const FRAMES: usize = 500;
    let (mut a, mut b) = harness.connect().await;
    let filler = "x".repeat(2048);
    let ordered = a.traits.ordered;
    // If ids belong to the exchange, a client receives no requests, so it sends no answers.
    let is_asked = !(a.traits.opens_exchanges && a.traits.exchange_scoped);
    let last = if is_asked { FrameKind::Answer } else { FrameKind::Notification };
    let write = async {
        for number in 0..FRAMES {
            let out = note(format!("\"{number} {filler}\""));
            in_time("sending to a slow reader", send(&mut a, out)).await.expect("the wire is open");
        }
        let out = frame(last, Lane::Control, "\"last\"");
        in_time("the last frame to a slow reader", send(&mut a, out)).await.expect("the wire is open");
        in_time("closing to a slow reader", close(&mut a)).await.expect("the wire closes");
    };
    let read = async {
        let bodies = (0..FRAMES).map(|number| format!("\"{number} {filler}\""));
        let mut expected = Expected::new(harness, bodies);
        let mut answered = false;
        while !expected.is_empty() || !answered {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            // Each frame has a limit of its own: how long all take depends on the machine.
            let body = in_time("a frame of a slow reader", body(&mut b)).await;
            // Without an order an answer may overtake frames that were sent before it.
            if body == "\"last\"" && (expected.is_empty() || !ordered) {
                assert!(!std::mem::replace(&mut answered, true), "the answer came twice");
                continue;
            }
            expected.take(&body);
        }
        in_time("closing a slow reader", close(&mut b)).await.expect("the wire closes");
    };
    tokio::join!(write, read);
}

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
        in_time("sending the marker", send(&mut a, marker)).await.expect("the wire is open");
    };
    let read = async {
        // Without an order the marker may arrive before frames that were accepted earlier. Each frame arrives exactly
        // once.
        let mut missing: BTreeSet<usize> = (0..taken).collect();
        let mut has_come = false;
        while !missing.is_empty() || !has_come {
            // Each frame has a limit of its own: how long all take depends on the machine.
            let body = in_time("what the wire had taken", body(&mut b)).await;
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
    tokio::join!(write, read);
    // After all accepted frames, nothing of the request is left.
    let last = async { send(&mut a, note("\"last\"")).await.expect("the wire is open") };
    let ((), last) = in_time("the last frame", async { tokio::join!(last, body(&mut b)) }).await;
    assert_eq!(last, "\"last\"");
}

fn number_of(body: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(body).ok()?;
    text.strip_prefix('"')?.split(' ').next()?.parse().ok()
}

/// When the peer is gone, the input ends, and the output fails or closes.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_peer_that_is_gone_hangs_nobody(harness: &impl Harness) {
    let (mut a, b) = harness.connect().await;
    drop(b);
    let filler = "x".repeat(4096);
    // Each frame has a limit of its own: how long 4,000 POSTs take depends on the machine.
    for _ in 0..4000 {
        let sent =
            in_time("writing to a peer that is gone", send(&mut a, note(format!("\"{filler}\"")))).await;
        if sent.is_err() {
            break;
        }
    }
    // It may fail, but it ends.
    let _ = in_time("closing to a peer that is gone", close(&mut a)).await;
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
