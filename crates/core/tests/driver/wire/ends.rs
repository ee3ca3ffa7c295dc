//! The ends of a connection, and the calls of the transport until then.

use std::sync::Arc;
use std::time::Duration;

use super::probe::{TRAITS, open, request, serve};
use rescind_core::dialect::{ACP, MCP};
use rescind_core::{
    CallContext, CallError, ConnectionError, ExchangeId, Lane, Limits, Peer, Router, TransportError,
    TransportErrorKind,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(60);

async fn end(peer: &Peer) -> Result<(), ConnectionError> {
    timeout(LONG, peer.closed()).await.expect("the connection does not end")
}

fn begin_shutdown(peer: &Peer) {
    let peer = peer.clone();
    tokio::spawn(async move { peer.shutdown(Duration::ZERO).await });
}

fn broken() -> TransportError {
    TransportError::new(TransportErrorKind::Io, "broken")
}

#[tokio::test(start_paused = true)]
async fn an_error_about_one_exchange_ends_no_connection_and_any_other_does() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.fails(TransportError { exchange: Some(ExchangeId(3)), ..broken() });
    wire.says(4, &request(1, "step", &json!({})));
    assert_eq!(
        wire.recorded().await,
        ["begin 4", "Data Notification stepped on 4", "Data Answer 1 on 4, last"]
    );
    wire.fails(broken());
    let ended = end(&peer).await;
    assert!(matches!(ended, Err(ConnectionError::Transport(_))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_transport_is_closed_once_everything_is_written_and_flushed() {
    for (full, keeps) in [(Some(Lane::Data), false), (None, true)] {
        let (peer, wire) = open(MCP, TRAITS, Limits::default());
        let begun = Instant::now();
        (wire.state().full, wire.state().keeps) = (full, keeps);
        peer.try_notify("news", &json!({})).unwrap();
        begin_shutdown(&peer);
        let mut reported = wire.recorded().await;
        assert!(!reported.contains(&"close".to_owned()), "full {full:?}, unflushed {keeps}: {reported:?}");
        wire.state().keeps = false;
        wire.make_room();
        reported.extend(wire.recorded().await);
        assert_eq!(reported, ["Data Notification news on none", "close"]);
        end(&peer).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_does_not_flush_is_dropped_after_the_flush_timeout() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    let begun = Instant::now();
    wire.state().full = Some(Lane::Data);
    peer.try_notify("news", &json!({})).unwrap();
    begin_shutdown(&peer);
    end(&peer).await.unwrap();
    assert_eq!(begun.elapsed(), Limits::default().flush_timeout);
    assert_eq!(wire.recorded().await, [""; 0], "it is closed although a frame waits");
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_does_not_close_is_dropped_in_time_even_if_it_wakes_the_driver() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    let begun = Instant::now();
    wire.state().stays_open = true;
    begin_shutdown(&peer);
    assert_eq!(wire.recorded().await, ["close"]);
    let gone = Err(CallError::Disconnected { may_have_run: false });
    assert_eq!(peer.try_notify("news", &json!({})), gone, "the connection is being closed");
    while !peer.is_closed() {
        assert!(begun.elapsed() < LONG, "L2: the time to flush begins anew");
        sleep(Duration::from_millis(300)).await;
        wire.wake();
    }
    let took = begun.elapsed();
    assert!(took >= Limits::default().flush_timeout && took < Duration::from_millis(1500), "{took:?}");
    assert_eq!(peer.try_notify("news", &json!({})), gone);
}

#[tokio::test(start_paused = true)]
async fn a_deaf_handler_is_aborted_after_its_grace_although_the_wire_is_lost() {
    let (peer, wire) = open(ACP, TRAITS, Limits::default());
    wire.says(3, &request(1, "deaf", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    wire.fails(broken());
    assert!(end(&peer).await.is_err());
    assert_eq!((peer.stats().running, peer.stats().slots), (1, 1));
    sleep(Limits::default().cancel_grace * 2).await;
    assert_eq!((peer.stats().aborted, peer.stats().slots), (1, 0), "L3");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_drops_its_router_with_the_last_handler() {
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_secs(3600);
    let (release, held) = oneshot::channel::<()>();
    let held = Arc::new(tokio::sync::Mutex::new(held));
    let methods = Arc::downgrade(&held);
    let router = Router::new().method("hold", move |_: CallContext, _: Value| {
        let held = Arc::clone(&held);
        async move {
            let _ = (&mut *held.lock().await).await;
            Ok(())
        }
    });
    let (peer, wire) = serve(router, ACP, TRAITS, limits);
    wire.says(3, &request(1, "hold", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    wire.fails(broken());
    assert!(end(&peer).await.is_err());
    assert!(methods.upgrade().is_some(), "a handler runs");
    release.send(()).unwrap();
    wire.recorded().await;
    assert!(methods.upgrade().is_none(), "I3: the connection's task goes on with nothing to do");
}
