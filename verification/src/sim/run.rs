//! One run, from its opening to the end of the last task.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rescind_core::{CancelResult, Outcome, Peer};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Case;
use super::bytes;
use super::calls::{self, From};
use super::judge::Judge;
use super::net::Net;
use super::open::{Opened, PeerOpened, Setting};
use super::plan::{Caller, Disturbance, Ending, Plan, Planned};
use super::rng::Rng;
use super::sides::{PerSide, Side};
use super::tally::SimEvent;
use super::watchdog::Watch;

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
    let plan = Arc::new(Plan::draw(case.mix(seed), case.wire, case.serves_both()));
    let judge = Judge::new(case.wire, &case.dialect, case.speech, &plan.limits);
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
    let (at, ending) = plan.end;
    sleep_until(begun + Duration::from_millis(at)).await;
    end(case, plan, judge, &mut opened, ending).await;
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    if let Some(framing) = opened.framing {
        for side in Side::BOTH {
            bytes::check(judge, side, framing, &opened.net.recorded(side));
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
    calls::call(planned.side, judge, From::Peer(&peer), &planned.job).await;
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
            is_over(plan, judge, side, peer).await;
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
async fn is_over(plan: &Plan, judge: &Judge, side: Side, peer: &Peer) {
    if judged(judge, "L3", "to close", peer.closed()).await.is_none() {
        return;
    }
    judge.note(|| format!("{side} is closed"));
    // Each caller needs a turn to see it.
    sleep(Duration::from_millis(5)).await;
    judge.all_returned(side);
    let (limits, is_there) = (plan.limits.of(side), judge.live(side) > 0);
    let resumes = if judge.resumes() { limits.detach_grace } else { judge.shields(side) };
    let most = Instant::now() + resumes + limits.cancel_grace + SLACK;
    while judge.live(side) > 0 && Instant::now() < most {
        sleep_until(most.min(Instant::now() + TICK)).await;
    }
    let live = judge.live(side);
    judge.state().holds_and_counts(is_there, live == 0, "L3", || {
        format!("{live} handlers of the {side} outlive their connection")
    });
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
