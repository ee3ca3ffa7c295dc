//! Our client, whose streams are cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::IntoResponse as _;
use rescind_core::dialect::{ACP, Role};
use rescind_core::{Outcome, Peer, Router};
use rescind_http::{AcpTransport, HttpClient, HttpListener};
use rescind_testkit::support::{HANG, until};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::acp::cutting_proxy::{Cut, CuttingProxy};
use crate::acp::support::{Served, in_time, listen, server};

/// How often streams are cut.
const CUTS: usize = 24;

/// Our client, and the numbers of the notifications that it gets.
struct Client {
    peer: Peer,
    numbers: mpsc::UnboundedReceiver<u64>,
}

impl Client {
    /// A client with the session `s1`.
    async fn connect(url: &str) -> Self {
        let (heard, numbers) = mpsc::unbounded_channel();
        let router = Router::new().notification("session/update", move |_, params: Value| {
            // A prompt reports without a number that it has started.
            if let Some(n) = params["n"].as_u64() {
                let _ = heard.send(n);
            }
            async {}
        });
        let transport = AcpTransport::new(HttpClient::new(url).unwrap()).http1();
        let peer = Peer::builder(ACP).role(Role::Client).serve(router).connect(transport).await.unwrap();
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        let _: Value = in_time("the handshake", peer.call("initialize", &hello)).await.unwrap();
        let made: Value = in_time("a session", peer.call("session/new", &json!({}))).await.unwrap();
        assert_eq!(made["sessionId"], "s1");
        Self { peer, numbers }
    }

    /// The numbers up to this one.
    async fn hears(&mut self, last: u64) -> Vec<u64> {
        let mut all = Vec::new();
        while all.last() != Some(&last) {
            all.push(in_time(&format!("{last} after {all:?}"), self.numbers.recv()).await.unwrap());
        }
        all
    }

    /// The answer to a prompt, on the session's stream.
    async fn is_answered(&self, served: &mut Served) {
        let call = self.peer.call::<_, Value>("session/prompt", &json!({"sessionId": "s1"})).start().unwrap();
        served.hears("started").await;
        call.canceller().cancel("");
        served.hears("peer").await;
        let outcome = in_time("the answer", call.outcome()).await;
        assert!(matches!(&outcome, Outcome::CompletedAfterCancel(_)), "{outcome:?}");
    }
}

async fn say(peer: &Peer, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let params = json!({"sessionId": "s1", "n": n});
        in_time("room", peer.notify("session/update", &params)).await.unwrap();
    }
}

/// The counts of GETs, and of those that resume a stream.
#[derive(Default)]
struct Gets {
    all: AtomicUsize,
    resuming: AtomicUsize,
}

impl Gets {
    /// Counts a GET, and returns its number.
    fn count(&self, head: &str) -> usize {
        if head.contains("last-event-id: ") {
            self.resuming.fetch_add(1, Ordering::SeqCst);
        }
        self.all.fetch_add(1, Ordering::SeqCst)
    }

    fn all(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }

