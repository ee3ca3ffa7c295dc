//! One link carries all clients: hanging calls of one client do not delay those of others.

use rescind_core::{Limits, Principal};
use rescind_http::{HttpServer, Stateless};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::stateless::support::{USUAL, begin_from, in_time, listen_with, message};

/// A client: an address of this machine, and the name that the auth hook gives it.
type Who = (&'static str, &'static str);

/// The limit of running handlers, and of waiting requests.
const MOST: usize = 8;

async fn ask(address: &str, (from, user): Who, method: &str) -> TcpStream {
    let body = message(1, method, &json!({"name": user})).to_string();
    let headers = [USUAL[0], USUAL[1], USUAL[2], ("Mcp-Method", method), ("X-User", user)];
    begin_from(from, address, "POST", &headers, &body).await
}

/// The response so far, after it contains this text.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 1024];
    while !text.contains(wanted) {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "it ended before `{wanted}`: {text}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    text
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn hanging_calls_of_one_client_delay_no_other_client() {
    let pairs: [(Who, Who); 2] =
        [(("127.0.0.1", "all"), ("127.0.0.2", "all")), (("127.0.0.1", "mallory"), ("127.0.0.1", "ada"))];
    for (mallory, ada) in pairs {
        let mut limits = Limits::default();
        (limits.max_running_handlers, limits.max_queued_requests) = (MOST, MOST);
        let mut http = HttpServer::new(Stateless::new());
        if mallory.1 != "all" {
            let auth = async |request: AuthRequest| match request.header("X-User") {
                Some(user) => Ok(Credential::of(Principal(user.into()))),
                None => Err(AuthRefusal::unauthorized("Bearer")),
            };
            http = http.auth(auth);
        }
        let mut served = listen_with(http.bind("127.0.0.1:0").await.unwrap(), limits);
        let address = served.address().to_owned();
        // More than all handlers and the whole queue.
        let (tell, mut refused) = mpsc::unbounded_channel();
        let mut hanging = Vec::new();
        for _ in 0..3 * MOST {
            let (mut stream, tell) = (ask(&address, mallory, "wait").await, tell.clone());
            hanging.push(tokio::spawn(async move {
                let mut text = read_until(&mut stream, "\r\n\r\n").await;
                if text.starts_with("HTTP/1.1 429") {
                    if !text.contains("client_queued") {
                        text.push_str(&read_until(&mut stream, "client_queued").await);
                    }
                    let _ = tell.send(text);
                }
                // It hangs until it is dropped.
                std::future::pending::<TcpStream>().await
            }));
        }
        // Half of the handlers run, half of the queue is taken.
        for _ in 0..MOST / 2 {
            served.hears(&format!("{} started", mallory.1)).await;
        }
        for _ in 0..2 * MOST {
            let refused = in_time("a refusal", refused.recv()).await.unwrap();
            assert!(refused.contains("retry-after: 1"), "{refused}");
        }
        let mut other = ask(&address, ada, "tools/list").await;
        let answered = in_time("another client's call", read_until(&mut other, "tools")).await;
        assert!(answered.starts_with("HTTP/1.1 200"), "{mallory:?} locks {ada:?} out: {answered}");
        assert!(refused.try_recv().is_err(), "half of the queue waits");
        for task in hanging {
            task.abort();
        }
    }
}
