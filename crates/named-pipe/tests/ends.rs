//! How a connection ends: in one direction, or because the peer is gone.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::future::poll_fn;
use std::time::Duration;

use rescind_core::{Link, TransportError, TransportEvent};
use rescind_named_pipe::NamedPipeListener;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use crate::common::{TempPath, accept};

async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    let event = poll_fn(|cx| link.rx.as_mut().poll_event(cx));
    tokio::time::timeout(Duration::from_secs(30), event).await.unwrap()
}

async fn pair() -> (UnixStream, Link) {
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let far = UnixStream::connect(place.file()).await.unwrap();
    (far, accept(&mut listener).await.unwrap())
}

#[tokio::test]
async fn a_peer_that_is_gone_ends_the_connection_although_nothing_is_written() {
    let (far, mut link) = pair().await;
    drop(far);
    assert!(event(&mut link).await.is_none(), "a peer that is gone is no peer that only ended its output");
}

#[tokio::test]
async fn a_peer_that_goes_after_it_ended_its_output_ends_the_connection() {
    let (mut far, mut link) = pair().await;
    far.write_all(b"{}\n").await.unwrap();
    far.shutdown().await.unwrap();
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Message(_)))));
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::HalfClosed))));
    let next = poll_fn(|cx| std::task::Poll::Ready(link.rx.as_mut().poll_event(cx).is_pending())).await;
    assert!(next, "it still reads");
    drop(far);
    assert!(event(&mut link).await.is_none());
}

#[tokio::test]
async fn frames_sent_before_a_disconnect_are_read_first() {
    let (mut far, mut link) = pair().await;
    far.write_all(b"{\"n\":1}\n{\"n\":2}\n").await.unwrap();
    drop(far);
    for text in ["{\"n\":1}", "{\"n\":2}"] {
        match event(&mut link).await {
            Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body, text),
            other => panic!("{other:?}"),
        }
    }
    assert!(event(&mut link).await.is_none());
}
