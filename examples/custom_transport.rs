//! Your own transport: every `AsyncRead + AsyncWrite` can be one. This example uses TCP on the loopback interface, with
//! its own `Listener`, and the same router that serves any other transport.
//!
//! Run it with `cargo run -p rescind-examples --example custom_transport`.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rescind::transport::{BoxFuture, Link, Listener, Transport, TransportError};
use rescind::{ByteStream, CallContext, Endpoint, HandlerError, Outcome, Peer, Router, Server, dialect};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

/// Opens a TCP connection with one message a line.
struct Tcp(std::net::SocketAddr);

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let stream = TcpStream::connect(self.0).await?;
            link(stream)
        })
    }
}

/// Accepts TCP connections.
struct TcpWire(TcpListener);

impl Listener for TcpWire {
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>> {
        let (stream, _address) = ready!(self.0.poll_accept(cx))?;
        Poll::Ready(Some(link(stream)))
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint(self.0.local_addr().map_or_else(|_| "tcp".to_owned(), |address| format!("tcp://{address}")))
    }
}

fn link(stream: TcpStream) -> Result<Link, TransportError> {
    // A cancel is a small frame and must not wait for a larger one.
    stream.set_nodelay(true)?;
    let (from, to) = stream.into_split();
    Ok(ByteStream::new(from, to).into_link())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let router = Router::new().method("wait", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("started", &json!({}))?;
        let cause = ctx.cancelled().await;
        Err::<Value, _>(HandlerError::stopped(cause))
    });
    let server = Server::builder([dialect::ACP]).serve(router).listen(TcpWire(listener));
    println!("serving on {}", server.endpoint());
    let server = tokio::spawn(server.run());

    let peer = Peer::builder(dialect::ACP).connect(Tcp(address)).await?;
    let call = peer.call::<_, Value>("wait", &json!({}));
    let call = call.notifications_where(|notification| notification.method() == "started").start()?;
    let mut started = call.notifications();
    let stop = call.canceller();
    let _ = started.next().await;
    println!("the canceller says: {:?}", stop.cancel("seen enough"));
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => println!("cancelled over TCP, confirmed: {}", cancelled.confirmed),
        other => return Err(format!("the call was not cancelled: {other:?}").into()),
    }
    server.abort();
    Ok(())
}
