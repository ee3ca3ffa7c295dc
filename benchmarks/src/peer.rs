//! A client and a server through `Peer`.

use rescind_core::dialect::ACP;
use rescind_core::{Limits, Link, Outcome, Peer, Router};
use serde_json::value::RawValue;

use crate::{CancelTimes, clock};

/// The side that asks, through `Peer`.
#[derive(Debug)]
pub struct PeerClient(Peer);

impl PeerClient {
    /// A client on this link.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Self(Peer::builder(ACP).attach(link).expect("the runtime runs"))
    }

    pub(crate) async fn echo(&self, params: &RawValue) {
        let echoed: Box<RawValue> = self.0.call("echo", params).await.expect("the server echoes");
        assert_eq!(echoed.get().len(), params.get().len());
    }

    pub(crate) async fn cancel(&self) -> CancelTimes {
        let call = self.0.call::<_, u64>("park", &[0]).start().expect("a call starts");
        // A request that was answered behind it: its handler waits for the signal by now.
        self.echo(&crate::params(1)).await;
        let canceller = call.canceller();
        let begin = clock();
        let _ = canceller.cancel("");
        let Outcome::CompletedAfterCancel(signalled) = call.outcome().await else {
            panic!("the handler says when it was signalled");
        };
        CancelTimes { to_handler: signalled - begin, to_caller: clock() - begin }
    }
}

/// Serves on this link.
#[must_use]
pub fn serve(link: Link) -> Peer {
    let router = Router::new()
        .method("echo", |_context, params: Box<RawValue>| async move { Ok(params) })
        .method("park", |context, _params: Box<RawValue>| async move {
            context.cancelled().await;
            Ok(clock())
        });
    Peer::builder(ACP).serve(router).attach(link).expect("the runtime runs")
}

/// Limits that let so many requests be in flight.
#[must_use]
pub fn roomy(requests: usize) -> Limits {
    let mut limits = Limits::default();
    limits.calls = requests;
    limits.running = requests;
    limits
}
