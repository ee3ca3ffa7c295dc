//! Echoes over the transports, both sides in one process, on streams in memory: unlike sockets they repeat. And the memory of a
//! request in flight.

use std::io;
use std::time::Duration;

use rescind_core::dialect::{ACP, Role};
use rescind_core::{
    ByteStream, Call, CallContext, Framing, HandlerError, Limits, Link, Peer, Router, Server, Tasks,
    Transport, memory_pair,
};
use rescind_http::{
    Acp, AcpTransport, GivenStream, HttpClient, HttpListener, HttpServer, Stateless, StatelessTransport,
    Streamable, StreamableTransport, count_ids,
};
use rescind_websocket::{UpgradeOptions, WebSocketTransport, accept_given, open_given};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::cross_process::{OurClient, Wire, router};
use crate::resources::{self, one_thread};

/// Waits that would sometimes end during an echo, because callgrind is slow: for the answer before its response becomes
/// an event stream, and for the response before a cancel.
const LATE: Duration = Duration::from_secs(3600);
/// The bytes that a stream holds in each direction.
const BUFFER: usize = 64 * 1024;

type Streams = UnboundedReceiver<Box<dyn GivenStream>>;

/// A transport in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The transport that passes frames.
    Frames,
    /// Lines in a stream of bytes, as over stdio and named pipes.
    Lines,
    /// The same with headers in place of line ends.
    ContentLength,
    /// A WebSocket.
    WebSocket,
    /// A binding of HTTP.
    Http(Wire),
}

/// Echoes of one size over one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echoes {
    /// The transport.
    pub carrier: Carrier,
    /// Bytes of the text in the params.
    pub bytes: usize,
    /// How the server's handler is registered.
    pub handler: EchoHandler,
}

/// How the handler of an echo is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoHandler {
    /// With `Router::method`.
    Task,
    /// With `Router::quick`.
    Quick,
    /// No echo: the client asks for the status of a task that goes on.
    TasksGet,
}

impl EchoHandler {
    fn router(self) -> Router {
        let router = router();
        match self {
            Self::Task => router,
            // It replaces the other one.
            Self::Quick => {
                router.quick("echo", |_: CallContext, params: Box<RawValue>| async move { Ok(params) })
            }
            Self::TasksGet => router.tasks(&Tasks::default()).method("initialize", declares_tasks).task(
                "tools/call",
                |context: CallContext, _: Box<RawValue>| async move {
                    context.cancelled().await;
                    Ok(())
                },
            ),
        }
    }
}

async fn declares_tasks(_: CallContext, _: Box<RawValue>) -> Result<Value, HandlerError> {
    let tasks = json!({ "requests": { "tools": { "call": {} } } });
    Ok(json!({ "protocolVersion": "2025-11-25", "capabilities": { "tasks": tasks } }))
}

impl Carrier {
    /// All that are counted. The first two bindings are HTTP/1.1, the last is HTTP/2.
    pub const ALL: [Self; 7] = [
        Self::Frames,
        Self::Lines,
        Self::ContentLength,
        Self::WebSocket,
        Self::Http(Wire::Streamable),
        Self::Http(Wire::Stateless),
        Self::Http(Wire::Acp),
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frames => "memory",
            Self::Lines => "lines",
            Self::ContentLength => "content-length",
            Self::WebSocket => "websocket",
            Self::Http(wire) => wire.name(),
        }
    }

    /// The transport between processes whose dialect and handshake this one has.
    const fn wire(self) -> Wire {
        match self {
            Self::Frames | Self::Lines | Self::ContentLength => Wire::Stdio,
            Self::WebSocket => Wire::WebSocket,
            Self::Http(wire) => wire,
        }
    }
}

