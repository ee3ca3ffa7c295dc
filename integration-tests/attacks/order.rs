//! Notifications whose order matters, between requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use rescind::{CallContext, Event, Limits, Peer, Router};
use serde_json::{Value, json};

use crate::agent::End;
use crate::wires::{Kind, Setting, WIRES, Wire, accept};
use crate::{in_time, trial, until};

const CHANGES: usize = 10_000;

pub(crate) fn trials() -> Vec<Trial> {
    let of = |wire: Wire| {
        trial(format!("order::ten_thousand_changes_between_requests::{}", wire.name), move || changes(wire))
    };
    WIRES.into_iter().filter(|wire| wire.kind == Kind::Connection).map(of).collect()
}

/// A text document in an editor: each change contains the version that it creates.
async fn changes(wire: Wire) {
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (record, known) = (Arc::clone(&seen), Arc::clone(&seen));
    let router = Router::new()
        .method("hover", move |_: CallContext, _: Value| {
            let last = known.lock().unwrap().last().copied();
            async move { Ok(last) }
        })
        .notification("didChange", move |_: Peer, (version,): (usize,)| {
            record.lock().unwrap().push(version);
            async { tokio::task::yield_now().await }
        });
    let mut door = wire.listen(Setting::default()).await;
    let connecting = (door.transport)().open();
    let (link, far) = tokio::join!(in_time("connecting", connecting), accept(&mut door.listener));
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    let server = Peer::builder(rescind::dialect::ACP)
        .serve(router)
        .on_event(move |event| {
            if *event == Event::LimitReached("notifications") {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .attach(far)
        .unwrap();
    let (valve, link) = crate::stoppable_link::StoppableLink::new(link.unwrap());
    let peer = Peer::builder(rescind::dialect::ACP).attach(link).unwrap();
    let client = End { peer, valve, seen: crate::agent::Seen::new() };
    let limit = Limits::default().max_queued_notifications;
    let mut most = 0;
    let mut answers = Vec::new();
    for version in 0..CHANGES {
        client.peer.notify("didChange", &[version]).await.unwrap();
        if version % 100 == 99 {
            let call = client.peer.call::<_, Option<usize>>("hover", &json!({}));
            answers.push((version, in_time("I13: a request between them", call).await.unwrap()));
        }
        most = most.max(server.queue_stats().notifications_waiting);
    }
    let handled = || seen.lock().unwrap().len();
    let dropped = || usize::try_from(server.queue_stats().notifications_dropped).unwrap();
    until("all were handled or counted", || handled() + dropped() == CHANGES).await;
    eprintln!("counted: {}: {most} waited at most, {} were dropped", wire.name, dropped());
    assert!(seen.lock().unwrap().is_sorted_by(|one, next| one < next), "in their order, and each once");
    assert!(most <= limit, "I11: {most} wait");
    // They arrive faster than they can be handled. The newest ones find no room, and their drop is reported.
    assert!(handled() >= limit, "{} were handled", handled());
    assert_eq!(reported.load(Ordering::SeqCst), dropped(), "each dropped one is counted here");
    assert_eq!(answers.len(), CHANGES / 100, "requests are answered between them");
    assert!(answers.iter().all(|(sent, seen)| seen.is_none_or(|seen| seen <= *sent)), "{answers:?}");
    client.valve.cut();
    for peer in [&client.peer, &server] {
        let _ = in_time("L3: the end", peer.closed()).await;
    }
}
