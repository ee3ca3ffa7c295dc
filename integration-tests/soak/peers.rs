//! Good and bad peers.

use std::future::poll_fn;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rescind::dialect::Role;
use rescind::machine::CallNumber;
use rescind::transport::{
    ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, TransportError, TransportEvent,
};
use rescind::{Call, CallError, Outcome, Peer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::wires::{AGENT, Address, Connect, Wire, client_router, limits, with};
use crate::{Failure, Tally};

// Peers that follow the protocol: every call must end with its own answer, and half of them are cancelled at a
// random time. Bad peers are connected at the same time. A failure here is their effect (I4) unless another reason
// is given.

/// A call of this length counts as a hang.
const HANG: Duration = Duration::from_secs(30);
/// A cancel comes within this many milliseconds.
const CANCEL_WITHIN: u64 = 12;

/// Connects, makes calls and disconnects, repeatedly.
pub(crate) async fn visit(wire: Wire, connect: Connect, tally: Arc<Tally>, seed: u64) {
    let mut random = Random::new(seed);
    while !tally.is_over() {
        let Some(peer) = open(wire, &connect, &tally).await else { continue };
        let rounds = 5 + random.below(40);
        for _ in 0..rounds {
            if tally.is_over() {
                break;
            }
            round(wire, &peer, &tally, &mut random).await;
        }
        if let Err(error) = leave(peer, random.below(3)).await {
            tally.fault(format!("I4: a connection in good order ended with: {error}"));
        }
    }
}

/// A peer that comes after all others have gone is served: the server does not stay overloaded.
pub(crate) async fn last(wire: Wire, connect: &Connect, tally: &Tally) {
    let before = tally.overloaded.load(Ordering::Relaxed);
    let Some(peer) = open(wire, connect, tally).await else {
        return tally.fault("I10: who came last could not open a connection and shake hands".to_owned());
    };
    let params = wire.params(json!({"mark": "last"}));
    match peer.call::<_, Value>("echo", &params).start() {
        Ok(call) => settled(call, "echo", &params, false, tally).await,
        Err(error) => tally.fault(format!("I4: `echo` was not started: {error}")),
    }
    if tally.overloaded.load(Ordering::Relaxed) > before {
        tally.fault("I10: who came last, when all others had gone, was refused as overloaded".to_owned());
    }
    if let Err(error) = leave(peer, 0).await {
        tally.fault(format!("I4: the last connection ended with: {error}"));
    }
}

/// Makes calls on a connection that stays for the whole run, and leaves it open.
pub(crate) async fn stay(wire: Wire, peer: Peer, tally: Arc<Tally>, seed: u64) {
    let mut random = Random::new(seed);
    while !tally.is_over() {
        round(wire, &peer, &tally, &mut random).await;
    }
}

/// A connection after its handshake.
pub(crate) async fn open(wire: Wire, connect: &Connect, tally: &Tally) -> Option<Peer> {
    let opened = match connect() {
        Ok(transport) => timeout(HANG, transport.open()).await,
        Err(error) => {
            tally.fault(format!("no transport: {error}"));
            return None;
        }
    };
    let link = match opened {
        Ok(Ok(link)) => link,
        Ok(Err(error)) => {
            tally.fault(format!("I4: a connection could not be opened: {error}"));
            sleep(Duration::from_millis(50)).await;
            return None;
        }
        Err(_) => {
            tally.fault("I4: a connection was not opened in time".to_owned());
            return None;
        }
    };
    attach(wire, link, tally).await
}

/// Does the handshake over an open link.
pub(crate) async fn attach(wire: Wire, link: rescind::transport::Link, tally: &Tally) -> Option<Peer> {
    let builder = Peer::builder(wire.dialect()).role(Role::Client).serve(client_router()).limits(limits());
    let peer = builder.attach(link).ok()?;
    tally.watch(peer.clone());
    Tally::count(&tally.connections);
    if wire != Wire::Stateless {
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        if let Err(error) = peer.call::<_, Value>("initialize", &hello).await {
            // The server has limits for good and bad peers together. The number of refusals is checked at the end.
            if error.to_string().contains("Overloaded") {
                Tally::count(&tally.overloaded);
            } else {
                tally.fault(format!("I4: a handshake failed: {error}"));
            }
            peer.shutdown(Duration::ZERO).await;
            return None;
        }
    }
    Some(peer)
}

/// In good order, immediately, or without a close.
async fn leave(peer: Peer, how: u64) -> Result<(), rescind::ConnectionError> {
    match how {
        0 => drop(peer.shutdown(Duration::from_secs(1)).await),
        _ => drop(peer.shutdown(Duration::ZERO).await),
    }
    peer.closed().await
}

async fn round(wire: Wire, peer: &Peer, tally: &Arc<Tally>, random: &mut Random) {
    let mut calls = JoinSet::new();
    for _ in 0..=random.below(16) {
        let (peer, tally, seed) = (peer.clone(), Arc::clone(tally), random.next());
        calls.spawn(async move { ask(wire, &peer, &tally, &mut Random::new(seed)).await });
    }
    while calls.join_next().await.is_some() {}
}

/// A method and its params. The method ends after a time unless its call is cancelled.
fn what(wire: Wire, is_cancelled: bool, random: &mut Random) -> (&'static str, Value) {
    let mark = random.next() >> 12;
    let (method, params) = match random.below(if is_cancelled { 8 } else { 6 }) {
        0 => ("sleep", json!({"ms": random.below(10)})),
        1 => ("tell", json!({"times": random.below(20)})),
        2 if wire.asks_back() => ("ask", json!({})),
        3 => ("block", json!({"ms": random.below(5)})),
        4 => ("echo", json!({"filler": "x".repeat(usize::try_from(random.below(20_000)).unwrap_or(0))})),
        6 => ("wait", json!({})),
        7 => ("deaf", json!({})),
        _ => ("echo", json!({})),
    };
    let params = wire.params(with(params, "mark", json!(mark)));
    (method, params)
}

async fn ask(wire: Wire, peer: &Peer, tally: &Tally, random: &mut Random) {
    let is_cancelled = random.half();
    let (method, params) = what(wire, is_cancelled, random);
    let mut builder = peer.call::<_, Value>(method, &params);
    let way = random.below(3);
    if is_cancelled && way == 0 {
        builder = builder.timeout(random.up_to(CANCEL_WITHIN));
    }
    let call = match builder.start() {
        Ok(call) => call,
        Err(error) => return tally.fault(format!("I4: `{method}` was not started: {error}")),
    };
    Tally::count(&tally.calls);
    if is_cancelled {
        Tally::count(&tally.cancelled);
        if way != 0 {
            sleep(random.up_to(CANCEL_WITHIN)).await;
        }
        match way {
            1 => drop(call.canceller().cancel("a soak")),
            2 => return drop(call),
            _ => {}
        }
    }
    settled(call, method, &params, is_cancelled, tally).await;
}

async fn settled(call: Call<Value>, method: &str, params: &Value, is_cancelled: bool, tally: &Tally) {
    let Ok(outcome) = timeout(HANG, call.outcome()).await else {
        tally.print_busy();
        return tally.fault(format!("I13: a call of `{method}` hangs"));
    };
    match outcome {
        Outcome::Completed(value) | Outcome::CompletedAfterCancel(value) => {
            if value.get("mark") != params.get("mark") {
                tally.fault(format!("I4: a call of `{method}` got another's answer"));
            }
        }
        Outcome::Cancelled(_) if is_cancelled => {}
        Outcome::Failed(error) if format!("{:?}", error.data).contains("overloaded") => {
            Tally::count(&tally.overloaded);
        }
        Outcome::Failed(error) => {
            tally.fault(format!("I4: a call of `{method}` failed: {}", CallError::Failed(error)));
        }
        other => tally.fault(format!("I4: a call of `{method}` nobody cancelled ended as {other:?}")),
    }
}

// Peers that flood, write invalid data, send large frames or parts of them, stay half open, and disconnect without a
// close. Their own results do not matter.

/// The longest time of an attack.
const LONGEST: Duration = Duration::from_secs(3);
/// Pairs of request and cancel in one flood. Over HTTP/1.1 each is a connection with both ends in this process: four
/// such floods and the good peers need fewer than 1,024 descriptors, which is a common limit of a process.
const PAIRS: u64 = 500;
const PAIRS_OF_CONNECTIONS: u64 = 40;
const MEBIBYTE: u64 = 1 << 20;

/// One attack after another.
pub(crate) async fn attack(wire: Wire, connect: Connect, address: Address, tally: Arc<Tally>, seed: u64) {
    let mut random = Random::new(seed);
    while !tally.is_over() {
        let attack = async {
            match random.below(6) {
                0 => flood(wire, &connect, &mut random).await,
                1 => vanish(wire, &connect, &mut random).await,
                2 => large_values(wire, &connect, &mut random).await,
                3 => unfinished(wire, &address, &mut random).await,
                4 => garbage(&address, &mut random).await,
                _ => half_open(&address, &mut random).await,
            }
        };
        // The attack may be refused, cut off or too slow.
        let _ = timeout(LONGEST, attack).await;
        Tally::count(&tally.attacks);
        sleep(random.up_to(20)).await;
    }
}

/// Pairs of request and cancel for handlers that ignore the cancel. Their answers are not read.
async fn flood(wire: Wire, connect: &Connect, random: &mut Random) -> Result<(), Failure> {
    let mut link = open_bare(wire, connect).await?;
    let pairs = if wire.has_a_connection_each() { PAIRS_OF_CONNECTIONS } else { PAIRS };
    for n in 0..pairs {
        write(&mut link, wire, n, "deaf", json!({})).await?;
        let key = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": n}});
        send(&mut link, key, FrameKind::Answer, ExchangeId::NONE, None).await?;
    }
    sleep(random.up_to(50)).await;
    Ok(())
}

/// Disconnects while its requests run and are about to be answered.
async fn vanish(wire: Wire, connect: &Connect, random: &mut Random) -> Result<(), Failure> {
    let mut link = open_bare(wire, connect).await?;
    for n in 0..random.below(30) {
        write(&mut link, wire, n, if n % 3 == 0 { "wait" } else { "echo" }, json!({})).await?;
    }
    let tx = &mut link.tx;
    poll_fn(|cx| tx.as_mut().poll_flush(cx)).await?;
    sleep(random.up_to(30)).await;
    Ok(())
}

/// Large values and progress tokens, in requests that wait and in echoes that are not read.
async fn large_values(wire: Wire, connect: &Connect, random: &mut Random) -> Result<(), Failure> {
    let mut link = open_bare(wire, connect).await?;
    for n in 0..random.below(8) {
        let text = "x".repeat(usize::try_from(random.below(MEBIBYTE))?);
        let params = match random.below(3) {
            0 => json!({"progressToken": text}),
            1 => json!({"progressToken": {"object": text}}),
            _ => json!({"text": text}),
        };
        write(&mut link, wire, n, if random.half() { "wait" } else { "echo" }, params).await?;
    }
    let tx = &mut link.tx;
    poll_fn(|cx| tx.as_mut().poll_flush(cx)).await?;
    sleep(random.up_to(50)).await;
    Ok(())
}

/// Begins a frame or a body of 15 MiB, and does not end it.
async fn unfinished(wire: Wire, address: &Address, random: &mut Random) -> Result<(), Failure> {
    let mut peer = bare(address).await?;
    let whole = 15 * MEBIBYTE;
    let opening = match (wire, address) {
        (Wire::WebSocket, Address::Tcp { .. }) => {
            let mut bytes = upgrade(address).into_bytes();
            // A text message, its length in eight bytes, and a mask of zeros.
            bytes.extend([0x81, 0xff]);
            bytes.extend(whole.to_be_bytes());
            bytes.extend([0; 4]);
            bytes
        }
        (_, Address::Tcp { address, path }) => {
            let types = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
            format!("POST {path} HTTP/1.1\r\nHost: {address}\r\n{types}Content-Length: {whole}\r\n\r\n")
                .into_bytes()
        }
        (_, Address::Pipe(_) | Address::Child) => Vec::new(),
    };
    peer.stream.write_all(&opening).await?;
    peer.stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":""#).await?;
    peer.stream.write_all(&vec![b'x'; usize::try_from(random.below(MEBIBYTE))?]).await?;
    sleep(random.up_to(1500)).await;
    Ok(())
}

async fn open_bare(wire: Wire, connect: &Connect) -> Result<Link, Failure> {
    let mut link = connect()?.open().await?;
    if wire != Wire::Stateless {
        let hello = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize",
            "params": {"protocolVersion": 1, "clientCapabilities": {}}});
        send(&mut link, hello, FrameKind::Request, ExchangeId::of_call(CallNumber(1)), Some("initialize"))
            .await?;
        let tx = &mut link.tx;
        poll_fn(|cx| tx.as_mut().poll_flush(cx)).await?;
        let rx = &mut link.rx;
        while let Some(event) = poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
            if let TransportEvent::Message(_) = event? {
                break;
            }
        }
    }
    Ok(link)
}

