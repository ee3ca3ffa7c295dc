//! The auth hook of a WebSocket server, on its own socket and on a route of axum: its input, its possible results,
//! and what ends when a credential expires.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use crate::common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{accept, event, in_time, listen};
use futures_util::StreamExt;
use rescind_core::{
    AuthRefusal, AuthRequest, CallContext, Credential, Listener, Outcome, Peer, Principal, Router, Server,
    Transport, dialect,
};
use rescind_testkit::support::Serving;
use rescind_testkit::support::http1::read_head;
use rescind_websocket::{LinkOptions, UpgradeOptions, Upgrades, WebSocketListener, connect};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

const METADATA: &str = "https://agent.example/.well-known/oauth-protected-resource";

/// Requests an upgrade by hand. Returns the head and the body of a refusal, in lower case.
async fn asked(address: &str, headers: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /agent?mode=test HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut socket).await.to_ascii_lowercase()
}

/// Servers that are polled until the test ends: one on its own socket and, with the feature, one on a route of axum.
async fn served(options: UpgradeOptions) -> Vec<(String, Box<dyn std::any::Any>)> {
    let listener = listen(options.clone()).await;
    let address = listener.address().to_string();
    let mut served: Vec<(String, Box<dyn std::any::Any>)> = vec![(address, Box::new(serving(listener)))];
    #[cfg(feature = "axum")]
    {
        let (listener, url, routes) = common::route::serve(options).await;
        let address = url.trim_start_matches("ws://").trim_end_matches("/agent").to_owned();
        served.push((address, Box::new((serving(listener), routes))));
    }
    served
}

fn serving(listener: impl Listener) -> Serving {
    let router = Router::new().method("echo", async |_: CallContext, params: Value| Ok(params));
    let server = Server::builder([dialect::ACP]).serve(router).listen(listener);
    Serving::spawn(async move { drop(server.run().await) })
}

#[tokio::test]
async fn a_refusal_has_the_hooks_status_and_headers() {
    let options =
        UpgradeOptions::new().auth(async |request: AuthRequest| match request.header("Authorization") {
            None => Err(AuthRefusal::bearer(METADATA).with_header("X-Reason", "none")),
            Some("Bearer narrow") => Err(AuthRefusal::insufficient_scope("files:write", METADATA)),
            Some("Bearer slow") => {
                tokio::task::yield_now().await;
                Err(AuthRefusal::new(429, "too many")
                    .with_header("Retry-After", "60")
                    .with_header("a b", "left out"))
            }
            Some(_) => Ok(Credential::of(Principal("ada".into()))),
        });
    for (address, _serving) in served(options).await {
        for (headers, status, holds) in [
            (
                "",
                "401",
                format!("www-authenticate: bearer resource_metadata=\"{METADATA}\"\r\nx-reason: none"),
            ),
            (
                "Authorization: Bearer narrow\r\n",
                "403",
                format!(
                    "www-authenticate: bearer error=\"insufficient_scope\", scope=\"files:write\", \
                     resource_metadata=\"{METADATA}\""
                ),
            ),
            ("Authorization: Bearer slow\r\n", "429", "retry-after: 60\r\n".to_owned()),
            ("Authorization: Bearer ada\r\n", "101", "upgrade: websocket".to_owned()),
        ] {
            let head = asked(&address, headers).await;
            assert!(
                head.starts_with(&format!("http/1.1 {status} ")) && head.contains(&holds),
                "{headers}: {head}"
            );
        }
    }
}

