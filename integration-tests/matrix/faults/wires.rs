//! The wires the faults are played on: how each listens and is connected to. A wire more is a row more.
//!
//! Stateless HTTP is no row: its one link serves a whole listener and has no handshake, no session that could be lost and no requests of
//! its server's, and its protocol is not the one the agents here speak. Of the faults it has the burst (`burst.rs`) and, in the
//! crate's own tests, who leaves (`covered.rs`). A half-open peer, a slow reader and a thousand connections are not played on it here.

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

use crate::in_time;
use crate::line::Line;
#[cfg(unix)]
use crate::pipes::pipes;

/// What a test sets of a wire, where the wire has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The largest frame the server takes, in bytes.
    pub(crate) max_frame: usize,
    /// After so long a silence a WebSocket pings, and an event stream says something.
    pub(crate) ping: Duration,
    /// A session of HTTP that nobody uses is ended after so long: so it notices that its client is gone.
    pub(crate) idle: Duration,
    /// How a client of HTTP comes to its server.
    pub(crate) way: Way,
}

/// Between a client and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Straight,
    /// By a [`Line`].
    Cuttable,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            max_frame: 16 << 20,
            ping: Duration::from_secs(20),
            idle: Duration::from_millis(300),
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

/// What a loss means on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A connection that ends is gone.
    Connection,
    /// A session outlives its connections: a client that vanishes is noticed by what it no longer reads.
    Conversation,
}

/// A pair of pipes in one process is there on Unix alone.
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

/// What a client speaks.
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

/// A listener, and the way to it.
pub(crate) struct Door {
    pub(crate) listener: Pin<Box<dyn Listener>>,
    pub(crate) transport: Box<dyn Fn() -> Box<dyn Transport> + Send>,
    /// Where a client of another make goes: an address, or a path.
    pub(crate) place: String,
    /// Over HTTP, where it was asked for.
    pub(crate) line: Option<Line>,
    /// What a server of HTTP gave up by itself.
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

/// `transport` makes a client of the URL it is given.
async fn http(
    binding: impl ServerBinding,
    path: &str,
    setting: Setting,
    transport: impl Fn(&str) -> Box<dyn Transport> + Send + 'static,
) -> Door {
    let server = HttpServer::new(binding)
        .path(path)
        .max_frame(setting.max_frame)
        .keep_alive(setting.ping)
        .session_idle(setting.idle);
    let mut listener = server.bind("127.0.0.1:0").await.unwrap();
    // All that a test opens comes from one address.
    Pin::new(&mut listener).share_among(&Clients::new(Share::ALL, 64));
    let mut url = listener.endpoint().0;
    let place = url.trim_start_matches("http://").trim_end_matches(path).to_owned();
    let line = match setting.way {
        Way::Straight => None,
        Way::Cuttable => Some(Line::to(&place).await),
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
