//! jsonrpsee: its WebSocket client and server on the two ends of any stream
//! (`WsTransportClientBuilder::build_with_stream` and `server::serve`), so without a socket. It cannot cancel a
//! request: if a caller is dropped, the handler continues.

use std::sync::Arc;
use std::time::Duration;

use ::jsonrpsee::client_transport::ws::{Url, WsTransportClientBuilder};
use ::jsonrpsee::core::client::{ClientBuilder, ClientT, Error, TransportReceiverT, TransportSenderT};
use ::jsonrpsee::core::middleware::RpcServiceBuilder;
use ::jsonrpsee::core::{RpcResult, rpc_params};
use ::jsonrpsee::http_client::HttpClientBuilder;
use ::jsonrpsee::server::{RpcModule, Server, ServerConfig, serve as serve_connection, stop_channel};
use tokio::sync::Notify;

use crate::cross_process::{Far, Wire};
use crate::generic_driver::{Driven, End, Halves, Library, Returned, Signals, Slots, Tasks, begun};
use crate::subject::{BoxFuture, Carries, Competitor, Name, Subject};
use crate::wire_subjects::{Kind, WireSubject};

pub(super) const fn name(configuration: &'static str) -> Name {
    Name { library: "jsonrpsee", version: "0.26.1", configuration, carries: Carries::Bytes }
}

/// The default of its client.
const DEFAULT_REQUESTS: usize = 256;

/// As its example `core_client`: a client from `ClientBuilder::default` on the WebSocket transport (`WsClientBuilder`
/// sets the same), and a server of a `RpcModule`.
pub const DEFAULT: Competitor = halves!(name("default"), Default);

/// As many requests and buffered messages as needed, and no middleware that logs.
pub const BEST: Competitor = halves!(name("best"), Best);

#[derive(Clone, Copy, Debug)]
struct Default;

impl Halves for Default {
    async fn serve<E: End>(self, end: E, _: usize, signals: Arc<Signals>) {
        serving(ServerConfig::default(), end, signals).await;
    }

    async fn connect<E: End>(self, end: E, _: usize) -> (impl Library, Tasks) {
        let (sender, receiver) = transport(end).await;
        let client = ClientBuilder::default().build_with_tokio(sender, receiver);
        (Connected { client: Arc::new(client), slots: Slots::Wait(DEFAULT_REQUESTS) }, Tasks::default())
    }
}

#[derive(Clone, Copy, Debug)]
struct Best;

impl Halves for Best {
    async fn serve<E: End>(self, end: E, slots: usize, signals: Arc<Signals>) {
        let buffer = u32::try_from(slots).expect("so many messages fit").max(1024);
        serving(ServerConfig::builder().set_message_buffer_capacity(buffer).build(), end, signals).await;
    }

    async fn connect<E: End>(self, end: E, slots: usize) -> (impl Library, Tasks) {
        let (sender, receiver) = transport(end).await;
        let client = ClientBuilder::default()
            .max_concurrent_requests(slots)
            .request_timeout(Duration::from_secs(3600))
            .set_rpc_middleware(RpcServiceBuilder::new())
            .build_with_tokio(sender, receiver);
        (Connected { client: Arc::new(client), slots: Slots::Wait(slots) }, Tasks::default())
    }
}

async fn transport(near: impl End) -> (impl TransportSenderT + Send, impl TransportReceiverT + Send) {
    let url = Url::parse("ws://localhost").expect("an address");
    let transport = WsTransportClientBuilder::default().build_with_stream(url, near);
    transport.await.expect("the server takes it")
}

async fn serving(config: ServerConfig, far: impl End, signals: Arc<Signals>) {
    let shared = Arc::new(Shared { signals, let_go: Notify::new() });
    let (stop, handle) = stop_channel();
    let service = Server::builder().set_config(config).to_service_builder().build(methods(&shared), stop);
    // It returns when the connection is a WebSocket.
    let _ = serve_connection(far, service).await;
    handle.stopped().await;
}

/// The common state of the handlers.
pub(super) struct Shared {
    pub(super) signals: Arc<Signals>,
    pub(super) let_go: Notify,
}

fn methods(shared: &Arc<Shared>) -> RpcModule<Shared> {
    let mut module = RpcModule::from_arc(Arc::clone(shared));
    module
        .register_async_method("echo", |params, _, _| async move {
            let (text,): (String,) = params.parse()?;
            RpcResult::Ok(text)
        })
        .expect("the name is free");
    module
        .register_method("let go", |_, shared, _| shared.let_go.notify_waiters())
        .expect("the name is free");
    module
        .register_async_method("park", |_, shared, _| async move {
            let let_go = shared.let_go.notified();
            let _waiting = shared.signals.wait();
            let_go.await;
            RpcResult::Ok(())
        })
        .expect("the name is free");
    module
}

