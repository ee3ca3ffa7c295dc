//! Sessions whose requests have the same ids: a cancel affects its own session and no other (I4).

use libtest_mimic::Trial;
use serde_json::json;

use crate::agent::{End, close, ended, limits, open_at};
use crate::wires::{Setting, WIRES, Wire};
use crate::{trial, until};

const SESSIONS: usize = 64;

pub(crate) fn trials() -> Vec<Trial> {
    let of = |wire: Wire| {
        trial(format!("cross_session::cancels_hit_their_own_session_alone::{}", wire.name), move || {
            alone_hit(wire)
        })
    };
    WIRES.into_iter().map(of).collect()
}

async fn alone_hit(wire: Wire) {
    let limits = limits();
    let setting = Setting { idle: std::time::Duration::from_secs(300), ..Setting::default() };
    let mut door = wire.listen(setting).await;
    let mut sessions: Vec<(End, End)> = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(open_at(&mut door, &limits).await);
    }
    let mut calls = Vec::new();
    let (stranger, others) = sessions.split_first().unwrap();
    for (client, server) in others {
        let pair = (client.call("wait", 1), client.call("wait", 2));
        server.seen.until("wait 1 began").await;
        server.seen.until("wait 2 began").await;
        calls.push(pair);
    }
    // A session without requests cancels every id that the others use, as a number and as text.
    let ids = others[0].1.seen.ids();
    for (_, server) in others {
        let mut theirs = server.seen.ids();
        theirs.sort();
        let mut ours = ids.clone();
        ours.sort();
        assert_eq!(theirs, ours, "the sessions use the same ids");
    }
    for number in 0..32 {
        for id in [json!(number), json!(number.to_string())] {
            assert_ne!(id, json!(null));
            stranger.0.peer.try_notify("$/cancel_request", &json!({"requestId": id})).unwrap();
        }
    }
    // They name nothing in their session: they are dropped, or kept for a later request if the wire has no order
    // (I8).
    let named_nothing = || {
        let stats = stranger.1.peer.stats();
        stats.unknown_cancels + stats.parked_cancels + stats.ignored_cancels
    };
    until("the stranger's cancels are taken in", || named_nothing() == 64).await;
    for (client, _) in others {
        client.echoes().await;
    }
    for (_, server) in others {
        assert_eq!(server.seen.alive(), 2, "I4: nobody's request was cancelled: {:?}", server.seen.lines());
    }
    // Every other session cancels its first request.
    let mut kept = Vec::new();
    for (at, (first, second)) in calls.into_iter().enumerate() {
        if at % 2 == 0 {
            first.canceller().cancel("mine");
            assert_eq!(ended(first).await, "cancelled by caller, confirmed");
            kept.push((None, second));
        } else {
            kept.push((Some(first), second));
        }
    }
    for (at, (_, server)) in others.iter().enumerate() {
        let alive = if at % 2 == 0 { 1 } else { 2 };
        assert_eq!(server.seen.alive(), alive, "I4: session {at}: {:?}", server.seen.lines());
        let hit = server.seen.lines().iter().filter(|line| line.contains("signalled")).count();
        assert_eq!(hit, 2 - alive, "I4: session {at}: {:?}", server.seen.lines());
    }
    drop(kept);
    for (client, server) in &sessions {
        client.is_clean("the client").await;
        server.is_clean("the server").await;
    }
    for (client, server) in sessions {
        close(&client, &server).await;
    }
}
