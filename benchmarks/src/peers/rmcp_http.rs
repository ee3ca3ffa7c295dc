//! rmcp over streamable HTTP, between two processes: its server as a service of hyper, as in its example
//! `counter_hyper_streamable_http`, and its client on reqwest.

use std::convert::Infallible;
use std::sync::Arc;

use ::rmcp::ServiceExt as _;
use ::rmcp::transport::StreamableHttpClientTransport;
use ::rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpClientTransportConfig};
use ::rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use ::rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::rmcp::{Connected, Tools};
use crate::cross_process::{Far, Wire};
use crate::generic_driver::{Driven, Signals, Tasks};
use crate::subject::{BoxFuture, Carries, Name, Subject};
use crate::wire_subjects::{Kind, WireSubject};

const fn name(configuration: &'static str) -> Name {
    Name { library: "rmcp", version: "3.9.0", configuration, carries: Carries::Bytes }
}

/// Its defaults on both sides. Its client opens a TCP connection for each request, because reqwest would delay one that it uses
/// again before the last response is read to its end, as its docs say.
pub const DEFAULT: WireSubject = WireSubject {
    name: name("default"),
    wires: &[Wire::Streamable],
    kind: Kind::Sockets {
        open: |_, far| Box::pin(opened(far, StreamableHttpClientTransport::from_uri(url(far)))),
        serve: |_, listens| Box::pin(serve(StreamableHttpServerConfig::default(), listens)),
    },
};

/// A client that keeps its connections, with as many requests at once as the workload has.
pub const BEST: WireSubject = WireSubject {
    name: name("best"),
    wires: &[Wire::Streamable],
    kind: Kind::Sockets {
        open: |_, far| Box::pin(opened(far, pooled(far, StreamableHttpClientTransport::from_config))),
        serve: |_, listens| Box::pin(serve(StreamableHttpServerConfig::default(), listens)),
    },
};

/// The same without sessions, with answers as JSON in place of event streams.
pub const STATELESS: WireSubject = WireSubject {
    name: name("best, without sessions"),
    wires: &[Wire::Stateless],
    kind: Kind::Sockets {
        open: |_, far| Box::pin(opened(far, pooled(far, StreamableHttpClientTransport::from_config))),
        serve: |_, listens| {
            let config = StreamableHttpServerConfig::default();
            Box::pin(serve(config.with_legacy_session_mode(false).with_json_response(true), listens))
        },
    },
};

fn url(far: &Far) -> String {
    format!("http://{}/mcp", far.endpoint)
}

/// A transport on the default client of reqwest, which keeps connections. `like` names the type of that client.
fn pooled<C: StreamableHttpClient + Default>(
    far: &Far,
    like: fn(StreamableHttpClientTransportConfig) -> StreamableHttpClientTransport<C>,
) -> StreamableHttpClientTransport<C> {
    let _ = like;
    let config = StreamableHttpClientTransportConfig::with_uri(url(far)).max_concurrent_requests(64);
    StreamableHttpClientTransport::with_client(C::default(), config)
}

fn opened<C: StreamableHttpClient + Sync>(
    far: &Far,
    transport: StreamableHttpClientTransport<C>,
) -> BoxFuture<'static, Box<dyn Subject>> {
    let process = far.process();
    Box::pin(async move {
        let client = ().serve(transport).await.expect("the client is initialized");
        Driven::of_far(Connected { client }, process, Arc::default(), Tasks::default()).await
    })
}

async fn serve(config: StreamableHttpServerConfig, listens: fn(&str)) {
    let signals = Arc::new(Signals::default());
    Arc::clone(&signals).answer();
    let tools = move || Ok(Tools(Arc::clone(&signals)));
    let service = StreamableHttpService::new(tools, Arc::new(LocalSessionManager::default()), config);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        let service = service.clone();
        let answering = service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answering));
    }
}
