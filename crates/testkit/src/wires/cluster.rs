//! Three replicas of the fixture, and a balancer of HTTP that sends each request to the next one.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Stdio, id};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rescind_cluster::{Cluster, NodeList, NodeName, Secret};
use rescind_core::{BoxFuture, Capabilities, Endpoint, Link, Listener, Transport, TransportError};
use rescind_http::{HttpClient, HttpListener, ServerBinding};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio::task::{JoinHandle, JoinSet};

use super::in_process::{Http, late};
use super::stdio::OptionsFile;
use super::{Program, Served, Wire};
use crate::dialects::HttpBinding;
use crate::support::mcp_meta;
use crate::vector::Scenario;

/// The names of the replicas.
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The time in which a replica must start.
const START: Duration = Duration::from_secs(20);
/// The time between two attempts to replace the list, and between two looks whether the replicas know each other.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Three replicas that serve a binding.
pub(super) struct Replicas<B, T> {
    program: Program,
    binding: HttpBinding,
    http: Http<B, T>,
}

impl<B, T> Replicas<B, T> {
    pub(super) fn new(program: &Program, binding: HttpBinding, http: Http<B, T>) -> Self {
        Self { program: program.clone(), binding, http }
    }
}

impl<B: ServerBinding + Send + Sync, T: Transport + Clone + Sync> Wire for Replicas<B, T> {
    /// The replicas are processes, which know each other by a list in a file.
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move {
            let list = ListFile::new();
            // A replica reads the list when it starts, and again when it looks for another.
            list.write(std::iter::empty()).await?;
            let options = OptionsFile::write(scenario)?;
            let replica = |name| self.start(scenario, &list, options.as_ref(), name);
            let [one, two, three] = NODES;
            let replicas = tokio::try_join!(replica(one), replica(two), replica(three))?;
            let replicas = <[Replica; 3]>::from(replicas);
            list.write(NODES.into_iter().zip(&replicas).map(|(name, replica)| (name, replica.address)))
                .await?;
            if self.binding == HttpBinding::Stateless {
                // No session is looked for, which would make a replica read the list.
                let known = replicas.iter().map(|replica| knows_the_others(replica.address));
                tokio::time::timeout(START, try_join_all(known))
                    .await
                    .map_err(|_| "the replicas did not find each other in time".to_owned())?
                    .map_err(|error| error.to_string())?;
            }
            let addresses = replicas.iter().map(|replica| replica.address).collect();
            let balancer = Balancer::start(addresses).await.map_err(|error| error.to_string())?;
            let client = client(&balancer)?;
            let transport = (self.http.client)(client);
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let opening = Box::new(transport.clone()).open();
                Box::pin(async move { opening.await.map_err(|error| error.to_string()) })
            };
            let end = async move {
                drop(balancer);
                for mut replica in replicas {
                    let _ = replica.process.kill().await;
                }
                drop((list, options));
            };
            Ok(Served {
                connect: Box::new(connect),
                many_lines: true,
                half_close: false,
                exit_report: None,
                end: Box::pin(end),
            })
        })
    }

    /// The replicas are listeners in this process, since the scenario acts as the one that is reached.
    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let nodes = NodeList::new();
            let mut listeners = Vec::new();
            for name in NODES {
                listeners.push(self.join(name, &nodes).await?);
            }
            let addresses: Result<Vec<_>, _> =
                listeners.iter().map(|(listener, _)| address_of(&listener.endpoint().0)).collect();
            let balancer = Balancer::start(addresses?).await.map_err(|error| error.to_string())?;
            let transport = (self.http.client)(client(&balancer)?);
            let near = Box::new(transport).open().await.map_err(|error| error.to_string())?;
            let traits = Capabilities { opens_exchanges: false, ..near.traits };
            let far = late(Box::pin(AnyOf { listeners, _balancer: balancer }), traits);
            Ok((near, far))
        })
    }
}

impl<B: ServerBinding + Send, T> Replicas<B, T> {
    /// Starts a replica and waits until it listens.
    async fn start(
        &self,
        scenario: &Scenario,
        list: &ListFile,
        options: Option<&OptionsFile>,
        name: &str,
    ) -> Result<Replica, String> {
        let mut command = self.program.process();
        command.args(["fixture", "--dialect", scenario.dialect, "--any-opening", "--node", name]);
        command.args(["--binding", self.binding.name()]);
        command
            .args(["--listen", "http://127.0.0.1:0/", "--cluster"])
            .arg(format!("static:@{}", list.0.display()));
        if let Some(options) = options {
            command.arg("--options").arg(options.path());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| format!("a replica did not start: {error}"))?;
        let stderr = process.stderr.take().ok_or("a replica has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let listening = async {
            let mut said = String::new();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(url) = line.strip_prefix("listening on ") {
                    return address_of(url);
                }
                said.push_str(&line);
            }
            Err(format!("a replica ended: {said}"))
        };
        let late = |_| "a replica did not start in time".to_owned();
        let address = tokio::time::timeout(START, listening).await.map_err(late)??;
        // Nobody reads what it says later, and its pipe stays open.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Replica { process, address })
    }

    /// A node of a list, in this process.
    async fn join(&self, name: &str, nodes: &NodeList) -> Result<(HttpListener, Cluster), String> {
        let name: NodeName = name.parse().map_err(|error| format!("{name}: {error}"))?;
        let cluster = Cluster::connect(nodes.clone().into(), Some(name.clone()), Secret::of_loopback()).await;
        let cluster = cluster.map_err(|error| error.to_string())?;
        let server = self.http.server().session_router(cluster.router());
        let listener = server.bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let url = listener.endpoint().0;
        nodes.set(name, url.parse().map_err(|error| format!("{url}: {error}"))?);
        cluster.join(&url).await.map_err(|error| error.to_string())?;
        Ok((listener, cluster))
    }
}

