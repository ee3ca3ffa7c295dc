//! The connections of a server: their limit, and when a place is free again.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::probe::{TRAITS, request, wire};
use rescind_core::dialect::ACP;
use rescind_core::{
    ApiMisuse, CallContext, ConnectionError, Endpoint, Link, Listener, Router, Server, ServerLimits,
    TransportError, TransportEvent,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

struct Door(mpsc::UnboundedReceiver<Link>);

impl Listener for Door {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        self.0.poll_recv(cx).map(|link| link.map(Ok))
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint("a test".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_over_the_limit_is_closed_and_a_freed_permit_admits_the_next() {
    let (knock, door) = mpsc::unbounded_channel();
    let mut bounds = ServerLimits::default();
    bounds.max_connections = 1;
    let server = Server::builder([ACP])
        .serve(Router::new().method("echo", |_: CallContext, value: Value| async move { Ok(value) }))
        .server_limits(bounds)
        .listen(Door(door));
    let serving = tokio::spawn(server.run());
    let come = || {
        let (link, wire) = wire(TRAITS);
        assert!(knock.send(link).is_ok(), "the server has ended");
        wire.says(1, &request(1, "echo", &json!({})));
        wire
    };
    let first = come();
    assert_eq!(first.recorded().await, ["begin 1", "Data Answer 1 on 1, last"]);
    let second = come();
    assert_eq!(second.recorded().await, ["close"], "I11");
    first.tells(TransportEvent::HalfClosed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    first.recorded().await;
    let third = come();
    assert_eq!(third.recorded().await, ["begin 1", "Data Answer 1 on 1, last"], "I3: the place is not free");
    serving.abort();
}

#[test]
fn a_server_run_outside_a_runtime_returns_an_error() {
    let (_knock, door) = mpsc::unbounded_channel();
    let server = Server::builder([ACP]).serve(Router::new()).listen(Door(door));
    let ended = pin!(server.run()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ended, Poll::Ready(Err(ConnectionError::Misuse(ApiMisuse::NoRuntime)))), "{ended:?}");
}
