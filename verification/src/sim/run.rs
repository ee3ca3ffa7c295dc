//! One run, from its opening to the end of the last task.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rescind_core::{CancelResult, Framing, Outcome, Peer};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Case;
use super::judge::{Judge, SimEvent};
use super::net::Net;
use super::plan::{Caller, Disturbance, Ending, PerSide, Plan, Planned, Rng, Side};
use super::tasks;
use super::wires::{Opened, PeerOpened, Setting};
use super::work::{self, CallFrom};
use crate::Broken;

/// A step that takes this long on the paused clock hangs. The longest valid one is a server with sessions whose
/// client is gone (5 min), plus the time of its handlers.
const HANGS: Duration = Duration::from_secs(420);
/// The extra time of a shutdown beyond its limits.
const SLACK: Duration = Duration::from_millis(100);
/// How long a client without a server takes to end everything.
const ALONE: Duration = Duration::from_secs(90);
/// The time between two checks of something that must end.
const TICK: Duration = Duration::from_millis(500);

/// Plays the seed. The judge reports violations.
pub(super) async fn play(case: &Case, seed: u64, watch: &Watch) -> Judge {
    let plan =
        Arc::new(Plan::draw(case.mix(seed), case.wire, case.serves_both(), case.dialect.rules().tasks));
    let judge = Judge::new(case.wire, &case.dialect, case.speech, &plan);
    watch.begins(seed, &judge);
    judge.note(|| format!("seed {seed}: {:?}, ends at {:?}", plan.weather, plan.end));
    if case.wire.has_connections() && plan.is_slow() {
        judge.state().lost = true;
    }
    let net = Net::new(&plan.weather, &judge);
    let disturbing = tokio::spawn(disturb(Arc::clone(&plan), net.clone(), judge.clone()));
    let mut rng = Rng::new(case.mix(seed ^ 0x5eed));
    let setting = Setting { case, plan: &plan, net: &net, judge: &judge };
    match judged(&judge, "L3", "to open", setting.open(&mut rng)).await {
        Some(Ok(opened)) => talk(case, &plan, &judge, opened).await,
        Some(Err(why)) => {
            judge.note(|| format!("it did not open: {why}"));
            let hindered = judge.state().lost || plan.is_slow();
            if !hindered {
                judge.breaks("L3", || format!("nothing hindered it, and it did not open: {why}"));
            }
        }
        None => {}
    }
    disturbing.abort();
    net.cut();
    judge.state().tally.join(&net.tally());
    judge.state().works.clear();
    leave_nothing(&judge).await;
    judge
}

/// Waits for a future. If it hangs, the invariant is violated.
async fn judged<T>(
    judge: &Judge,
    invariant: &'static str,
    what: &str,
    future: impl Future<Output = T>,
) -> Option<T> {
    let done = timeout(HANGS, future).await.ok();
    if done.is_none() {
        judge.breaks(invariant, || format!("it takes more than {HANGS:?} {what}"));
    }
    done
}

async fn disturb(plan: Arc<Plan>, net: Net, judge: Judge) {
    let begun = Instant::now();
    for (at, disturbance) in &plan.disturbances {
        sleep_until(begun + Duration::from_millis(*at)).await;
        match *disturbance {
            Disturbance::Stall(side, ms) => {
                judge.note(|| format!("nothing of the {side} arrives for {ms} ms"));
                net.stall(side, Duration::from_millis(ms));
            }
            Disturbance::Cut => {
                judge.lost("everything is cut");
                judge.saw(SimEvent::Cut);
                net.cut();
            }
            Disturbance::HalfClose(side) => {
                judge.cut(&format!("the {side} is heard no more"));
                net.half_close(side);
            }
        }
    }
}

