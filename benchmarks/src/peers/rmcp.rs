//! rmcp: a tool call, with its client and its server on the two ends of a duplex, as in its docs for one process. It
//! has no limit of handlers.
//!
//! `RequestHandle::cancel` returns to the caller as soon as the notification is written. The server drops the
//! handler's result after it, so no answer arrives.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ::rmcp::ServiceExt as _;
use ::rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotification,
    CancelledNotificationParam, ClientRequest, ContentBlock, JsonObject, NumberOrString, ServerCapabilities,
    ServerConfig,
};
use ::rmcp::service::{PeerRequestOptions, RequestContext, RequestHandle, RunningService};
use ::rmcp::transport::StreamableHttpClientTransport;
use ::rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpClientTransportConfig};
use ::rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use ::rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use ::rmcp::{ErrorData, RoleClient, RoleServer, ServerHandler, ServiceError};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::cross_process::{Far, Wire};
use crate::generic_driver::{
    Driven, Due, End, Halves, Library, Returned, Signals, Slots, Tasks, begun, one_by_one,
};
use crate::subject::{BoxFuture, Carries, Competitor, Name, Subject, Told};
use crate::wire_subjects::{Kind, WireSubject};

/// Its defaults: no setting is relevant here. The tools are matched by hand in `ServerHandler::call_tool`, which
/// avoids the cost of the router of its macros for each call.
pub const DEFAULT: Competitor = halves!(
    Name { library: "rmcp", version: "3.9.0", configuration: "default", carries: Carries::Bytes },
    Default
);

#[derive(Clone, Copy, Debug)]
struct Default;

impl Halves for Default {
    async fn serve<E: End>(self, end: E, _: usize, signals: Arc<Signals>) {
        let server = Tools(signals).serve(end.split()).await.expect("the server is initialized");
        let _ = server.waiting().await;
    }

    async fn connect<E: End>(self, end: E, _: usize) -> (impl Library, Tasks) {
        let client = ().serve(end.split()).await.expect("the client is initialized");
        (Connected { client }, Tasks::default())
    }
}

pub(super) struct Tools(pub(super) Arc<Signals>);

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name == "park" {
            let waiting = self.0.wait();
            context.ct.cancelled().await;
            drop(waiting);
            return Ok(CallToolResult::success(Vec::new()).into());
        }
        match request.arguments.and_then(|mut arguments| arguments.remove("text")) {
            Some(Value::String(text)) => Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into()),
            _ => Err(ErrorData::invalid_params("a text is echoed", None)),
        }
    }
}

pub(super) struct Connected {
    pub(super) client: RunningService<RoleClient, ()>,
}

fn call(tool: &'static str, text: &str) -> CallToolRequestParams {
    let mut arguments = JsonObject::new();
    arguments.insert("text".to_owned(), Value::from(text));
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

impl Library for Connected {
    type Text = &'static str;
    type Parked = RequestHandle<RoleClient>;

    fn slots(&self) -> Slots {
        Slots::Unlimited
    }

    async fn echo(&self, text: &'static str) -> usize {
        let result = self.client.call_tool(call("echo", text)).await.expect("the server echoes");
        result.content.first().and_then(ContentBlock::as_text).expect("an echo is a text").text.len()
    }

    async fn park(&self) -> Self::Parked {
        self.parked(PeerRequestOptions::no_options()).await
    }

    async fn cancel(&self, parked: Self::Parked) -> Returned {
        parked.cancel(None).await.expect("the loop runs");
        Returned::default()
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        one_by_one(self, count, || async {
            let params = CancelledNotificationParam::new(Some(NumberOrString::Number(-1)), None);
            let cancel = self.client.send_notification(CancelledNotification::new(params).into());
            cancel.await.expect("the loop runs");
        })
        .await
    }

    fn deadline(&self, after: Duration) -> Option<impl Future<Output = Due> + Send> {
        Some(async move {
            let parked = self.parked(PeerRequestOptions::with_timeout(after)).await;
            let due: BoxFuture<'static, ()> = Box::pin(async {
                let answer = parked.await_response().await;
                assert!(matches!(answer, Err(ServiceError::Timeout { .. })), "it is too late: {answer:?}");
            });
            // Its time counts from its first poll.
            Due(begun(due).await)
        })
    }
}

impl Connected {
    async fn parked(&self, options: PeerRequestOptions) -> RequestHandle<RoleClient> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(call("park", "x")));
        self.client.send_cancellable_request(request, options).await.expect("the loop runs")
    }
}

// rmcp over streamable HTTP, between two processes: its server as a service of hyper, as in its example
// `counter_hyper_streamable_http`, and its client on reqwest.

const fn http_name(configuration: &'static str) -> Name {
    Name { library: "rmcp", version: "3.9.0", configuration, carries: Carries::Bytes }
}

/// Its defaults on both sides. Its client opens a TCP connection for each request, because reqwest would delay one that it uses
/// again before the last response is read to its end, as its docs say.
pub const HTTP_DEFAULT: WireSubject = WireSubject {
    name: http_name("default"),
    wires: &[Wire::Streamable],
    kind: Kind::Sockets {
        open: |_, far| Box::pin(opened(far, StreamableHttpClientTransport::from_uri(url(far)))),
        serve: |_, listens| Box::pin(serve_http(StreamableHttpServerConfig::default(), listens)),
    },
};

/// A client that keeps its connections, with as many requests at once as the workload has.
pub const HTTP_BEST: WireSubject = WireSubject {
    name: http_name("best"),
    wires: &[Wire::Streamable],
    kind: Kind::Sockets {
        open: |_, far| Box::pin(opened(far, pooled(far, StreamableHttpClientTransport::from_config))),
        serve: |_, listens| Box::pin(serve_http(StreamableHttpServerConfig::default(), listens)),
    },
};

/// The same without sessions, with answers as JSON in place of event streams.
pub const HTTP_STATELESS: WireSubject = WireSubject {
    name: http_name("best, without sessions"),
    wires: &[Wire::Stateless],
    kind: Kind::Sockets {
        open: |_, far| Box::pin(opened(far, pooled(far, StreamableHttpClientTransport::from_config))),
        serve: |_, listens| {
            let config = StreamableHttpServerConfig::default();
            Box::pin(serve_http(config.with_legacy_session_mode(false).with_json_response(true), listens))
        },
    },
};

fn url(far: &Far) -> String {
    format!("http://{}/mcp", far.endpoint)
}

/// A transport on the default client of reqwest, which keeps connections. `like` names the type of that client.
fn pooled<C: StreamableHttpClient + std::default::Default>(
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

async fn serve_http(config: StreamableHttpServerConfig, listens: fn(&str)) {
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
