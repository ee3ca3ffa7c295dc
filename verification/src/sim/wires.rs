//! Opens the connection of a run over the real WebSocket and HTTP, on streams of the run's network (feature `wires`).

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::dialect::Role;
use rescind_core::{
    ByteStream, CloseReason, Endpoint, ExchangeEnd, ExchangeId, Framing, Lane, Link, Listener, Outbound,
    Peer, PeerBuilder, Receiver, RejectReason, Sender, Server, Transport, TransportError, TransportEvent,
    Unsupported,
};
use rescind_http::{
    Acp, AcpTransport, GivenStream, HttpClient, HttpListener, HttpServer, ServerBinding, Stateless,
    StatelessTransport, Streamable, StreamableTransport,
};
use rescind_testkit::support::Serving;
use rescind_websocket::{UpgradeOptions, accept_given, open_given};
use tokio::sync::{Notify, mpsc};

use super::judge::{Judge, SimEvent};
use super::net::{Net, Splits};
use super::plan::{Plan, Rng, Side};
use super::tasks::CountedKeys;
use super::work::router;
use super::{Case, Wire};

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

    async fn streamable(&self, rng: &mut Rng) -> Result<Opened, String> {
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
            .cluster_keys(Arc::new(CountedKeys::default()))
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

// Opens the connection of a run on its transport.

/// A connection, from both sides.
pub(super) struct Opened {
    pub(super) client: Peer,
    /// The server's side, as soon as it exists: over HTTP that is when the client has sent something.
    pub(super) server: Arc<PeerOpened>,
    pub(super) net: Net,
    /// The framing of the bytes, if the transport is a byte stream.
    pub(super) framing: Option<Framing>,
    /// The accepting tasks. They end on drop.
    pub(super) serving: Vec<Serving>,
}

/// A side that may come late. Waiters continue in the order in which they came, which tokio's `watch` does not
/// guarantee.
#[derive(Debug, Default)]
pub(super) struct PeerOpened {
    peer: Mutex<Option<Peer>>,
    opened_notify: Notify,
}

impl PeerOpened {
    /// Sets it. Later ones, of other sessions, are not awaited.
    pub(super) fn tell(&self, peer: Peer) {
        self.lock().get_or_insert(peer);
        self.opened_notify.notify_waiters();
    }

    /// Returns it, if it is set.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.lock().clone()
    }

    /// Waits for it.
    pub(super) async fn wait(&self) -> Peer {
        loop {
            let mut opened_notify = pin!(self.opened_notify.notified());
            opened_notify.as_mut().enable();
            if let Some(peer) = self.peer() {
                return peer;
            }
            opened_notify.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Peer>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parameters of a connection.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) case: &'a Case,
    pub(super) plan: &'a Plan,
    pub(super) net: &'a Net,
    pub(super) judge: &'a Judge,
}

/// The builder of a side's connection.
pub(super) fn builder(side: Side, setting: &Setting<'_>) -> PeerBuilder {
    let role = match side {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    Peer::builder(setting.case.dialect.clone())
        .serve(Arc::new(router(side, setting.judge)))
        .limits(setting.plan.limits.of(side).clone())
        .cluster_keys(Arc::new(CountedKeys::default()))
        .role(role)
}

impl Setting<'_> {
    /// Opens it.
    ///
    /// # Errors
    /// The reason why it could not be opened. The network may have been cut by then.
    pub(super) async fn open(&self, rng: &mut Rng) -> Result<Opened, String> {
        match self.case.wire {
            Wire::Memory => self.memory(rng),
            Wire::WebSocket => self.websocket().await,
            Wire::HttpStreamable => self.streamable(rng).await,
            Wire::HttpStateless => self.stateless(rng).await,
            Wire::HttpAcp => self.acp().await,
        }
    }

    /// Both framings, whatever the dialect's default is.
    fn memory(&self, rng: &mut Rng) -> Result<Opened, String> {
        let framing = rng.pick(Framing::Newline, &[Framing::ContentLength]);
        self.net.record();
        let ends = self.net.connect().map_err(|error| error.to_string())?;
        let attach = |side, end| {
            let link = ByteStream::whole(end).framing(framing).into_link();
            builder(side, self).attach(tap(link, side, self.judge)).map_err(|error| error.to_string())
        };
        let client = attach(Side::Client, ends.client)?;
        let server = Arc::new(PeerOpened::default());
        server.tell(attach(Side::Server, ends.server)?);
        Ok(Opened { client, server, net: self.net.clone(), framing: Some(framing), serving: Vec::new() })
    }
}

// A link that reports to the judge what is passed to it and what arrives.

/// The same link, with a judge that observes it.
fn tap(mut link: Link, side: Side, judge: &Judge) -> Link {
    link.rx = Box::pin(TapReceiver { inner: link.rx, side, judge: judge.clone() });
    link.tx = Box::pin(TapSender { inner: link.tx, side, judge: judge.clone() });
    link
}

struct TapReceiver {
    inner: Pin<Box<dyn Receiver>>,
    side: Side,
    judge: Judge,
}

impl Receiver for TapReceiver {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let mut event = self.inner.as_mut().poll_event(cx);
        let side = self.side;
        match &mut event {
            Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) => {
                self.judge.receives(side, &inbound.body, inbound.exchange);
                if let Some(respelled) = respelled(&inbound.body) {
                    self.judge.note(|| format!("{side} reads that in another form"));
                    self.judge.saw(SimEvent::Respelled);
                    inbound.body = respelled;
                }
            }
            Poll::Ready(Some(Ok(TransportEvent::Rejected { why, .. }))) => {
                let lost = self.judge.state().is_going();
                self.judge.note(|| format!("{side} reads a frame it cannot: {why}"));
                if !lost {
                    self.judge.breaks("I12", || format!("{side} reads a frame it cannot: {why}"));
                }
            }
            Poll::Ready(Some(Ok(TransportEvent::ExchangeClosed { exchange }))) => {
                self.judge.note(|| format!("{side} hears the end of {exchange:?}"));
                self.judge.closes(side, *exchange);
            }
            Poll::Ready(Some(Ok(event))) => self.judge.note(|| timeless(&format!("{side} hears {event:?}"))),
            Poll::Ready(Some(Err(error))) => self.judge.is_gone(side, &format!("{side} hears {error}")),
            Poll::Ready(None) => self.judge.is_gone(side, &format!("{side} hears the end")),
            Poll::Pending => {}
        }
        event
    }
}

