//! A POST a frame, on one connection.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

/// Posts.
#[derive(Debug)]
pub struct Poster {
    endpoint: String,
    sender: Sender,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

async fn connect(endpoint: &str) -> TokioIo<TcpStream> {
    let stream = TcpStream::connect(endpoint).await.expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    TokioIo::new(stream)
}

pub(super) async fn connect_http1(endpoint: &str) -> Poster {
    let (sender, connection) = http1::handshake(connect(endpoint).await).await.expect("a connection");
    tokio::spawn(connection);
    Poster { endpoint: endpoint.to_owned(), sender: Sender::Http1(sender) }
}

pub(super) async fn connect_http2(endpoint: &str) -> Poster {
    let io = connect(endpoint).await;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("a connection");
    tokio::spawn(connection);
    Poster { endpoint: endpoint.to_owned(), sender: Sender::Http2(sender) }
}

impl Poster {
    pub(super) async fn echo(&mut self, frame: &Bytes) -> usize {
        let request = |uri: String| {
            Request::post(uri)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json, text/event-stream")
                .header(HOST, self.endpoint.as_str())
                .body(Full::new(frame.clone()))
                .expect("a request")
        };
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                let request = request("/".to_owned());
                sender.ready().await.expect("the wire is open");
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                let mut request = request(format!("http://{}/", self.endpoint));
                request.headers_mut().remove(HOST);
                sender.ready().await.expect("the wire is open");
                sender.send_request(request).await
            }
        };
        let body = response.expect("the server answers").into_body();
        body.collect().await.expect("a body").to_bytes().len()
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    Ok(response.body(Full::new(body.unwrap_or_default())).expect("a response"))
}

pub(super) async fn serve(is_http2: bool, listens: fn(&str)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        let io = TokioIo::new(stream);
        tokio::spawn(async move {
            let service = service_fn(echo);
            if is_http2 {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(io, service).await;
            } else {
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            }
        });
    }
}
