//! Opens the connection of a run over the real WebSocket and HTTP, on streams of the run's network (feature `wires`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::{Endpoint, Link, Listener, Server, Transport, TransportError};
use rescind_http::{
    Acp, AcpTransport, GivenStream, HttpClient, HttpListener, HttpServer, ServerBinding, Stateless,
    StatelessTransport, Streamable, StreamableTransport,
};
use rescind_testkit::support::Serving;
use rescind_websocket::{UpgradeOptions, accept_given, open_given};
use tokio::sync::mpsc;

use super::judge::Judge;
use super::open::{Opened, PeerOpened, Setting, builder};
use super::pipe::Splits;
use super::rng::Rng;
use super::sides::Side;
use super::tap::tap;
use super::work::router;

/// When a session ends that its client does not use.
const SESSION_IDLE: Duration = Duration::from_secs(300);

/// Served by both, regardless of name resolution.
const HOST: &str = "localhost";

impl Setting<'_> {
    pub(super) async fn websocket(&self) -> Result<Opened, String> {
        // The WebSocket library treats a handshake in more than 64 pieces of less than 128 bytes as an attack.
        self.net.splits(Splits::Never);
        let ends = self.net.connect().map_err(to_failure)?;
        let server = Arc::new(PeerOpened::default());
        let tell = Arc::clone(&server);
        let (judge, peers) = (self.judge.clone(), builder(Side::Server, self));
        let slow = self.plan.is_slow();
        let serving = Serving::spawn(async move {
            match accept_given(UpgradeOptions::new(), ends.server).await {
                Ok(link) => match peers.attach(tap(link, Side::Server, &judge)) {
                    Ok(peer) => tell.tell(peer),
                    Err(error) => judge.breaks("L3", || error.to_string()),
                },
                Err(error) => {
                    let hindered = judge.state().lost || slow;
                    judge.note(|| format!("the server's handshake: {error}"));
                    if !hindered {
                        judge.breaks("L3", || format!("nothing hindered the handshake: {error}"));
                    }
                }
            }
        });
        let transport = rescind_websocket::connect(&format!("ws://{HOST}/"));
        let link = open_given(&transport, ends.client).await.map_err(to_failure)?;
        self.net.splits(Splits::AsDrawn);
        let client =
            builder(Side::Client, self).attach(tap(link, Side::Client, self.judge)).map_err(to_failure)?;
        Ok(Opened { client, server, net: self.net.clone(), framing: None, serving: vec![serving] })
    }

    pub(super) async fn streamable(&self, rng: &mut Rng) -> Result<Opened, String> {
        let after = Duration::from_millis(rng.pick(10, &[0, 10, 500]));
        let mut binding = Streamable::new().stream_after(after);
        if rng.percent(15) {
            self.judge.may_be_away();
            binding = binding.poll_after(Duration::from_millis(rng.pick(20, &[400])));
        }
        let (in_order, http2) = (rng.percent(30), rng.percent(30));
        // Clients of other projects do not wait at all.
        let cancel_after = Duration::from_millis(rng.pick(250, &[250, 0, 10]));
        self.http(binding, move |client| {
            let client = if http2 { client.http2() } else { client };
            let transport = StreamableTransport::new(client).cancel_after(cancel_after);
            if in_order { transport.in_order() } else { transport }
        })
        .await
    }

    pub(super) async fn stateless(&self, rng: &mut Rng) -> Result<Opened, String> {
        let after = Duration::from_millis(rng.pick(10, &[0, 10, 500]));
        let http2 = rng.percent(30);
        self.http(Stateless::new().stream_after(after), move |client| {
            StatelessTransport::new(if http2 { client.http2() } else { client })
        })
        .await
    }

    pub(super) async fn acp(&self) -> Result<Opened, String> {
        self.http(Acp::new(), AcpTransport::new).await
    }

    async fn http<T: Transport>(
        &self,
        binding: impl ServerBinding,
        transport: impl FnOnce(HttpClient) -> T,
    ) -> Result<Opened, String> {
        self.judge.unordered();
        rescind_http::count_ids();
        let (give, given) = mpsc::unbounded_channel();
        // Less than by default: a client that is gone shows only by its silence.
        let inner = HttpServer::new(binding).session_idle(SESSION_IDLE).serve_given(given);
        let server = Arc::new(PeerOpened::default());
        let tell = Arc::clone(&server);
        let listener = Tapped { inner, judge: self.judge.clone() };
        let serving = Server::builder([self.case.dialect.clone()])
            .serve(Arc::new(router(Side::Server, self.judge)))
            .limits(self.plan.limits.server.clone())
            .on_peer(move |peer| tell.tell(peer))
            .listen(listener)
            .run();
        let serving = Serving::spawn(async move { drop(serving.await) });
        if self.plan.weather.repeat_some > 0 {
            self.judge.may_repeat();
        }
        let repeated = give.clone();
        self.net.repeat_to(move |end| drop(repeated.send(Box::new(end))));
        let net = self.net.clone();
        let client = HttpClient::new(&format!("http://{HOST}/")).map_err(to_failure)?.dial(move || {
            let ends = net.connect()?;
            let end: Box<dyn GivenStream> = Box::new(ends.server);
            give.send(end).map_err(|_| std::io::ErrorKind::ConnectionRefused)?;
            Ok(ends.client)
        });
        let link = Box::new(transport(client)).open().await.map_err(to_failure)?;
        let client =
            builder(Side::Client, self).attach(tap(link, Side::Client, self.judge)).map_err(to_failure)?;
        Ok(Opened { client, server, net: self.net.clone(), framing: None, serving: vec![serving] })
    }
}

fn to_failure(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Observes the links of a listener.
struct Tapped {
    inner: HttpListener,
    judge: Judge,
}

impl Listener for Tapped {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        // A server that shuts down accepts no more: over stateless HTTP a link that was shut down would be replaced
        // by another one, which is never shut down.
        if self.judge.state().shut.server {
            return Poll::Pending;
        }
        let accepted = Pin::new(&mut self.inner).poll_accept(cx);
        accepted.map(|link| link.map(|link| link.map(|link| tap(link, Side::Server, &self.judge))))
    }

    fn endpoint(&self) -> Endpoint {
        self.inner.endpoint()
    }
}
