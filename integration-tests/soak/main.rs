//! Good and bad peers over real sockets for as long as is wanted, half of all requests cancelled at random times: nothing may
//! grow. `soak --wire websocket --minutes 1 --svg websocket.svg`

mod agent;
mod bad;
mod chart;
mod good;
mod options;
mod random;
mod samples;
mod tally;
mod wires;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rescind::dialect::{ACP, Role};
use rescind::stdio::{Command, this_process};
use rescind::{Peer, Server, ServerLimits, Transport as _};
use tokio::runtime::{Builder, Runtime, RuntimeMetrics};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::options::{Options, USAGE};
use self::samples::{Sample, growth};
use self::tally::Tally;
use self::wires::{Door, Wire};

/// Why a run could not be made.
type Failure = Box<dyn Error + Send + Sync>;

/// Peers that ask properly, and that do not.
const GOOD: u64 = 8;
const BAD: u64 = 4;
/// What bad peers left behind is gone so long after they have.
const SETTLE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    if words.first().is_some_and(|word| word == wires::AGENT) {
        let served = runtime.block_on(serve());
        runtime.shutdown_background();
        return served.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    let options = match Options::read(words.into_iter()) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("soak: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let code = soak(&runtime, &options).unwrap_or_else(|error| failed(&error));
    runtime.shutdown_timeout(Duration::from_secs(5));
    code
}

fn failed(error: &Failure) -> ExitCode {
    eprintln!("soak: {error}");
    ExitCode::FAILURE
}

/// The agent of a child.
async fn serve() -> Result<(), Failure> {
    let link = Box::new(this_process()).open().await?;
    let peer =
        Peer::builder(ACP).role(Role::Server).serve(agent::router()).limits(agent::limits()).attach(link)?;
    // How it ends is its parent's affair.
    let _ = peer.closed().await;
    Ok(())
}

fn soak(runtime: &Runtime, options: &Options) -> Result<ExitCode, Failure> {
    let metrics = runtime.metrics();
    let tally = Arc::new(Tally::default());
    let run = runtime.block_on(play(options, &metrics, &tally))?;
    let mut wrong = growth(&run.samples, &run.before, &run.after);
    let (faults, first) = tally.faults();
    if faults > 0 {
        wrong.push(format!("{faults} calls or connections of good peers went wrong: {}", first.join("; ")));
    }
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let summary = format!(
        "{} calls, {} of them cancelled, on {} connections beside {} attacks, seed {}",
        count(&tally.calls),
        count(&tally.cancelled),
        count(&tally.connections),
        count(&tally.attacks),
        options.seed
    );
    let wire = options.wire.name();
    if let Some(file) = &options.svg {
        let title = format!("{wire}: {:.0} seconds", options.time.as_secs_f64());
        let verdict = if wrong.is_empty() { "nothing grew" } else { "FAILED" };
        let all: Vec<_> = run.samples.iter().chain(&run.settling).copied().collect();
        let until = options.time.as_secs_f64();
        std::fs::write(
            file,
            chart::chart(&title, &format!("{verdict}; {summary}"), &all, &run.before, until),
        )?;
    }
    println!("{wire}: {summary}");
    println!("{wire}: before {:?}", run.before);
    println!("{wire}: at the end of the load {:?}", run.samples.last());
    println!("{wire}: after {:?}", run.after);
    for what in &wrong {
        eprintln!("{wire}: FAILED: {what}");
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was seen.
struct Run {
    before: Sample,
    samples: Vec<Sample>,
    settling: Vec<Sample>,
    after: Sample,
}

async fn play(options: &Options, metrics: &RuntimeMetrics, tally: &Arc<Tally>) -> Result<Run, Failure> {
    let wire = options.wire;
    let met = Arc::clone(tally);
    let server = Server::builder([wire.dialect()])
        .serve(agent::router())
        .limits(agent::limits())
        .server_limits(ServerLimits::default())
        .on_peer(move |peer| met.watch(peer));
    let Door { server, connect, place } = wire.open(server).await?;
    let serving = server.map(|server| tokio::spawn(server.run()));
    // One lasting child, looked at from outside.
    let lasting = if wire == Wire::Stdio {
        let (link, child) = Command::new(std::env::current_exe()?).arg(wires::AGENT).start()?;
        Some((good::attach(wire, link, tally).await.ok_or("the child does not answer")?, child))
    } else {
        None
    };
    let child = lasting.as_ref().map(|(_, child)| child.pid());
    if wire == Wire::Stateless {
        // One link is all of its clients, and is there from the first one on.
        good::first(wire, &connect, tally).await;
    }
    let begun = Instant::now();
    let look = || Sample::now(begun.elapsed(), metrics.num_alive_tasks(), tally.slots(), child);
    let before = look();
    let mut peers = JoinSet::new();
    for n in 0..GOOD {
        peers.spawn(good::visit(wire, Arc::clone(&connect), Arc::clone(tally), seed(options, n)));
    }
    for n in 0..BAD {
        let attack = bad::attack(
            wire,
            Arc::clone(&connect),
            place.clone(),
            Arc::clone(tally),
            seed(options, GOOD + n),
        );
        peers.spawn(attack);
    }
    let staying = lasting.as_ref().map(|(peer, _)| peer.clone());
    let mut stays = JoinSet::new();
    if let Some(peer) = staying {
        stays.spawn(good::stay(wire, peer, Arc::clone(tally), seed(options, GOOD + BAD)));
    }
    let mut samples = Vec::new();
    let mut each_second = interval(Duration::from_secs(1));
    each_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while begun.elapsed() < options.time {
        each_second.tick().await;
        samples.push(look());
    }
    tally.end();
    let gone = async { while peers.join_next().await.is_some() {} };
    if timeout(Duration::from_secs(60), gone).await.is_err() {
        tally.fault("a peer does not come to its end".to_owned());
    }
    // The lasting one is part of what was there before.
    let settling = settled(&before, look).await;
    let after = settling.last().copied().unwrap_or(before);
    drop((stays, lasting));
    if let Some(serving) = serving {
        serving.abort();
    }
    Ok(Run { before, samples, settling, after })
}

const fn seed(options: &Options, n: u64) -> u64 {
    options.seed.wrapping_mul(1000).wrapping_add(n)
}

/// Looks each second until all is as it was, or for long enough.
async fn settled(before: &Sample, look: impl Fn() -> Sample) -> Vec<Sample> {
    let since = Instant::now();
    let mut samples = vec![look()];
    loop {
        let now = samples.last().copied().unwrap_or_default();
        let is_over =
            now.descriptors <= before.descriptors && now.tasks <= before.tasks && now.slots <= before.slots;
        if is_over || since.elapsed() > SETTLE {
            return samples;
        }
        sleep(Duration::from_secs(1)).await;
        samples.push(look());
    }
}