async fn talk(case: &Case, plan: &Plan, judge: &Judge, mut opened: Opened) {
    let client = opened.client.clone();
    shake_hands(case, plan, judge, &client).await;
    let begun = Instant::now();
    let mut calls = JoinSet::new();
    for planned in &plan.calls {
        let (planned, judge, client) = (planned.clone(), judge.clone(), client.clone());
        let server = Arc::clone(&opened.server);
        calls.spawn(async move {
            sleep_until(begun + Duration::from_millis(planned.at)).await;
            make(&planned, &judge, &client, &server).await;
        });
    }
    for planned in &plan.tasks {
        let (planned, judge, client) = (planned.clone(), judge.clone(), client.clone());
        let ttl = plan.task_ttl;
        calls.spawn(async move {
            sleep_until(begun + Duration::from_millis(planned.at)).await;
            tasks::follow(&planned, &judge, &client, ttl).await;
        });
    }
    let (at, ending) = plan.end;
    sleep_until(begun + Duration::from_millis(at)).await;
    end(case, plan, judge, &mut opened, ending).await;
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    if let Some(framing) = opened.framing {
        for side in Side::BOTH {
            check(judge, side, framing, &opened.net.recorded(side));
        }
    }
    judge.state().check_causes();
    judge.state().check_unsent();
    judge.state().check_handshake();
    drop(client);
    drop(opened);
}

/// Opens a session, if the protocol has a handshake.
async fn shake_hands(case: &Case, plan: &Plan, judge: &Judge, client: &Peer) {
    let Some((method, params)) = case.speech.opening() else { return };
    judge.note(|| "client shakes hands".to_owned());
    let Ok(call) = client.call::<_, serde_json::Value>(method, &params).start() else { return };
    if let Caller::Cancels(ms) = plan.opening {
        sleep(Duration::from_millis(ms)).await;
        // I9: nothing of this is written.
        let result = call.canceller().cancel("never mind");
        judge.note(|| format!("the handshake is cancelled: {result:?}"));
        judge.state().handshake_cancelled = result != CancelResult::AlreadySettled;
    }
    let Some(outcome) = judged(judge, "I13", "to shake hands", call.outcome()).await else { return };
    judge.state().is_open = matches!(outcome, Outcome::Completed(_));
    judge.note(|| format!("the handshake: {outcome:?}"));
    let hindered = judge.state().is_open
        || judge.state().is_going()
        || judge.state().repeats
        || plan.is_slow()
        || plan.opening != Caller::Waits;
    if !hindered {
        judge.breaks("L3", || format!("nothing hindered the handshake: {outcome:?}"));
    }
    if let Some(opened) = case.speech.opened() {
        drop(client.try_notify(opened, &serde_json::json!({})));
    }
}

async fn make(planned: &Planned, judge: &Judge, client: &Peer, server: &PeerOpened) {
    let peer = match planned.side {
        Side::Client => client.clone(),
        Side::Server => server.wait().await,
    };
    work::call(planned.side, judge, CallFrom::Peer(&peer), &planned.job).await;
}

async fn end(case: &Case, plan: &Plan, judge: &Judge, opened: &mut Opened, ending: Ending) {
    judge.check_arrived(plan.slowest(case.wire));
    // On a slow network nothing of the client may have arrived yet.
    let server = match ending {
        Ending::Cut => opened.server.peer(),
        Ending::Shutdown(..) | Ending::BothShutDown(..) => timeout(ALONE, opened.server.wait()).await.ok(),
    };
    if server.is_none() {
        let hindered = judge.state().lost || plan.is_slow() || ending == Ending::Cut;
        let hindered = hindered || !judge.state().is_open || judge.state().written.client.frames.is_empty();
        if !hindered {
            judge.breaks("L3", || "nothing hindered it, and there is no server".to_owned());
        }
        judge.lost("there is no server");
        opened.serving.clear();
    }
    let peers = PerSide { client: Some(opened.client.clone()), server };
    if peers.server.is_some() {
        judge.saw(SimEvent::Opened);
    }
    let calm = !judge.state().lost && plan.weather.delay == 0 && plan.disturbances.is_empty();
    let mut flushed = None;
    match ending {
        Ending::Shutdown(side, drain) => {
            shut_down(plan, judge, &peers, side, drain).await;
            if calm && !judge.state().cut {
                judge.state().check_answered(side);
                flushed = Some(side);
            }
        }
        Ending::BothShutDown(drain, other) => {
            tokio::join!(
                shut_down(plan, judge, &peers, Side::Client, drain),
                shut_down(plan, judge, &peers, Side::Server, other),
            );
        }
        Ending::Cut => {
            judge.lost("everything is cut");
            judge.saw(SimEvent::Cut);
            opened.net.cut();
        }
    }
    if judge.state().shut.server {
        // Otherwise its next client would be served.
        opened.serving.clear();
    }
    for side in Side::BOTH {
        if let Some(peer) = peers.of(side) {
            leave(case, plan, judge, &peers, side).await;
            is_over(case, plan, judge, side, peer).await;
        }
    }
    if let Some(side) = flushed.filter(|_| !judge.state().cut) {
        judge.check_flushed(side);
    }
}