/// Asks a replica of MCP 2026-07-28 for the counters of all until it counts each of them.
async fn knows_the_others(address: SocketAddr) -> Result<(), Failed> {
    // The runner leaves out requests with such an id.
    let body = json!({
        "jsonrpc": "2.0", "id": "runner-0", "method": "test/stats", "params": {"_meta": mcp_meta()},
    });
    loop {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
        tokio::spawn(connection);
        let request = Request::post("/")
            .header(HOST, address.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "test/stats")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let answer = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        // It is an event if it took a while.
        let text = String::from_utf8_lossy(&answer);
        let counted = text.lines().any(|line| {
            let message = serde_json::from_str::<Value>(line.strip_prefix("data: ").unwrap_or(line));
            message.is_ok_and(|message| message.pointer("/result/fixtures") == Some(&NODES.len().into()))
        });
        if counted {
            return Ok(());
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

fn client(balancer: &Balancer) -> Result<HttpClient, String> {
    HttpClient::new(&format!("http://{}/", balancer.address())).map_err(|error| error.to_string())
}

fn address_of(url: &str) -> Result<SocketAddr, String> {
    let address = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
    address.parse().map_err(|error| format!("{url}: {error}"))
}

/// A replica that runs. It is killed when this value is dropped.
struct Replica {
    process: Child,
    address: SocketAddr,
}

/// The list of the replicas, in a file that is deleted on drop.
struct ListFile(PathBuf);

impl ListFile {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("rescind-nodes-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    async fn write(&self, nodes: impl Iterator<Item = (&str, SocketAddr)>) -> Result<(), String> {
        let lines: Vec<String> = nodes.map(|(name, address)| format!("{name}=http://{address}/\n")).collect();
        // Renamed, so that no replica reads a part of it.
        let part = self.0.with_extension("part");
        let failed = |error| format!("the list of the replicas could not be written: {error}");
        std::fs::write(&part, lines.concat()).map_err(failed)?;
        let late = Instant::now() + START;
        loop {
            match std::fs::rename(&part, &self.0) {
                // Not every Windows replaces a file while a replica reads it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && Instant::now() < late => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                renamed => return renamed.map_err(failed),
            }
        }
    }
}

impl Drop for ListFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Accepts from any of these listeners.
struct AnyOf {
    listeners: Vec<(HttpListener, Cluster)>,
    _balancer: Balancer,
}

impl Listener for AnyOf {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        for (listener, _) in &mut self.listeners {
            if let Poll::Ready(accepted) = Pin::new(listener).poll_accept(cx) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint("three replicas".to_owned())
    }
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A balancer of HTTP on a free port of the loopback interface. It ends when it is dropped.
///
/// It knows nothing of sessions, as an ordinary balancer does. It takes HTTP/1.1 and HTTP/2, and speaks HTTP/1.1 to the
/// servers, each request on a connection of its own, so that a client that leaves is seen to leave.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    servers: Arc<Servers>,
    task: JoinHandle<()>,
}

/// The servers behind a balancer.
#[derive(Debug, Default)]
struct Servers {
    addresses: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
}

impl Balancer {
    /// A balancer before these servers.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(servers: Vec<SocketAddr>) -> io::Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let servers = Arc::new(Servers { addresses: Mutex::new(servers), next: AtomicUsize::new(0) });
        let task = tokio::spawn(accept(socket, Arc::clone(&servers)));
        Ok(Self { address, servers, task })
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the servers.
    pub fn set_servers(&self, servers: Vec<SocketAddr>) {
        *self.servers.addresses.lock().unwrap_or_else(PoisonError::into_inner) = servers;
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Servers {
    /// All servers, the next one first.
    fn next_first(&self) -> Vec<SocketAddr> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let next = self.next.fetch_add(1, Ordering::Relaxed) % addresses.len().max(1);
        let (before, after) = addresses.split_at(next);
        [after, before].concat()
    }

    /// A connection to the next server that listens.
    async fn connect(&self) -> io::Result<(SocketAddr, TcpStream)> {
        let mut refused = io::Error::other("there is no server");
        for address in self.next_first() {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok((address, stream)),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

async fn accept(socket: TcpListener, servers: Arc<Servers>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { return };
        let servers = Arc::clone(&servers);
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let service = service_fn(move |request| {
                let servers = Arc::clone(&servers);
                async move { Ok::<_, Infallible>(pass(&servers, request).await) }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Passes a request to the next server and returns its response.
async fn pass(servers: &Servers, request: Request<Incoming>) -> Response<Body> {
    try_pass(servers, request).await.unwrap_or_else(|_| {
        let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

async fn try_pass(servers: &Servers, mut request: Request<Incoming>) -> Result<Response<Body>, Failed> {
    let (address, stream) = servers.connect().await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender and the body of the response.
    tokio::spawn(connection);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    // The servers see their own address, as behind a balancer on their machine.
    request.headers_mut().insert(HOST, HeaderValue::try_from(address.to_string())?);
    request.headers_mut().remove(CONNECTION);
    *request.uri_mut() = path.parse()?;
    *request.version_mut() = Version::HTTP_11;
    let mut response = sender.send_request(request).await?;
    response.headers_mut().remove(CONNECTION);
    response.headers_mut().remove(TRANSFER_ENCODING);
    Ok(response.map(|body| Held { body, _sender: sender }.boxed_unsync()))
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response, which keeps its connection open.
struct Held {
    body: Incoming,
    _sender: http1::SendRequest<Incoming>,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, hyper::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
