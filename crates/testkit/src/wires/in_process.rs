//! The fixture in this process: in memory, or behind a listener on a free port of the loopback interface (WebSocket, HTTP
//! with each binding) or in this user's directory (a named pipe).

use std::pin::Pin;
use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use rescind_core::{
    BoxFuture, Capabilities, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Listener, Outbound, PeerInfo,
    Receiver, RejectReason, Sender, Transport, TransportError, TransportErrorKind, TransportEvent,
    Unsupported, memory_pair,
};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpListener, HttpServer, LegacySse, LegacySseTransport, ServerBinding,
    Stateless, StatelessTransport, Streamable, StreamableTransport,
};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};

use super::bridge::Listens;
use super::{Lack, Served, Wire, framing_of};
use crate::fixture::Fixture;
use crate::support::Serving;
use crate::vector::Scenario;

/// A listener and the transport that connects to it.
pub(super) struct Loopback {
    pub(super) listener: Pin<Box<dyn Listener>>,
    pub(super) transport: Box<dyn Fn() -> Box<dyn Transport> + Send>,
    /// Whether a client can end its input alone.
    pub(super) half_close: bool,
}

impl Loopback {
    /// Serves this fixture to all clients until the end is awaited or dropped.
    pub(super) fn serve(self, fixture: Fixture) -> Served {
        self.serve_by(|listener| serve_all(fixture, listener))
    }

    /// The same by a task that accepts the clients.
    pub(super) fn serve_by<T>(self, task: impl FnOnce(Pin<Box<dyn Listener>>) -> T) -> Served
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let Self { listener, transport, half_close } = self;
        let serving = Serving::spawn(task(listener));
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let opening = transport().open();
            Box::pin(async move { opening.await.map_err(|error| error.to_string()) })
        };
        Served {
            connect: Box::new(connect),
            many_lines: true,
            half_close,
            exit_report: None,
            end: Box::pin(serving.stop()),
        }
    }

    /// The client's end of a connection and the server's end.
    pub(super) async fn pair(mut self) -> Result<(Link, Link), String> {
        let accepted = self.listener.accept();
        let (near, far) = tokio::join!((self.transport)().open(), accepted);
        let near = near.map_err(|error| error.to_string())?;
        let far = far.ok_or("the listener ended")?.map_err(|error| error.to_string())?;
        Ok((near, far))
    }
}

async fn serve_all(fixture: Fixture, mut listener: Pin<Box<dyn Listener>>) {
    while let Some(accepted) = listener.accept().await {
        if let Ok(link) = accepted {
            // The scenario decides whether a connection that does not open is an error.
            let _peer = fixture.serve(link);
        }
    }
}

pub(super) struct Memory;

impl Wire for Memory {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move {
            let fixture = super::fixture(scenario);
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let fixture = fixture.clone();
                Box::pin(async move {
                    let (ours, theirs) = memory_pair();
                    fixture.serve(theirs).map(|_peer| ours).map_err(|error| error.to_string())
                })
            };
            Ok(Served {
                connect: Box::new(connect),
                many_lines: true,
                half_close: true,
                exit_report: None,
                end: Box::pin(async {}),
            })
        })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async { Ok(memory_pair()) })
    }
}

pub(super) struct WebSocket;

async fn listen_websocket() -> Result<Loopback, String> {
    let listener = rescind_websocket::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let url = listener.endpoint().0;
    let transport = move || -> Box<dyn Transport> { Box::new(rescind_websocket::connect(&url)) };
    Ok(Loopback { listener: Box::pin(listener), transport: Box::new(transport), half_close: false })
}

impl Wire for WebSocket {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { Ok(listen_websocket().await?.serve(super::fixture(scenario))) })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move { listen_websocket().await?.pair().await })
    }
}

impl Listens for WebSocket {
    fn listen<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>> {
        Box::pin(listen_websocket())
    }
}

/// Features that no scenario can use on a pipe.
pub(super) const NAMED_PIPE_LACKS: &[(Lack, &str)] = if cfg!(windows) {
    &[(Lack::HalfClose, "a Windows pipe closes in both directions at once")]
} else {
    &[]
};

pub(super) struct NamedPipe;

async fn listen_pipe(scenario: &Scenario) -> Result<Loopback, String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("rescind-matrix-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let framing = framing_of(scenario);
    let address = PipeAddress::name(&name).map_err(|error| error.to_string())?;
    let listener = NamedPipeListener::bind(&address).await.map_err(|error| error.to_string())?;
    let transport =
        move || -> Box<dyn Transport> { Box::new(NamedPipeTransport::new(address.clone()).framing(framing)) };
    Ok(Loopback {
        listener: Box::pin(listener.framing(framing)),
        transport: Box::new(transport),
        half_close: NAMED_PIPE_LACKS.is_empty(),
    })
}

impl Wire for NamedPipe {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { Ok(listen_pipe(scenario).await?.serve(super::fixture(scenario))) })
    }

    fn pair<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move { listen_pipe(scenario).await?.pair().await })
    }
}

impl Listens for NamedPipe {
    fn listen<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>> {
        Box::pin(listen_pipe(scenario))
    }
}

