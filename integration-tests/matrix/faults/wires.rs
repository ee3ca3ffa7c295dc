//! The wires on which the faults are played: how each listens and connects. A new wire is a new row.
//!
//! Stateless HTTP has no row: its one link serves a whole listener and has no handshake, no session that could be
//! lost and no requests of its server, and its protocol is not that of the agents here. It has the fault of bursts
//! (`many_connections.rs`) and, in the crate's own tests, that of closed exchanges (`covered.toml`). A half-open peer, a slow
//! reader and a thousand connections are not played on it here.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rescind::http::{
    Acp, AcpTransport, HttpClient, HttpCounts, HttpServer, ServerBinding, Streamable, StreamableTransport,
};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind::transport::{
    BoxFuture, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Listener, Outbound, Receiver, RejectReason,
    Sender, Transport, TransportError, TransportErrorKind, TransportEvent, Unsupported,
};
use rescind::websocket::{LinkOptions, UpgradeOptions, WebSocketListener};
use rescind::{Clients, Framing, Share, memory_listener};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::in_time;

/// The settings of a wire, if the wire has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The largest frame that the server accepts, in bytes.
    pub(crate) max_frame: usize,
    /// The time of silence after which a WebSocket sends a ping and an event stream sends a comment.
    pub(crate) ping: Duration,
    /// The time after which an unused HTTP session ends. This is how it detects that its client is gone.
    pub(crate) idle: Duration,
    /// The time that an HTTP client has to send a head, and a body. `None`: the defaults of the server.
    pub(crate) sending: Option<Duration>,
    /// The path of an HTTP client to its server.
    pub(crate) way: Way,
}

/// The path between a client and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Straight,
    /// Through a [`CuttableTcp`].
    Cuttable,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            max_frame: 16 << 20,
            ping: Duration::from_secs(20),
            idle: Duration::from_millis(300),
            sending: None,
            way: Way::Straight,
        }
    }
}

/// A wire.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    listen: fn(Setting) -> BoxFuture<'static, Door>,
}

/// The effect of a lost connection on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The session ends with its connection.
    Connection,
    /// A session outlives its connections: a vanished client is detected because it does not read any more.
    Conversation,
}

/// A pair of pipes in one process exists on Unix only.
const COUNT: usize = if cfg!(unix) { 7 } else { 6 };

pub(crate) const WIRES: [Wire; COUNT] = [
    Wire { name: "memory", kind: Kind::Connection, listen: |_| Box::pin(async { memory() }) },
    #[cfg(unix)]
    Wire { name: "pipes", kind: Kind::Connection, listen: |_| Box::pin(async { two_pipes() }) },
    Wire { name: "websocket", kind: Kind::Connection, listen: |setting| Box::pin(websocket(setting)) },
    Wire { name: "named-pipe", kind: Kind::Connection, listen: |setting| Box::pin(named_pipe(setting)) },
    Wire {
        name: "http-streamable",
        kind: Kind::Conversation,
        listen: |setting| Box::pin(streamable(setting, Http::One)),
    },
    Wire {
        name: "http2-streamable",
        kind: Kind::Conversation,
        listen: |setting| Box::pin(streamable(setting, Http::Two)),
    },
    Wire { name: "http-acp", kind: Kind::Conversation, listen: |setting| Box::pin(acp(setting)) },
];

/// The version of HTTP that a client uses.
#[derive(Clone, Copy)]
enum Http {
    One,
    Two,
}

impl Wire {
    pub(crate) async fn listen(self, setting: Setting) -> Door {
        in_time("listening", (self.listen)(setting)).await
    }
}

/// A listener and the transport that connects to it.
pub(crate) struct Door {
    pub(crate) listener: Pin<Box<dyn Listener>>,
    pub(crate) transport: Box<dyn Fn() -> Box<dyn Transport> + Send>,
    /// The place for a client without the library: an address, or a path.
    pub(crate) place: String,
    /// Over HTTP, if the setting requests it.
    pub(crate) line: Option<CuttableTcp>,
    /// The counters of an HTTP server.
    pub(crate) counts: Option<HttpCounts>,
}