    fn resuming(&self) -> usize {
        self.resuming.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn our_client_loses_and_doubles_nothing_wherever_its_streams_are_cut() {
    const LAST: u64 = 240;
    let mut served = listen(server().bind("127.0.0.1:0").await.unwrap());
    let (gets, own) = (Arc::new(Gets::default()), Gets::default());
    let counted = Arc::clone(&gets);
    // In the head, in the block that has only an id, in any byte of an event; with and without more that is lost.
    let proxy = CuttingProxy::before(&served.url, move |head| {
        if head.contains("acp-session-id") {
            let number = counted.count(head);
            (number < CUTS).then(|| Cut { after: number * 37, lost: number % 5 * 400 })
        } else {
            let number = own.count(head);
            (number < CUTS).then(|| Cut { after: number * 37, lost: 0 })
        }
    })
    .await;
    let mut client = Client::connect(&proxy.url).await;
    let theirs = in_time("its peer", served.peers.recv()).await.unwrap();
    // Far more than what is cut, so no stream waits for bytes that are to be lost.
    tokio::join!(say(&theirs, 0..LAST), client.is_answered(&mut served));
    let heard = client.hears(LAST - 1).await;
    assert_eq!(heard, (0..LAST).collect::<Vec<_>>());
    assert!(gets.all() > CUTS, "{} streams were opened", gets.all());
    assert!(gets.resuming() > CUTS / 2, "{} streams were resumed", gets.resuming());
    client.is_answered(&mut served).await;
    assert!(client.numbers.try_recv().is_err(), "nothing is doubled");
}

/// A client whose session's stream loses several events once. `is_refused`: the status with which the client's attempt
/// to resume is refused.
async fn goes_on_without_the_events(served: &mut Served, url: &str) {
    let gets = Arc::new(Gets::default());
    let counted = Arc::clone(&gets);
    let proxy = CuttingProxy::before(url, move |head| {
        let is_first = head.contains("acp-session-id") && counted.count(head) == 0;
        is_first.then_some(Cut { after: 600, lost: 1500 })
    })
    .await;
    let mut client = Client::connect(&proxy.url).await;
    let theirs = in_time("its peer", served.peers.recv()).await.unwrap();
    say(&theirs, 0..40).await;
    until(HANG, "the third stream", || gets.all() == 3).await;
    client.is_answered(served).await;
    say(&theirs, 40..50).await;
    let heard = client.hears(49).await;
    assert!(heard.is_sorted_by(|one, next| one < next), "nothing is doubled: {heard:?}");
    assert!(heard.len() < 50 && heard[0] == 0, "some events were lost: {heard:?}");
    assert_eq!(gets.resuming(), 1, "the client tries once");
    assert_eq!(gets.all(), 3, "the third stream goes on");
}

#[tokio::test]
async fn our_client_goes_on_if_the_events_are_not_kept_any_more() {
    let mut served = listen(server().resume_buffer(1, 0).bind("127.0.0.1:0").await.unwrap());
    let url = served.url.clone();
    goes_on_without_the_events(&mut served, &url).await;
}

#[tokio::test]
async fn our_client_goes_on_if_a_server_refuses_to_resume_with_409() {
    let (service, listener): (_, HttpListener) = server().mount();
    let refusing = |request: axum::extract::Request, next: axum::middleware::Next| async move {
        if request.headers().contains_key("last-event-id") {
            return axum::http::StatusCode::CONFLICT.into_response();
        }
        next.run(request).await
    };
    let app = axum::Router::new().route_service("/acp", service).layer(axum::middleware::from_fn(refusing));
    let (url, serving) = crate::acp::support::serve_routes(app).await;
    goes_on_without_the_events(&mut listen(listener), &url).await;
    serving.abort();
}

#[tokio::test]
async fn our_client_reopens_a_stream_without_ids_as_it_is() {
    let mut served = listen(server().resume_buffer(0, 0).bind("127.0.0.1:0").await.unwrap());
    let gets = Arc::new(Gets::default());
    let counted = Arc::clone(&gets);
    let proxy = CuttingProxy::before(&served.url, move |head| {
        let is_cut = head.contains("acp-session-id") && counted.count(head) < CUTS / 4;
        is_cut.then_some(Cut { after: 400, lost: 0 })
    })
    .await;
    let mut client = Client::connect(&proxy.url).await;
    let theirs = in_time("its peer", served.peers.recv()).await.unwrap();
    let mut said = 0;
    in_time("the last cut", async {
        while gets.all() <= CUTS / 4 {
            say(&theirs, said..said + 1).await;
            said += 1;
            tokio::task::yield_now().await;
        }
    })
    .await;
    say(&theirs, said..said + 1).await;
    client.is_answered(&mut served).await;
    let heard = client.hears(said).await;
    assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
    assert_eq!(gets.resuming(), 0, "there is no id to send");
}