impl Echoes {
    /// What is counted: each transport with every size, HTTP with the smallest, quick handlers in memory and over lines, and the
    /// status of a task over HTTP. At 64 KiB an echo over `stateless` made one allocation more or less in a thousand from run to run.
    pub fn all() -> impl Iterator<Item = Self> {
        let sizes = |carrier: &Carrier| match carrier {
            Carrier::Http(_) => &[64][..],
            _ => &[64, 4 * 1024, 64 * 1024],
        };
        let handler = EchoHandler::Task;
        let echoes = move |carrier: Carrier| {
            sizes(&carrier).iter().map(move |&bytes| Self { carrier, bytes, handler })
        };
        let quick = |carrier| Self { carrier, bytes: 64, handler: EchoHandler::Quick };
        let task =
            Self { carrier: Carrier::Http(Wire::Streamable), bytes: 64, handler: EchoHandler::TasksGet };
        let quick = [Carrier::Frames, Carrier::Lines].map(quick);
        Carrier::ALL.into_iter().flat_map(echoes).chain(quick).chain([task])
    }

    /// The name in the file of budgets.
    #[must_use]
    pub fn name(self) -> String {
        let over = self.carrier.name();
        let quick = match self.handler {
            EchoHandler::Task => "",
            EchoHandler::Quick => ", quick",
            EchoHandler::TasksGet => return format!("tasks/get over {over}"),
        };
        match self.bytes {
            64 => format!("echo over {over}{quick}"),
            bytes => format!("echo of {} KiB over {over}{quick}", bytes / 1024),
        }
    }
}

/// A client with its server.
#[derive(Debug)]
pub struct EchoClient {
    client: Peer,
    method: &'static str,
    params: Box<RawValue>,
}

impl EchoClient {
    /// A connection after its handshake. It ends with the runtime.
    ///
    /// # Panics
    /// If it does not open.
    pub async fn open(echoes: Echoes) -> Self {
        let (wire, handler) = (echoes.carrier.wire(), echoes.handler);
        let link = match echoes.carrier {
            Carrier::Frames => {
                let (ours, theirs) = memory_pair();
                serve(wire, handler, theirs);
                ours
            }
            Carrier::Lines => framed(wire, handler, Framing::Newline).await,
            Carrier::ContentLength => framed(wire, handler, Framing::ContentLength).await,
            Carrier::WebSocket => {
                let (ours, theirs) = tokio::io::duplex(BUFFER);
                let transport = WebSocketTransport::new("ws://127.0.0.1/");
                let accepted = accept_given(UpgradeOptions::new(), theirs);
                let (ours, theirs) = tokio::join!(open_given(&transport, ours), accepted);
                serve(wire, handler, theirs.expect("the client is accepted"));
                ours.expect("the server accepts")
            }
            Carrier::Http(wire) => http(wire, handler).await,
        };
        let client = Peer::builder(wire.dialect()).serve(Router::new()).role(Role::Client);
        let client = client.attach(link).expect("the runtime runs");
        OurClient::shake_hands(wire, &client).await;
        let (method, params) = match handler {
            EchoHandler::Task | EchoHandler::Quick => ("echo", wire.params(echoes.bytes)),
            EchoHandler::TasksGet => {
                let task = client.call::<_, ()>("tools/call", &json!({ "name": "a" })).task(None);
                let task = task.await.expect("it becomes a task");
                let params = json!({ "taskId": task.id() });
                ("tasks/get", to_raw_value(&params).expect("it is JSON"))
            }
        };
        Self { client, method, params }
    }

    /// This many round trips, one after another.
    ///
    /// # Panics
    /// If the server does not echo.
    pub async fn echo(&self, count: usize) {
        for _ in 0..count {
            let echoed: Box<RawValue> = self.client.call(self.method, &self.params).await.expect("an echo");
            // The stateless revision adds a member to a result.
            assert!(echoed.get().len() >= self.params.get().len());
        }
    }
}

fn serve(wire: Wire, handler: EchoHandler, link: Link) {
    let peer = Peer::builder(wire.dialect()).serve(handler.router()).role(Role::Server);
    let peer = peer.attach(link).expect("the runtime runs");
    tokio::spawn(async move { peer.closed().await });
}

async fn framed(wire: Wire, handler: EchoHandler, framing: Framing) -> Link {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let [ours, theirs] = [ours, theirs].map(|stream| Box::new(ByteStream::whole(stream).framing(framing)));
    serve(wire, handler, theirs.open().await.expect("a stream opens"));
    ours.open().await.expect("a stream opens")
}