/// A binding: its server side and its client side.
pub(super) struct Http<B, T> {
    server: fn() -> B,
    pub(super) client: fn(HttpClient) -> T,
}

/// Any message opens a session here, so that scenarios without a handshake run in every protocol. Frames are sent in
/// order, as the scenarios list them.
pub(super) const HTTP_STREAMABLE: Http<Streamable, StreamableTransport> = Http {
    server: || Streamable::new().opened_by_any_message(),
    client: |client| StreamableTransport::new(client).in_order(),
};

/// A listener has one link for all of its clients.
pub(super) const HTTP_STATELESS: Http<Stateless, StatelessTransport> =
    Http { server: Stateless::new, client: StatelessTransport::new };

/// In HTTP/2, as its protocol requires.
pub(super) const HTTP_ACP: Http<Acp, AcpTransport> = Http { server: Acp::new, client: AcpTransport::new };

/// Each stream is a session, so any message may come first. Frames are sent in order, as over `HTTP_STREAMABLE`.
pub(super) const HTTP_LEGACY_SSE: Http<LegacySse, LegacySseTransport> =
    Http { server: LegacySse::new, client: |client| LegacySseTransport::new(client).in_order() };

impl<B: ServerBinding, T> Http<B, T> {
    pub(super) fn server(&self) -> HttpServer<B> {
        HttpServer::new((self.server)())
    }
}

impl<B: ServerBinding + Send, T: Transport + Clone> Http<B, T> {
    async fn listen(&self) -> Result<(HttpListener, T), String> {
        let listener = self.server().bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let client = HttpClient::new(&listener.endpoint().0).map_err(|error| error.to_string())?;
        Ok((listener, (self.client)(client)))
    }

    async fn loopback(&self) -> Result<Loopback, String> {
        let (listener, transport) = self.listen().await?;
        let transport = move || -> Box<dyn Transport> { Box::new(transport.clone()) };
        Ok(Loopback { listener: Box::pin(listener), transport: Box::new(transport), half_close: false })
    }
}

impl<B: ServerBinding + Send, T: Transport + Clone> Wire for Http<B, T> {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { Ok(self.loopback().await?.serve(super::fixture(scenario))) })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let (listener, transport) = self.listen().await?;
            let near = Box::new(transport).open().await.map_err(|error| error.to_string())?;
            let listener: Pin<Box<dyn Listener>> = Box::pin(listener);
            let far = late(listener, Capabilities { opens_exchanges: false, ..near.traits });
            Ok((near, far))
        })
    }
}

impl<B: ServerBinding + Send, T: Transport + Clone> Listens for Http<B, T> {
    fn listen<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>> {
        Box::pin(self.loopback())
    }
}

/// The first link that this listener accepts, for a connection that exists only after something was sent on it, such as
/// a session over HTTP. The listener is kept with it.
pub(super) fn late(listener: Pin<Box<dyn Listener>>, traits: Capabilities) -> Link {
    let both = Late(Arc::new(Mutex::new(LateState { listener, link: None, sender: None })));
    Link::new(both.clone(), both, traits, PeerInfo::default())
}

#[derive(Clone)]
struct Late(Arc<Mutex<LateState>>);

struct LateState {
    listener: Pin<Box<dyn Listener>>,
    link: Option<Link>,
    /// The waker of the sender, which waits for the link.
    sender: Option<Waker>,
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "there is no connection yet")
}

impl Late {
    fn state(&self) -> MutexGuard<'_, LateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LateState {
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<Option<&mut Link>> {
        if self.link.is_none() {
            self.link = match ready!(self.listener.as_mut().poll_accept(cx)) {
                Some(Ok(link)) => Some(link),
                Some(Err(_)) | None => return Poll::Ready(None),
            };
            if let Some(waker) = self.sender.take() {
                waker.wake();
            }
        }
        Poll::Ready(self.link.as_mut())
    }
}

impl Receiver for Late {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        match ready!(self.state().poll_link(cx)) {
            Some(link) => link.rx.as_mut().poll_event(cx),
            None => Poll::Ready(None),
        }
    }
}

impl Sender for Late {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.state();
        if let Some(link) = &mut state.link {
            return link.tx.as_mut().poll_ready(lane, cx);
        }
        state.sender = Some(cx.waker().clone());
        let found = state.poll_link(cx);
        match ready!(found) {
            Some(link) => link.tx.as_mut().poll_ready(lane, cx),
            None => Poll::Ready(Err(closed())),
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.state().link.as_mut().ok_or_else(closed)?.tx.as_mut().start_send(out)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        match &mut self.state().link {
            Some(link) => link.tx.as_mut().poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().finish_exchange(exchange, how);
        }
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().begin_exchange(exchange);
        }
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().note_waiting(exchange);
        }
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        if let Some(link) = &mut self.state().link {
            link.tx.as_mut().note_rejection(exchange, fault);
        }
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.state().link.as_mut().ok_or(Unsupported)?.tx.as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        match &mut self.state().link {
            Some(link) => link.tx.as_mut().poll_close(why, cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
