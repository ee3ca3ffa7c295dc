//! Peers that vanish or stay silent: the time until they are gone here, and whether a descriptor is left.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rescind::Limits;
use rescind::dialect::Role;
use rescind::stdio::{ChildHandle, Command, this_process};
use rescind::transport::Transport as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::agent::{End, Seen, ended, limits};
use crate::floods::{TIMED, counting};
use crate::raw::Raw;
use crate::wires::descriptors;
use crate::wires::{Door, Kind, Setting, WIRES, Wire, accept};
use crate::{in_time, until};

/// This program is an agent if the environment has this variable.
pub(crate) const AGENT: &str = "RESCIND_THREAT_AGENT";
const AT_ONCE: Duration = Duration::from_millis(50);
const GRACE: Duration = Duration::from_millis(100);
/// The time after which an HTTP session without its client ends.
const IDLE: Duration = Duration::from_millis(300);

pub(crate) fn serve() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let link = Box::new(this_process()).open().await.unwrap();
        let end = End::attach(link, Role::Server, limits(), Seen::new());
        let _ = end.peer.closed().await;
    });
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in WIRES.into_iter().filter(|wire| matches!(wire.name, "websocket" | "http-streamable")) {
        let name = format!("lost_peers::a_reset_ends_what_was_asked::{}", wire.name);
        trials.extend(counting(name, move || reset(wire)));
    }
    for (signal, name) in [(Signal::KILL, "kill_9"), (Signal::STOP, "sigstop")] {
        let name = format!("lost_peers::a_child_is_gone_within_twice_its_time::{name}");
        trials.extend(counting(name, move || child(signal)));
    }
    trials
}

/// Checks that it took at most twice its timeout, on a wall clock in a release build only.
fn is_in_time(since: Instant, timeout: Duration) {
    let took = since.elapsed();
    eprintln!("counted: gone after {took:?}, its timeout is {timeout:?}");
    assert!(!TIMED || took <= 2 * timeout, "L3: gone after {took:?}, its timeout is {timeout:?}");
}

async fn reset(wire: Wire) {
    // The process allocates what it needs once before it is counted.
    resets(wire).await;
    let before = descriptors();
    for _ in 0..20 {
        resets(wire).await;
    }
    until("I3: no descriptor is left", || descriptors() <= before).await;
}

async fn resets(wire: Wire) {
    let limits: Limits = limits();
    let mut door = wire.listen(Setting { idle: IDLE, ..Setting::default() }).await;
    let Door { listener, transport, place, .. } = &mut door;
    let asking = async {
        let mut raw = Raw::connect(wire, place, transport()).await.expect("a wire that can be bare");
        raw.shake_hands().await;
        raw
    };
    let serving = async { End::attach(accept(listener).await, Role::Server, limits.clone(), Seen::new()) };
    let (mut raw, agent) = tokio::join!(asking, serving);
    let wait = json!({"jsonrpc": "2.0", "id": 1, "method": "wait", "params": {"n": 1}});
    raw.say(wait.to_string().as_bytes()).await;
    agent.seen.until("wait 1 began").await;
    let since = Instant::now();
    reset_now(raw);
    agent.seen.until("wait 1 signalled: disconnected").await;
    let _ = in_time("L3: the end", agent.peer.closed()).await;
    agent.is_clean("who was asked").await;
    // If the connection is the session, it ends at once. Otherwise it ends when it is unused for its time.
    is_in_time(since, if wire.kind == Kind::Connection { AT_ONCE } else { IDLE + limits.detach_grace });
}

/// From here on the peer's kernel answers only with RST.
fn reset_now(raw: Raw) {
    let socket: TcpStream = match raw {
        Raw::Text(stream) => stream.into_inner(),
        Raw::Posts { stream, .. } => stream.into_inner(),
        Raw::Frames(_) | Raw::Lines(_) => panic!("no TCP"),
    };
    let socket = socket.into_std().unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
}

async fn child(signal: Signal) {
    children(signal).await;
    let before = descriptors();
    for _ in 0..5 {
        children(signal).await;
    }
    until("I3: no descriptor is left", || descriptors() <= before).await;
}

async fn start(limits: &Limits) -> (End, ChildHandle) {
    let program = std::env::current_exe().unwrap();
    let (link, child) = Command::new(program).env(AGENT, "1").child_kill_grace(GRACE).start().unwrap();
    let client = End::attach(link, Role::Client, limits.clone(), Seen::new());
    client.shake_hands().await;
    (client, child)
}

async fn children(signal: Signal) {
    let mut limits = limits();
    limits.cancel_response_timeout = GRACE;
    let (client, child) = start(&limits).await;
    let (kept, cancelled) = (client.call("wait", 1), client.call("wait", 2));
    client.echoes().await;
    let pid = i32::try_from(child.pid()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
    let since = Instant::now();
    cancelled.canceller().cancel("stop");
    if signal == Signal::KILL {
        assert_eq!(ended(kept).await, "disconnected, may have run", "I13");
        assert!(ended(cancelled).await.starts_with("cancelled by caller"), "I13");
        assert!(in_time("L3: the end", client.peer.closed()).await.is_err(), "L3: its end is reported");
        is_in_time(since, GRACE);
    } else {
        // The peer is connected and silent, as if it were busy. Each wait has an end: its silence is detected by the
        // deadline of a call, by the wait for the answer to a cancel, and by a shutdown.
        let timed = client.peer.call::<_, Value>("wait", &json!({"n": 3})).timeout(GRACE).start().unwrap();
        assert_eq!(ended(cancelled).await, "cancelled by caller, unconfirmed", "I13");
        is_in_time(since, limits.cancel_response_timeout);
        assert_eq!(ended(timed).await, "cancelled by deadline, unconfirmed", "I13");
        is_in_time(since, GRACE + limits.cancel_response_timeout);
        assert_eq!(client.peer.stats().unresponsive, 2, "each is counted as unresponsive");
        assert!(!client.peer.is_closed(), "nobody else can tell it from one that is busy");
        let since = Instant::now();
        in_time("L3: the shutdown", client.peer.shutdown(Duration::ZERO)).await;
        assert_eq!(ended(kept).await, "cancelled by shutdown, unconfirmed", "I13");
        in_time("L3: it is killed", child.wait()).await;
        // Its input is closed, then SIGTERM, then SIGKILL.
        is_in_time(since, limits.flush_timeout + limits.cancel_grace + 2 * GRACE);
    }
    assert!(!in_time("L3: it is reaped", child.wait()).await.success());
    client.is_clean("who asked").await;
}