/// Some answers in another form with the same meaning, as peers of other libraries write them. Which one it is depends on the
/// id, so a seed always gives the same.
fn respelled(body: &[u8]) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    if let Some(rest) = text.strip_prefix("{\"jsonrpc\":\"2.0\",\"id\":") {
        let (id, rest) = rest.split_once(',')?;
        let number: u64 =
            id.parse().ok().filter(|_| rest.starts_with("\"result\"") || rest.starts_with("\"error\""))?;
        return match number % 6 {
            0 => Some(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",{rest}")),
            1 => Some(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}.0,{rest}")),
            2 => Some(format!("{{\"id\":{id},{rest}")),
            3 => Some(format!("[{text}]")),
            _ => None,
        }
        .map(Bytes::from);
    }
    // ABP: its ids are texts.
    let (kind, rest) = text.strip_prefix("{\"type\":")?.split_once(",\"id\":\"")?;
    let (id, rest) = rest.split_once('"')?;
    let is_answer = kind.ends_with("-result\"") && !kind.contains("cancel");
    let number: u64 = id.parse().ok().filter(|_| is_answer)?;
    (number % 3 == 0).then(|| Bytes::from(format!("{{\"type\":{kind},\"id\":{id}{rest}")))
}

struct TapSender {
    inner: Pin<Box<dyn Sender>>,
    side: Side,
    judge: Judge,
}

impl Sender for TapSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.inner.as_mut().poll_ready(lane, cx)
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let body = out.body.clone();
        // Before the send, because a transport within this process could deliver it at once.
        self.judge.sends(self.side, &body);
        let sent = self.inner.as_mut().start_send(out);
        if sent.is_err() {
            self.judge.not_sent(self.side, &body);
        }
        sent
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn begin_exchange(mut self: Pin<&mut Self>, exchange: ExchangeId) {
        self.inner.as_mut().begin_exchange(exchange);
    }

    fn note_rejection(mut self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.inner.as_mut().note_rejection(exchange, fault);
    }

    fn finish_exchange(mut self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.inner.as_mut().finish_exchange(exchange, how);
    }

    fn abort_exchange(mut self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.inner.as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.inner.as_mut().poll_close(why, cx)
    }
}

/// An event without the time of day: ABP writes it into its messages, and errors show the beginning of those.
fn timeless(event: &str) -> String {
    let mut parts = event.split("timestamp");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| {
        let (quote, time) =
            part.split_at(part.find(|byte: char| byte.is_ascii_digit()).unwrap_or(part.len()));
        format!("{before}timestamp{quote}{}", time.trim_start_matches(|byte: char| byte.is_ascii_digit()))
    })
}