impl Door {
    fn new(
        listener: impl Listener,
        transport: impl Fn() -> Box<dyn Transport> + Send + 'static,
        place: String,
    ) -> Self {
        Self { listener: Box::pin(listener), transport: Box::new(transport), place, line: None, counts: None }
    }
}

/// The next connection.
pub(crate) async fn accept(listener: &mut Pin<Box<dyn Listener>>) -> Link {
    let accepted = listener.accept();
    in_time("a connection", accepted).await.expect("the listener goes on").expect("a connection")
}

fn memory() -> Door {
    let (listener, transport) = memory_listener();
    Door::new(listener, move || Box::new(transport.clone()), String::new())
}

#[cfg(unix)]
fn two_pipes() -> Door {
    let (listener, transport) = pipes::pipes();
    Door::new(listener, move || Box::new(transport.clone()), String::new())
}

async fn websocket(setting: Setting) -> Door {
    let link = LinkOptions::new().max_frame(setting.max_frame).ping_every(setting.ping);
    let options = UpgradeOptions::new().link(link);
    let listener = WebSocketListener::builder().options(options).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let place = listener.address().to_string();
    Door::new(listener, move || Box::new(rescind::websocket::connect(&url)), place)
}

async fn named_pipe(setting: Setting) -> Door {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("rescind-faults-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let address = PipeAddress::name(&name).unwrap();
    let listener = NamedPipeListener::bind(&address).await.unwrap().max_frame(setting.max_frame);
    let place = listener.file().to_str().unwrap().to_owned();
    Door::new(
        listener.framing(Framing::Newline),
        move || Box::new(NamedPipeTransport::new(address.clone())),
        place,
    )
}

/// `transport` makes a client for the given URL.
async fn http(
    binding: impl ServerBinding,
    path: &str,
    setting: Setting,
    transport: impl Fn(&str) -> Box<dyn Transport> + Send + 'static,
) -> Door {
    let mut server = HttpServer::new(binding)
        .path(path)
        .max_frame(setting.max_frame)
        .keep_alive(setting.ping)
        .session_idle(setting.idle);
    if let Some(time) = setting.sending {
        server = server.header_timeout(time).body_timeout(time);
    }
    let mut listener = server.bind("127.0.0.1:0").await.unwrap();
    // All connections of a test have the same address.
    Pin::new(&mut listener).share_among(&Clients::new(Share::ALL, 64));
    let mut url = listener.endpoint().0;
    let place = url.trim_start_matches("http://").trim_end_matches(path).to_owned();
    let line = match setting.way {
        Way::Straight => None,
        Way::Cuttable => Some(CuttableTcp::to(&place).await),
    };
    if let Some(line) = &line {
        url = format!("http://{}{path}", line.place);
    }
    let counts = Some(listener.counts());
    Door { line, counts, ..Door::new(listener, move || transport(&url), place) }
}

async fn streamable(setting: Setting, version: Http) -> Door {
    let transport = move |url: &str| -> Box<dyn Transport> {
        let client = HttpClient::new(url).unwrap();
        let client = match version {
            Http::One => client,
            Http::Two => client.http2(),
        };
        let retry = Duration::from_millis(20);
        Box::new(StreamableTransport::new(client).retry(retry).give_up_after(10 * retry))
    };
    http(Streamable::new(), "/", setting, transport).await
}

async fn acp(setting: Setting) -> Door {
    http(Acp::new(), "/acp", setting, |url| Box::new(AcpTransport::new(HttpClient::new(url).unwrap()))).await
}

// A wire that a test can stop, in one direction or both, and cut.

/// The handle of a wire that can be stopped and cut. Everything else passes unchanged.
#[derive(Clone)]
pub(crate) struct StoppableLink(Arc<Mutex<State>>);

struct State {
    rx: Option<Pin<Box<dyn Receiver>>>,
    tx: Option<Pin<Box<dyn Sender>>>,
    reads: bool,
    writes: bool,
    wakers: [Option<Waker>; 2],
}

const READING: usize = 0;
const WRITING: usize = 1;

impl StoppableLink {
    /// The link with a valve that is open.
    pub(crate) fn new(link: Link) -> (Self, Link) {
        let state = State { rx: None, tx: None, reads: true, writes: true, wakers: [None, None] };
        let valve = Self(Arc::new(Mutex::new(state)));
        let link = link.wrap(|rx, tx| {
            let mut state = valve.state();
            (state.rx, state.tx) = (Some(rx), Some(tx));
            (Reading(valve.clone()), Writing(valve.clone()))
        });
        (valve, link)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.state();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    /// This end stops reading from the wire.
    pub(crate) fn stop_reading(&self) {
        self.change(|state| state.reads = false);
    }

    /// This end reads again.
    pub(crate) fn read_again(&self) {
        self.change(|state| state.reads = true);
    }

    /// This end stops writing to the wire.
    pub(crate) fn stop_writing(&self) {
        self.change(|state| state.writes = false);
    }

    /// This end is gone at once, and its driver gets an error. It is dropped without a close. If the drop itself
    /// sends a message, as over HTTP, whose client sends a DELETE, a test can cut the [`CuttableTcp`](Line)
    /// first.
    pub(crate) fn cut(&self) {
        let mut halves = None;
        self.change(|state| halves = Some((state.rx.take(), state.tx.take())));
        drop(halves);
    }
}

fn gone() -> TransportError {
    TransportError::new(TransportErrorKind::Io, "the test cut the wire")
}

struct Reading(StoppableLink);

impl Receiver for Reading {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let mut state = self.0.state();
        state.wakers[READING] = Some(cx.waker().clone());
        let reads = state.reads;
        match &mut state.rx {
            None => Poll::Ready(Some(Err(gone()))),
            Some(_) if !reads => Poll::Pending,
            Some(rx) => rx.as_mut().poll_event(cx),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let rx = self.0.state().rx.take();
        drop(rx);
    }
}

struct Writing(StoppableLink);

impl Writing {
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut (dyn Sender + 'static)>, &mut Context<'_>) -> Poll<Result<T, TransportError>>,
    ) -> Poll<Result<T, TransportError>> {
        let mut state = self.0.state();
        state.wakers[WRITING] = Some(cx.waker().clone());
        let writes = state.writes;
        match &mut state.tx {
            None => Poll::Ready(Err(gone())),
            Some(_) if !writes => Poll::Pending,
            Some(tx) => poll(tx.as_mut(), cx),
        }
    }

    fn with<T>(&self, or: T, act: impl FnOnce(Pin<&mut dyn Sender>) -> T) -> T {
        match &mut self.0.state().tx {
            None => or,
            Some(tx) => act(tx.as_mut()),
        }
    }
}

impl Sender for Writing {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.poll(cx, |tx, cx| tx.poll_ready(lane, cx))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.with(Err(gone()), |tx| tx.start_send(out))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.poll(cx, Sender::poll_flush)
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.with((), |tx| tx.begin_exchange(exchange));
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.with((), |tx| tx.note_rejection(exchange, fault));
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.with((), |tx| tx.finish_exchange(exchange, how));
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.with(Err(Unsupported), |tx| tx.abort_exchange(exchange))
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.poll(cx, |tx, cx| tx.poll_close(why, cx))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let tx = self.0.state().tx.take();
        drop(tx);
    }
}

