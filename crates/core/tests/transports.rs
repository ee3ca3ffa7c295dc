//! The rules of the core's transports that the conformance tests do not check: their exact limits in bytes, their
//! names, and the tasks that are woken when an end is dropped.

#![cfg(feature = "tokio")]

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use rescind_core::{
    BadFrame, ByteStream, CloseReason, ExchangeId, FrameInfo, FrameKind, FrameStream, Framing, Lane, Link,
    Listener, MemoryTransport, Outbound, Transport, TransportError, TransportErrorKind, TransportEvent,
    memory_listener, memory_pair,
};
use tokio::io::AsyncWriteExt;

/// The default limit of every transport of the core.
const MIB_16: usize = 16 << 20;
/// The limit of a transport with this setting.
const LIMIT: usize = 1000;

fn note(bytes: usize) -> Outbound {
    Outbound {
        body: vec![b' '; bytes].into(),
        exchange: ExchangeId(7),
        lane: Lane::Data,
        head: FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None },
        last: false,
    }
}

async fn ready(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_ready(Lane::Data, cx)).await
}

async fn flush(link: &mut Link) -> Result<(), TransportError> {
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

async fn event(link: &mut Link) -> Option<TransportEvent> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await.map(Result::unwrap)
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// These frames, and then the end.
struct Given(Vec<Bytes>);

impl Stream for Given {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = if self.0.is_empty() { None } else { Some(Ok(self.0.remove(0))) };
        Poll::Ready(next)
    }
}

/// Accepts everything, and counts the frames and the flushes.
#[derive(Clone, Default)]
struct Taken {
    frames: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
}

