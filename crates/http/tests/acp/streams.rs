use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::IntoResponse as _;
use rescind_core::dialect::{ACP, Role};
use rescind_core::{CallContext, Outcome, Peer, Router};
use rescind_http::{Acp, AcpTransport, HttpClient, HttpServer, UnknownSessions};
use serde_json::{Value, json};

use crate::acp::support::{
    ask, cancel, in_time, listen, make_session, open, post, prompt, read_until, request, serve, serve_routes,
    server, stream,
};

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
    let listener = crate::acp::support::server()
        .session_idle(std::time::Duration::from_secs(2))
        .bind("127.0.0.1:0")
        .await
        .unwrap();
    let counts = listener.counts();
    let mut served = crate::acp::support::listen(listener);
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
