//! The auth hook, on every binding over HTTP/1.1 and HTTP/2: its input, its possible results, and what ends when a
//! credential expires.
//!
//! # Certificates
//!
//! Client certificates, made for one test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rescind_core::dialect::{ACP, MCP, MCP_2026};
use rescind_core::{CallContext, Listener, Principal, Router, Server};
use rescind_http::{HttpListener, HttpServer, ServerBinding};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use rescind_testkit::support::{Serving, mcp_meta};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

pub(crate) use rescind_testkit::support::in_time;

const METADATA: &str = "https://agent.example/.well-known/oauth-protected-resource";

#[tokio::test]
async fn a_refusal_has_the_hooks_status_and_headers() {
    fn set<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
        server.auth(async |request: AuthRequest| match request.header("Authorization") {
            None => Err(AuthRefusal::bearer(METADATA).with_header("X-Reason", "none")),
            Some("Bearer narrow") => Err(AuthRefusal::insufficient_scope("files:write", METADATA)),
            Some("Bearer slow") => {
                tokio::task::yield_now().await;
                Err(AuthRefusal::new(429, "too many").with_header("Retry-After", "60"))
            }
            Some(_) => Ok(Credential::of(Principal("anna".into()))),
        })
    }
    for way in WAYS {
        let served = served!(way.0, set);
        let mut client = Client::connect(&served.address, way.1).await;
        let answer = client.ask(first(way, &[])).await;
        assert_eq!(answer.status, 401, "{way:?}");
        assert_eq!(answer.header("www-authenticate"), [format!("Bearer resource_metadata=\"{METADATA}\"")]);
        assert_eq!(answer.header("x-reason"), ["none"], "{way:?}");
        let reported: Value = serde_json::from_str(&answer.text().await).unwrap();
        assert_eq!(reported["error"]["code"], -32600, "{way:?}: {reported}");
        let answer = client.ask(first(way, &[("Authorization", "Bearer narrow")])).await;
        let challenge = format!(
            "Bearer error=\"insufficient_scope\", scope=\"files:write\", resource_metadata=\"{METADATA}\""
        );
        assert_eq!(
            (answer.status.as_u16(), answer.header("www-authenticate")),
            (403, vec![challenge.as_str()])
        );
        answer.text().await;
        let answer = client.ask(first(way, &[("Authorization", "Bearer slow")])).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (429, vec!["60"]), "{way:?}");
        answer.text().await;
        let answer = client.ask(first(way, &[("Authorization", "Bearer anna")])).await;
        assert_eq!(answer.status, 200, "{way:?}");
    }
}

#[tokio::test]
async fn the_hook_sees_the_request_and_its_address() {
    for way in WAYS {
        let seen: Arc<Mutex<Vec<AuthRequest>>> = Arc::default();
        let served = served!(way.0, |server: HttpServer<_>| {
            let seen = Arc::clone(&seen);
            server.auth(move |request| {
                seen.lock().unwrap().push(request);
                std::future::ready(Ok(Credential::anonymous()))
            })
        });
        let mut client = Client::connect(&served.address, way.1).await;
        let headers = [("X-Token", "a"), ("X-Token", "b"), ("Authorization", "Bearer secret")];
        client.ask(first(way, &headers)).await.text().await;
        let asked = seen.lock().unwrap().pop().unwrap();
        assert_eq!((asked.method(), asked.path(), asked.query()), ("POST", "/agent", Some("mode=test")));
        assert_eq!(asked.headers("x-token").collect::<Vec<_>>(), ["a", "b"], "{way:?}");
        assert_eq!(asked.address().map(|address| address.is_loopback()), Some(true), "{way:?}");
        assert!(asked.certificates().is_empty());
        assert!(!format!("{asked:?}").contains("secret"), "a secret is shown: {asked:?}");
        client.ask(request(way, "DELETE", &[], &Value::Null)).await.text().await;
        assert_eq!(seen.lock().unwrap().pop().unwrap().method(), "DELETE", "{way:?}");
    }
}

#[tokio::test]
async fn a_hanging_hook_gets_503_and_delays_no_other_request() {
    fn set<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
        let server = server.header_timeout(Duration::from_millis(200));
        server.auth(async |request: AuthRequest| {
            if request.header("x-user") == Some("slow") {
                std::future::pending::<()>().await;
            }
            Ok(Credential::anonymous())
        })
    }
    for way in WAYS {
        let served = served!(way.0, set);
        let mut slow = Client::connect(&served.address, way.1).await;
        let mut quick = Client::connect(&served.address, way.1).await;
        let asking = slow.ask(first(way, &[("X-User", "slow")]));
        let others = async {
            assert_eq!(quick.ask(first(way, &[])).await.status, 200, "{way:?}");
        };
        let (answer, ()) = tokio::join!(asking, others);
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, vec!["1"]), "{way:?}");
    }
}

