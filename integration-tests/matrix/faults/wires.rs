//! The wires on which the faults are played: how each listens and connects. A new wire is a new row.
//!
//! Stateless HTTP has no row: its one link serves a whole listener and has no handshake, no session that could be
//! lost and no requests of its server, and its protocol is not that of the agents here. It has the fault of bursts
//! (`burst.rs`) and, in the crate's own tests, that of closed exchanges (`covered_elsewhere.rs`). A half-open peer, a slow
//! reader and a thousand connections are not played on it here.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rescind::http::{
    Acp, AcpTransport, HttpClient, HttpCounts, HttpServer, ServerBinding, Streamable, StreamableTransport,
};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind::transport::{BoxFuture, Link, Listener, Transport};
use rescind::websocket::{LinkOptions, UpgradeOptions, WebSocketListener};
use rescind::{Clients, Framing, Share, memory_listener};

use crate::cuttable_tcp::CuttableTcp;
use crate::in_time;
#[cfg(unix)]
use crate::pipes::pipes;

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
    let (listener, transport) = pipes();
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