async fn http(wire: Wire, handler: EchoHandler) -> Link {
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
    tokio::spawn(Server::builder([wire.dialect()]).serve(handler.router()).listen(listener).run());
    connect(wire, client).await
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
        Wire::Stdio | Wire::ContentLength | Wire::NamedPipe | Wire::WebSocket => panic!("it is not HTTP"),
    }
}

async fn connect(wire: Wire, client: HttpClient) -> Link {
    let transport: Box<dyn Transport> = match wire {
        Wire::Streamable | Wire::Streamable2 => Box::new(StreamableTransport::new(client).cancel_after(LATE)),
        Wire::Stateless | Wire::Stateless2 => Box::new(StatelessTransport::new(client)),
        Wire::Acp => Box::new(AcpTransport::new(client)),
        Wire::Stdio | Wire::ContentLength | Wire::NamedPipe | Wire::WebSocket => panic!("it is not HTTP"),
    };
    transport.open().await.expect("the wire opens")
}

/// Allocations of a thousand echoes.
#[must_use]
pub fn allocations(echoes: Echoes) -> u64 {
    let runtime = one_thread();
    let client = runtime.block_on(EchoClient::open(echoes));
    // One-time allocations do not belong to a request.
    runtime.block_on(client.echo(2000));
    resources::measure_heap(|| runtime.block_on(client.echo(1000))).map_or(0, |heap| heap.count as u64)
}

// The memory of a request in flight, counted exactly, on both sides of a connection in memory.

/// Heap bytes of a request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// All of them, on both sides. The caller's handle is not on the heap and not included.
    pub all: f64,
    /// The bytes that the runtime allocates for the handler's future when it is spawned alone: the future, the task's
    /// cell around it, and the rounding of both.
    pub task: f64,
    /// The future that the handler returns.
    pub future: f64,
}

impl Resident {
    /// The bytes of this library.
    #[must_use]
    pub fn beside(self) -> f64 {
        self.all - self.task
    }
}

/// Limits that allow this many requests in flight.
fn roomy(requests: usize) -> Limits {
    let mut limits = Limits::default();
    limits.max_calls = requests;
    limits.max_running_handlers = requests;
    limits.max_memory_bytes = limits.max_memory_bytes.max(requests.saturating_mul(2048));
    limits
}

async fn parked(context: rescind_core::CallContext) -> Result<(), rescind_core::HandlerError> {
    context.cancelled().await;
    Ok(())
}

/// Measures with this many calls in flight, with every handler waiting.
///
/// # Panics
/// If a limit refuses one of them.
#[must_use]
pub fn resident(requests: usize) -> Resident {
    let mut calls: Vec<Call<()>> = Vec::with_capacity(requests);
    let runtime = one_thread();
    let (client, server, first) = runtime.block_on(async {
        let (client, server) = memory_pair();
        let (told, first) = tokio::sync::oneshot::channel();
        let told = std::sync::Mutex::new(Some(told));
        let router = Router::new().method("park", move |context, _params: Box<RawValue>| {
            if let Some(told) = told.lock().expect("nobody panics").take() {
                let _ = told.send(rescind_core::CallContext::clone(&context));
            }
            parked(context)
        });
        let server = Peer::builder(ACP)
            .limits(roomy(requests))
            .serve(router)
            .attach(server)
            .expect("the runtime runs");
        let client = Peer::builder(ACP).limits(roomy(requests)).attach(client).expect("the runtime runs");
        tokio::task::yield_now().await;
        (client, server, first)
    });
    let params = super::params(1);
    let all = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..requests {
                calls.push(client.call("park", &*params).start().expect("a call starts"));
                if calls.len().is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
            while (server.stats().running as usize) < requests {
                tokio::task::yield_now().await;
                assert_eq!(client.stats().calls as usize, requests, "no limit refuses a request");
            }
            // Every handler was polled and waits.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    });
    let context = runtime.block_on(first).expect("a handler ran");
    let future = size_of_val(&parked(context.clone()));
    let spawned = 1000;
    let tasks = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..spawned {
                tokio::spawn(parked(context.clone()));
                // The runtime's queue must not grow.
                tokio::task::yield_now().await;
            }
        });
    });
    Resident {
        all: all.bytes_current as f64 / requests as f64,
        task: tasks.bytes_current as f64 / f64::from(spawned),
        future: future as f64,
    }
}