/// Over HTTP a side need not detect the other's end: a client has no connection that could be lost, and a server may
/// serve all clients. The side then shuts down, after its callers have learned that there is no server.
async fn leave(case: &Case, plan: &Plan, judge: &Judge, peers: &PerSide<Option<Peer>>, side: Side) {
    let stays = match side {
        Side::Client => case.wire.has_connections(),
        Side::Server => case.wire.serves_all_by_one(),
    };
    let Some(peer) = peers.of(side).as_ref().filter(|_| stays) else { return };
    if timeout(ALONE, peer.closed()).await.is_err() && !*judge.state().shut.of(side) {
        judge.all_returned(side);
        shut_down(plan, judge, peers, side, 0).await;
    }
}

async fn shut_down(plan: &Plan, judge: &Judge, peers: &PerSide<Option<Peer>>, side: Side, drain: u64) {
    let Some(peer) = peers.of(side) else { return };
    judge.shuts(side);
    let (begun, drain) = (Instant::now(), Duration::from_millis(drain));
    let limits = plan.limits.of(side);
    let most = drain + limits.cancel_grace + limits.flush_timeout + SLACK;
    let Some(left) = judged(judge, "L3", "to shut down", peer.shutdown(drain)).await else { return };
    let took = begun.elapsed();
    judge.note(|| format!("{side} is shut down, {left} handlers are left"));
    judge.holds(took <= most, "L3", || format!("the {side} took {took:?} to shut down, {most:?} it may"));
}

/// The connection of a side closes, its callers get their results, its handlers end, and nothing of them is left.
async fn is_over(case: &Case, plan: &Plan, judge: &Judge, side: Side, peer: &Peer) {
    if judged(judge, "L3", "to close", peer.closed()).await.is_none() {
        return;
    }
    judge.note(|| format!("{side} is closed"));
    // Each caller needs a turn to see it.
    sleep(Duration::from_millis(5)).await;
    judge.all_returned(side);
    let (limits, is_there) = (plan.limits.of(side), judge.live_with_connection(side) > 0);
    let resumes = if judge.resumes() { limits.detach_grace } else { judge.shields(side) };
    let most = Instant::now() + resumes + limits.cancel_grace + SLACK;
    while judge.live_with_connection(side) > 0 && Instant::now() < most {
        sleep_until(most.min(Instant::now() + TICK)).await;
    }
    let live = judge.live_with_connection(side);
    judge.state().holds_and_counts(is_there, live == 0, "L3", || {
        format!("{live} handlers of the {side} outlive their connection")
    });
    if side == Side::Server {
        tasks_are_over(case, plan, judge).await;
    }
    sleep(SLACK).await;
    let (stats, load) = (peer.stats(), peer.queue_stats());
    let kept = [stats.running, stats.draining, stats.queued, stats.slots, stats.calls];
    let mut seen = judge.state();
    let calls = seen.calls.values().any(|call| call.side == side);
    let is_there = calls || seen.works.values().any(|work| work.side == side);
    seen.holds_and_counts(is_there, kept == [0; 5], "I3", || {
        format!("the {side} keeps something: {stats:?}")
    });
    if load.outbox_frames > 0 {
        seen.breaks("I3", || format!("the {side} keeps frames: {load:?}"));
    }
    if !peer.registry().is_empty() {
        seen.breaks("I3", || format!("the {side}'s registry: {:?}", peer.registry()));
    }
}

