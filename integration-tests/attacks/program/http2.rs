//! An HTTP/2 client that chooses its windows and sends any part of a body.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::honest_client::hello;
use crate::in_time;
use crate::raw_stream::{request, tcp};
use crate::target::{Target, Wire};

/// How much of the connection's window one stream reserves at once.
const PIECE: usize = 64 * 1024;

/// One connection.
#[derive(Clone)]
pub(crate) struct Http2 {
    send: SendRequest<Bytes>,
    url: String,
    wire: Wire,
    _connection: Arc<JoinSet<()>>,
    /// The headers that name the session.
    pub(crate) session: Vec<(&'static str, String)>,
}

/// A response that was read completely.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Http2 {
    /// `window`: how many bytes of each response the server may send before it is read.
    pub(crate) async fn connect(target: &Target, window: u32) -> Self {
        let stream = tcp(target).await;
        let opening = Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(1 << 30)
            .handshake(stream);
        let (send, connection) = in_time("HTTP/2", opening).await.unwrap();
        // The socket closes when the last handle is dropped, regardless of open streams.
        let mut task = JoinSet::new();
        task.spawn(async move { drop(connection.await) });
        Self {
            _connection: Arc::new(task),
            send,
            url: target.endpoint.clone(),
            wire: target.wire,
            session: Vec::new(),
        }
    }

    /// Opens a session if the protocol has sessions.
    pub(crate) async fn initialize(&mut self, dialect: &str) {
        if self.wire == Wire::Stateless {
            return;
        }
        let response = self.post("initialize", vec![request(0, "initialize", &hello(dialect)).into()]).await;
        let response = response.unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let name = if self.wire == Wire::Acp { "acp-connection-id" } else { "mcp-session-id" };
        self.session = vec![(name, response.headers[name].to_str().unwrap().to_owned())];
    }

    fn head(&self, method: Method, rpc: &str) -> Request<()> {
        let mut head = Request::builder().method(method).uri(&self.url);
        head = head.header("content-type", "application/json");
        head = head.header("accept", "application/json, text/event-stream");
        if self.wire == Wire::Stateless {
            head = head.header("mcp-protocol-version", "2026-07-28").header("mcp-method", rpc);
        }
        for (name, value) in &self.session {
            head = head.header(*name, value);
        }
        head.body(()).unwrap()
    }

    /// A POST of which only the head was sent.
    pub(crate) async fn begin(
        &self,
        rpc: &str,
        length: usize,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut head = self.head(Method::POST, rpc);
        head.headers_mut().insert("content-length", length.into());
        self.send.clone().ready().await?.send_request(head, false)
    }

    /// A POST with these pieces as its body, and its response.
    pub(crate) async fn post(&self, rpc: &str, pieces: Vec<Bytes>) -> Result<Response, h2::Error> {
        let length = pieces.iter().map(Bytes::len).sum();
        let (response, mut stream) = self.begin(rpc, length).await?;
        let sent = async {
            for piece in pieces {
                send_all(&mut stream, piece).await;
            }
            let _sent = stream.send_data(Bytes::new(), true);
        };
        let answered = async {
            let response = response.await?;
            let (head, body) = response.into_parts();
            let body = read(body).await?;
            Ok(Response { status: head.status.as_u16(), headers: head.headers, body })
        };
        // A refusal may arrive before everything was sent.
        let mut answered = std::pin::pin!(answered);
        tokio::select! {
            biased;
            response = &mut answered => response,
            () = sent => answered.await,
        }
    }

    /// The event stream of the connection (ACP), or of the session.
    pub(crate) async fn events(&self) -> Events {
        let head = self.head(Method::GET, "");
        let (response, _) = self.send.clone().ready().await.unwrap().send_request(head, true).unwrap();
        let response = in_time("an event stream", response).await.unwrap();
        assert_eq!(response.status(), 200);
        Events { stream: response.into_body(), text: Vec::new() }
    }
}

/// Sends as the windows allow. Ends early if the stream is reset.
pub(crate) async fn send_all(stream: &mut SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        // The present capacity is used first, because no further event announces it.
        let room = stream.capacity();
        if room == 0 {
            stream.reserve_capacity(body.len().min(PIECE));
            match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => return,
            }
        }
        if stream.send_data(body.split_to(room.min(body.len())), false).is_err() {
            return;
        }
    }
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut whole = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        whole.extend_from_slice(&part);
    }
    Ok(whole)
}

/// An event stream.
pub(crate) struct Events {
    stream: RecvStream,
    text: Vec<u8>,
}

impl Events {
    /// The next message.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                let data = line.strip_prefix(b"data: ").and_then(|data| serde_json::from_slice(data).ok());
                if data.is_some() {
                    return data;
                }
            }
            let part = self.stream.data().await?.ok()?;
            self.stream.flow_control().release_capacity(part.len()).ok()?;
            self.text.extend_from_slice(&part);
        }
    }
}

/// The messages in a response: one as JSON, or those of its events.
pub(crate) fn messages(body: &[u8]) -> Vec<Value> {
    if let Ok(message) = serde_json::from_slice(body) {
        return vec![message];
    }
    let lines = body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    lines.filter_map(|data| serde_json::from_slice(data).ok()).collect()
}
