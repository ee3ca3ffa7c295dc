//! agent-client-protocol, a client and an agent of its v1. It has no limit of handlers.

use std::borrow::Cow;
use std::sync::Arc;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{InitializeRequest, InitializeResponse};
use agent_client_protocol::{
    Agent, ByteStreams, Channel, Client, ConnectTo, Error, JsonRpcRequest, JsonRpcResponse, SentRequest, V1,
    on_receive_request,
};
use agent_client_protocol_http::{AcpHttpServer, HttpClient, HttpClientBuilder};
use axum::serve::ListenerExt as _;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

use crate::cross_process::{Far, Wire};
use crate::generic_driver::{
    Driven, End, Halves, Library, Returned, Signals, Slots, Tasks, Watch, one_by_one,
};
use crate::subject::{BoxFuture, Carries, Competitor, Name, Setup, Subject, Told};
use crate::wire_subjects::{Kind, WireSubject};

const fn name(configuration: &'static str, carries: Carries) -> Name {
    Name { library: "agent-client-protocol", version: "5.0.0", configuration, carries }
}

/// Lines over a stream (`ByteStreams`). A waiting handler waits in `ConnectionTo::spawn`, as the chapter about
/// cancelling in its docs shows.
pub const DEFAULT: Competitor = halves!(name("default", Carries::Bytes), Handlers::Spawned);

/// The same handlers, with its own transport in memory (`Channel::duplex`), which passes messages without serializing
/// them.
pub const BEST: Competitor = Competitor { name: name("best", Carries::Values), open: open_best, serve: None };

/// A handler waits inline, against the advice of that chapter: nothing is read meanwhile, not even a cancel.
pub const INLINE: Competitor = halves!(name("handlers wait inline", Carries::Bytes), Handlers::Inline);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handlers {
    Spawned,
    Inline,
}

impl Halves for Handlers {
    async fn serve<E: End>(self, end: E, _: usize, signals: Arc<Signals>) {
        let _ = agent(self, signals).connect_to(streams(end)).await;
    }

    async fn connect<E: End>(self, end: E, _: usize) -> (impl Library, Tasks) {
        client(streams(end), self).await
    }
}

fn open_best(_: Setup) -> BoxFuture<'static, Box<dyn Subject>> {
    Box::pin(async {
        let (near, far) = Channel::duplex();
        let signals = Arc::new(Signals::default());
        let mut serving = Tasks::default();
        serving.spawn(agent(Handlers::Spawned, Arc::clone(&signals)).connect_to(far));
        let (client, tasks) = client(near, Handlers::Spawned).await;
        Driven::boxed(client, Watch::Here(signals), serving.and(tasks))
    })
}

