//! Peers that follow the protocol: every call must end with its own answer, and half of them are cancelled at a
//! random time. Bad peers are connected at the same time. A failure here is their effect (I4) unless another reason
//! is given.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rescind::dialect::Role;
use rescind::{Call, CallError, Outcome, Peer};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::agent::{client_router, limits, with};
use crate::random::Random;
use crate::tally::Tally;
use crate::wires::{Connect, Wire};

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
