//! How much one client can use: the memory of the process, and everything that another client needs.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use libtest_mimic::Trial;
use rescind::Call;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep as pause, timeout};

use crate::clients::{Honest, Http2, RequestClient, Stream, hello, request, send_all, tcp, websocket_head};
use crate::target::{Target, Wire};
use crate::{in_time, play, poll_until};

// How much memory one client can make the process use: its peak, and what is left 10 s after the client has gone.

/// The highest allowed memory of the process, in MiB.
const PEAK: u64 = 384;
/// The highest allowed memory after the attacker has left, in MiB.
const AFTER: u64 = 64;
const SOON: Duration = Duration::from_secs(10);

/// 15 MiB: a body or frame within the limit for frames.
const LARGE: usize = 15 << 20;

type Attack = fn(Wire) -> Trial;

const STREAMS: [Wire; 3] = [Wire::Stdio, Wire::NamedPipe, Wire::WebSocket];
const HTTP: [Wire; 3] = [Wire::Streamable, Wire::Stateless, Wire::Acp];

pub(crate) fn trials() -> Vec<Trial> {
    if cfg!(debug_assertions) {
        return Vec::new();
    }
    let rows: [(&[Wire], Attack); 11] = [
        (&STREAMS, |wire| row("answers_that_are_never_read", wire, unread_over_a_stream)),
        (&HTTP, |wire| row("answers_that_are_never_read", wire, unread_over_http)),
        (&STREAMS, |wire| row("unfinished_bodies", wire, unfinished_frames)),
        (&HTTP, |wire| row("unfinished_bodies", wire, unfinished_bodies)),
        (&[Wire::Streamable, Wire::Acp], |wire| {
            row("a_body_without_a_session", wire, bodies_without_a_session)
        }),
        (&Wire::ALL, |wire| row("large_queue", wire, large_queue)),
        (&[Wire::Acp], |wire| row("long_session_names", wire, long_session_names)),
        // ACP has no progress tokens: over the streams the attack uses MCP.
        (&STREAMS, |wire| row_of("long_tokens", wire, "mcp", long_tokens)),
        (&[Wire::Streamable, Wire::Stateless], |wire| row("long_tokens", wire, long_tokens)),
        (&Wire::ALL, |wire| row("large_values", wire, large_values)),
        (&Wire::ALL, |wire| row("large_arrays", wire, large_arrays)),
    ];
    rows.iter().flat_map(|(wires, attack)| wires.iter().map(|wire| attack(*wire))).collect()
}

