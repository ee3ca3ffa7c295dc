//! jsonrpsee over a WebSocket and over HTTP, between two processes. Its server serves both. A session over HTTP is its client with
//! the connection that the client keeps.

use std::sync::Arc;

use ::jsonrpsee::client_transport::ws::{Url, WsTransportClientBuilder};
use ::jsonrpsee::core::client::{ClientBuilder, ClientT, TransportReceiverT, TransportSenderT};
use ::jsonrpsee::core::middleware::RpcServiceBuilder;
use ::jsonrpsee::http_client::HttpClientBuilder;
use ::jsonrpsee::server::{Server, ServerConfig};
use tokio::sync::Notify;

use super::jsonrpsee::{Connected, DEFAULT_REQUESTS, Shared, methods, name};
use crate::cross_process::{Far, Wire};
use crate::generic_driver::{Driven, Signals, Slots, Tasks};
use crate::subject::Subject;
use crate::wire_subjects::{Kind, WireSubject};

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
