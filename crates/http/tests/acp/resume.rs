//! Streams that are resumed with `Last-Event-ID`, on the side of the server.

use rescind_core::{Limits, Peer};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::acp::support::{
    Served, ask, in_time, listen_with, make_session, open, read_until, server, stream,
};

/// The id and the number of each notification in the text of a stream.
fn events(text: &str) -> Vec<(String, u64)> {
    let mut id = "";
    let mut events = Vec::new();
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("id: ") {
            id = named;
        } else if let Some(data) = line.strip_prefix("data: ") {
            let message: Value = serde_json::from_str(data).unwrap();
            events.push((id.to_owned(), message["params"]["n"].as_u64().unwrap()));
        }
    }
    events
}

fn numbers(text: &str) -> Vec<u64> {
    events(text).into_iter().map(|(_, n)| n).collect()
}

/// A connection with the session `s1`, and its stream.
struct Session {
    served: Served,
    id: String,
    peer: Peer,
}

impl Session {
    async fn open(events: usize, bytes: usize) -> Self {
        let listener = server().resume_buffer(events, bytes).bind("127.0.0.1:0").await.unwrap();
        let mut served = listen_with(listener, Limits::default());
        let id = open(served.address(), &[]).await;
        make_session(served.address(), ("Acp-Connection-Id", &id)).await;
        let peer = in_time("its peer", served.peers.recv()).await.unwrap();
        Self { served, id, peer }
    }

    /// Sends the notifications with these numbers on the session's stream.
    fn say(&self, numbers: std::ops::Range<u64>) {
        for n in numbers {
            self.peer.try_notify("session/update", &json!({"sessionId": "s1", "n": n})).unwrap();
        }
    }

    async fn stream(&self, last: Option<&str>) -> TcpStream {
        let known = [("Acp-Connection-Id", self.id.as_str()), ("Acp-Session-Id", "s1")];
        let headers: Vec<_> = known.into_iter().chain(last.map(|last| ("Last-Event-ID", last))).collect();
        stream(self.served.address(), &headers).await
    }

    /// The status and the body of a GET that is refused.
    async fn refused(&self, session: Option<&str>, last: &str) -> (u16, String) {
        let known =
            [("Accept", "text/event-stream"), ("Acp-Connection-Id", &self.id), ("Last-Event-ID", last)];
        let session = session.map(|session| ("Acp-Session-Id", session));
        let headers: Vec<_> = known.into_iter().chain(session).collect();
        let got = ask(self.served.address(), "GET", &headers, "").await;
        (got.status, got.body)
    }
}

#[tokio::test]
async fn a_cut_stream_is_resumed_without_a_lost_or_doubled_event() {
    let session = Session::open(256, 64 * 1024).await;
    let mut first = session.stream(None).await;
    session.say(0..5);
    let seen = events(&read_until(&mut first, "\"n\":4").await);
    assert_eq!(seen.len(), 5);
    drop(first);
    session.say(5..8);
    // The client has not processed the last two events that were sent.
    let mut second = session.stream(Some(&seen[2].0)).await;
    let again = events(&read_until(&mut second, "\"n\":7").await);
    assert_eq!(again.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    assert_eq!(again[..2], seen[3..], "the same events have the same ids");
    // Without the header a new reader gets only what no reader has taken.
    let mut third = session.stream(None).await;
    session.say(8..9);
    assert_eq!(numbers(&read_until(&mut third, "\"n\":8").await), [8]);
    // A reader whose client has left unnoticed is displaced.
    let mut fourth = session.stream(Some(&again[4].0)).await;
    session.say(9..10);
    assert_eq!(numbers(&read_until(&mut fourth, "\"n\":9").await), [8, 9]);
    let mut rest = String::new();
    in_time("the end of the displaced reader", third.read_to_string(&mut rest)).await.unwrap();
    assert!(numbers(&rest).is_empty(), "{rest}");
}

#[tokio::test]
async fn an_event_that_was_cut_in_its_middle_is_sent_again_as_a_whole() {
    let session = Session::open(256, 1024).await;
    let mut cut = session.stream(None).await;
    session.say(0..1);
    let last = events(&read_until(&mut cut, "\"n\":0").await)[0].0.clone();
    let filler = "x".repeat(60_000);
    session.peer.try_notify("session/update", &json!({"sessionId": "s1", "n": 1, "filler": filler})).unwrap();
    read_until(&mut cut, "\"filler\":\"xxx").await;
    drop(cut);
    let mut again = session.stream(Some(&last)).await;
    session.say(2..3);
    let text = read_until(&mut again, "\"n\":2").await;
    assert_eq!(numbers(&text), [1, 2]);
    assert!(text.contains(&filler), "an event above the buffer's bytes is kept while it is the newest");
}

#[tokio::test]
async fn a_stream_that_is_lost_before_its_first_event_is_resumed_too() {
    let session = Session::open(256, 64 * 1024).await;
    let mut first = session.stream(None).await;
    let text = read_until(&mut first, "\n\n").await;
    let id = text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    assert!(!text.contains("data:"), "a client gets no event of it: {text}");
    session.say(0..2);
    // Taken by the reader, and never read.
    read_until(&mut first, "\"n\":1").await;
    drop(first);
    // After the id, or after no id because even that was lost.
    for last in [&*id, ""] {
        let mut again = session.stream(Some(last)).await;
        assert_eq!(numbers(&read_until(&mut again, "\"n\":1").await), [0, 1], "{last:?}");
    }
}

#[tokio::test]
async fn an_id_that_is_old_unreadable_or_of_another_stream_gets_400() {
    let session = Session::open(2, 1024).await;
    let mut reader = session.stream(None).await;
    session.say(0..5);
    let seen = events(&read_until(&mut reader, "\"n\":4").await);
    let ids: Vec<&str> = seen.iter().map(|(id, _)| id.as_str()).collect();
    let (lane, _) = ids[0].split_once('-').unwrap();
    let (foreign, forgotten) = ("none of this server's", "not kept any more");
    let ahead = format!("{lane}-99");
    let (of_session, own) = (Some("s1"), None);
    for (of, id, why) in [
        (of_session, ids[0], forgotten),
        (of_session, &*ahead, forgotten),
        (of_session, "0-1", foreign),
        (own, ids[4], foreign),
        (of_session, "9-1", foreign),
        (of_session, "elsewhere", foreign),
        (of_session, "", forgotten),
    ] {
        let (status, body) = session.refused(of, id).await;
        assert!(status == 400 && body.contains(why), "{of:?} {id:?}: {status} {body}");
    }
    assert_eq!(session.refused(Some("s9"), ids[4]).await.0, 404, "the session is unknown");
    // A refusal changes nothing: the reader is not displaced, and the kept events can be read.
    session.say(5..6);
    assert_eq!(numbers(&read_until(&mut reader, "\"n\":5").await), [5]);
    let mut again = session.stream(Some(ids[3])).await;
    assert_eq!(numbers(&read_until(&mut again, "\"n\":5").await), [4, 5]);
}

#[tokio::test]
async fn events_have_no_ids_if_none_are_kept() {
    let session = Session::open(0, 0).await;
    let mut reader = session.stream(None).await;
    session.say(0..2);
    let text = read_until(&mut reader, "\"n\":1").await;
    assert!(!text.contains("id: "), "{text}");
    let (status, body) = session.refused(Some("s1"), "1-1").await;
    assert!(status == 400 && body.contains("not kept"), "{status} {body}");
}