// A TCP path that a test can cut: both ends get a reset and no other message, as when a machine is lost. Later
// connections fail.

/// The connections that were accepted, and those that have ended.
#[derive(Default)]
struct Counts {
    came: AtomicUsize,
    over: AtomicUsize,
}

/// An address that forwards bytes to a server, on any number of connections, until it is cut or dropped.
pub(crate) struct CuttableTcp {
    /// The address for clients.
    pub(crate) place: String,
    counts: Arc<Counts>,
    stop: oneshot::Sender<()>,
    forwards: JoinHandle<()>,
}

impl CuttableTcp {
    pub(crate) async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let counts = Arc::default();
        let forwards = accept_each(listener, server.to_owned(), Arc::clone(&counts), stopped);
        Self { place, counts, stop, forwards: tokio::spawn(forwards) }
    }

    /// How many connections were accepted so far, and how many of them have ended.
    pub(crate) fn connections(&self) -> (usize, usize) {
        (self.counts.came.load(Ordering::Relaxed), self.counts.over.load(Ordering::Relaxed))
    }

    /// Cuts the path. When this returns, nothing is forwarded any more, not even bytes that were on their way.
    pub(crate) async fn cut(self) {
        drop(self.stop);
        self.forwards.await.unwrap();
    }
}

async fn accept_each(
    listener: TcpListener,
    server: String,
    counts: Arc<Counts>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut forwarded = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = listener.accept() => {
                let (near, _) = accepted.unwrap();
                counts.came.fetch_add(1, Ordering::Relaxed);
                let (server, counts) = (server.clone(), Arc::clone(&counts));
                forwarded.spawn(async move {
                    // Each end learns of the other's end by its own.
                    let _ = forward(near, &server).await;
                    counts.over.fetch_add(1, Ordering::Relaxed);
                });
            }
            Some(_) = forwarded.join_next() => {}
        }
    }
    drop(listener);
    forwarded.shutdown().await;
}

