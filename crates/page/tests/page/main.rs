//! The page's HTTP interface, byte by byte over sockets. Here: a client that writes any bytes, and a
//! server whose requests wait.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod guarded;
mod shown;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rescind_core::dialect::{ACP_V2, Dialect};
use rescind_core::{Call, CallContext, MemoryTransport, Peer, Router, Server, ServerHandle, memory_listener};
use rescind_page::Page;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(30);

/// A served page, and the server that it shows.
pub(crate) struct Shown {
    pub(crate) handle: ServerHandle,
    pub(crate) transport: MemoryTransport,
    pub(crate) address: SocketAddr,
    /// `/TOKEN/`.
    pub(crate) path: String,
}

/// A server whose `wait` waits until it is cancelled, asks its client `ask`, and whose `echo` answers.
pub(crate) async fn serve() -> Shown {
    let router = Router::new()
        .method("wait", |ctx: CallContext, _: Value| async move {
            let asked = ctx.call::<_, Value>("ask", &json!({})).start()?;
            let cause = ctx.cancelled().await;
            drop(asked);
            ctx.stopped::<Value>(cause)
        })
        .method("echo", |_: CallContext, params: Value| async move { Ok(params) });
    serve_in(ACP_V2, router).await
}

pub(crate) async fn serve_in(dialect: Dialect, router: Router) -> Shown {
    let (listener, transport) = memory_listener();
    let server = Server::builder([dialect]).serve(router).listen(listener);
    let handle = server.handle();
    let page = Page::of_server(&handle).unwrap().title("the <b>test</b>").bind("127.0.0.1:0").await.unwrap();
    let address = page.address();
    let path = page.url().strip_prefix(&format!("http://{address}")).unwrap().to_owned();
    tokio::spawn(server.run());
    tokio::spawn(page.run());
    Shown { handle, transport, address, path }
}

/// The status, the head and the body of a response.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Shown {
    pub(crate) async fn client(&self) -> Peer {
        let ask = Router::new().method("ask", |_: CallContext, _: Value| {
            std::future::pending::<Result<Value, rescind_core::HandlerError>>()
        });
        Peer::builder(ACP_V2).serve(ask).connect(self.transport.clone()).await.unwrap()
    }

    pub(crate) async fn wait(&self, client: &Peer) -> Call<Value> {
        let log = self.handle.request_log();
        let mut watch = log.watch();
        let call = client.call("wait", &json!({})).start().unwrap();
        // The request, and the call that it makes.
        for _ in 0..2 {
            timeout(LIMIT, watch.next()).await.unwrap();
        }
        call
    }

    /// Sends a request with these headers and reads the whole response.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n");
        for (name, value) in headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        timeout(LIMIT, stream.read_to_string(&mut text)).await.unwrap().unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Response { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.ask("GET", path, &[("Host", &self.host())]).await
    }

    pub(crate) fn under(&self, rest: &str) -> String {
        format!("{}{rest}", self.path)
    }

    pub(crate) async fn stop(&self, key: &str) -> Response {
        let origin = format!("http://{}", self.address);
        self.ask("POST", &self.under(&format!("stop/{key}")), &[("Host", &self.host()), ("Origin", &origin)])
            .await
    }

    pub(crate) async fn events(&self) -> Events {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", self.under("events"), self.address);
        stream.write_all(head.as_bytes()).await.unwrap();
        Events(BufReader::new(stream))
    }
}

/// A viewer.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// The first line of the response.
    pub(crate) async fn status(&mut self) -> String {
        self.line().await
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(LIMIT, self.0.read_line(&mut line)).await.unwrap().unwrap();
        line
    }

    pub(crate) async fn next(&mut self) -> Arc<Value> {
        loop {
            if let Some(data) = self.line().await.strip_prefix("data: ") {
                return Arc::new(serde_json::from_str(data).unwrap());
            }
        }
    }

    /// The first view of which this is true.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = self.next().await;
            if wanted(&event["view"]) {
                return event["view"].clone();
            }
        }
    }
}
