//! Every future of this library dropped at each point at which it waits, and a child that dies at each byte that it
//! writes.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use libtest_mimic::Trial;
use rescind::dialect::{ACP, LSP, Role};
use rescind::{CallContext, Peer, Router, memory_listener, memory_pair};
use serde_json::{Value, json};

use crate::{in_time, trial, until};

/// More polls than any of these futures needs: each is dropped one poll later than before until it completes.
const POLLS: usize = 500;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<_> = ["call", "outcome", "notification", "notify", "closed", "shutdown"]
        .into_iter()
        .map(|what| trial(format!("drops::a_future_is_dropped_at_every_await::{what}"), move || ours(what)))
        .collect();
    trials.push(trial("drops::a_future_is_dropped_at_every_await::connect".into(), connecting));
    #[cfg(unix)]
    trials.push(trial("drops::a_child_is_killed_at_every_byte_of_its_script".into(), children::each_byte));
    trials
}

/// A future that is dropped after this many polls. `None`: it was dropped.
struct For<'a, T>(Pin<Box<dyn Future<Output = T> + Send + 'a>>, usize);

impl<T> Future for For<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if self.1 == 0 {
            return Poll::Ready(None);
        }
        self.1 -= 1;
        // Polled again whether or not it is woken, because it may be dropped in each of its states.
        cx.waker().wake_by_ref();
        self.0.as_mut().poll(cx).map(Some)
    }
}

fn router() -> Router {
    Router::new()
        .method("echo", |_: CallContext, value: Value| async {
            tokio::task::yield_now().await;
            Ok(value)
        })
        .method("tell", |ctx: CallContext, _: Value| async move {
            tokio::task::yield_now().await;
            ctx.notify("reported", &json!([1])).await?;
            tokio::task::yield_now().await;
            Ok(1)
        })
}

async fn is_clean(peers: [&Peer; 2]) {
    until("I3: nothing is left", || {
        peers.iter().all(|peer| {
            let stats = peer.stats();
            (stats.slots, stats.calls, peer.queue_stats().outbox_frames) == (0, 0, 0)
        })
    })
    .await;
}

async fn ours(what: &'static str) {
    for polls in 0..POLLS {
        let (near, far) = memory_pair();
        let server = Peer::builder(ACP).serve(router()).attach(far).unwrap();
        let client = Peer::builder(ACP).role(Role::Client).attach(near).unwrap();
        // The other operations run at the same time.
        let beside = client.call::<_, Value>("echo", &json!(["beside"])).start().unwrap();
        let reported =
            client.call::<_, Value>("tell", &json!({})).notifications_where(|_| true).start().unwrap();
        let mut notices = reported.notifications();
        let params = json!([polls]);
        if matches!(what, "closed" | "shutdown") {
            until("both have come", || server.stats().started == 2).await;
        }
        if what == "closed" {
            // The server ends the connection.
            let server = server.clone();
            tokio::spawn(async move { server.shutdown(Duration::from_secs(5)).await });
        }
        let future: Pin<Box<dyn Future<Output = ()> + Send + '_>> = match what {
            "call" => Box::pin(async { drop(client.call::<_, Value>("echo", &params).await) }),
            "outcome" => {
                let call = client.call::<_, Value>("echo", &params).start().unwrap();
                Box::pin(async { drop(call.outcome().await) })
            }
            "notification" => Box::pin(async { drop(notices.next().await) }),
            "notify" => Box::pin(async { drop(client.notify("reported", &params).await) }),
            "closed" => Box::pin(async { drop(client.closed().await) }),
            "shutdown" => Box::pin(async {
                server.shutdown(Duration::from_secs(5)).await;
            }),
            other => panic!("{other}"),
        };
        let is_done = For(future, polls).await.is_some();
        if what == "closed" || (what == "shutdown" && polls > 0) {
            // The shutdown is not taken back: the earlier calls are answered, and the connection ends.
            let _ = in_time("L3: the end", client.closed()).await;
            assert_eq!(
                in_time("I13: what was asked before", reported).await,
                Ok(json!(1)),
                "after {polls} polls"
            );
        } else {
            assert_eq!(in_time("I13: beside", beside).await, Ok(json!(["beside"])), "after {polls} polls");
            assert_eq!(in_time("I13: reported", reported).await, Ok(json!(1)), "after {polls} polls");
            let after = client.call::<_, Value>("echo", &json!(["after"]));
            assert_eq!(in_time("I13: after it", after).await, Ok(json!(["after"])), "no frame is torn");
        }
        is_clean([&client, &server]).await;
        if is_done {
            eprintln!("counted: {what} is done after {polls} polls, and was dropped after each before");
            return;
        }
    }
    panic!("{what} is never done");
}