impl Sink<Bytes> for Taken {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, _: Bytes) -> io::Result<()> {
        self.frames.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn given(frames: &[usize]) -> FrameStream<Given, Taken> {
    let frames = frames.iter().map(|bytes| vec![b' '; *bytes].into()).collect();
    FrameStream::new(Given(frames), Taken::default())
}

fn duplex() -> (ByteStream<impl tokio::io::AsyncRead, impl tokio::io::AsyncWrite>, tokio::io::DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(4096);
    (ByteStream::whole(ours).framing(Framing::Newline), theirs)
}

#[tokio::test]
async fn transports_have_the_documented_names_and_limits() {
    let (listener, transport) = memory_listener();
    let names: [(&dyn Transport, &str); 5] = [
        (&duplex().0, "byte stream"),
        (&duplex().0.name("mine"), "mine"),
        (&given(&[]), "frame stream"),
        (&given(&[]).name("mine"), "mine"),
        (&transport, "memory"),
    ];
    for (transport, name) in names {
        assert_eq!(transport.name(), name);
    }
    assert_eq!(listener.endpoint().to_string(), "memory");
    for link in [duplex().0.into_link(), given(&[]).into_link(), memory_pair().0] {
        assert_eq!(link.traits.max_frame, MIB_16);
    }
}

#[tokio::test]
async fn a_frame_as_large_as_the_limit_is_taken_and_one_byte_more_is_not() {
    let (client, _server) = memory_pair();
    let (stream, _peer) = duplex();
    let links = [client, stream.max_frame(LIMIT).into_link(), given(&[]).max_frame(LIMIT).into_link()];
    for mut link in links {
        let limit = link.traits.max_frame;
        ready(&mut link).await.unwrap();
        let refused = link.tx.as_mut().start_send(note(limit + 1)).unwrap_err();
        assert_eq!((refused.kind, refused.exchange), (TransportErrorKind::TooLarge, Some(ExchangeId(7))));
        link.tx.as_mut().start_send(note(limit)).unwrap();
    }
}

#[tokio::test]
async fn a_received_frame_of_the_limit_is_accepted_and_only_a_larger_one_is_refused() {
    let mut link = given(&[LIMIT, LIMIT + 1, 1]).max_frame(LIMIT).into_link();
    let Some(TransportEvent::Message(whole)) = event(&mut link).await else { panic!("none came") };
    assert_eq!(whole.body.len(), LIMIT);
    let Some(TransportEvent::Rejected { why, .. }) = event(&mut link).await else { panic!("it was taken") };
    assert_eq!(why, BadFrame::TooLarge { limit: LIMIT });
    let Some(TransportEvent::Message(next)) = event(&mut link).await else { panic!("none came") };
    assert_eq!(next.body.len(), 1);
}

#[tokio::test]
async fn a_sink_that_takes_everything_is_flushed_before_it_holds_64_kib() {
    let taken = Taken::default();
    let mut link = FrameStream::new(Given(Vec::new()), taken.clone()).into_link();
    for sent in 1..=100 {
        ready(&mut link).await.unwrap();
        link.tx.as_mut().start_send(note(1024)).unwrap();
        assert_eq!(taken.frames.load(Ordering::Relaxed), sent);
        // Data is sent until more than 32 KiB are held.
        assert_eq!(taken.flushes.load(Ordering::Relaxed), (sent - 1) / 33, "after {sent} KiB");
    }
}

#[tokio::test]
async fn a_receiver_behind_the_end_of_input_is_woken_when_its_sender_is_dropped() {
    let (stream, mut peer) = duplex();
    peer.shutdown().await.unwrap();
    let (client, mut server) = memory_pair();
    poll_fn(|cx| server.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
    for mut link in [stream.into_link(), given(&[]).into_link(), client] {
        assert!(matches!(event(&mut link).await, Some(TransportEvent::HalfClosed)));
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let Link { mut rx, tx, .. } = link;
        assert!(rx.as_mut().poll_event(&mut cx).is_pending());
        assert_eq!(woken.take(), 0);
        drop(tx);
        assert_eq!(woken.take(), 1);
        assert!(matches!(rx.as_mut().poll_event(&mut cx), Poll::Ready(None)));
    }
}

#[tokio::test]
async fn a_send_to_a_dropped_in_process_peer_fails() {
    let (mut client, server) = memory_pair();
    flush(&mut client).await.unwrap();
    drop(server);
    assert_eq!(ready(&mut client).await.unwrap_err().kind, TransportErrorKind::Closed);
    assert_eq!(flush(&mut client).await.unwrap_err().kind, TransportErrorKind::Closed);
}

#[tokio::test]
async fn a_transport_without_exchanges_cannot_abort_one() {
    for mut link in [duplex().0.into_link(), given(&[]).into_link(), memory_pair().0] {
        assert!(link.tx.as_mut().abort_exchange(ExchangeId(7)).is_err());
    }
}

#[tokio::test]
async fn a_listener_ends_when_its_last_connector_is_dropped() {
    let (listener, transport) = memory_listener();
    let mut listener = std::pin::pin!(listener);
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let another = transport.clone();
    assert!(listener.as_mut().poll_accept(&mut cx).is_pending());
    drop(transport);
    assert!(listener.as_mut().poll_accept(&mut cx).is_pending());
    assert_eq!(woken.take(), 0);
    let _client = open(another).await.unwrap();
    assert_eq!(woken.take(), 1);
    assert!(matches!(listener.as_mut().poll_accept(&mut cx), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(listener.as_mut().poll_accept(&mut cx), Poll::Ready(None)));
}

#[tokio::test]
async fn nothing_connects_to_a_listener_that_is_gone_or_full() {
    let (listener, transport) = memory_listener();
    let mut waiting = Vec::new();
    for _ in 0..1024 {
        waiting.push(open(transport.clone()).await.unwrap());
    }
    assert_eq!(open(transport.clone()).await.unwrap_err().kind, TransportErrorKind::Open);
    drop(listener);
    // The links that were not accepted have lost their peer.
    for mut lost in waiting {
        assert!(event(&mut lost).await.is_none());
    }
    assert_eq!(open(transport).await.unwrap_err().kind, TransportErrorKind::Open);
}

async fn open(transport: MemoryTransport) -> Result<Link, TransportError> {
    Box::new(transport).open().await
}