#[tokio::test]
async fn a_hook_that_panics_gets_500_for_its_request() {
    fn set<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
        server.auth(async |request: AuthRequest| {
            assert!(request.header("x-user") != Some("bad"), "on purpose");
            Ok(Credential::anonymous())
        })
    }
    for way in WAYS {
        let served = served!(way.0, set);
        let mut client = Client::connect(&served.address, way.1).await;
        let answer = client.ask(first(way, &[("X-User", "bad")])).await;
        assert_eq!(answer.status, 500, "{way:?}");
        answer.text().await;
        assert_eq!(client.ask(first(way, &[])).await.status, 200, "{way:?}");
    }
}

/// The credential of `short` expires soon. After that it is refused.
#[tokio::test]
async fn an_expired_credential_ends_its_streams_and_the_next_request_is_authenticated() {
    for way in WAYS {
        let asked = Arc::new(AtomicUsize::new(0));
        let mut served = served!(way.0, |server: HttpServer<_>| {
            let asked = Arc::clone(&asked);
            server.auth(move |request: AuthRequest| {
                let nth = asked.fetch_add(1, Ordering::SeqCst);
                let credential = Credential::of(Principal("anna".into()));
                std::future::ready(match request.header("x-user") {
                    Some("short") if nth > 2 => Err(AuthRefusal::bearer(METADATA)),
                    Some("short") => Ok(credential.expires_in(Duration::from_millis(300))),
                    _ => Ok(credential),
                })
            })
        });
        let mut client = Client::connect(&served.address, way.1).await;
        let opened = client.ask(first(way, &[])).await;
        assert_eq!(opened.status, 200, "{way:?}");
        let session = session(&opened);
        opened.text().await;
        let mut headers = vec![("x-user", "short")];
        headers.extend(session.as_ref().map(|(name, value)| (*name, value.as_str())));
        // A request that stays unanswered.
        let wait = request(way, "POST", &headers, &message(way.0, "wait"));
        let waiting = client.ask(wait).await;
        in_time("the handler", served.events.recv()).await.unwrap();
        match way.0 {
            Binding::Streamable | Binding::Stateless => {
                assert_eq!(waiting.header("content-type"), ["text/event-stream"], "{way:?}");
                let text = waiting.text().await;
                assert!(!text.contains("result") && !text.contains("error"), "{way:?}: {text}");
            }
            Binding::Acp => assert_eq!(waiting.status, 202, "{way:?}"),
        }
        // The stream of the session.
        if way.0 == Binding::Stateless {
            // Here a lost stream is a cancel.
            assert_eq!(in_time("the cancel", served.events.recv()).await, Some("peer"), "{way:?}");
        } else {
            let stream = client.ask(request(way, "GET", &headers, &Value::Null)).await;
            assert_eq!(stream.status, 200, "{way:?}");
            stream.text().await;
        }
        asked.store(3, Ordering::SeqCst);
        let answer = client.ask(first(way, &[("x-user", "short")])).await;
        assert_eq!(answer.status, 401, "{way:?}");
        assert_eq!(answer.header("www-authenticate").len(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn a_credential_that_has_expired_already_gets_401() {
    fn set<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
        server.auth(async |_: AuthRequest| Ok(Credential::anonymous().expires_in(Duration::ZERO)))
    }
    for way in WAYS {
        let served = served!(way.0, set);
        let mut client = Client::connect(&served.address, way.1).await;
        let answer = client.ask(first(way, &[])).await;
        assert_eq!(answer.status, 401, "{way:?}");
        assert_eq!(answer.header("www-authenticate"), ["Bearer error=\"invalid_token\""], "{way:?}");
    }
}

/// The body of the request is still incomplete when its credential expires.
#[tokio::test]
async fn a_request_without_an_answer_gets_401_when_its_credential_expires() {
    let begun = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&begun);
    let served = served!(Binding::Streamable, |server: HttpServer<_>| {
        server.auth(move |_| {
            set.store(true, Ordering::SeqCst);
            std::future::ready(Ok(Credential::anonymous().expires_in(Duration::from_millis(100))))
        })
    });
    let mut socket = tokio::net::TcpStream::connect(&served.address).await.unwrap();
    let head = "POST /agent HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Accept: application/json, text/event-stream\r\nContent-Length: 100\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes()).await.unwrap();
    let mut said = vec![0; 12];
    in_time("an answer", tokio::io::AsyncReadExt::read_exact(&mut socket, &mut said)).await.unwrap();
    assert_eq!(String::from_utf8(said).unwrap(), "HTTP/1.1 401");
    assert!(begun.load(Ordering::SeqCst));
}

/// Client certificates, made for one test.
#[cfg(feature = "rustls")]
mod certificates {
    use std::sync::{Arc, Mutex};

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use rescind_core::Principal;
    use rescind_http::{HttpServer, Pem, ServerBinding, ServerTls};
    use rescind_net::{ClientCertificates, Credential};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

    use crate::auth::{Client, Http, WAYS, first, served};

    /// An authority that has signed a certificate for a server and one for a client.
    struct Authority {
        own: CertificateDer<'static>,
        pem: String,
        server: (String, String),
        client: (CertificateDer<'static>, PrivateKeyDer<'static>),
    }

    fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let client_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["anna".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = params.signed_by(&client_key, &authority).unwrap();
        Authority {
            own: authority.der().clone(),
            pem: authority.pem(),
            server: (server.pem(), key.serialize_pem()),
            client: (client.der().clone(), PrivateKeyDer::try_from(client_key.serialize_der()).unwrap()),
        }
    }

    /// A connection of a client with this certificate.
    async fn connect(
        address: &str,
        http: Http,
        trusted: &Authority,
        shown: Option<&Authority>,
    ) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.own.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shown {
            None => config.with_no_client_auth(),
            Some(Authority { client: (certificate, key), .. }) => {
                config.with_client_auth_cert(vec![certificate.clone()], key.clone_key()).unwrap()
            }
        };
        config.alpn_protocols = match http {
            Http::One => vec![b"http/1.1".to_vec()],
            Http::Two => vec![b"h2".to_vec()],
        };
        let tcp = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
    }

    #[tokio::test]
    async fn the_hook_sees_the_certificate_of_a_client() {
        let (authority, other) = (authority(), self::authority());
        for way in WAYS {
            for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
                let seen: Arc<Mutex<Vec<Vec<Vec<u8>>>>> = Arc::default();
                let served = served!(way.0, |server: HttpServer<_>| {
                    let seen = Arc::clone(&seen);
                    asking(server, &authority, demand).auth(move |request| {
                        seen.lock().unwrap().push(request.certificates().to_vec());
                        std::future::ready(Ok(Credential::of(Principal("anna".into()))))
                    })
                });
                let stream = connect(&served.address, way.1, &authority, Some(&authority)).await;
                let mut client = Client::over(stream, way.1).await;
                assert_eq!(client.ask(first(way, &[])).await.status, 200, "{way:?} {demand:?}");
                let shown = authority.client.0.to_vec();
                assert_eq!(seen.lock().unwrap().pop(), Some(vec![shown]), "{way:?} {demand:?}");
                // Without a certificate.
                let stream = connect(&served.address, way.1, &authority, None).await;
                let passes = passes(stream, way.1).await;
                assert_eq!(passes, demand == ClientCertificates::Optional, "{way:?} {demand:?}");
                // With a certificate of another authority.
                let stream = connect(&served.address, way.1, &authority, Some(&other)).await;
                assert!(!self::passes(stream, way.1).await, "{way:?} {demand:?}");
            }
        }
    }

    /// Whether a server continues after the handshake. In TLS 1.3 a client learns only then that its certificate is
    /// refused.
    async fn passes(mut stream: TlsStream<TcpStream>, http: Http) -> bool {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let said: &[u8] = match http {
            Http::One => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            Http::Two => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        };
        let _ = stream.write_all(said).await;
        let _ = stream.flush().await;
        crate::auth::in_time("an answer", stream.read_u8()).await.is_ok()
    }

    fn asking<B: ServerBinding>(
        server: HttpServer<B>,
        authority: &Authority,
        demand: ClientCertificates,
    ) -> HttpServer<B> {
        let (certificate, key) = &authority.server;
        let tls = ServerTls::from_pem(Pem::bytes(certificate), Pem::bytes(key)).unwrap();
        server.tls(tls.client_certificates(Pem::bytes(&authority.pem), demand).unwrap())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Streamable,
    Stateless,
    Acp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    One,
    Two,
}

/// Every binding with both versions of HTTP.
pub(crate) const WAYS: [(Binding, Http); 6] = [
    (Binding::Streamable, Http::One),
    (Binding::Streamable, Http::Two),
    (Binding::Stateless, Http::One),
    (Binding::Stateless, Http::Two),
    (Binding::Acp, Http::One),
    (Binding::Acp, Http::Two),
];

/// A server that ends with the test.
pub(crate) struct Served {
    pub(crate) address: String,
    /// `started`, and how each handler of `wait` was cancelled.
    pub(crate) events: mpsc::UnboundedReceiver<&'static str>,
    _serving: Serving,
}

/// Serves a binding with a server that `set` configures.
macro_rules! served {
    ($binding:expr, $set:expr) => {{
        use crate::auth::{Binding, listen};
        match $binding {
            Binding::Streamable => listen(
                $set(rescind_http::HttpServer::new(rescind_http::Streamable::new()))
                    .bind("127.0.0.1:0")
                    .await,
            ),
            Binding::Stateless => listen(
                $set(rescind_http::HttpServer::new(rescind_http::Stateless::new())).bind("127.0.0.1:0").await,
            ),
            Binding::Acp => listen(
                $set(rescind_http::HttpServer::new(rescind_http::Acp::new())).bind("127.0.0.1:0").await,
            ),
        }
    }};
}
pub(crate) use served;

pub(crate) fn listen(listener: Result<HttpListener, rescind_core::TransportError>) -> Served {
    let listener = listener.unwrap();
    let address = listener.endpoint().0.split('/').nth(2).unwrap().to_owned();
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({"protocolVersion": 1, "capabilities": {}}))
        })
        .method("tools/list", |_: CallContext, _: Value| async { Ok(json!({"tools": []})) })
        .method("wait", move |ctx: CallContext, _: Value| {
            let events_tx = events_tx.clone();
            async move {
                let _ = events_tx.send("started");
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(cause.kind().name());
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP, MCP_2026, ACP]).serve(router).listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { address, events, _serving: serving }
}

