//! The auth hook, on every binding over HTTP/1.1 and HTTP/2: its input, its possible results, and what ends when a
//! credential expires.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(feature = "rustls")]
mod certificates;
mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rescind_core::Principal;
use rescind_http::{HttpServer, ServerBinding};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use serde_json::Value;

use crate::auth::support::{Binding, Client, WAYS, first, in_time, message, request, served, session};

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
