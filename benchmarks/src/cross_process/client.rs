//! The calling side, through `Peer`.

use std::os::fd::OwnedFd;

use rescind_core::dialect::Role;
use rescind_core::{Framing, Link, Outcome, Peer, PeerBuilder, Router, Transport};
use rescind_http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use rescind_named_pipe::{NamedPipeTransport, PipeAddress};
use rescind_stdio::Descriptors;
use rescind_websocket::connect;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Far, Wire};
use crate::clock;

/// A client of a server in another process.
#[derive(Debug)]
pub struct OurClient {
    wire: Wire,
    pub(crate) peer: Peer,
    pub(crate) parked: mpsc::UnboundedReceiver<()>,
    /// Notifications sent so far.
    noise: u64,
    /// How long it took to queue notifications the last time, in nanoseconds.
    queueing: u64,
}

impl OurClient {
    /// A client after its handshake, whose direction from the server is open too.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn open(wire: Wire, far: &mut Far) -> Self {
        let (tell, parked) = mpsc::unbounded_channel();
        let (welcome, mut welcomed) = mpsc::unbounded_channel();
        let router = Router::new()
            .notification("parked", move |_, _: Value| {
                let _ = tell.send(());
                async {}
            })
            .notification("welcome", move |_, _: Value| {
                let _ = welcome.send(());
                async {}
            });
        let peer = Peer::builder(wire.dialect()).serve(router).role(Role::Client);
        let peer = if wire.is_of_a_child() {
            let (input, output) = far.take_pipes();
            over(peer, pipes(wire, input, output)).await
        } else {
            Self::connect(wire, peer, &far.endpoint).await
        };
        Self::shake_hands(wire, &peer).await;
        // A child's pipes have one client, which needs no welcome.
        if wire.is_two_way() && !wire.is_of_a_child() {
            welcomed.recv().await.expect("the server says welcome");
        }
        Self { wire, peer, parked, noise: 0, queueing: 0 }
    }

    /// Connects to a server that listens.
    pub(crate) async fn connect(wire: Wire, peer: PeerBuilder, endpoint: &str) -> Peer {
        match wire {
            Wire::Stdio | Wire::ContentLength => unreachable!("pipes of a child have no address"),
            Wire::NamedPipe => {
                let address = PipeAddress::name(endpoint).expect("a name");
                over(peer, NamedPipeTransport::new(address)).await
            }
            Wire::WebSocket => over(peer, connect(endpoint)).await,
            Wire::Streamable | Wire::Streamable2 => {
                over(peer, StreamableTransport::new(http(wire, endpoint))).await
            }
            Wire::Stateless | Wire::Stateless2 => {
                over(peer, StatelessTransport::new(http(wire, endpoint))).await
            }
            Wire::Acp => over(peer, AcpTransport::new(http(wire, endpoint))).await,
        }
    }

    pub(crate) async fn shake_hands(wire: Wire, peer: &Peer) {
        let hello = match wire {
            Wire::Stateless | Wire::Stateless2 => return,
            Wire::Streamable | Wire::Streamable2 => json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "benchmark", "version": "1"},
            }),
            Wire::Stdio | Wire::ContentLength | Wire::NamedPipe | Wire::WebSocket | Wire::Acp => {
                json!({"protocolVersion": 1, "clientCapabilities": {}})
            }
        };
        let _: Value = peer.call("initialize", &hello).await.expect("the server shakes hands");
        if matches!(wire, Wire::Streamable | Wire::Streamable2) {
            peer.try_notify("notifications/initialized", &json!({})).expect("there is room");
        }
    }

    /// One round trip, in nanoseconds.
    ///
    /// # Panics
    /// If the server does not echo.
    pub async fn echo(&mut self, params: &RawValue) -> u64 {
        let begin = clock();
        let echoed: Box<RawValue> = self.peer.call("echo", params).await.expect("the server echoes");
        let took = clock() - begin;
        assert!(echoed.get().len() >= params.get().len());
        took
    }

    /// The time from the cancel of a waiting request to its handler's signal, in nanoseconds, after this many
    /// notifications.
    ///
    /// A cancel without notifications before it is sent after a pause as long as the last queueing took. While
    /// notifications are queued, the server's core becomes idle, and waking it costs more than everything else here.
    ///
    /// # Panics
    /// If the cancel is not sent or not signalled.
    pub async fn cancel(&mut self, far: &mut Far, ahead: usize) -> u64 {
        let (params, noise) = (self.wire.params(1), self.wire.params(64));
        let call = self.peer.call::<_, Value>("park", &params).start().expect("a call starts");
        self.parked.recv().await.expect("the handler says that it waits");
        let queueing = clock();
        for _ in 0..ahead {
            self.peer.try_notify("noise", &noise).expect("the outbox has room");
        }
        if ahead > 0 {
            self.queueing = clock() - queueing;
        }
        while clock() - queueing < self.queueing {
            std::hint::spin_loop();
        }
        let canceller = call.canceller();
        let begin = clock();
        canceller.cancel("");
        let outcome = call.outcome().await;
        assert!(matches!(outcome, Outcome::CompletedAfterCancel(_) | Outcome::Cancelled(_)), "{outcome:?}");
        let took = far.signalled().await - begin;
        if ahead > 0 {
            self.noise += ahead as u64;
            let mut params: Value = serde_json::from_str(params.get()).expect("params are JSON");
            params["least"] = json!(self.noise);
            let _: Value = self.peer.call("heard", &params).await.expect("all of it is heard");
        }
        took
    }
}

/// Pipes with the framing of this transport.
pub(super) fn pipes(wire: Wire, input: OwnedFd, output: OwnedFd) -> Descriptors {
    let framing = if wire == Wire::ContentLength { Framing::ContentLength } else { Framing::Newline };
    Descriptors::new(input, output).framing(framing)
}

async fn over(peer: PeerBuilder, transport: impl Transport) -> Peer {
    let link: Link = Box::new(transport).open().await.expect("the wire opens");
    peer.attach(link).expect("the runtime runs")
}

fn http(wire: Wire, url: &str) -> HttpClient {
    let client = HttpClient::new(url).expect("a URL");
    if wire.is_http2() { client.http2() } else { client }
}
