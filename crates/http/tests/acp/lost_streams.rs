//! The effect of a lost stream, and of no stream at all.

use std::time::Duration;

use rescind_core::Limits;
use serde_json::json;
use tokio::time::Instant;

use crate::acp::support::{
    Served, cancel, listen_with, make_session, open, post, prompt, read_until, request, serve, server, stream,
};

/// Waits on the paused clock until the running prompt receives this. Returns how many seconds that is after `since`,
/// which is a time before its cause: the clock runs until it is paused.
async fn heard(served: &mut Served, what: &str, since: Instant) -> u64 {
    tokio::time::pause();
    let reported = tokio::time::timeout(Duration::from_secs(120), served.events.recv()).await;
    assert_eq!(reported.unwrap_or_else(|_| panic!("never: {what}")).as_deref(), Some(what));
    since.elapsed().as_secs()
}

#[tokio::test]
async fn a_request_whose_stream_stays_lost_is_cancelled_after_its_grace() {
    let mut served = serve().await;
    let address = served.address().to_owned();
    let id = open(&address, &[]).await;
    let known = ("Acp-Connection-Id", id.as_str());
    let of_s1 = [known, ("Acp-Session-Id", "s1")];
    make_session(&address, known).await;
    let own = stream(&address, &[known]).await;
    let of_session = stream(&address, &of_s1).await;
    assert_eq!(post(&address, &of_s1, &prompt(2, "s1")).await.status, 202);
    served.hears("started").await;
    // The stream of the connection is read all the time, because the answer would not be sent on it.
    let since = Instant::now();
    drop(of_session);
    let after = heard(&mut served, "disconnected", since).await;
    assert!((30..60).contains(&after), "{after} s");
    drop(own);
}

#[tokio::test]
async fn a_request_whose_client_opens_no_stream_is_cancelled_after_the_same_grace() {
    let mut served = serve().await;
    let address = served.address().to_owned();
    let id = open(&address, &[]).await;
    let of_s1 = [("Acp-Connection-Id", id.as_str()), ("Acp-Session-Id", "s1")];
    let since = Instant::now();
    assert_eq!(post(&address, &of_s1, &prompt(2, "s1")).await.status, 202);
    served.hears("started").await;
    let after = heard(&mut served, "disconnected", since).await;
    assert!((30..60).contains(&after), "{after} s");
}

#[tokio::test]
async fn a_stream_resumed_within_its_grace_cancels_nothing() {
    let mut limits = Limits::default();
    limits.detach_grace = Duration::from_millis(200);
    let mut served = listen_with(server().bind("127.0.0.1:0").await.unwrap(), limits);
    let address = served.address().to_owned();
    let (id, other) = (open(&address, &[]).await, open(&address, &[]).await);
    let of_s1 = [("Acp-Connection-Id", id.as_str()), ("Acp-Session-Id", "s1")];
    let of_other = [("Acp-Connection-Id", other.as_str()), ("Acp-Session-Id", "s1")];
    // The request starts before there is a stream. The next stream is lost, and the one after it is displaced by
    // another.
    assert_eq!(post(&address, &of_s1, &prompt(2, "s1")).await.status, 202);
    served.hears("started").await;
    let mut first = stream(&address, &of_s1).await;
    read_until(&mut first, "session/update").await;
    drop(first);
    let displaced = stream(&address, &of_s1).await;
    let mut last = stream(&address, &of_s1).await;
    drop(displaced);
    // The grace of a request that started later has ended, so that of the first one would have ended too.
    assert_eq!(post(&address, &of_other, &prompt(3, "s1")).await.status, 202);
    served.hears("started").await;
    served.hears("disconnected").await;
    assert_eq!(post(&address, &of_s1, &cancel(2)).await.status, 202);
    served.hears("peer").await;
    let said = read_until(&mut last, "\"id\":2").await;
    assert!(said.contains(r#""stopReason":"cancelled""#), "{said}");
    // The answer of the other request waits for the next stream.
    let said = read_until(&mut stream(&address, &of_other).await, "\"id\":3").await;
    assert!(said.contains("-32800"), "{said}");
}

#[tokio::test]
async fn an_unread_stream_is_cut_and_counts_as_lost() {
    let mut served = serve().await;
    let address = served.address().to_owned();
    let id = open(&address, &[]).await;
    let of_s1 = [("Acp-Connection-Id", id.as_str()), ("Acp-Session-Id", "s1")];
    make_session(&address, of_s1[0]).await;
    let unread = stream(&address, &of_s1).await;
    // More than the sockets between them buffer.
    let flood = request(2, "session/prompt", &json!({"sessionId": "s1", "floods": 800}));
    let since = Instant::now();
    assert_eq!(post(&address, &of_s1, &flood).await.status, 202);
    served.hears("started").await;
    let after = heard(&mut served, "disconnected", since).await;
    assert!((60..90).contains(&after), "30 s until it is cut, and the grace: {after} s");
    drop(unread);
}