/// A connection that is dropped before it is open leaves nothing.
async fn connecting() {
    for polls in 0..POLLS {
        let (listener, transport) = memory_listener();
        let server = rescind::Server::builder([LSP, ACP]).serve(router()).listen(listener);
        let serving = tokio::spawn(server.run());
        let given_up = Peer::builder(ACP).role(Role::Client).connect(transport.clone());
        let is_open = For(Box::pin(given_up), polls).await.is_some();
        let given_up = rescind::PeerBuilder::connect(
            Peer::builder([LSP, ACP]).role(Role::Client),
            in_time("a link", rescind::transport::Transport::open(Box::new(transport.clone())))
                .await
                .unwrap(),
        );
        drop(For(Box::pin(given_up), polls).await);
        let client = Peer::builder(ACP).role(Role::Client).connect(transport).await.unwrap();
        let _ = in_time("hello", client.call::<_, Value>("initialize", &json!({"protocolVersion": 1}))).await;
        let after = in_time("I13: after it", client.call::<_, Value>("echo", &json!([1]))).await;
        assert_eq!(after, Ok(json!([1])), "after {polls} polls");
        serving.abort();
        let _ = serving.await;
        if is_open {
            return;
        }
    }
    panic!("it never opens");
}

#[cfg(unix)]
mod children {
    use rescind::Outcome;
    use rescind::stdio::Command;

    use super::{ACP, Peer, Value, in_time, json};

    /// The child's output before it is killed: two answers and a notification.
    fn script(ids: [u64; 2]) -> String {
        let [first, second] = ids;
        format!(
            "{}\n{}\n{}\n",
            json!({"jsonrpc": "2.0", "id": first, "result": {"n": 1}}),
            json!({"jsonrpc": "2.0", "method": "reported", "params": [1]}),
            json!({"jsonrpc": "2.0", "id": second, "result": {"n": 2}}),
        )
    }

    /// The ids of our calls on a new connection.
    async fn ids() -> [u64; 2] {
        let (link, mut theirs) = rescind::memory_pair();
        let peer = Peer::builder(ACP).attach(link).unwrap();
        let _calls = [1, 2].map(|n| peer.call::<_, Value>("ask", &json!([n])).start().unwrap());
        let mut ids = [0; 2];
        for id in &mut ids {
            let event = std::future::poll_fn(|cx| theirs.rx.as_mut().poll_event(cx)).await;
            let Some(Ok(rescind::transport::TransportEvent::Message(inbound))) = event else {
                panic!("{event:?}")
            };
            *id = serde_json::from_slice::<Value>(&inbound.body).unwrap()["id"].as_u64().unwrap();
        }
        ids
    }

    pub(super) async fn each_byte() {
        let script = script(in_time("ids", ids()).await);
        // The end of the output ends a line too.
        let ends: Vec<_> = script.match_indices('\n').map(|(at, _)| at).collect();
        for bytes in 0..=script.len() {
            // The child reads both requests first. Otherwise it could die before they arrive.
            let lines = "read -r one; read -r two; printf '%s' \"$SCRIPT\"; kill -9 $$";
            let command = Command::new("sh").args(["-c", lines]).env("SCRIPT", &script[..bytes]);
            let (link, child) = command.start().unwrap();
            let peer = Peer::builder(ACP).attach(link).unwrap();
            let calls = [1, 2].map(|n| peer.call::<_, Value>("ask", &json!([n])).start().unwrap());
            for ((n, call), end) in [1, 2].into_iter().zip(calls).zip([ends[0], ends[2]]) {
                match in_time("I13: a call", call.outcome()).await {
                    Outcome::Completed(value) => {
                        assert!(bytes >= end, "{n} is whole although only {bytes} bytes came");
                        assert_eq!(value, json!({"n": n}), "I1: torn at {bytes}");
                    }
                    Outcome::Disconnected { may_have_run: true } => {
                        assert!(bytes < end, "{n} was whole within {bytes} bytes, and is lost");
                    }
                    other => panic!("{bytes}: {other:?}"),
                }
            }
            assert!(in_time("L3: the end", peer.closed()).await.is_err(), "its end is reported");
            in_time("L3: it is reaped", child.wait()).await;
            let stats = peer.stats();
            assert_eq!((stats.slots, stats.calls), (0, 0), "I3");
        }
    }
}
