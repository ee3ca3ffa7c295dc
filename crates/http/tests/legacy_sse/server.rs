//! Our server, with clients written by hand.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use rescind_core::Principal;
use rescind_core::dialect::MCP;
use rescind_http::{HttpServer, LegacySse, SessionRoute, SessionRouter, Streamable};
use rescind_net::Credential;
use rescind_testkit::support::until;
use serde_json::json;
use tower_service::Service as _;

use crate::legacy_sse::{Stream, address, call, cancel, post, served, server};
use crate::streamable::{Seen, in_time, listen, serve};

/// Far more than any wait of a test needs.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn messages_are_posted_and_answered_on_the_stream() {
    let mut served = served().await;
    let mut stream = Stream::open(&served.url).await;
    let id = stream.endpoint.strip_prefix("/messages?sessionId=").unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "128 bits: {id}");
    stream.shake_hands().await;
    assert_eq!(stream.ask(1, "echo", &json!({"a": 1})).await["result"], json!({"a": 1}));
    stream.send(&json!({"jsonrpc": "2.0", "method": "reported", "params": {"n": 1}})).await;
    let seen = in_time("the notification", served.seen.recv()).await.unwrap();
    assert_eq!(seen, Seen::Notified(r#"{"n":1}"#.to_owned()));
    // The server asks in turn, on the stream, and is answered by a POST.
    stream.send(&call(2, "ask", &json!({"b": 2}))).await;
    let asked = stream.message().await;
    assert_eq!((&asked["method"], &asked["params"]), (&json!("answer"), &json!({"b": 2})));
    stream.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"c": 3}})).await;
    let answer = stream.message().await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!(2), &json!({"c": 3})));
    // A progress comes before its answer.
    stream.send(&call(3, "ticks", &json!({"count": 2}))).await;
    for n in 0..2 {
        assert_eq!(stream.message().await["params"]["n"], n);
    }
    assert_eq!(stream.message().await["id"], 3);
}

#[tokio::test]
async fn a_cancel_ends_its_request_and_no_other() {
    let mut served = served().await;
    let (mut stream, mut other) = (Stream::open(&served.url).await, Stream::open(&served.url).await);
    stream.shake_hands().await;
    other.shake_hands().await;
    for (stream, value) in [(&stream, "mine"), (&other, "another")] {
        stream.send(&call(7, "wait", &json!({"w": value}))).await;
        let seen = in_time("the start", served.seen.recv()).await.unwrap();
        assert_eq!(seen, Seen::Started(json!({"w": value}).to_string()));
    }
    // A cancel that comes before its request waits for it.
    stream.send(&cancel(8)).await;
    stream.send(&cancel(7)).await;
    let seen = in_time("the cancel", served.seen.recv()).await.unwrap();
    assert_eq!(seen, Seen::Cancelled(json!({"w": "mine"}).to_string()));
    stream.send(&call(8, "wait", &json!({"w": "early"}))).await;
    // MCP answers no cancelled request, so the next message is that of the echo.
    assert_eq!(stream.ask(9, "echo", &json!({})).await["result"], json!({}));
    assert_eq!(other.ask(1, "echo", &json!({})).await["result"], json!({}));
    assert_eq!(served.running.load(std::sync::atomic::Ordering::SeqCst), 1, "the other client's");
}

#[tokio::test]
async fn a_session_ends_with_its_stream_and_cancels_what_runs() {
    let mut served = served().await;
    let mut stream = Stream::open(&served.url).await;
    stream.shake_hands().await;
    stream.send(&call(1, "wait", &json!({"w": "running"}))).await;
    let started = in_time("the start", served.seen.recv()).await.unwrap();
    assert_eq!(started, Seen::Started(json!({"w": "running"}).to_string()));
    let peer = in_time("the peer", served.peers.recv()).await.unwrap();
    let (endpoint, url) = (stream.endpoint.clone(), served.url.clone());
    drop(stream);
    let ended = in_time("the cancel", served.seen.recv()).await.unwrap();
    assert_eq!(
        ended,
        Seen::Cancelled(json!({"w": "running"}).to_string()),
        "at once: nothing can be resumed"
    );
    in_time("the end of the link", peer.closed()).await.unwrap();
    let late = post(address(&url), &endpoint, &[], &call(2, "echo", &json!({})).to_string()).await;
    assert_eq!(late.status, 404, "{}", late.body);
}

#[tokio::test]
async fn a_session_that_the_server_ends_is_read_to_its_end() {
    let mut served = served().await;
    let mut stream = Stream::open(&served.url).await;
    stream.shake_hands().await;
    let peer = in_time("the peer", served.peers.recv()).await.unwrap();
    peer.notify("last", &json!({"words": true})).await.unwrap();
    let closing = tokio::spawn(async move { peer.shutdown(Duration::from_secs(5)).await });
    assert_eq!(stream.message().await["method"], "last");
    stream.is_ended().await;
    in_time("the shutdown", closing).await.unwrap();
}