async fn forward(near: TcpStream, server: &str) -> io::Result<()> {
    near.set_nodelay(true)?;
    let far = TcpStream::connect(server).await?;
    far.set_nodelay(true)?;
    let mut ends = Ends { near, far, are_over: false };
    copy_bidirectional(&mut ends.near, &mut ends.far).await?;
    ends.are_over = true;
    Ok(())
}

/// Both halves of a connection. They are reset, unless each has ended normally.
struct Ends {
    near: TcpStream,
    far: TcpStream,
    are_over: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if !self.are_over {
            for end in [&self.near, &self.far] {
                let _ = end.set_zero_linger();
            }
        }
    }
}

// What this process holds.

/// Whether this system reports it.
pub(crate) const IS_REPORTED: bool = cfg!(target_os = "linux");

/// The resident memory, in bytes. 0 if the system does not report it.
pub(crate) fn resident() -> usize {
    reported(rescind_testkit::resident_memory)
}

/// The open descriptors. 0 if the system does not report them.
pub(crate) fn descriptors() -> usize {
    reported(rescind_testkit::open_descriptors)
}

fn reported(of: fn(Option<u32>) -> Option<u64>) -> usize {
    if !IS_REPORTED {
        return 0;
    }
    usize::try_from(of(None).expect("the system tells")).expect("no process holds more than it can address")
}

/// Two pipes as a wire, as between a process and its child, with both ends in this process.
#[cfg(unix)]
mod pipes {
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use rescind::Endpoint;
    use rescind::stdio::Descriptors;
    use rescind::transport::{BoxFuture, Link, Listener, Transport, TransportError, TransportErrorKind};
    use tokio::net::unix::pipe;
    use tokio::sync::mpsc;

    /// A listener and the transport that connects to it.
    pub(crate) fn pipes() -> (PipesListener, Pipes) {
        let (connecting, accepted) = mpsc::unbounded_channel();
        (PipesListener(accepted), Pipes(connecting))
    }

    pub(crate) struct PipesListener(mpsc::UnboundedReceiver<Link>);

    impl Listener for PipesListener {
        fn poll_accept(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Link, TransportError>>> {
            Poll::Ready(ready!(self.0.poll_recv(cx)).map(Ok))
        }

        fn endpoint(&self) -> Endpoint {
            Endpoint("pipes".to_owned())
        }
    }

    /// Each connection is a separate pair of pipes.
    #[derive(Clone)]
    pub(crate) struct Pipes(mpsc::UnboundedSender<Link>);

    impl Transport for Pipes {
        fn name(&self) -> &'static str {
            "pipes"
        }

        fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
            Box::pin(async move {
                let failed = |error: std::io::Error| TransportError::new(TransportErrorKind::Open, error);
                let descriptors = || {
                    let (output, input) = pipe::pipe()?;
                    Ok::<_, std::io::Error>((input.into_blocking_fd()?, output.into_blocking_fd()?))
                };
                let ((there, forth), (here, back)) =
                    (descriptors().map_err(failed)?, descriptors().map_err(failed)?);
                let server = Box::new(Descriptors::new(there, back)).open().await?;
                self.0
                    .send(server)
                    .map_err(|_| TransportError::new(TransportErrorKind::Open, "nobody accepts"))?;
                Box::new(Descriptors::new(here, forth)).open().await
            })
        }
    }
}
