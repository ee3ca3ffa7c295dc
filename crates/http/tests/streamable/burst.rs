//! Ten thousand cancels over HTTP/2, on the one connection there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::Outcome;
use rescind_core::dialect::MCP;
use rescind_http::{HttpClient, StreamableTransport};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Seen, Served, client, in_time, serve, server};

const ROUNDS: usize = 20;
const CALLS: usize = 500;

/// The URL of a way to the server, and how many connections were used on it. A client that is sent away connects again,
/// which a call would not notice; one that only looks whether the server is there says nothing.
async fn counted(url: &str) -> (String, Arc<AtomicUsize>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let counted = format!("http://{}/", socket.local_addr().unwrap());
    let server = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let connections = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((near, _)) = socket.accept().await {
            tokio::spawn(pass(near, server.clone(), Arc::clone(&count)));
        }
    });
    (counted, connections)
}

async fn pass(mut near: TcpStream, server: String, count: Arc<AtomicUsize>) {
    if near.peek(&mut [0]).await.is_ok_and(|read| read > 0) {
        count.fetch_add(1, Ordering::SeqCst);
        let mut far = TcpStream::connect(server).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    }
}

/// Waits until so many handlers have begun, or have heard of their cancel.
async fn saw(served: &mut Served, count: usize, is_it: fn(&Seen) -> bool) {
    for _ in 0..count {
        let seen = in_time("what a handler sees", served.seen.recv()).await;
        assert!(seen.as_ref().is_some_and(is_it), "{seen:?}");
    }
}

#[tokio::test]
async fn ten_thousand_cancels_over_http2_end_no_connection() {
    let mut served = serve(server(), MCP).await;
    let (url, connections) = counted(&served.url).await;
    let peer = client(StreamableTransport::new(HttpClient::new(&url).unwrap().http2()), MCP).await;
    for _ in 0..ROUNDS {
        let calls: Vec<_> =
            (0..CALLS).map(|n| peer.call::<_, Value>("wait", &json!({"n": n})).start().unwrap()).collect();
        saw(&mut served, CALLS, |seen| matches!(seen, Seen::Started(_))).await;
        for call in &calls {
            let _ = call.canceller().cancel("a burst");
        }
        saw(&mut served, CALLS, |seen| matches!(seen, Seen::Cancelled(_))).await;
        for call in calls {
            let outcome = in_time("a cancelled call", call.outcome()).await;
            assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
        }
    }
    let answer = in_time("the connection", peer.call::<_, Value>("echo", &json!({"n": 1}))).await;
    assert_eq!(answer.unwrap(), json!({"n": 1}));
    assert_eq!(connections.load(Ordering::SeqCst), 1, "the client was sent away, and came back");
    in_time("all handlers end", async {
        while served.running.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
