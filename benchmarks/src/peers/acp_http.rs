//! agent-client-protocol over HTTP and over a WebSocket, between two processes, with agent-client-protocol-http: its router
//! served by axum, as its docs show, and its client on reqwest. One server serves both.
//!
//! Over HTTP each message of the client is a POST, and it has one POST at a time. All answers are events of one stream.

use std::sync::Arc;

use agent_client_protocol_http::{AcpHttpServer, HttpClient, HttpClientBuilder};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use super::acp::{Handlers, agent, client};
use crate::cross_process::{Far, Wire};
use crate::generic_driver::{Driven, Signals};
use crate::subject::{BoxFuture, Carries, Name, Subject};
use crate::wire_subjects::{Kind, WireSubject};

const fn name(configuration: &'static str) -> Name {
    Name { library: "agent-client-protocol", version: "5.0.0", configuration, carries: Carries::Bytes }
}

/// Its defaults on both sides. The client is HTTP/1.1 without TLS. axum leaves Nagle's algorithm on.
pub const HTTP: WireSubject = WireSubject {
    name: name("default, HTTP/1.1"),
    wires: &[Wire::Acp],
    kind: Kind::Sockets {
        open: |_, far| opened(far, HttpClient::builder(url(far, "http"))),
        serve: |_, listens| Box::pin(serve(Nagle::On, listens)),
    },
};

/// The same with `TCP_NODELAY` on the server's sockets, as the docs of axum's `ListenerExt::tap_io` show.
pub const HTTP_BEST: WireSubject = WireSubject {
    name: name("best, HTTP/1.1"),
    wires: &[Wire::Acp],
    kind: Kind::Sockets {
        open: |_, far| opened(far, HttpClient::builder(url(far, "http"))),
        serve: |_, listens| Box::pin(serve(Nagle::Off, listens)),
    },
};

/// The same in HTTP/2: its docs leave the version to `configure_http`. Here it is slower than HTTP/1.1, but ours is HTTP/2 too.
pub const HTTP2: WireSubject = WireSubject {
    name: name("HTTP/2"),
    wires: &[Wire::Acp],
    kind: Kind::Sockets {
        open: |_, far| {
            let builder = HttpClient::builder(url(far, "http"));
            opened(far, builder.configure_http(reqwest::ClientBuilder::http2_prior_knowledge))
        },
        serve: |_, listens| Box::pin(serve(Nagle::Off, listens)),
    },
};

/// Its defaults on both sides.
pub const WEBSOCKET: WireSubject = WireSubject {
    name: name("default"),
    wires: &[Wire::WebSocket],
    kind: Kind::Sockets {
        open: |_, far| opened(far, HttpClient::builder(url(far, "ws"))),
        serve: |_, listens| Box::pin(serve(Nagle::On, listens)),
    },
};

/// The same with `TCP_NODELAY` on the server's sockets.
pub const WEBSOCKET_BEST: WireSubject = WireSubject {
    name: name("best"),
    wires: &[Wire::WebSocket],
    kind: Kind::Sockets {
        open: |_, far| opened(far, HttpClient::builder(url(far, "ws"))),
        serve: |_, listens| Box::pin(serve(Nagle::Off, listens)),
    },
};

/// The scheme decides which transport it is.
fn url(far: &Far, scheme: &str) -> String {
    format!("{scheme}://{}", far.endpoint)
}

fn opened(far: &Far, transport: HttpClientBuilder) -> BoxFuture<'static, Box<dyn Subject>> {
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
async fn serve(nagle: Nagle, listens: fn(&str)) {
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
