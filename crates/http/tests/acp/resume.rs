//! Streams that are resumed with `Last-Event-ID`, on the side of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::IntoResponse as _;
use rescind_core::dialect::{ACP, Role};
use rescind_core::{Limits, Outcome, Peer, Router};
use rescind_http::{AcpTransport, HttpClient, HttpListener};
use rescind_testkit::support::{HANG, Serving, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::acp::{
    Served, ask, cancel, in_time, listen, listen_with, make_session, open, post, prompt, read_until, request,
    serve, server, stream,
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
        // The answer to a cancelled call comes on a stream that is cut two dozen times.
        let limits = Limits::default().cancel_response_timeout(HANG);
        let peer = Peer::builder(ACP).role(Role::Client).limits(limits).serve(router);
        let peer = peer.connect(transport).await.unwrap();
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
    let (url, serving) = crate::acp::serve_routes(app).await;
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

/// Where a response is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// So many bytes reach the client.
    pub(crate) after: usize,
    /// So many more leave the server and are lost.
    pub(crate) lost: usize,
}

/// A proxy that serves until it is dropped.
pub(crate) struct CuttingProxy {
    pub(crate) url: String,
    _serving: Serving,
}

impl CuttingProxy {
    /// A proxy before the server with this URL. `plan` gets the head of each GET. `None`: its response is not cut.
    pub(crate) async fn before(
        url: &str,
        plan: impl Fn(&str) -> Option<Cut> + Send + Sync + 'static,
    ) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = socket.local_addr().unwrap().to_string();
        let server = url.trim_start_matches("http://").trim_end_matches("/acp").to_owned();
        let own_url = url.replace(&server, &own);
        let plan = Arc::new(plan);
        let serving = Serving::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = socket.accept().await {
                let (server, plan) = (server.clone(), Arc::clone(&plan));
                connections.spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    carry(client, server, &*plan).await;
                });
            }
        });
        Self { url: own_url, _serving: serving }
    }
}

/// Carries bytes both ways until either side closes or the response is cut. Both connections close then.
async fn carry(mut client: TcpStream, mut server: TcpStream, plan: &(dyn Fn(&str) -> Option<Cut> + Sync)) {
    let (mut asked, mut answered) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut cut: Option<Cut> = None;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let bytes = &asked[..read.unwrap_or(0)];
                let head = String::from_utf8_lossy(bytes);
                if head.starts_with("GET ") {
                    cut = plan(&head);
                }
                if bytes.is_empty() || server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let bytes = &answered[..read.unwrap_or(0)];
                let passed = cut.map_or(bytes.len(), |cut| cut.after.min(bytes.len()));
                if bytes.is_empty() || client.write_all(&bytes[..passed]).await.is_err() {
                    return;
                }
                if let Some(cut) = &mut cut {
                    cut.after -= passed;
                    let lost = bytes.len() - passed;
                    if cut.after == 0 && lost >= cut.lost {
                        return;
                    }
                    cut.lost -= lost;
                }
            }
        }
    }
}

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
