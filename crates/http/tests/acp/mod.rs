//! The binding `acp`: every vector of ACP's three versions over real sockets, its status table, its streams.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod resume;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::response::IntoResponse as _;
use rescind_core::dialect::{ACP, Role};
use rescind_core::{
    BoxFuture, CallContext, Capabilities, Limits, Link, Listener, Outcome, Peer, Principal, Router, Server,
    Transport,
};
use rescind_http::{Acp, AcpTransport, HttpClient, HttpListener, HttpServer, UnknownSessions};
use rescind_net::{AuthRefusal, Credential};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{CallingSubject, LinkSubject, PeerCaller, Played, Settings, play};
use rescind_testkit::support::Serving;
use rescind_testkit::support::http1::{self, Response, read_head, read_response};
use rescind_testkit::{Part, Scenario, scenarios};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

pub(crate) use rescind_testkit::support::http1::read_until;
pub(crate) use rescind_testkit::support::in_time;

/// A server that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) events: mpsc::UnboundedReceiver<String>,
    pub(crate) peers: mpsc::UnboundedReceiver<Peer>,
    _serving: Serving,
}

impl Served {
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches("/acp")
    }

    pub(crate) async fn hears(&mut self, what: &str) {
        assert_eq!(in_time(what, self.events.recv()).await.as_deref(), Some(what));
    }
}

pub(crate) fn server() -> HttpServer<Acp> {
    HttpServer::new(Acp::new()).path("/acp").max_frame(64 * 1024).auth(async |request| {
        let name = request.header("x-user").unwrap_or("anyone");
        if name == "nobody" {
            return Err(AuthRefusal::unauthorized("Bearer"));
        }
        Ok(Credential::of(Principal(name.into())))
    })
}

pub(crate) async fn serve() -> Served {
    listen(server().bind("127.0.0.1:0").await.unwrap())
}

pub(crate) fn listen(listener: HttpListener) -> Served {
    listen_with(listener, Limits::default())
}

pub(crate) fn listen_with(listener: HttpListener, limits: Limits) -> Served {
    let url = listener.endpoint().to_string();
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_: CallContext, params: Value| async move {
            if params["protocolVersion"] == 1 {
                return Ok(json!({"protocolVersion": 1, "agentCapabilities": {}}));
            }
            Err(rescind_core::ErrorObject::invalid_params("only version 1 is spoken").into())
        })
        .method("session/new", |_: CallContext, _: Value| async move { Ok(json!({"sessionId": "s1"})) })
        .method("session/load", |_: CallContext, _: Value| async move { Ok(json!({})) })
        .method("session/prompt", move |ctx: CallContext, params: Value| {
            let events_tx = events_tx.clone();
            async move {
                let _ = events_tx.send("started".to_owned());
                ctx.try_notify("session/update", &json!({"sessionId": params["sessionId"]}))?;
                if params["asks"] == true {
                    let asked: Value = ctx
                        .call("session/request_permission", &json!({"sessionId": params["sessionId"]}))
                        .await?;
                    return Ok(asked);
                }
                for _ in 0..params["floods"].as_u64().unwrap_or(0) {
                    let filler = "x".repeat(32 * 1024);
                    ctx.notify("session/update", &json!({"sessionId": "s1", "filler": filler})).await?;
                }
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(cause.kind().name().to_owned());
                ctx.stopped::<Value>(cause)
            }
        });
    let (met, peers) = mpsc::unbounded_channel();
    let server = Server::builder([ACP])
        .limits(limits)
        .serve(router)
        .on_peer(move |peer| drop(met.send(peer)))
        .listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { url, events, peers, _serving: serving }
}

pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(crate) fn prompt(id: u64, session: &str) -> String {
    request(id, "session/prompt", &json!({"sessionId": session}))
}

pub(crate) fn cancel(id: u64) -> String {
    json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}}).to_string()
}

pub(crate) fn hello() -> String {
    request(0, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))
}

