//! A balancer of HTTP that sends each request to the next server. Feature `wires`.
//!
//! It knows nothing of sessions, as an ordinary balancer does. It takes HTTP/1.1 and HTTP/2, and speaks HTTP/1.1 to the
//! servers, each request on a connection of its own, so that a client that leaves is seen to leave.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A balancer on a free port of the loopback interface. It ends when it is dropped.
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
