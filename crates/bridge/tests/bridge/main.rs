//! Bridges over memory: the client and the server at their ends are written frame by frame, as raw links.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod cancelling;
mod ends;
mod passing;
mod tasks;

use std::time::Duration;

use rescind_bridge::{Bridge, Upstream};
use rescind_core::dialect::Dialect;
use rescind_core::{Link, Peer, TransportEvent, memory_pair};
use rescind_testkit::support::frames::{body, event, send};

/// A bridge between a client and a server that a test plays.
pub(crate) struct Ends {
    pub(crate) client: End,
    pub(crate) server: End,
    pub(crate) bridge: Bridge,
    /// The bridge's downstream connection.
    pub(crate) downstream: Peer,
}

/// One of the two programs.
pub(crate) struct End(pub(crate) Link);

impl Ends {
    pub(crate) async fn of(bridge: Bridge) -> Self {
        let (client, downstream) = memory_pair();
        let (upstream, server) = memory_pair();
        let upstream = Upstream::new("the server", upstream);
        let downstream = bridge.between(downstream, upstream).await.unwrap();
        Self { client: End(client), server: End(server), bridge, downstream }
    }

    pub(crate) async fn in_dialect(dialect: Dialect) -> Self {
        Self::of(Bridge::new(dialect).unwrap()).await
    }
}

impl End {
    pub(crate) async fn send(&mut self, text: &str) {
        send(&mut self.0, text.to_owned()).await.unwrap();
    }

    /// The next frame.
    pub(crate) async fn frame(&mut self) -> String {
        let frame = tokio::time::timeout(Duration::from_secs(20), body(&mut self.0)).await;
        String::from_utf8(frame.expect("no frame came").to_vec()).unwrap()
    }

    /// Receives this frame next.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            let frame = self.frame().await;
            assert_eq!(frame, text, "at {at}");
        }
    }

    /// Waits until the other side closes, with no other frame before.
    pub(crate) async fn closed(&mut self) {
        match tokio::time::timeout(Duration::from_secs(20), event(&mut self.0)).await {
            Ok(None | Some(Err(_) | Ok(TransportEvent::HalfClosed))) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Whether no frame comes while all tasks have their turns.
    pub(crate) async fn is_silent(&mut self) {
        let mut turns = 0;
        let frame = std::future::poll_fn(|cx| match self.0.rx.as_mut().poll_event(cx) {
            std::task::Poll::Ready(event) => std::task::Poll::Ready(Some(event)),
            std::task::Poll::Pending if turns == 300 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => {
                turns += 1;
                cx.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        });
        let frame = frame.await;
        assert!(frame.is_none(), "{frame:?}");
    }
}