/// A connection to a server.
pub(crate) enum Client {
    One(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Two(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

/// An answer whose body is not read yet.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    /// The whole body. A stream has ended then.
    pub(crate) async fn text(self) -> String {
        let body = in_time("the end of the body", self.body.collect()).await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }
}

impl Client {
    pub(crate) async fn connect(address: &str, http: Http) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap(), http).await
    }

    pub(crate) async fn over<S>(stream: S, http: Http) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        match http {
            Http::One => {
                let (client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Self::One(client)
            }
            Http::Two => {
                let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
                let (client, connection) = handshake.await.unwrap();
                tokio::spawn(connection);
                Self::Two(client)
            }
        }
    }

    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let response = match self {
            Self::One(client) => {
                in_time("the connection", client.ready()).await.unwrap();
                in_time("an answer", client.send_request(request)).await.unwrap()
            }
            Self::Two(client) => in_time("an answer", client.send_request(request)).await.unwrap(),
        };
        let (head, body) = response.into_parts();
        Answer { status: head.status, headers: head.headers, body }
    }
}

/// A request with these headers in addition to those that the binding requires.
pub(crate) fn request(
    (binding, http): (Binding, Http),
    method: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Request<Full<Bytes>> {
    let uri = match http {
        Http::One => "/agent?mode=test",
        Http::Two => "http://localhost/agent?mode=test",
    };
    let mut request = Request::builder().method(method).uri(uri);
    if http == Http::One {
        request = request.header("Host", "localhost");
    }
    let accepts = if method == "POST" { "application/json, text/event-stream" } else { "text/event-stream" };
    request = request.header("Accept", accepts);
    if method == "POST" {
        request = request.header("Content-Type", "application/json");
    }
    if binding == Binding::Stateless {
        let method = body["method"].as_str().unwrap_or_default();
        request = request.header("MCP-Protocol-Version", "2026-07-28").header("Mcp-Method", method);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if method == "POST" { Bytes::from(body.to_string()) } else { Bytes::new() };
    request.body(Full::new(body)).unwrap()
}

/// A message of the binding.
pub(crate) fn message(binding: Binding, method: &str) -> Value {
    let params = match binding {
        Binding::Streamable => json!({"protocolVersion": "2025-11-25", "capabilities": {}}),
        Binding::Stateless => json!({"_meta": mcp_meta()}),
        Binding::Acp => json!({"protocolVersion": 1, "clientCapabilities": {}}),
    };
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

/// A request that the binding answers with 200 and without a session.
pub(crate) fn first(way: (Binding, Http), headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let method = match way.0 {
        Binding::Streamable | Binding::Acp => "initialize",
        Binding::Stateless => "tools/list",
    };
    request(way, "POST", headers, &message(way.0, method))
}

/// The header with the session that `first` opened, if the binding has sessions.
pub(crate) fn session(answer: &Answer) -> Option<(&'static str, String)> {
    let names = ["mcp-session-id", "acp-connection-id"];
    names.into_iter().find_map(|name| Some((name, answer.headers.get(name)?.to_str().ok()?.to_owned())))
}