async fn write(
    link: &mut Link,
    wire: Wire,
    n: u64,
    method: &'static str,
    params: Value,
) -> Result<(), TransportError> {
    let params = wire.params(params);
    let body = json!({"jsonrpc": "2.0", "id": n, "method": method, "params": params});
    send(link, body, FrameKind::Request, ExchangeId::of_call(CallNumber(n + 2)), Some(method)).await
}

async fn send(
    link: &mut Link,
    body: Value,
    kind: FrameKind,
    exchange: ExchangeId,
    method: Option<&str>,
) -> Result<(), TransportError> {
    let tx = &mut link.tx;
    poll_fn(|cx| match tx.as_mut().poll_ready(Lane::Data, cx) {
        std::task::Poll::Pending => {
            let _ = tx.as_mut().poll_flush(cx);
            tx.as_mut().poll_ready(Lane::Data, cx)
        }
        ready @ std::task::Poll::Ready(_) => ready,
    })
    .await?;
    let head = FrameInfo { kind, id: None, method: method.map(Into::into), trace: None };
    let out = Outbound { body: body.to_string().into(), exchange, lane: Lane::Data, head, last: false };
    tx.as_mut().start_send(out)
}

/// The stream of a peer without the library, and its child process, which ends with it.
struct Bare {
    stream: Box<dyn Stream>,
    _child: Option<tokio::process::Child>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn bare(address: &Address) -> Result<Bare, Failure> {
    Ok(match address {
        Address::Tcp { address, .. } => {
            Bare { stream: Box::new(TcpStream::connect(address).await?), _child: None }
        }
        Address::Pipe(file) => Bare { stream: local(file).await?, _child: None },
        Address::Child => {
            let mut command = tokio::process::Command::new(std::env::current_exe()?);
            command.arg(AGENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.kill_on_drop(true).spawn()?;
            let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
                return Err("a child without pipes".into());
            };
            Bare { stream: Box::new(tokio::io::join(input, output)), _child: Some(child) }
        }
    })
}

#[cfg(unix)]
async fn local(file: &Path) -> Result<Box<dyn Stream>, Failure> {
    Ok(Box::new(tokio::net::UnixStream::connect(file).await?))
}

/// A refusal because every instance of the pipe is in use counts like any other.
#[cfg(not(unix))]
async fn local(file: &Path) -> Result<Box<dyn Stream>, Failure> {
    Ok(Box::new(tokio::net::windows::named_pipe::ClientOptions::new().open(file)?))
}

async fn garbage(address: &Address, random: &mut Random) -> Result<(), Failure> {
    let mut peer = bare(address).await?;
    for _ in 0..=random.below(4) {
        peer.stream.write_all(&nonsense(address, random)).await?;
    }
    let mut read = [0; 1024];
    let _ = timeout(random.up_to(100), peer.stream.read(&mut read)).await;
    Ok(())
}

/// Sends a part of something, and then nothing for a while.
async fn half_open(address: &Address, random: &mut Random) -> Result<(), Failure> {
    let mut peer = bare(address).await?;
    let whole = nonsense(address, random);
    let part = usize::try_from(random.below(whole.len() as u64 + 1))?;
    peer.stream.write_all(whole.get(..part).unwrap_or_default()).await?;
    sleep(random.up_to(1500)).await;
    Ok(())
}

/// The request that opens a WebSocket. Empty for other wires.
fn upgrade(address: &Address) -> String {
    let Address::Tcp { address, path } = address else { return String::new() };
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}")
}