#[tokio::test]
async fn the_hook_sees_the_request_and_its_address() {
    let seen: Arc<Mutex<Vec<AuthRequest>>> = Arc::default();
    let requests = Arc::clone(&seen);
    let options = UpgradeOptions::new().auth(move |request| {
        requests.lock().unwrap().push(request);
        std::future::ready(Ok(Credential::anonymous()))
    });
    for (nth, (address, _serving)) in served(options).await.into_iter().enumerate() {
        asked(&address, "X-Token: a\r\nX-Token: b\r\n").await;
        let asked = seen.lock().unwrap().pop().unwrap();
        assert_eq!((asked.method(), asked.path(), asked.query()), ("GET", "/agent", Some("mode=test")));
        assert_eq!(asked.headers("x-token").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(asked.header("upgrade"), Some("websocket"));
        // In a route of another server the address is known only if that server provides it.
        let address = asked.address().map(|address| address.is_loopback());
        assert_eq!(address, (nth == 0).then_some(true));
        assert!(asked.certificates().is_empty());
    }
}

#[tokio::test]
async fn a_hook_that_hangs_gets_503_and_one_that_panics_500_and_neither_holds_up_others() {
    let options = UpgradeOptions::new().handshake_timeout(Duration::from_millis(300));
    let options = options.auth(async |request: AuthRequest| match request.header("X-User") {
        Some("slow") => std::future::pending().await,
        Some("bad") => panic!("on purpose"),
        Some(_) | None => Ok(Credential::anonymous()),
    });
    for (address, _serving) in served(options).await {
        let slow = asked(&address, "X-User: slow\r\n");
        let others = async {
            let bad = asked(&address, "X-User: bad\r\n").await;
            assert!(bad.starts_with("http/1.1 500 "), "{bad}");
            let good = asked(&address, "").await;
            assert!(good.starts_with("http/1.1 101 "), "{good}");
        };
        let (slow, ()) = tokio::join!(slow, others);
        assert!(slow.starts_with("http/1.1 503 ") && slow.contains("retry-after: 1"), "{slow}");
    }
}

fn short(_: AuthRequest) -> std::future::Ready<Result<Credential, AuthRefusal>> {
    let credential = Credential::of(Principal("ada".into()));
    std::future::ready(Ok(credential.expires_in(Duration::from_millis(200))))
}

/// The view of a client that is not of this library.
#[tokio::test]
async fn a_connection_whose_credential_expires_is_closed_with_1008() {
    for (address, _serving) in served(UpgradeOptions::new().auth(short)).await {
        let request = format!("ws://{address}/agent").into_client_request().unwrap();
        let tcp = TcpStream::connect(&address).await.unwrap();
        let (mut client, _) = tokio_tungstenite::client_async(request, tcp).await.unwrap();
        match in_time("the close frame", client.next()).await {
            Some(Ok(Message::Close(Some(frame)))) => {
                assert_eq!(frame.code, CloseCode::Policy);
                assert_eq!(frame.reason.as_str(), "the credentials have expired");
            }
            other => panic!("{other:?}"),
        }
        // The close frame arrived whole, so the end is not a reset.
        assert!(matches!(in_time("the end", client.next()).await, None | Some(Err(Error::ConnectionClosed))));
    }
}

#[tokio::test]
async fn requests_in_flight_are_lost_when_a_credential_expires() {
    let (event_tx, mut event_rx) = tokio::sync::mpsc::unbounded_channel();
    let router = Router::new().method("wait", move |ctx: CallContext, _: Value| {
        let event_tx = event_tx.clone();
        async move {
            let cause = ctx.cancelled().await;
            let _ = event_tx.send(cause.kind().name());
            ctx.stopped::<Value>(cause)
        }
    });
    let listener = listen(UpgradeOptions::new().auth(short)).await;
    let url = listener.endpoint().0;
    let server = Server::builder([dialect::ACP]).serve(router).listen(listener);
    let _serving = Serving::spawn(async move { drop(server.run().await) });
    let peer = Peer::builder(dialect::ACP).connect(connect(&url)).await.unwrap();
    let outcome = peer.call::<_, Value>("wait", &json!({})).start().unwrap().outcome();
    let outcome = in_time("the outcome", outcome).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    assert_eq!(in_time("the cancel", event_rx.recv()).await, Some("disconnected"));
}

#[tokio::test(start_paused = true)]
async fn a_link_ends_at_the_deadline_of_its_credential() {
    let hour = Duration::from_secs(3600);
    let options = UpgradeOptions::new()
        .auth(async |_| Ok(Credential::of(Principal("ada".into())).expires_in(Duration::from_secs(3600))));
    // With a clock that jumps, no ping is answered in time.
    let options = options.link(LinkOptions::new().no_pings());
    let mut listener = listen(options).await;
    let url = listener.endpoint().0;
    let (client, server) = tokio::join!(Box::new(connect(&url)).open(), accept(&mut listener));
    let (_client, mut server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.meta.principal, Some(Principal("ada".into())));
    let begun = tokio::time::Instant::now();
    let ended = std::future::poll_fn(|cx| server.rx.as_mut().poll_event(cx)).await;
    let error = ended.unwrap().unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
    let lasted = begun.elapsed();
    assert!(lasted <= hour && lasted + Duration::from_secs(60) > hour, "{lasted:?}");
    assert!(event(&mut server).await.is_none());
}

/// One credential of the HTTP server, one of the hook: the earlier expiry counts.
#[tokio::test]
async fn an_http_servers_credential_ends_the_connection_too() {
    let (upgrades, listener): (Upgrades, _) = rescind_websocket::mount(UpgradeOptions::new());
    let _serving = serving(listener);
    // The listener ends when the last of them is dropped.
    let _kept = upgrades.clone();
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = tcp.accept().await.unwrap();
        let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let upgrades = upgrades.clone();
            async move {
                let credential = Credential::anonymous().expires_in(Duration::from_millis(100));
                Ok::<_, std::convert::Infallible>(upgrades.answer_for(&mut request, &credential).await)
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .serve_connection(hyper_util::rt::TokioIo::new(socket), service)
            .with_upgrades();
        served.await
    });
    let mut client = Box::new(connect(&format!("ws://{address}/"))).open().await.unwrap();
    let ended = event(&mut client).await.unwrap().unwrap_err();
    assert!(ended.to_string().contains("1008"), "{ended}");
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn the_hook_sees_the_certificate_of_a_client() {
    use rescind_core::ClientCertificates;
    use rescind_websocket::Pem;
    let (ours, other) = (common::tls::Authority::new(), common::tls::Authority::new());
    for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
        let seen: Arc<Mutex<Vec<Vec<Vec<u8>>>>> = Arc::default();
        let certificates = Arc::clone(&seen);
        let options = UpgradeOptions::new().auth(move |request| {
            certificates.lock().unwrap().push(request.certificates().to_vec());
            std::future::ready(Ok(Credential::anonymous()))
        });
        let tls = ours.server().client_certificates(Pem::file(ours.file("ca.pem")), demand).unwrap();
        let builder = WebSocketListener::builder().tls(tls).options(options);
        let mut listener = builder.bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().0.replace("127.0.0.1", "localhost");
        let passes = [
            (ours.client_of(&ours), Some(vec![ours.certificate().to_vec()])),
            (ours.client(), (demand == ClientCertificates::Optional).then(Vec::new)),
            (ours.client_of(&other), None),
        ];
        for (client, shown) in passes {
            let transport = Box::new(connect(&url).tls(client));
            let (client, server) = tokio::join!(transport.open(), accept(&mut listener));
            assert_eq!((client.is_ok(), server.is_ok()), (shown.is_some(), shown.is_some()), "{demand:?}");
            assert_eq!(seen.lock().unwrap().pop(), shown, "{demand:?}");
        }
    }
    let missing = Pem::file(ours.file("nothing.pem"));
    let missing = ours.server().client_certificates(missing, ClientCertificates::Required);
    assert!(missing.is_err());
}
