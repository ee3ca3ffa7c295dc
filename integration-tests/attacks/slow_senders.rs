//! Peers that send one byte a second, 200 at once, on a paused clock: each is timed out at the limit of its wire,
//! regardless of what it still has to send.
//!
//! Over stdio and a named pipe there is no such limit: a slow peer there is on the user's own machine, and the
//! buffered part of its frame is limited (`bad_input.rs` of the faults).

use std::time::Duration;

use libtest_mimic::Trial;
use rescind::Server;
use rescind::dialect::ACP;
use rescind::http::{HttpServer, Streamable};
use rescind::websocket::{UpgradeOptions, accept_given};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::agent::{Seen, router};
use crate::floods::counting;
use crate::in_time;
use crate::wires::resident;

const PEERS: usize = 200;
/// How much longer than its limit a peer may be read.
const PROMPT: Duration = Duration::from_secs(2);
/// The most memory for a peer that has sent a few dozen bytes.
const EACH: usize = 64 * 1024;
/// The largest body without a session. None of it has arrived yet.
const PROMISED: usize = 64 * 1024;

pub(crate) fn trials() -> Vec<Trial> {
    let counted = [
        counting("slow_senders::a_head_a_byte_a_second_is_timed_out::http".to_owned(), || {
            http("POST /", Duration::from_secs(10), "")
        }),
        counting("slow_senders::a_body_a_byte_a_second_is_timed_out::http".to_owned(), || {
            let types = "Content-Type: application/json\r\nAccept: application/json, text/event-stream";
            let head = format!(
                "POST / HTTP/1.1\r\nHost: localhost\r\n{types}\r\nContent-Length: {PROMISED}\r\n\r\n"
            );
            async move { http(&head, Duration::from_secs(30), "HTTP/1.1 408 ").await }
        }),
        counting("slow_senders::a_handshake_a_byte_a_second_is_timed_out::websocket".to_owned(), websocket),
    ];
    counted.into_iter().flatten().collect()
}

/// Sends `said` at once, and then one byte a second, until the other side has closed. Returns when it closed and what
/// it sent.
async fn trickle(mut stream: DuplexStream, said: String) -> (Duration, String) {
    let since = Instant::now();
    stream.write_all(said.as_bytes()).await.expect("it is open");
    let (mut read, mut write) = tokio::io::split(stream);
    let mut heard = Vec::new();
    let mut each_second = interval(Duration::from_secs(1));
    each_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let trickling = async {
        loop {
            each_second.tick().await;
            // After the close the write fails.
            let _ = write.write_all(b"x").await;
        }
    };
    tokio::select! {
        // A stream that is cut off ends as well.
        _ = read.read_to_end(&mut heard) => {}
        () = trickling => {}
    }
    (since.elapsed(), String::from_utf8_lossy(&heard).into_owned())
}

/// All peers at once. Each is closed at the limit, and its answer begins with this text.
async fn all(open: impl AsyncFn() -> DuplexStream, said: &str, limit: Duration, answer: &str) {
    let before = resident();
    let mut peers = JoinSet::new();
    for _ in 0..PEERS {
        peers.spawn(trickle(open().await, said.to_owned()));
    }
    // At half of the time: the memory for them while they are read.
    let half = Instant::now() + limit / 2;
    let mut closed = 0;
    let early = tokio::time::timeout_at(half, peers.join_next()).await;
    assert!(early.is_err(), "one was closed long before its limit: {early:?}");
    let grown = resident().saturating_sub(before);
    eprintln!("counted: {PEERS} peers that say a byte a second cost {} KiB", grown / 1024);
    assert!(grown <= PEERS * EACH, "I11: {grown} bytes more");
    while let Some(peer) = in_time("their ends", peers.join_next()).await {
        let (after, heard) = peer.expect("a peer");
        assert!((limit..=limit + PROMPT).contains(&after), "one was closed after {after:?}");
        assert!(heard.starts_with(answer), "{heard}");
        closed += 1;
    }
    assert_eq!(closed, PEERS);
}

/// The limits are the defaults of a server.
async fn http(said: &str, limit: Duration, answer: &str) {
    tokio::time::pause();
    let (give, given) = mpsc::unbounded_channel();
    let listener = HttpServer::new(Streamable::new()).serve_given(given);
    let server = Server::builder([ACP]).serve(router(&Seen::new())).listen(listener);
    let serving = tokio::spawn(server.run());
    let open = async || {
        let (ours, theirs) = tokio::io::duplex(1024);
        assert!(give.send(Box::new(theirs)).is_ok(), "the server takes streams");
        ours
    };
    all(open, said, limit, answer).await;
    serving.abort();
    let _ = in_time("L3: the end", serving).await;
}

async fn websocket() {
    tokio::time::pause();
    let (served, mut ended) = mpsc::unbounded_channel();
    let open = async || {
        let (ours, theirs) = tokio::io::duplex(1024);
        let served = served.clone();
        tokio::spawn(async move {
            let _ = served.send(accept_given(UpgradeOptions::new(), theirs).await.map(drop));
        });
        ours
    };
    all(open, "GET / HTTP/1.1\r\nX: ", Duration::from_secs(10), "").await;
    for _ in 0..PEERS {
        let why = in_time("its end", ended.recv()).await.expect("one more").expect_err("no handshake");
        assert!(why.to_string().contains("the handshake took too long"), "{why}");
    }
}