/// Tasks that the server's connection left go on. Another client cancels those that it can know, and the others end when their
/// time is over.
async fn tasks_are_over(case: &Case, plan: &Plan, judge: &Judge) {
    if judged(judge, "L3", "to ask about the tasks", tasks::ask_elsewhere(case, judge)).await.is_none() {
        return;
    }
    let limits = &plan.limits.server;
    let time = Duration::from_millis(plan.task_ttl) + limits.cancel_grace + limits.max_shield_time + SLACK;
    let (is_there, most) = (judge.live(Side::Server) > 0, Instant::now() + time);
    while judge.live(Side::Server) > 0 && Instant::now() < most {
        sleep_until(most.min(Instant::now() + TICK)).await;
    }
    let live = judge.live(Side::Server);
    judge.state().holds_and_counts(is_there, live == 0, "L3", || format!("{live} tasks outlive their time"));
}

/// Checks that no task is left.
async fn leave_nothing(judge: &Judge) {
    let metrics = Handle::current().metrics();
    let most = Instant::now() + HANGS;
    while metrics.num_alive_tasks() > 0 && Instant::now() < most {
        sleep(TICK).await;
    }
    let left = metrics.num_alive_tasks();
    if left > 0 {
        judge.breaks("I3", || format!("{left} tasks are left"));
    }
}

// Reports a seed that never ends: a task that spins without a pause stops the paused clock, so that no limit on it
// ever ends (L4).
//
// The trace until then is printed with it, also if a single seed is played again.

/// The real time for one seed. A slow machine takes a second.
const LONGEST: Duration = Duration::from_secs(120);

/// A thread that stops the process and prints the seed if one takes too long.
pub(super) struct Watch {
    seeds_tx: Option<Sender<(u64, Judge)>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn new(case: &Case) -> Self {
        let (seeds_tx, seeds) = channel();
        let (wire, dialect) = (case.wire, case.dialect.name());
        let thread = thread::spawn(move || {
            let mut last: Option<(u64, Judge)> = None;
            loop {
                match seeds.recv_timeout(LONGEST) {
                    Ok(next) => last = Some(next),
                    Err(RecvTimeoutError::Disconnected) => return,
                    // No seed has begun yet.
                    Err(RecvTimeoutError::Timeout) if last.is_none() => {}
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            let Some((seed, judge)) = last else { return };
            eprintln!("{}", judge.trace().join("\n"));
            let what =
                format!("seed {seed} on {wire:?} in {dialect} does not end; nothing lets the clock go on");
            eprintln!("{}", Broken { invariant: "L4", what });
            eprintln!("to play it again: RESCIND_SEED={seed} cargo test -p rescind-verification sim");
            std::process::exit(101);
        });
        Self { seeds_tx: Some(seeds_tx), thread: Some(thread) }
    }

    /// This seed begins. `judge` records its events.
    pub(super) fn begins(&self, seed: u64, judge: &Judge) {
        if let Some(seeds_tx) = &self.seeds_tx {
            // It fails only if the thread has ended, and then the process ends too.
            let _ = seeds_tx.send((seed, judge.clone()));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.seeds_tx = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

// Frames of a byte stream, parsed by separate code: an independent check of the library's framing.

/// Compares the bytes that this side wrote with its frames: the frames are all there, in order, and only the last one
/// may be cut off.
pub(super) fn check(judge: &Judge, side: Side, framing: Framing, bytes: &[u8]) {
    let mut state = judge.state();
    let mut rest = bytes;
    let mut number = 0;
    let mut torn = false;
    let mut wrong = None;
    while !rest.is_empty() && wrong.is_none() {
        let found = match framing {
            Framing::Newline => line(rest),
            Framing::ContentLength => block(rest),
        };
        let Some((body, after)) = found else {
            torn = true;
            break;
        };
        match state.written.of(side).frames.get(number) {
            Some(frame) if frame.body == body => {}
            Some(_) | None => wrong = Some(String::from_utf8_lossy(body).into_owned()),
        }
        number += 1;
        rest = after;
    }
    let whole = !torn || state.is_going();
    state.holds_and_counts(number > 0, wrong.is_none(), "I12", || {
        format!("frame {number} of the {side}'s bytes is {wrong:?}, which it never wrote there")
    });
    if !whole {
        state.breaks("I12", || format!("the {side}'s bytes end in the middle of frame {number}"));
    }
}

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

fn block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse::<usize>().ok()?;
    let body = bytes.get(end + 4..)?;
    Some((body.get(..length)?, body.get(length..)?))
}