fn row<A>(attack: &'static str, wire: Wire, play_it: A) -> Trial
where
    A: AsyncFn(&mut Field) + Send + 'static,
{
    row_of(attack, wire, wire.dialect(), play_it)
}

fn row_of<A>(attack: &'static str, wire: Wire, dialect: &'static str, play_it: A) -> Trial
where
    A: AsyncFn(&mut Field) + Send + 'static,
{
    Trial::test(format!("memory::{attack}::{}", wire.name()), move || {
        play(async {
            let mut field = Field::open(wire, dialect).await;
            play_it(&mut field).await;
            field.close(attack).await;
        })
    })
}

/// The fixture, and its honest client.
struct Field {
    target: Target,
    /// `None` over stdio, which has one client.
    honest: Option<Honest>,
    /// A request of the honest client that has run since before the attack.
    running: Option<Call<Value>>,
    was_served: bool,
    /// The connections of the attacker.
    held: Vec<Box<dyn std::any::Any>>,
}

impl Field {
    async fn open(wire: Wire, dialect: &str) -> Self {
        let target = Target::speaking(wire, dialect, &[]);
        let honest = if wire == Wire::Stdio { None } else { Some(Honest::connect(&target).await) };
        let running = match &honest {
            Some(honest) => Some(honest.begin().await),
            None => None,
        };
        Self { target, honest, running, was_served: false, held: Vec::new() }
    }

    /// Keeps a connection of the attacker open until it leaves.
    fn hold(&mut self, open: impl std::any::Any) {
        self.held.push(Box::new(open));
    }

    /// During the attack the honest client cancels the request that it started before.
    async fn others_can_cancel(&mut self) {
        self.was_served = true;
        if let (Some(honest), Some(call)) = (&self.honest, self.running.take()) {
            honest.cancel(call).await;
        }
    }

    /// The same, and it can start new requests.
    async fn others_are_served(&mut self) {
        self.others_can_cancel().await;
        if let Some(honest) = &self.honest {
            honest.is_served().await;
        }
    }

    /// The attacker leaves. Over stdio the process ends with it and then has no memory.
    async fn close(mut self, attack: &str) {
        assert!(self.was_served, "a row asks whether others are served");
        let peak = self.target.peak();
        self.held.clear();
        let wire = self.target.wire;
        let since = Instant::now();
        let mut after = self.target.resident();
        while after >= AFTER && since.elapsed() < SOON {
            tokio::time::sleep(Duration::from_millis(50)).await;
            after = self.target.resident();
        }
        let took = since.elapsed().as_secs_f32();
        let peak = peak.max(self.target.peak());
        println!("{attack} | {} | peak {peak} MiB | after {after} MiB | {took:.1} s later", wire.name());
        assert!(peak <= PEAK, "the peak is {peak} MiB");
        assert!(after < AFTER, "{SOON:?} later it holds {after} MiB");
        if let Some(honest) = &self.honest {
            honest.is_served().await;
            honest.nothing_is_left().await;
        }
        self.target.end();
    }
}

// Bodies and frames that never end, that have no session, or that have sessions with long names.

const SOCKETS: usize = 30;
const HTTP2_STREAMS: usize = 60;
/// How many more bytes are announced than sent.
const MISSING: usize = 1000;
/// A stream that accepts nothing for this time accepts no more.
const WRITE_STUCK: Duration = Duration::from_secs(4);

async fn unfinished_frames(field: &mut Field) {
    let many = if field.target.wire == Wire::Stdio { 1 } else { SOCKETS };
    let part = vec![b' '; LARGE];
    let mut streams = Vec::new();
    for _ in 0..many {
        let mut stream = Stream::connect(&mut field.target).await;
        stream.initialize(field.target.dialect.name()).await;
        streams.push(stream);
    }
    let is_websocket = field.target.wire == Wire::WebSocket;
    let written = streams.iter_mut().map(|stream| async {
        if is_websocket {
            stream.writer.write(&websocket_head(0x81, LARGE + MISSING)).await?;
        }
        stream.writer.write(&part).await
    });
    join_all(written.map(|written| timeout(WRITE_STUCK, written))).await;
    if field.target.wire == Wire::NamedPipe {
        // Without addresses each connection counts as a client. All of them together leave no room for another
        // client's new request.
        field.others_can_cancel().await;
    } else {
        field.others_are_served().await;
    }
    field.hold(streams);
}

async fn unfinished_bodies(field: &mut Field) {
    let name = field.target.dialect.name();
    let mut client = Http2::connect(&field.target, 1 << 20).await;
    client.initialize(name).await;
    let part = Bytes::from(vec![b' '; LARGE]);
    let mut sockets = Vec::new();
    for number in 0..SOCKETS {
        let session: &[_] = if number % 2 == 0 { &client.session } else { &[] };
        let mut stream = tcp(&field.target).await;
        stream.write_all(head(&field.target, session, LARGE + MISSING).as_bytes()).await.unwrap();
        sockets.push(stream);
    }
    let written = sockets.iter_mut().map(|stream| timeout(WRITE_STUCK, stream.write_all(&part)));
    let begun = (0..HTTP2_STREAMS).map(|_| {
        timeout(WRITE_STUCK, async {
            let (response, mut stream) = client.begin("test/echo", LARGE + MISSING).await?;
            let sent = timeout(WRITE_STUCK / 2, send_all(&mut stream, part.clone())).await;
            Ok::<_, h2::Error>((response, stream, sent))
        })
    });
    let (_, begun) = tokio::join!(join_all(written), join_all(begun));
    field.others_are_served().await;
    field.hold((sockets, begun, client));
}

/// The head of a POST over HTTP/1.1.
fn head(target: &Target, session: &[(&str, String)], length: usize) -> String {
    use std::fmt::Write as _;
    let mut head = format!(
        "POST /rpc HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {length}\r\n",
        target.address()
    );
    if target.wire == Wire::Stateless {
        head += "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: test/echo\r\n";
    }
    for (name, value) in session {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    head + "\r\n"
}

/// The status of the response, as soon as it arrives.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    in_time("a status", stream.read_exact(&mut line)).await.unwrap();
    std::str::from_utf8(&line).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

async fn bodies_without_a_session(field: &mut Field) {
    let echo = request(1, "test/echo", &json!({"value": "x".repeat(LARGE)}));
    let mut sockets = Vec::new();
    for _ in 0..SOCKETS {
        let mut stream = tcp(&field.target).await;
        stream.write_all(head(&field.target, &[], echo.len()).as_bytes()).await.unwrap();
        assert_eq!(status(&mut stream).await, 413, "before a byte of the body is there");
        // The rest of the body is not read.
        let sent = timeout(WRITE_STUCK / 2, stream.write_all(echo.as_bytes())).await;
        assert!(!matches!(sent, Ok(Ok(()))), "a body that was refused is read to its end");
        sockets.push(stream);
        if sockets.len() == SOCKETS / 2 {
            field.others_are_served().await;
        }
    }
    field.hold(sockets);
}

async fn long_session_names(field: &mut Field) {
    const CONNECTIONS: usize = 4;
    const NAMES: usize = 1024;
    const LENGTH: usize = 60_000;
    for number in 0..CONNECTIONS {
        let mut client = Http2::connect(&field.target, 1 << 20).await;
        client.initialize("acp").await;
        for name in 0..NAMES {
            let name = format!("{name}-{}", "s".repeat(LENGTH));
            let prompt = request(1, "session/prompt", &json!({"sessionId": name, "prompt": []}));
            let mut session = client.session.clone();
            // The name is in the header and in the body, or only in the body. In the header it makes the head too
            // large.
            let in_header = number % 2 == 0;
            if in_header {
                session.push(("Acp-Session-Id", name));
            }
            let post = head(&field.target, &session, prompt.len()) + &prompt;
            // A refusal before the body is read ends the connection.
            let mut stream = tcp(&field.target).await;
            drop(stream.write_all(post.as_bytes()).await);
            let refused = if in_header { 431 } else { 400 };
            assert_eq!(status(&mut stream).await, refused, "a session's name of {LENGTH} bytes");
        }
        if number == CONNECTIONS / 2 {
            field.others_are_served().await;
        }
        field.hold(client);
    }
}

// Large complete requests.

const REQUESTS: u64 = 60;

async fn large_queue(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(vec![b'x'; LARGE]);
    for id in 1..=REQUESTS {
        asker.ask(id, "test/wait", json!({"filler": "FILLER"}), &filler).await;
    }
    // The accepted requests hang. All others are refused.
    poll_until("each request runs or is refused", async || {
        let refused = asker.heard().refused() as u64;
        if let Some(honest) = &field.honest {
            // The honest client's request runs too.
            return honest.stats().await["running"].as_u64().unwrap() + refused == REQUESTS + 1;
        }
        pause(Duration::from_millis(500)).await;
        asker.heard().refused() as u64 == refused && refused > 0
    })
    .await;
    field.others_are_served().await;
    let open: Vec<u64> = (1..=REQUESTS).filter(|id| !asker.heard().is_settled(*id)).collect();
    let refused = asker.heard().refused();
    assert!(!open.is_empty() && refused > 0, "{} run, {refused} were refused", open.len());
    for id in open {
        asker.cancel(id).await;
    }
    if field.target.wire != Wire::Stateless {
        all_are_settled(&asker).await;
    }
    field.hold(asker);
}

async fn large_values(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(vec![b'x'; LARGE]);
    for id in 1..=REQUESTS {
        asker.ask(id, "test/sleep", json!({"ms": 0, "filler": "FILLER"}), &filler).await;
    }
    all_are_settled(&asker).await;
    field.others_are_served().await;
    // Some may have been refused. Each refusal has a reason.
    let refused = asker.heard().refused();
    assert!((refused as u64) < REQUESTS, "none was accepted");
    field.hold(asker);
}

/// Params whose tree would take many times their bytes.
async fn large_arrays(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(format!("\",{}\"", "0,".repeat(LARGE / 2)));
    for id in 1..=REQUESTS {
        asker.ask(id, "test/sleep", json!({"ms": 0, "filler": ["FILLER"]}), &filler).await;
    }
    all_are_settled(&asker).await;
    field.others_are_served().await;
    assert_eq!(asker.heard().refused() as u64, REQUESTS, "none has a handler");
    field.hold(asker);
}

async fn long_tokens(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(vec![b't'; LARGE]);
    let short = Bytes::from_static(b"t");
    for id in 1..=REQUESTS {
        let tokens: [(Value, &Bytes); 3] = [
            (json!("FILLER"), &filler),
            (json!({"token": "FILLER"}), &filler),
            (json!({"token": "FILLER"}), &short),
        ];
        for (number, (token, filler)) in (0..).zip(tokens) {
            let params = json!({"count": 2, "_meta": {"progressToken": token}});
            asker.ask(REQUESTS * number + id, "test/progress", params, filler).await;
        }
    }
    poll_until("each request is settled", async || (1..=3 * REQUESTS).all(|id| asker.heard().is_settled(id)))
        .await;
    field.others_are_served().await;
    let refused = asker.heard().refused();
    assert!((refused as u64) < 2 * REQUESTS, "none was accepted");
    assert_eq!(asker.heard().notifications, Vec::<Value>::new(), "a token of another type is no token");
    field.hold(asker);
}

async fn all_are_settled(asker: &RequestClient) {
    poll_until("each request is settled", async || (1..=REQUESTS).all(|id| asker.heard().is_settled(id)))
        .await;
}

// Echoes whose answers are not read.

const ECHOES: u64 = 900;
const SIZE: usize = 900_000;
/// A process that reads nothing for this time has stopped reading, and the attack is over.
const READ_STUCK: Duration = Duration::from_secs(2);

async fn unread_over_a_stream(field: &mut Field) {
    let mut stream = Stream::connect(&mut field.target).await;
    stream.initialize(field.target.dialect.name()).await;
    let value = "x".repeat(SIZE);
    for id in 1..=ECHOES {
        let echo = request(id, "test/echo", &json!({"value": value}));
        match timeout(READ_STUCK, stream.writer.send(&[echo.into()])).await {
            Ok(Ok(())) => {}
            // It has stopped reading or closed the connection.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    field.others_are_served().await;
    field.hold(stream);
}

async fn unread_over_http(field: &mut Field) {
    let mut opening = Http2::connect(&field.target, 1 << 20).await;
    opening.initialize(field.target.dialect.name()).await;
    let mut client = Http2::connect(&field.target, 0).await;
    client.session.clone_from(&opening.session);
    if field.target.wire == Wire::Acp {
        field.hold(client.events().await);
    }
    let value = "x".repeat(SIZE);
    for id in 1..=ECHOES {
        let mut params = json!({"value": value});
        if field.target.wire == Wire::Stateless {
            params = crate::clients::with_meta(params);
        }
        let echo = Bytes::from(request(id, "test/echo", &params));
        let posted = timeout(READ_STUCK, async {
            let (response, mut stream) = client.begin("test/echo", echo.len()).await?;
            send_all(&mut stream, echo).await;
            let _sent = stream.send_data(Bytes::new(), true);
            Ok::<_, h2::Error>((response, stream))
        });
        match posted.await {
            Ok(Ok(posted)) => field.hold(posted),
            // No further stream can be opened, or the connection is closed.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    field.others_are_served().await;
    field.hold((opening, client));
}

// One client uses everything that it may, and another one is served meanwhile.

/// Above the default share of one client of a server in every counted resource.
const MANY: u64 = 1100;
/// How many streams one HTTP/2 connection carries at once.
const LOCKOUT_STREAMS: u64 = 1000;
const WINDOW: u32 = 1 << 20;

pub(crate) fn lockout_trials() -> Vec<Trial> {
    vec![
        lockout_row("hanging_calls", Wire::Stateless, hanging_calls),
        lockout_row("sessions", Wire::Streamable, sessions),
        lockout_row("sessions", Wire::Acp, sessions),
        lockout_row("idle_connections", Wire::WebSocket, idle_connections),
    ]
}

fn lockout_row<A>(attack: &'static str, wire: Wire, play_it: A) -> Trial
where
    A: AsyncFn(&mut Target) -> Box<dyn std::any::Any> + Send + 'static,
{
    Trial::test(format!("lockout::{attack}::{}", wire.name()), move || {
        play(async {
            let mut target = Target::speaking(wire, wire.dialect(), &[]);
            let held = play_it(&mut target).await;
            let since = Instant::now();
            let honest = Honest::connect(&target).await;
            honest.is_served().await;
            println!("{attack} | {} | another client is served in {:.1?}", wire.name(), since.elapsed());
            drop(held);
            target.assert_runs();
            target.end();
        })
    })
}

/// Calls that hang, over several connections. Those above its share wait or are refused.
async fn hanging_calls(target: &mut Target) -> Box<dyn std::any::Any> {
    let mut held = Vec::new();
    for connection in 0..2 {
        let client = Http2::connect(target, WINDOW).await;
        for id in 0..LOCKOUT_STREAMS {
            let params = crate::clients::with_meta(json!({}));
            let wait = request(connection * LOCKOUT_STREAMS + id + 1, "test/wait", &params);
            let (response, mut body) = client.begin("test/wait", wait.len()).await.unwrap();
            body.send_data(wait.into(), true).unwrap();
            held.push((response, body));
        }
        // Each call runs or is refused when a later request of the same connection is answered.
        let params = crate::clients::with_meta(json!({}));
        let unserved = request(0, "unserved", &params);
        let answered = client.post("unserved", vec![unserved.into()]);
        in_time("a request behind the calls", answered).await.unwrap();
    }
    Box::new(held)
}

/// As many sessions as the server grants.
async fn sessions(target: &mut Target) -> Box<dyn std::any::Any> {
    let client = Http2::connect(target, WINDOW).await;
    let mut refused = 0;
    for _ in 0..MANY {
        let opening = request(0, "initialize", &hello(target.dialect.name()));
        let response = in_time("an opening", client.post("initialize", vec![opening.into()])).await.unwrap();
        match response.status {
            200 => {}
            429 => {
                assert_eq!(response.headers["retry-after"], "1");
                refused += 1;
            }
            _ => panic!("{response:?}"),
        }
    }
    // The client's unused sessions are closed for its next one, as long as there are any.
    println!("{refused} of {MANY} sessions are refused");
    Box::new(client)
}

/// Open connections without messages after their handshake.
async fn idle_connections(target: &mut Target) -> Box<dyn std::any::Any> {
    let mut held: Vec<Stream> = Vec::new();
    for _ in 0..MANY {
        let mut stream = Stream::connect(target).await;
        let opening: Value = hello(target.dialect.name());
        stream.writer.send(&[request(0, "initialize", &opening).into()]).await.unwrap();
        held.push(stream);
    }
    Box::new(held)
}
