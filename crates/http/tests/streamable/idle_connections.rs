//! Connections without traffic are closed, each by a separate limit. The other limit is long.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rescind_core::dialect::MCP;
use rescind_http::{HttpServer, Streamable};
use tokio::net::TcpStream;

use crate::streamable::raw::{BOTH, Raw, initialize};
use crate::streamable::support::{Served, in_time, serve, server};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(600);

async fn serving(header: Duration, idle: Duration) -> Served {
    let server: HttpServer<Streamable> =
        server().header_timeout(header).idle_timeout(idle).session_idle(LONG);
    serve(server, MCP).await
}

async fn asked(served: &Served) -> Raw {
    let mut raw = Raw::connect(&served.url).await;
    let (head, _) = raw.ask(&initialize()).await;
    assert_eq!(head.status, 200);
    raw
}

#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed_when_a_head_is_due() {
    let served = serving(SHORT, LONG).await;
    Raw::connect(&served.url).await.is_closed().await;
}

#[tokio::test]
async fn an_endless_head_times_out() {
    let served = serving(SHORT, LONG).await;
    let mut raw = Raw::connect(&served.url).await;
    raw.write(b"POST / HTTP/1.1\r\nHost: ").await;
    raw.is_closed().await;
}

#[tokio::test]
async fn an_endless_later_head_times_out_too() {
    let served = serving(SHORT, LONG).await;
    let mut raw = asked(&served).await;
    raw.write(b"POST / HTTP/1.1\r\nHost: ").await;
    raw.is_closed().await;
}

#[tokio::test]
async fn an_idle_connection_of_http1_is_closed_in_time() {
    let served = serving(LONG, SHORT).await;
    asked(&served).await.is_closed().await;
}

#[tokio::test]
async fn an_idle_connection_of_http2_is_closed_in_time() {
    let served = serving(LONG, SHORT).await;
    let address = served.url.trim_start_matches("http://").trim_end_matches('/');
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let hello = initialize();
    let mut request = http::Request::post(&served.url).header("Accept", BOTH);
    for (name, value) in hello.headers.iter().filter(|(name, _)| name != "Accept") {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(hello.body))).unwrap();
    let response = in_time("the response", sender.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap();
    // The sender is kept, so that the server ends the connection.
    let _ = in_time("the end", connection).await.unwrap();
    assert!(sender.is_closed());
}
