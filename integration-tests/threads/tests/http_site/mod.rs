//! A server without a socket: requests are passed to its service, and its links to a peer.

#![expect(dead_code, reason = "each test uses a part of it")]

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use rescind_core::{Listener, Peer, PeerBuilder, Router, dialect};
use rescind_http::{HttpListener, HttpServer, HttpService, ResponseBody, ServerBinding};
use serde_json::{Value, json};
use shuttle::future::block_on;
use shuttle::thread;
use tower_service::Service;

/// The serving side.
#[derive(Clone)]
pub struct HttpSite {
    service: HttpService,
    headers: &'static [(&'static str, &'static str)],
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answered {
    pub status: StatusCode,
    /// The session that it opened.
    pub session: Option<String>,
    /// The messages of its body.
    pub messages: Vec<Value>,
    /// The last event's id.
    pub last: Option<String>,
}

impl HttpSite {
    /// Creates one whose requests all carry these headers too.
    pub fn new(
        binding: impl ServerBinding,
        headers: &'static [(&'static str, &'static str)],
    ) -> (Self, HttpListener) {
        let (service, listener) = HttpServer::new(binding).mount();
        (Self { service, headers }, listener)
    }

    /// A request that has been sent and is not answered yet.
    pub fn send(
        &self,
        method: Method,
        headers: &[(&str, &str)],
        message: Option<&Value>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send + use<> {
        let mut request = Request::builder()
            .version(Version::HTTP_2)
            .method(method)
            .uri("http://localhost/")
            .header("host", "localhost");
        for (name, value) in self.headers.iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let body = message.map_or_else(Bytes::new, |message| message.to_string().into());
        let Ok(request) = request.body(Full::new(body)) else { panic!("no request") };
        let answer = self.service.clone().call(request);
        async move {
            match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
    }

    /// Posts a message and reads its whole answer.
    pub async fn post(&self, headers: &[(&str, &str)], message: &Value) -> Answered {
        read(self.send(Method::POST, headers, Some(message)).await, usize::MAX).await
    }

    /// The service, to be served.
    pub fn service(&self) -> HttpService {
        self.service.clone()
    }

    /// Waits until the counts of sessions, and of POSTs whose exchange has not ended, satisfy the condition. A hang
    /// is detected.
    pub fn until_held(&self, is_so: impl Fn((usize, usize)) -> bool) {
        while !is_so(self.service.held()) {
            thread::yield_now();
        }
    }
}

impl Answered {
    /// Whether the session or the server has ended, before the message or during it.
    pub fn is_over(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE | StatusCode::INTERNAL_SERVER_ERROR
        )
    }
}

/// A session, in which request 2 is played.
#[derive(Clone)]
pub struct Session {
    site: HttpSite,
    /// The header that names it.
    header: &'static str,
    id: String,
}

impl Session {
    /// Opens one, and returns the peer that serves it.
    pub fn open(
        site: &HttpSite,
        listener: &mut HttpListener,
        header: &'static str,
        router: Router,
    ) -> (Self, Peer) {
        let opening = site.clone();
        let hello =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}});
        let opened = thread::spawn(move || block_on(opening.post(&[], &hello)));
        let peer = block_on(accept(listener, Peer::builder(dialect::ACP).serve(router)));
        let Some(id) = opened.join().ok().and_then(|opened| opened.session) else { panic!("no session") };
        (Self { site: site.clone(), header, id }, peer)
    }

    /// Posts request 2.
    pub fn ask(&self) -> impl Future<Output = Response<ResponseBody>> + Send + use<> {
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "work", "params": {}});
        self.site.send(Method::POST, &[(self.header, &self.id)], Some(&message))
    }

    /// Opens an event stream, after this event if there is one.
    pub fn listen(&self, after: Option<&str>) -> impl Future<Output = Response<ResponseBody>> + Send + use<> {
        let after = after.map(|last| ("last-event-id", last));
        let headers: Vec<_> = [(self.header, self.id.as_str())].into_iter().chain(after).collect();
        self.site.send(Method::GET, &headers, None)
    }

    /// Cancels request 2. It `ends` if the session can end first.
    pub fn cancel(&self, ends: bool) {
        let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 2}});
        let answer = block_on(self.site.post(&[(self.header, &self.id)], &cancel));
        assert!(
            answer.status == StatusCode::ACCEPTED || (ends && answer.is_over()),
            "the cancel: {answer:?}"
        );
    }

    /// Ends it.
    pub fn delete(&self, expected: StatusCode) {
        let deleting = self.site.send(Method::DELETE, &[(self.header, &self.id)], None);
        let answer = block_on(async { read(deleting.await, 1).await });
        assert!(answer.status == expected || answer.is_over(), "the delete: {answer:?}");
    }
}

/// Checks that there is one answer to the request, or none because it `ends` early.
pub fn check_answer(
    messages: &[Value],
    id: u64,
    ends: bool,
    events: &impl Debug,
    may_be: impl Fn(&Value) -> bool,
) {
    let answers: Vec<_> = messages.iter().filter(|message| message["id"] == id).collect();
    match answers[..] {
        [answer] => assert!(may_be(answer), "I1, I4: {events:?} brought {answer}"),
        [] => assert!(ends, "I1: {events:?} brought {messages:?}"),
        _ => panic!("I1: {events:?} brought {answers:?}"),
    }
}

/// The answer to request 2.
pub fn is_done_or_cancelled(answer: &Value) -> bool {
    answer["result"] == "done" || answer["error"]["code"] == -32800
}

/// Reads this many messages of an answer, and drops the rest.
pub async fn read(response: Response<ResponseBody>, most: usize) -> Answered {
    let (head, mut body) = response.into_parts();
    let session = head.headers.get("mcp-session-id").or_else(|| head.headers.get("acp-connection-id"));
    let session = session.and_then(|id| id.to_str().ok()).map(ToOwned::to_owned);
    let mut answered = Answered { status: head.status, session, messages: Vec::new(), last: None };
    let is_stream = head.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    while answered.messages.len() < most {
        let Some(Ok(frame)) = body.frame().await else { break };
        let Ok(bytes) = frame.into_data() else { continue };
        if !is_stream {
            answered.messages.extend(serde_json::from_slice::<Value>(&bytes));
            continue;
        }
        let Ok(text) = std::str::from_utf8(&bytes) else { panic!("no text: {bytes:?}") };
        for line in text.lines() {
            if let Some(id) = line.strip_prefix("id: ") {
                answered.last = Some(id.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                answered.messages.extend(serde_json::from_str::<Value>(data));
            }
        }
    }
    answered
}

/// Begins to wait for an answer, and drops it after other threads have run. `Some`: the answer was ready at once.
pub async fn leave<F: Future<Output = Response<ResponseBody>>>(answer: F) -> Option<Answered> {
    let mut answer = pin!(answer);
    let response = poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => Poll::Ready(None),
    })
    .await;
    thread::yield_now();
    match response {
        Some(response) => Some(read(response, usize::MAX).await),
        None => None,
    }
}

/// Attaches the next link of a listener to a peer.
pub async fn accept(listener: &mut HttpListener, peer: PeerBuilder) -> Peer {
    match listener.accept().await {
        Some(Ok(link)) => match peer.attach(link) {
            Ok(peer) => peer,
            Err(error) => panic!("no connection: {error}"),
        },
        other => panic!("no link: {:?}", other.map(|link| link.map(drop))),
    }
}
