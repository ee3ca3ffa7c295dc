//! Echoes over HTTP, both sides in one process, on streams in memory: unlike sockets they repeat.

use std::io;
use std::time::Duration;

use rescind_core::dialect::Role;
use rescind_core::{Link, Peer, Router, Server, Transport};
use rescind_http::{
    Acp, AcpTransport, GivenStream, HttpClient, HttpListener, HttpServer, Stateless, StatelessTransport,
    Streamable, StreamableTransport, count_ids,
};
use serde_json::value::RawValue;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::cross_process::{OurClient, Wire, router};
use crate::heap;
use crate::wires::one_thread;

/// Waits that would sometimes end during an echo, because callgrind is slow: for the answer before its response becomes
/// an event stream, and for the response before a cancel.
const LATE: Duration = Duration::from_secs(3600);
/// The bytes that a stream holds in each direction.
const BUFFER: usize = 64 * 1024;

/// The counted bindings. The first two are HTTP/1.1, the last is HTTP/2.
pub const OVER_HTTP: [Wire; 3] = [Wire::Streamable, Wire::Stateless, Wire::Acp];

type Streams = UnboundedReceiver<Box<dyn GivenStream>>;

/// A client with its server.
#[derive(Debug)]
pub struct HttpEcho {
    client: Peer,
    params: Box<RawValue>,
}

impl HttpEcho {
    /// A connection after its handshake. It ends with the runtime.
    ///
    /// # Panics
    /// If the wire is not HTTP.
    pub async fn open(wire: Wire) -> Self {
        count_ids();
        let (give, streams) = unbounded_channel();
        let client = HttpClient::new("http://127.0.0.1/").expect("a URL").dial(move || {
            let (ours, theirs) = tokio::io::duplex(BUFFER);
            let theirs: Box<dyn GivenStream> = Box::new(theirs);
            give.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(ours)
        });
        let client = if wire.is_http2() { client.http2() } else { client };
        let listener = listen(wire, streams);
        tokio::spawn(Server::builder([wire.dialect()]).serve(router()).listen(listener).run());
        let link = connect(wire, client).await;
        let client = Peer::builder(wire.dialect()).serve(Router::new()).role(Role::Client);
        let client = client.attach(link).expect("the runtime runs");
        OurClient::shake_hands(wire, &client).await;
        Self { client, params: wire.params(64) }
    }

    /// This many round trips, one after another.
    ///
    /// # Panics
    /// If the server does not echo.
    pub async fn echo(&self, count: usize) {
        for _ in 0..count {
            let echoed: Box<RawValue> = self.client.call("echo", &self.params).await.expect("an echo");
            // The stateless revision adds a member to a result.
            assert!(echoed.get().len() >= self.params.get().len());
        }
    }
}

fn listen(wire: Wire, streams: Streams) -> HttpListener {
    match wire {
        Wire::Streamable | Wire::Streamable2 => {
            HttpServer::new(Streamable::new().stream_after(LATE)).serve_given(streams)
        }
        Wire::Stateless | Wire::Stateless2 => {
            HttpServer::new(Stateless::new().stream_after(LATE)).serve_given(streams)
        }
        Wire::Acp => HttpServer::new(Acp::new()).serve_given(streams),
        Wire::Stdio | Wire::NamedPipe | Wire::WebSocket => panic!("it is not HTTP"),
    }
}

async fn connect(wire: Wire, client: HttpClient) -> Link {
    let transport: Box<dyn Transport> = match wire {
        Wire::Streamable | Wire::Streamable2 => Box::new(StreamableTransport::new(client).cancel_after(LATE)),
        Wire::Stateless | Wire::Stateless2 => Box::new(StatelessTransport::new(client)),
        Wire::Acp => Box::new(AcpTransport::new(client)),
        Wire::Stdio | Wire::NamedPipe | Wire::WebSocket => panic!("it is not HTTP"),
    };
    transport.open().await.expect("the wire opens")
}

/// Allocations of a thousand echoes.
#[must_use]
pub fn allocations(wire: Wire) -> u64 {
    let runtime = one_thread();
    let echoes = runtime.block_on(HttpEcho::open(wire));
    // One-time allocations do not belong to a request.
    runtime.block_on(echoes.echo(2000));
    heap::measure(|| runtime.block_on(echoes.echo(1000))).map_or(0, |heap| heap.count as u64)
}