pub(super) struct Connected<C> {
    pub(super) client: Arc<C>,
    pub(super) slots: Slots,
}

impl<C: ClientT + Send + Sync + 'static> Library for Connected<C> {
    type Text = &'static str;
    type Parked = BoxFuture<'static, Result<(), Error>>;

    const CANCELS: bool = false;

    fn slots(&self) -> Slots {
        self.slots
    }

    async fn echo(&self, text: &'static str) -> usize {
        let echoed: Result<String, Error> = self.client.request("echo", rpc_params![text]).await;
        echoed.expect("the server echoes").len()
    }

    async fn park(&self) -> Self::Parked {
        let client = Arc::clone(&self.client);
        let call = async move { client.request("park", rpc_params!["x"]).await };
        begun(Box::pin(call)).await
    }

    async fn cancel(&self, parked: Self::Parked) -> Returned {
        drop(parked);
        Returned::default()
    }

    async fn let_go(&self, parked: Vec<Self::Parked>) {
        let let_go: Result<(), Error> = self.client.request("let go", rpc_params![]).await;
        let_go.expect("the server answers");
        for parked in parked {
            parked.await.expect("the server answers");
        }
    }
}

// jsonrpsee over a WebSocket and over HTTP, between two processes. Its server serves both. A session over HTTP is its client with
// the connection that the client keeps.

/// The most connections, of which its default is 100.
const CONNECTIONS: u32 = 10_000;

/// As its example `core_client`.
pub const WEBSOCKET: WireSubject = WireSubject {
    name: name("default"),
    wires: &[Wire::WebSocket],
    kind: Kind::Sockets {
        open: |_, far| {
            Box::pin(async move {
                let (sender, receiver) = websocket(far).await;
                let client = ClientBuilder::default().build_with_tokio(sender, receiver);
                connected(far, client, Slots::Wait(DEFAULT_REQUESTS)).await
            })
        },
        serve: |_, listens| Box::pin(serve(listens)),
    },
};

/// No middleware that logs.
pub const WEBSOCKET_BEST: WireSubject = WireSubject {
    name: name("best"),
    wires: &[Wire::WebSocket],
    kind: Kind::Sockets {
        open: |_, far| {
            Box::pin(async move {
                let (sender, receiver) = websocket(far).await;
                let client = ClientBuilder::default()
                    .set_rpc_middleware(RpcServiceBuilder::new())
                    .build_with_tokio(sender, receiver);
                connected(far, client, Slots::Wait(DEFAULT_REQUESTS)).await
            })
        },
        serve: |_, listens| Box::pin(serve(listens)),
    },
};

/// As its example `http`.
pub const HTTP: WireSubject = WireSubject {
    name: name("default"),
    wires: &[Wire::Streamable, Wire::Stateless],
    kind: Kind::Sockets {
        open: |_, far| {
            Box::pin(async move {
                let client = HttpClientBuilder::default().build(format!("http://{}", far.endpoint));
                connected(far, client.expect("an address"), Slots::Unlimited).await
            })
        },
        serve: |_, listens| Box::pin(serve(listens)),
    },
};

async fn websocket(far: &Far) -> (impl TransportSenderT + Send, impl TransportReceiverT + Send) {
    let url = Url::parse(&format!("ws://{}", far.endpoint)).expect("an address");
    WsTransportClientBuilder::default().build(url).await.expect("the server accepts")
}

async fn connected<C: ClientT + Send + Sync + 'static>(
    far: &Far,
    client: C,
    slots: Slots,
) -> Box<dyn Subject> {
    let connected = Connected { client: Arc::new(client), slots };
    Driven::of_far(connected, far.process(), Arc::default(), Tasks::default()).await
}

async fn serve(listens: fn(&str)) {
    let signals = Arc::new(Signals::default());
    Arc::clone(&signals).answer();
    let shared = Arc::new(Shared { signals, let_go: Notify::new() });
    let config = ServerConfig::builder().max_connections(CONNECTIONS).build();
    let server = Server::builder().set_config(config).build("127.0.0.1:0").await.expect("a port is free");
    let endpoint = server.local_addr().expect("a socket").to_string();
    let handle = server.start(methods(&shared));
    listens(&endpoint);
    handle.stopped().await;
}