/// Bytes that are invalid, almost valid, or valid for something else.
fn nonsense(address: &Address, random: &mut Random) -> Vec<u8> {
    let long =
        |byte: u8, random: &mut Random| vec![byte; usize::try_from(random.below(200_000)).unwrap_or(0)];
    match (random.below(6), address) {
        (0, _) => (0..random.below(2000)).map(|_| random.next().to_le_bytes()[0]).collect(),
        (1, _) => long(b'{', random),
        (2, Address::Tcp { .. }) => {
            let mut bytes = upgrade(address).into_bytes();
            bytes.extend((0..200).map(|_| random.next().to_le_bytes()[0]));
            bytes
        }
        (3, Address::Tcp { address, path }) => {
            let types = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
            let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\n{types}Content-Length: 7\r\n\r\n");
            format!("{head}nothing").into_bytes()
        }
        (4, Address::Tcp { address, path }) => {
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n").into_bytes()
        }
        (5, Address::Tcp { .. }) => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense".to_vec(),
        (2 | 3, _) => b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"wait\"}\n{\"jsonrpc\":\n".to_vec(),
        _ => long(b'\n', random),
    }
}

// Pseudorandom numbers, the same for the same seed (splitmix64). No secret depends on them.

struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) const fn half(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A duration up to this many milliseconds, in microseconds.
    pub(crate) const fn up_to(&mut self, milliseconds: u64) -> Duration {
        Duration::from_micros(self.below(milliseconds * 1000 + 1))
    }
}