#[tokio::test]
async fn only_the_principal_of_a_stream_posts_to_it() {
    let http = server().auth(async |request| {
        Ok(Credential::of(Principal(request.header("x-user").unwrap_or("anna").into())))
    });
    let served = serve(http, MCP).await;
    let mut stream = Stream::open(&served.url).await;
    let address = address(&served.url);
    let hello = call(0, "initialize", &json!({})).to_string();
    let of = |user| [("X-User", user)];
    let got = post(address, &stream.endpoint, &of("bert"), &hello).await;
    assert_eq!((got.status, got.json()["error"]["code"].as_i64()), (403, Some(-32600)), "{}", got.body);
    let guessed = format!("/messages?sessionId={}", "0".repeat(32));
    for (target, status) in [(guessed.as_str(), 404), ("/messages?sessionId=", 400), ("/messages", 400)] {
        assert_eq!(post(address, target, &of("anna"), &hello).await.status, status, "{target}");
    }
    assert_eq!(post(address, "/sse", &of("anna"), &hello).await.status, 405);
    assert_eq!(post(address, &stream.endpoint, &of("anna"), &hello).await.status, 202);
    assert_eq!(stream.message().await["id"], 0, "the refused ones had no effect");
}

#[tokio::test]
async fn a_body_that_is_no_message_is_refused_once_and_the_session_goes_on() {
    let http = server().max_frame(1000);
    let served = serve(http, MCP).await;
    let mut stream = Stream::open(&served.url).await;
    stream.shake_hands().await;
    let batch = format!("[{}]", call(1, "echo", &json!({})));
    let large = call(1, "echo", &json!({"x": "y".repeat(2000)})).to_string();
    let several = format!("{}\n{}", call(1, "echo", &json!({})), call(2, "echo", &json!({})));
    let bodies: [(&str, u16, Option<i64>); 7] = [
        ("", 400, Some(-32600)),
        ("{", 400, Some(-32700)),
        ("7", 400, Some(-32600)),
        (r#"{"jsonrpc":"2.0","id":1,"result":NaN}"#, 400, Some(-32700)),
        (&batch, 400, Some(-32600)),
        (&several, 400, Some(-32600)),
        (&large, 413, Some(-32600)),
    ];
    for (body, status, code) in bodies {
        let got = post(address(&served.url), &stream.endpoint, &[], body).await;
        assert_eq!((got.status, got.json()["error"]["code"].as_i64()), (status, code), "{body:.40}");
    }
    let got = post(address(&served.url), &stream.endpoint, &[("Content-Type", "text/plain")], "{}").await;
    assert_eq!(got.status, 415);
    let encoded = post(address(&served.url), &stream.endpoint, &[("Content-Encoding", "gzip")], "{}").await;
    assert_eq!(encoded.status, 415);
    assert_eq!(stream.ask(2, "echo", &json!({})).await["result"], json!({}), "no refusal is on the stream");
}

#[tokio::test]
async fn a_byte_order_mark_and_a_slash_after_a_path_change_nothing() {
    let served = served().await;
    let mut stream = Stream::open(&served.url.replace("/sse", "/sse/")).await;
    stream.shake_hands().await;
    let target = stream.endpoint.replace("/messages?", "/messages/?");
    let marked = format!("\u{feff}{}", call(1, "echo", &json!({"a": 1})));
    assert_eq!(post(address(&served.url), &target, &[], &marked).await.status, 202);
    assert_eq!(stream.message().await["result"], json!({"a": 1}));
}

/// The answers of a batch, and one that cannot be read, end the calls that they name.
#[tokio::test]
async fn a_call_of_the_server_ends_with_an_answer_that_cannot_be_read() {
    let served = served().await;
    let mut stream = Stream::open(&served.url).await;
    stream.shake_hands().await;
    for (id, answer, is_error) in [
        (1, r#"[{"jsonrpc":"2.0","id":ID,"result":{"in":"a batch"}}]"#, false),
        (2, r#"{"jsonrpc":"2.0","id":ID,"result":NaN}"#, true),
    ] {
        stream.send(&call(id, "ask", &json!({}))).await;
        let asked = stream.message().await["id"].to_string();
        let got = post(address(&served.url), &stream.endpoint, &[], &answer.replace("ID", &asked)).await;
        assert_eq!(got.status, 202, "{answer}");
        let ended = stream.message().await;
        assert_eq!(ended["id"], id, "{ended}");
        assert_eq!(ended.get("error").is_some(), is_error, "{ended}");
    }
}

#[tokio::test]
async fn a_client_that_never_reads_its_stream_is_cut_off() {
    let http = server().stall_timeout(Duration::from_millis(50));
    let mut served = serve(http, MCP).await;
    let mut stream = Stream::open(&served.url).await;
    stream.shake_hands().await;
    let peer = in_time("the peer", served.peers.recv()).await.unwrap();
    stream.send(&call(1, "wait", &json!({"w": "beside"}))).await;
    in_time("the start", served.seen.recv()).await.unwrap();
    // More than all buffers on the way hold.
    stream.send(&call(2, "ticks", &json!({"count": 1000, "bytes": 64 * 1024}))).await;
    in_time("the end of the session", peer.closed()).await.unwrap();
    let ended = in_time("the cancel", served.seen.recv()).await.unwrap();
    assert_eq!(ended, Seen::Cancelled(json!({"w": "beside"}).to_string()));
    let mut next = Stream::open(&served.url).await;
    next.shake_hands().await;
}

/// The stream of a client without a principal is found by its id alone, so the ids must not repeat.
#[tokio::test]
async fn ten_thousand_streams_are_bounded_and_leave_nothing_behind() {
    let http = HttpServer::new(Streamable::new()).legacy_sse(LegacySse::new()).sessions(100);
    let (mut service, listener) = http.mount();
    let counts = listener.counts();
    let mut served = listen(listener, MCP);
    let mut open = Vec::new();
    let mut ids = std::collections::HashSet::new();
    for _ in 0..10_000 {
        let get = Request::get("/sse").header("host", "localhost").header("accept", "text/event-stream");
        let response =
            in_time("a response", service.call(get.body(Full::<bytes::Bytes>::default()).unwrap()));
        let response = response.await.unwrap();
        if response.status() != StatusCode::OK {
            // The server accepts links in its own task.
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            tokio::task::yield_now().await;
            continue;
        }
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(ids.insert(first));
        open.push(body);
    }
    assert!(ids.len() > 1000, "{}", ids.len());
    assert_eq!(counts.displaced_sessions(), ids.len() as u64 - 100, "each new one ends the oldest");
    drop(open);
    let get = Request::get("/sse").header("host", "localhost").header("accept", "*/*");
    let mut body =
        service.call(get.body(Full::<bytes::Bytes>::default()).unwrap()).await.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let text = std::str::from_utf8(&first).unwrap();
    let endpoint = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    assert!(endpoint.starts_with("/messages?sessionId="), "{endpoint}");
    let hello = call(0, "initialize", &json!({})).to_string();
    let post = Request::post(endpoint).header("host", "localhost").header("content-type", "application/json");
    let post = post.header("content-length", hello.len()).body(Full::new(bytes::Bytes::from(hello))).unwrap();
    assert_eq!(service.call(post).await.unwrap().status(), StatusCode::ACCEPTED);
    let answer = in_time("the answer", body.frame()).await.unwrap().unwrap().into_data().unwrap();
    assert!(std::str::from_utf8(&answer).unwrap().starts_with("event: message\ndata: {"), "{answer:?}");
    // The links of the streams that are gone have ended too.
    drop(body);
    let mut peers = Vec::new();
    while let Ok(peer) = served.peers.try_recv() {
        peers.push(peer);
    }
    until(LONG, "the end of all links", || peers.iter().all(rescind_core::Peer::is_closed)).await;
}

#[tokio::test]
async fn without_the_setting_there_is_no_old_transport() {
    let served = serve(HttpServer::new(Streamable::new()).path("/mcp"), MCP).await;
    for target in ["/sse", "/messages?sessionId=0"] {
        assert_eq!(post(address(&served.url), target, &[], "{}").await.status, 404, "{target}");
    }
}

#[tokio::test]
async fn the_paths_can_be_set() {
    let paths = LegacySse::new().paths("/old/sse", "/old/messages");
    let served = serve(HttpServer::new(Streamable::new()).path("/mcp").legacy_sse(paths), MCP).await;
    let transport = rescind_http::HttpClient::new(&served.url.replace("/mcp", "/old/sse")).unwrap();
    let peer = crate::legacy_sse::client(rescind_http::LegacySseTransport::new(transport)).await;
    assert_eq!(peer.call::<_, serde_json::Value>("echo", &json!({})).await.unwrap(), json!({}));
    assert_eq!(post(address(&served.url), "/sse", &[], "{}").await.status, 404);
}

/// The router of a cluster, which gives the ids of sessions and sees the session that each request names.
#[derive(Default)]
struct Router(std::sync::Mutex<Vec<Option<String>>>);

impl SessionRouter for Router {
    fn new_session_id(&self) -> Option<String> {
        Some("n1.0123".to_owned())
    }

    fn route(&self, _: &mut http::request::Parts, session: Option<&str>) -> SessionRoute {
        self.0.lock().unwrap().push(session.map(str::to_owned));
        SessionRoute::Here
    }
}

#[tokio::test]
async fn a_router_of_sessions_sees_the_session_of_each_post() {
    let router = std::sync::Arc::new(Router::default());
    let served = serve(server().session_router(router.clone()), MCP).await;
    let mut stream = Stream::open(&served.url).await;
    assert_eq!(stream.endpoint, "/messages?sessionId=n1.0123");
    stream.shake_hands().await;
    assert_eq!(*router.0.lock().unwrap(), [None, Some("n1.0123".to_owned())]);
}