pub(crate) async fn begin(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers = [&[("Connection", "close")], headers].concat();
    stream.write_all(http1::request(method, "/acp", address, &headers, body).as_bytes()).await.unwrap();
    stream
}

pub(crate) async fn ask(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> Response {
    read_response(&mut begin(address, method, headers, body).await).await
}

pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

pub(crate) async fn post(address: &str, more: &[(&str, &str)], body: &str) -> Response {
    let headers: Vec<_> = std::iter::once(JSON).chain(more.iter().copied()).collect();
    ask(address, "POST", &headers, body).await
}

/// Opens a connection and returns its id.
pub(crate) async fn open(address: &str, more: &[(&str, &str)]) -> String {
    let got = post(address, more, &hello()).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let line = got.head.lines().find(|line| line.starts_with("acp-connection-id:")).unwrap();
    line.split_once(": ").unwrap().1.to_owned()
}

/// Makes the session `s1`, so that its stream can be opened.
pub(crate) async fn make_session(address: &str, known: (&str, &str)) {
    let mut own = stream(address, &[known]).await;
    assert_eq!(post(address, &[known], &request(1, "session/new", &json!({}))).await.status, 202);
    read_until(&mut own, "\"sessionId\":\"s1\"").await;
}

pub(crate) async fn stream(address: &str, headers: &[(&str, &str)]) -> TcpStream {
    let headers: Vec<_> =
        std::iter::once(("Accept", "text/event-stream")).chain(headers.iter().copied()).collect();
    let mut stream = begin(address, "GET", &headers, "").await;
    // Read byte by byte, because the caller reads the stream after the head.
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    stream
}

/// Serves these routes, as a program with other routes does.
pub(crate) async fn serve_routes(app: axum::Router) -> (String, tokio::task::JoinHandle<()>) {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", socket.local_addr().unwrap());
    (url, tokio::spawn(async move { axum::serve(socket, app).await.unwrap() }))
}

const TRAITS: Capabilities = Capabilities {
    ordered: false,
    opens_exchanges: false,
    exchange_scoped: false,
    batches: false,
    max_frame: 1 << 24,
};

async fn bind() -> (HttpListener, AcpTransport) {
    let listener = HttpServer::new(Acp::new()).path("/acp").bind("127.0.0.1:0").await.unwrap();
    let transport = AcpTransport::new(HttpClient::new(&listener.endpoint().to_string()).unwrap());
    (listener, transport)
}

async fn accept(listener: &mut HttpListener) -> Result<Link, String> {
    let link = listener.accept().await;
    link.ok_or_else(|| "the listener has ended".to_owned())?.map_err(|error| error.to_string())
}

async fn play_over(scenario: &'static Scenario) -> Played {
    let settings = Settings::default();
    let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone()).unwrap();
    let (mut listener, transport) = bind().await;
    match scenario.vector.role {
        Part::Serve => {
            let serving = tokio::spawn(async move {
                let peers = Mutex::new(Vec::new());
                while let Ok(link) = accept(&mut listener).await {
                    peers.lock().unwrap().push(fixture.serve(link).unwrap());
                }
            });
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let transport = Box::new(transport.clone());
                Box::pin(async move { transport.open().await.map_err(|error| error.to_string()) })
            };
            let subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
            let mut subject = subject.with_usual_opening_only();
            let played = play(scenario, &mut subject, &settings).await;
            serving.abort();
            played
        }
        Part::Call => {
            let link = Box::new(transport).open().await.unwrap();
            let caller = PeerCaller::open(fixture, link).unwrap();
            let listener = Arc::new(tokio::sync::Mutex::new(listener));
            let kept = Arc::clone(&listener);
            let wire = LinkSubject::new(Box::new(move || {
                let listener = Arc::clone(&listener);
                Box::pin(async move { accept(&mut *listener.lock().await).await })
            }));
            let wire = wire.with_late_lines(TRAITS).with_usual_opening_only();
            let played = play(scenario, &mut CallingSubject::new(wire, caller), &settings).await;
            drop(kept);
            played
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_holds() {
    let only = std::env::var("VECTOR").ok();
    let carried = |scenario: &&Scenario| {
        let is_wanted = only.as_ref().is_none_or(|name| scenario.vector.name == *name);
        scenario.dialect.starts_with("acp") && is_wanted
    };
    let may_be_left_out =
        |scenario: &Scenario| scenario.vector.handshake != rescind_testkit::HandshakeMode::Default;
    let held = crate::play_all(scenarios().iter().filter(carried), play_over, may_be_left_out).await;
    assert!(held >= 130 || only.is_some(), "only {held} vectors were played");
}

#[tokio::test]
async fn every_refusal_has_its_status() {
    // covers: RULE-13
    let served = serve().await;
    let address = served.address();
    let id = open(address, &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let unknown = ("Acp-Connection-Id", "0123456789abcdef0123456789abcdef");
    let new = request(1, "session/new", &json!({}));
    let bare = request(1, "session/prompt", &json!({}));
    let of_s1 = prompt(1, "s1");
    let stop =
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}).to_string();
    let own = request(1, "_own/method", &json!({"sessionId": "s1"}));
    let long = format!("{new}{}", " ".repeat(70_000));
    let (longest, too_long) = ("s".repeat(256), "s".repeat(257));
    let (of_longest, of_too_long) = (prompt(2, &longest), prompt(2, &too_long));
    let of_nothing = json!({"jsonrpc": "2.0", "method": "_own/nothing"}).to_string();
    let again = hello();
    let batch = format!("[{new}]");
    let events = ("Accept", "text/event-stream");
    let s1 = ("Acp-Session-Id", "s1");
    for (what, method, headers, body, status, code) in [
        ("text", "POST", vec![("Content-Type", "text/plain"), known], new.as_str(), 415, -32600),
        ("no connection", "POST", vec![JSON], &new, 400, -32600),
        ("unknown connection", "POST", vec![JSON, unknown], &new, 404, -32600),
        ("no session", "POST", vec![JSON, known], &bare, 400, -32600),
        ("a session in the body alone", "POST", vec![JSON, known], &of_s1, 400, -32600),
        ("that of a notification", "POST", vec![JSON, known], &stop, 400, -32600),
        ("that of a method of one's own", "POST", vec![JSON, known], &own, 400, -32600),
        ("two sessions", "POST", vec![JSON, known, ("Acp-Session-Id", "s2")], &of_s1, 400, -32600),
        (
            "a name that is too long",
            "POST",
            vec![JSON, known, ("Acp-Session-Id", &too_long)],
            &of_too_long,
            400,
            -32600,
        ),
        (
            "one in the header alone",
            "POST",
            vec![JSON, known, ("Acp-Session-Id", &too_long)],
            &of_nothing,
            400,
            -32600,
        ),
        (
            "a stream of such a session",
            "GET",
            vec![events, known, ("Acp-Session-Id", &too_long)],
            "",
            400,
            -32600,
        ),
        ("initialize once more", "POST", vec![JSON, known], &again, 400, -32600),
        ("a batch", "POST", vec![JSON, known], &batch, 501, -32600),
        ("a batch that opens nothing", "POST", vec![JSON], &batch, 501, -32600),
        ("an array of nothing, which is no batch", "POST", vec![JSON, known], "[]", 400, -32600),
        ("a number", "POST", vec![JSON, known], "7", 400, -32600),
        ("half an object", "POST", vec![JSON, known], "{", 400, -32700),
        ("half an object that opens nothing", "POST", vec![JSON], "{", 400, -32700),
        ("half an array", "POST", vec![JSON, known], "[1,", 400, -32700),
        ("an empty body", "POST", vec![JSON, known], "", 400, -32600),
        ("too long", "POST", vec![JSON, known], &long, 413, -32600),
        ("a stream of JSON", "GET", vec![("Accept", "application/json"), known], "", 406, -32600),
        ("a stream of nothing", "GET", vec![events], "", 400, -32600),
        ("a stream of an unknown", "GET", vec![events, unknown], "", 404, -32600),
        ("a stream of an unknown session", "GET", vec![events, known, s1], "", 404, -32600),
        ("ending nothing", "DELETE", vec![], "", 400, -32600),
        ("ending an unknown", "DELETE", vec![unknown], "", 404, -32600),
        ("put", "PUT", vec![JSON, known], &new, 405, -32600),
        ("a page", "POST", vec![JSON, known, ("Origin", "https://evil.example")], &new, 403, -32600),
        ("a stranger", "POST", vec![JSON, known, ("X-User", "nobody")], &new, 401, -32600),
        ("another host", "POST", vec![JSON, known, ("Host", "evil.example")], &new, 421, -32600),
    ] {
        let got = ask(address, method, &headers, body).await;
        assert_eq!(got.status, status, "{what}: {}", got.body);
        let reported: Value = serde_json::from_str(&got.body).unwrap();
        assert_eq!(
            (&reported["error"]["code"], reported.get("id")),
            (&json!(code), Some(&Value::Null)),
            "{what}: {reported}"
        );
        assert!(
            reported["error"]["message"].as_str().is_some_and(|text| text.len() > 10),
            "{what}: {reported}"
        );
    }
    // The connection stays open and is ended only once.
    for (method, headers, body, status) in [
        ("POST", vec![JSON, known], new.as_str(), 202),
        ("POST", vec![JSON, known, s1], &of_s1, 202),
        ("POST", vec![JSON, known, ("Acp-Session-Id", &longest)], &of_longest, 202),
        ("DELETE", vec![known], "", 202),
        ("POST", vec![JSON, known], &new, 404),
    ] {
        assert_eq!(ask(address, method, &headers, body).await.status, status, "{method} {body}");
    }
}

#[tokio::test]
async fn a_connection_belongs_to_the_principal_that_opened_it() {
    // covers: RULE-06, RULE-13
    let served = serve().await;
    let address = served.address();
    let id = open(address, &[("X-User", "ann")]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let new = request(1, "session/new", &json!({}));
    assert_eq!(post(address, &[known, ("X-User", "bob")], &new).await.status, 404);
    assert_eq!(post(address, &[known, ("X-User", "ann")], &new).await.status, 202);
}

#[tokio::test]
async fn initialize_is_answered_on_its_own_post_and_a_refused_one_opens_nothing() {
    // covers: RULE-13
    let served = serve().await;
    let address = served.address();
    let got = post(address, &[], &hello()).await;
    assert_eq!(got.status, 200);
    assert!(got.body.contains("agentCapabilities"), "{}", got.body);
    let id = got.head.lines().find_map(|line| line.strip_prefix("acp-connection-id: "));
    let id = id.unwrap_or_else(|| panic!("{}", got.head));
    assert!(got.body.contains(&format!(r#""connectionId":"{id}""#)), "{}", got.body);
    let got = post(address, &[], &request(0, "initialize", &json!({"protocolVersion": 9}))).await;
    assert!(!got.head.contains("acp-connection-id"), "{}", got.head);
}

const MOST: usize = 8;

#[tokio::test]
async fn a_flood_of_initialize_displaces_only_its_own_unused_connections() {
    let listener = server().sessions(MOST).bind("127.0.0.1:0").await.unwrap();
    let counts = listener.counts();
    let served = listen(listener);
    let address = served.address();
    let [mallory, ada] = ["mallory", "ada"].map(|user| ("X-User", user));
    let known = |id: &str| ("Acp-Connection-Id", id.to_owned());
    let new = request(1, "session/new", &json!({}));
    let uses = async |user: (&str, &str), id: &str| {
        let (name, id) = known(id);
        post(address, &[user, (name, &id)], &new).await.status
    };
    let kept = open(address, &[ada]).await;
    assert_eq!(uses(ada, &kept).await, 202);
    let mut opened = Vec::new();
    for _ in 0..5 * MOST {
        opened.push(open(address, &[mallory]).await);
    }
    assert_eq!(usize::try_from(counts.displaced_sessions()).unwrap(), 5 * MOST - MOST / 2);
    assert_eq!(uses(mallory, &opened[0]).await, 404, "it made room");
    // Used connections keep their places. A client has half of them at most.
    for id in opened.iter().rev().take(MOST / 2) {
        assert_eq!(uses(mallory, id).await, 202);
    }
    let refused = post(address, &[mallory], &hello()).await;
    assert_eq!((refused.status, refused.head.contains("retry-after: 1")), (429, true), "{}", refused.body);
    assert!(refused.body.contains("this client"), "{}", refused.body);
    let other = open(address, &[ada]).await;
    assert_eq!((uses(ada, &other).await, uses(ada, &kept).await), (202, 202), "another client is served");
}

#[tokio::test]
async fn a_cancel_counts_with_or_without_its_sessions_header() {
    // covers: RULE-06
    let mut served = serve().await;
    let address = served.address().to_owned();
    let id = open(&address, &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    make_session(&address, known).await;
    let mut of_session = stream(&address, &[known, ("Acp-Session-Id", "s1")]).await;
    for (number, header) in
        [(2, None), (3, Some(("Acp-Session-Id", "s1"))), (4, Some(("Acp-Session-Id", "s2")))]
    {
        let of_s1 = [known, ("Acp-Session-Id", "s1")];
        assert_eq!(post(&address, &of_s1, &prompt(number, "s1")).await.status, 202);
        served.hears("started").await;
        let headers: Vec<_> = std::iter::once(known).chain(header).collect();
        assert_eq!(post(&address, &headers, &cancel(number)).await.status, 202);
        served.hears("peer").await;
        let said = read_until(&mut of_session, &format!("\"id\":{number}")).await;
        assert!(said.contains("session/update"), "what was said before comes before, on one stream: {said}");
        assert!(said.contains(r#""stopReason":"cancelled""#), "{said}");
    }
}

#[tokio::test]
async fn a_cancel_on_another_connection_has_no_effect() {
    // covers: RULE-06
    let mut served = serve().await;
    let address = served.address().to_owned();
    let (one, two) = (open(&address, &[]).await, open(&address, &[]).await);
    let of_s1 = [("Acp-Connection-Id", one.as_str()), ("Acp-Session-Id", "s1")];
    assert_eq!(post(&address, &of_s1, &prompt(7, "s1")).await.status, 202);
    served.hears("started").await;
    let cancel = cancel(7);
    assert_eq!(post(&address, &[("Acp-Connection-Id", &two)], &cancel).await.status, 202);
    assert_eq!(post(&address, &[("Acp-Connection-Id", &one)], &cancel).await.status, 202);
    served.hears("peer").await;
    assert!(served.events.try_recv().is_err(), "I4");
}

async fn client(url: &str, http2: bool) -> Peer {
    let transport = AcpTransport::new(HttpClient::new(url).unwrap());
    let transport = if http2 { transport } else { transport.http1() };
    let router = Router::new()
        .method("session/request_permission", |_: CallContext, params: Value| async move { Ok(params) });
    let peer = Peer::builder(ACP).role(Role::Client).serve(router).connect(transport).await.unwrap();
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
    let _: Value = in_time("the handshake", peer.call("initialize", &hello)).await.unwrap();
    peer
}

#[tokio::test]
async fn our_client_speaks_either_http_and_its_cancel_never_overtakes() {
    // covers: RULE-13
    for http2 in [true, false] {
        let mut served = serve().await;
        let peer = client(&served.url, http2).await;
        let made: Value = in_time("a session", peer.call("session/new", &json!({}))).await.unwrap();
        assert_eq!(made["sessionId"], "s1");
        let asks = json!({"sessionId": "s1", "asks": true});
        let asked: Value =
            in_time("a request of the agent's", peer.call("session/prompt", &asks)).await.unwrap();
        assert_eq!(asked["sessionId"], "s1");
        served.hears("started").await;
        for _ in 0..20 {
            let prompt = json!({"sessionId": "s1"});
            let call = peer.call::<_, Value>("session/prompt", &prompt).start().unwrap();
            let stop = call.canceller();
            until_written(&peer).await;
            stop.cancel("");
            let outcome = in_time("a cancelled prompt", call.outcome()).await;
            assert_eq!(stop_reason(&outcome), Some("cancelled"), "http2 {http2}: {outcome:?}");
        }
        peer.shutdown(std::time::Duration::ZERO).await;
    }
}

/// Waits until the driver has taken the waiting frames.
async fn until_written(peer: &Peer) {
    while peer.queue_stats().outbox_frames > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_unused_connection_ends_after_its_idle_time() {
    let listener = crate::acp::server()
        .session_idle(std::time::Duration::from_secs(2))
        .bind("127.0.0.1:0")
        .await
        .unwrap();
    let counts = listener.counts();
    let mut served = crate::acp::listen(listener);
    let id = open(served.address(), &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let peer = in_time("its peer", served.peers.recv()).await.unwrap();
    // An open stream keeps the connection. When the stream is gone, the connection ends.
    drop(stream(served.address(), &[known]).await);
    let _ = in_time("the end of an idle connection", peer.closed()).await;
    assert_eq!(counts.idle_sessions(), 1);
    assert_eq!(post(served.address(), &[known], &request(1, "session/new", &json!({}))).await.status, 404);
}

#[tokio::test]
async fn the_stream_of_a_session_the_server_does_not_know_yet_is_asked_for_again() {
    // covers: RULE-13
    let (service, listener) = server().mount();
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    // According to the draft, a session that was not named yet is unknown, and it is loaded after its stream is
    // opened.
    let strict = move |request: axum::extract::Request, next: axum::middleware::Next| {
        let of_session = request.method() == "GET" && request.headers().contains_key("acp-session-id");
        let is_early = of_session && count.fetch_add(1, Ordering::SeqCst) < 2;
        async move {
            if is_early {
                return axum::http::StatusCode::NOT_FOUND.into_response();
            }
            next.run(request).await
        }
    };
    let app = axum::Router::new().route_service("/acp", service).layer(axum::middleware::from_fn(strict));
    let (url, serving) = serve_routes(app).await;
    let mut served = listen(listener);
    let peer = client(&url, false).await;
    let asks = json!({"sessionId": "s1", "asks": true});
    let prompt = peer.call::<_, Value>("session/prompt", &asks).start().unwrap();
    served.hears("started").await;
    let outcome = in_time("the answer, by the stream of its session", prompt.outcome()).await;
    assert!(matches!(&outcome, Outcome::Completed(_)), "{outcome:?}");
    assert!(refused.load(Ordering::SeqCst) >= 3, "refused twice, then taken");
    serving.abort();
}

#[tokio::test]
async fn a_connection_id_only_in_the_body_of_an_answer_is_accepted() {
    // covers: RULE-13
    let (service, listener) = server().mount();
    let nameless = |request: axum::extract::Request, next: axum::middleware::Next| async move {
        let mut response = next.run(request).await;
        response.headers_mut().remove("acp-connection-id");
        response
    };
    let app = axum::Router::new().route_service("/acp", service).layer(axum::middleware::from_fn(nameless));
    let (url, serving) = serve_routes(app).await;
    let mut served = listen(listener);
    let peer = client(&url, false).await;
    let prompt = peer.call::<_, Value>("session/prompt", &json!({"sessionId": "s1"})).start().unwrap();
    served.hears("started").await;
    prompt.canceller().cancel("");
    let outcome = in_time("the answer", prompt.outcome()).await;
    assert_eq!(stop_reason(&outcome), Some("cancelled"), "{outcome:?}");
    serving.abort();
}

#[tokio::test]
async fn an_answer_goes_with_the_session_that_asked_and_loading_one_is_answered_on_the_connections_stream() {
    // covers: RULE-13
    let mut served = serve().await;
    let address = served.address().to_owned();
    let id = open(&address, &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let of_s1 = [known, ("Acp-Session-Id", "s1")];
    make_session(&address, known).await;
    let (mut own, mut of_session) = (stream(&address, &[known]).await, stream(&address, &of_s1).await);
    let asks = request(2, "session/prompt", &json!({"sessionId": "s1", "asks": true}));
    assert_eq!(post(&address, &of_s1, &asks).await.status, 202);
    served.hears("started").await;
    let asked = read_until(&mut of_session, "session/request_permission").await;
    let asked = asked.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let asked: Value = serde_json::from_str(asked).unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"granted": true}}).to_string();
    for headers in [&[known][..], &[known, ("Acp-Session-Id", "s2")]] {
        assert_eq!(post(&address, headers, &answer).await.status, 400, "{headers:?}");
    }
    assert_eq!(post(&address, &of_s1, &answer).await.status, 202);
    read_until(&mut of_session, "\"granted\":true").await;
    let load = request(3, "session/load", &json!({"sessionId": "s1"}));
    assert_eq!(post(&address, &of_s1, &load).await.status, 202);
    read_until(&mut own, "\"id\":3").await;
}

#[tokio::test]
async fn a_session_is_unknown_until_a_message_names_it() {
    // covers: RULE-13
    let mut served = serve().await;
    let address = served.address().to_owned();
    let (id, other) = (open(&address, &[]).await, open(&address, &[]).await);
    let (known, events) = (("Acp-Connection-Id", id.as_str()), ("Accept", "text/event-stream"));
    let asked = async |connection: &str, session: &str| {
        let headers = [events, ("Acp-Connection-Id", connection), ("Acp-Session-Id", session)];
        ask(&address, "GET", &headers, "").await
    };
    for session in ["s1", "s2", ""] {
        let got = asked(&id, session).await;
        assert_eq!(got.status, 404, "{session:?}: {}", got.body);
        assert!(got.body.contains("session"), "{}", got.body);
    }
    // By an answer, by a request to load it, and by a prompt.
    make_session(&address, known).await;
    drop(stream(&address, &[known, ("Acp-Session-Id", "s1")]).await);
    let load = request(2, "session/load", &json!({"sessionId": "s2"}));
    assert_eq!(post(&address, &[known, ("Acp-Session-Id", "s2")], &load).await.status, 202);
    drop(stream(&address, &[known, ("Acp-Session-Id", "s2")]).await);
    assert_eq!(post(&address, &[known, ("Acp-Session-Id", "s3")], &prompt(3, "s3")).await.status, 202);
    served.hears("started").await;
    drop(stream(&address, &[known, ("Acp-Session-Id", "s3")]).await);
    // Only the connection that made them knows them.
    assert_eq!(asked(&other, "s1").await.status, 404);
}

#[tokio::test]
async fn a_server_may_open_the_stream_of_a_session_before_it_is_loaded() {
    let http = HttpServer::new(Acp::new().unknown_sessions(UnknownSessions::Opened));
    let served = listen(http.path("/acp").bind("127.0.0.1:0").await.unwrap());
    let id = open(served.address(), &[]).await;
    drop(stream(served.address(), &[("Acp-Connection-Id", &id), ("Acp-Session-Id", "s1")]).await);
}

/// The stop reason of a cancelled prompt.
fn stop_reason(outcome: &Outcome<Value>) -> Option<&str> {
    match outcome {
        Outcome::CompletedAfterCancel(answer) => answer.get("stopReason")?.as_str(),
        _ => None,
    }
}
