//! One POST for each frame, on one connection: with the headers that the binding has on each of its own, and with the
//! answer where the binding sends it, in the response or on a separate event stream.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::join;
use http_body_util::{BodyExt, Channel, Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use super::Answers;
use crate::cross_process::Wire;

const ID: &str = "0123456789abcdef0123456789abcdef";

/// The headers of the binding on each POST, in addition to those of all HTTP requests.
fn headers(wire: Wire) -> HeaderMap {
    let named: &[(&'static str, &'static str)] = match wire {
        Wire::Streamable | Wire::Streamable2 => {
            &[("mcp-session-id", ID), ("mcp-protocol-version", "2025-11-25")]
        }
        Wire::Stateless | Wire::Stateless2 => {
            &[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "echo")]
        }
        Wire::Acp => &[("acp-connection-id", ID)],
        Wire::Stdio | Wire::ContentLength | Wire::NamedPipe | Wire::WebSocket => &[],
    };
    let usual = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
    ];
    let named =
        named.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    usual.into_iter().chain(named).collect()
}

/// Sends POSTs.
#[derive(Debug)]
pub struct Poster {
    /// The target of the requests.
    uri: String,
    host: String,
    headers: HeaderMap,
    sender: Sender,
    /// The source of the answers, if they are not in the responses.
    events: Option<Incoming>,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.expect("the wire is open");
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await.expect("the wire is open");
                sender.send_request(request).await
            }
        };
        response.expect("the server answers")
    }
}

pub(super) async fn connect(wire: Wire, endpoint: &str) -> Poster {
    let stream = TcpStream::connect(endpoint).await.expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    let io = TokioIo::new(stream);
    let (sender, uri) = if wire.is_http2() {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("a connection");
        tokio::spawn(connection);
        (Sender::Http2(sender), format!("http://{endpoint}/"))
    } else {
        let (sender, connection) = http1::handshake(io).await.expect("a connection");
        tokio::spawn(connection);
        (Sender::Http1(sender), "/".to_owned())
    };
    let host = endpoint.to_owned();
    let mut poster = Poster { uri, host, headers: headers(wire), sender, events: None };
    if wire == Wire::Acp {
        let request = poster.request(Method::GET, Bytes::new());
        poster.events = Some(poster.sender.send(request).await.into_body());
    }
    poster
}

impl Poster {
    fn request(&self, method: Method, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.parse().expect("a target");
        *request.headers_mut() = self.headers.clone();
        if let Sender::Http1(_) = self.sender {
            let host = self.host.parse().expect("a host");
            request.headers_mut().insert(HOST, host);
        }
        request
    }

    pub(super) async fn exchange(&mut self, frame: Bytes) -> Bytes {
        let request = self.request(Method::POST, frame);
        let Some(events) = &mut self.events else {
            let body = self.sender.send(request).await.into_body();
            return body.collect().await.expect("a body").to_bytes();
        };
        let (response, event) = join(self.sender.send(request), event(events)).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        event.slice(EVENT.len()..event.len() - END.len())
    }
}

/// The next event, which may arrive in several parts.
async fn event(events: &mut Incoming) -> Bytes {
    let mut parts = Vec::new();
    loop {
        let part = events.frame().await.expect("the stream is open").expect("an event");
        let part = part.into_data().expect("data");
        if part.ends_with(END) && parts.is_empty() {
            return part;
        }
        parts.extend_from_slice(&part);
        if parts.ends_with(END) {
            return Bytes::from(parts);
        }
    }
}

const EVENT: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

/// The body of a response: one frame, or the stream of events.
type Echoed = Either<Full<Bytes>, Channel<Bytes>>;
/// The destination of the answers, if they are not in the responses.
type Events = Arc<Mutex<Option<http_body_util::channel::Sender<Bytes>>>>;

async fn echo(
    request: Request<Incoming>,
    apart: bool,
    events: Events,
    answers: Answers,
) -> Result<Response<Echoed>, Infallible> {
    if request.method() == Method::GET {
        let (sender, body) = Channel::new(16);
        *events.lock().expect("no panic") = Some(sender);
        let response = Response::builder().header(CONTENT_TYPE, "text/event-stream");
        return Ok(response.body(Either::Right(body)).expect("a response"));
    }
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let body = answers.to(body.unwrap_or_default());
    if apart {
        let event = Bytes::from([EVENT, &body, END].concat());
        let mut events = events.lock().expect("no panic");
        events.as_mut().expect("a stream").try_send(http_body::Frame::data(event)).expect("there is room");
        let response = Response::builder().status(StatusCode::ACCEPTED);
        return Ok(response.body(Either::Left(Full::default())).expect("a response"));
    }
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    Ok(response.body(Either::Left(Full::new(body))).expect("a response"))
}

pub(super) async fn serve(wire: Wire, answers: Answers, listens: fn(&str)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        let io = TokioIo::new(stream);
        tokio::spawn(async move {
            let events = Events::default();
            let service =
                service_fn(move |request| echo(request, wire == Wire::Acp, Arc::clone(&events), answers));
            if wire.is_http2() {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(io, service).await;
            } else {
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            }
        });
    }
}
