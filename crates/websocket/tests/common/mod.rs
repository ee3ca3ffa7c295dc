//! The common parts of this transport's tests.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(dead_code, reason = "each test program uses a part of it")]
#![expect(unreachable_pub, reason = "a module of several test programs")]

#[cfg(feature = "axum")]
pub mod route;
#[cfg(feature = "rustls")]
pub mod tls;

use std::future::poll_fn;

use bytes::Bytes;
use rescind_core::{CloseReason, Link, Listener, Transport, TransportError, TransportEvent};
use rescind_testkit::support::frames;
pub use rescind_testkit::support::in_time;
use rescind_websocket::{LinkOptions, UpgradeOptions, WebSocketListener, connect};

pub async fn listen(options: UpgradeOptions) -> WebSocketListener {
    WebSocketListener::builder().options(options).bind("127.0.0.1:0").await.unwrap()
}

pub async fn accept(listener: &mut (impl Listener + Unpin)) -> Result<Link, TransportError> {
    let accepted = listener.accept();
    in_time("accepting", accepted).await.unwrap()
}

/// Both ends of a connection over a real socket, the client's first.
pub async fn pair(options: LinkOptions) -> (Link, Link) {
    let mut listener = listen(UpgradeOptions::new().link(options.clone())).await;
    let transport = Box::new(connect(&listener.endpoint().0).options(options));
    let (client, server) = tokio::join!(transport.open(), accept(&mut listener));
    (client.unwrap(), server.unwrap())
}

pub async fn send(link: &mut Link, body: impl Into<Bytes>) -> Result<(), TransportError> {
    frames::send(link, body).await
}

pub async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    in_time("an event", frames::event(link)).await
}

pub async fn body(link: &mut Link) -> Bytes {
    in_time("an event", frames::body(link)).await
}

pub async fn close(link: &mut Link, why: CloseReason) -> Result<(), TransportError> {
    in_time("closing", poll_fn(|cx| link.tx.as_mut().poll_close(&why, cx))).await
}