fn streams(end: impl End) -> impl ConnectTo<Client> + ConnectTo<Agent> {
    let (input, output) = end.split();
    ByteStreams::new(output.compat_write(), input.compat())
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonRpcRequest)]
#[request(method = "_echo", response = Text)]
struct Echo {
    text: Cow<'static, str>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonRpcRequest)]
#[request(method = "_park", response = Text)]
struct Park {
    text: Cow<'static, str>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonRpcResponse)]
pub(super) struct Text {
    text: Cow<'static, str>,
}

/// The agent of one connection.
pub(super) fn agent(handlers: Handlers, signals: Arc<Signals>) -> impl ConnectTo<Client> {
    Agent
        .v1()
        .on_receive_request(
            async |initialize: InitializeRequest, responder, _| {
                responder.respond(InitializeResponse::new(initialize.protocol_version))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |echo: Echo, responder, _| responder.respond(Text { text: echo.text }),
            on_receive_request!(),
        )
        .on_receive_request(
            async move |_: Park, responder, connection| {
                let cancellation = responder.cancellation();
                let signals = Arc::clone(&signals);
                let waiting = async move {
                    let parked = async {
                        // A cancelled one is dropped.
                        let _waiting = signals.wait();
                        std::future::pending::<Result<Text, Error>>().await
                    };
                    let parked = cancellation.run_until_cancelled(parked).await;
                    responder.respond_with_result(parked)
                };
                match handlers {
                    Handlers::Spawned => connection.spawn(waiting),
                    Handlers::Inline => waiting.await,
                }
            },
            on_receive_request!(),
        )
}

/// A client, and the task that drives its connection.
pub(super) async fn client(near: impl ConnectTo<Client>, handlers: Handlers) -> (Connected, Tasks) {
    let mut tasks = Tasks::default();
    let (told, connected) = oneshot::channel();
    // The connection is driven until the task is aborted with its subject.
    tasks.spawn(Client.v1().connect_with(near, async move |connection| {
        let _ = told.send(connection.clone());
        std::future::pending::<Result<(), Error>>().await
    }));
    let agent = connected.await.expect("the client is connected");
    let initialize = InitializeRequest::new(ProtocolVersion::V1);
    agent.send_request(initialize).block_task().await.expect("the agent is initialized");
    (Connected { agent, handlers }, tasks)
}

pub(super) struct Connected {
    agent: ConnectionTo<Agent>,
    handlers: Handlers,
}

impl Library for Connected {
    type Text = &'static str;
    type Parked = SentRequest<Text, V1>;

    fn slots(&self) -> Slots {
        match self.handlers {
            Handlers::Spawned => Slots::Unlimited,
            Handlers::Inline => Slots::Wait(1),
        }
    }

    async fn echo(&self, text: &'static str) -> usize {
        let echo = Echo { text: Cow::Borrowed(text) };
        self.agent.send_request(echo).block_task().await.expect("the agent echoes").text.len()
    }

    async fn park(&self) -> Self::Parked {
        self.agent.send_request(Park { text: Cow::Borrowed("x") })
    }

    async fn cancel(&self, parked: Self::Parked) -> Returned {
        parked.cancel().expect("the connection is driven");
        let answer = parked.block_task().await;
        assert!(answer.is_err(), "a cancelled request is answered so: {answer:?}");
        Returned::default()
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        one_by_one(self, count, || async {
            self.agent.clone().into_raw().send_cancel_request("unknown".to_owned()).expect("it is driven");
        })
        .await
    }
}

// agent-client-protocol over HTTP and over a WebSocket, between two processes, with agent-client-protocol-http: its router
// served by axum, as its docs show, and its client on reqwest. One server serves both.
//
// Over HTTP each message of the client is a POST, and it has one POST at a time. All answers are events of one stream.

const fn http_name(configuration: &'static str) -> Name {
    Name { library: "agent-client-protocol", version: "5.0.0", configuration, carries: Carries::Bytes }
}

/// Its defaults on both sides. The client is HTTP/1.1 without TLS. axum leaves Nagle's algorithm on.
pub const HTTP: WireSubject = WireSubject {
    name: http_name("default, HTTP/1.1"),
    wires: &[Wire::Acp],
    kind: Kind::Sockets {
        open: |_, far| opened_http(far, HttpClient::builder(url(far, "http"))),
        serve: |_, listens| Box::pin(serve_http(Nagle::On, listens)),
    },
};

/// The same with `TCP_NODELAY` on the server's sockets, as the docs of axum's `ListenerExt::tap_io` show.
pub const HTTP_BEST: WireSubject = WireSubject {
    name: http_name("best, HTTP/1.1"),
    wires: &[Wire::Acp],
    kind: Kind::Sockets {
        open: |_, far| opened_http(far, HttpClient::builder(url(far, "http"))),
        serve: |_, listens| Box::pin(serve_http(Nagle::Off, listens)),
    },
};

/// The same in HTTP/2: its docs leave the version to `configure_http`. Here it is slower than HTTP/1.1, but ours is HTTP/2 too.
pub const HTTP2: WireSubject = WireSubject {
    name: http_name("HTTP/2"),
    wires: &[Wire::Acp],
    kind: Kind::Sockets {
        open: |_, far| {
            let builder = HttpClient::builder(url(far, "http"));
            opened_http(far, builder.configure_http(reqwest::ClientBuilder::http2_prior_knowledge))
        },
        serve: |_, listens| Box::pin(serve_http(Nagle::Off, listens)),
    },
};

/// Its defaults on both sides.
pub const WEBSOCKET: WireSubject = WireSubject {
    name: http_name("default"),
    wires: &[Wire::WebSocket],
    kind: Kind::Sockets {
        open: |_, far| opened_http(far, HttpClient::builder(url(far, "ws"))),
        serve: |_, listens| Box::pin(serve_http(Nagle::On, listens)),
    },
};

/// The same with `TCP_NODELAY` on the server's sockets.
pub const WEBSOCKET_BEST: WireSubject = WireSubject {
    name: http_name("best"),
    wires: &[Wire::WebSocket],
    kind: Kind::Sockets {
        open: |_, far| opened_http(far, HttpClient::builder(url(far, "ws"))),
        serve: |_, listens| Box::pin(serve_http(Nagle::Off, listens)),
    },
};

/// The scheme decides which transport it is.
fn url(far: &Far, scheme: &str) -> String {
    format!("{scheme}://{}", far.endpoint)
}

fn opened_http(far: &Far, transport: HttpClientBuilder) -> BoxFuture<'static, Box<dyn Subject>> {
    let process = far.process();
    Box::pin(async move {
        let transport = transport.build().expect("an address");
        let (client, tasks) = client(transport, Handlers::Spawned).await;
        Driven::of_far(client, process, Arc::default(), tasks).await
    })
}

/// Nagle's algorithm: a small write waits until the last one is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nagle {
    On,
    Off,
}

/// Serves both transports at its path, `/acp`.
async fn serve_http(nagle: Nagle, listens: fn(&str)) {
    let signals = Arc::new(Signals::default());
    Arc::clone(&signals).answer();
    let router = AcpHttpServer::new(move || agent(Handlers::Spawned, Arc::clone(&signals))).into_router();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    let listener = listener.tap_io(move |stream| {
        if nagle == Nagle::Off {
            stream.set_nodelay(true).expect("a socket");
        }
    });
    axum::serve(listener, router).await.expect("it serves");
}
