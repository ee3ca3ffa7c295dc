//! Good and bad peers over real sockets for any time, with half of all requests cancelled at random times: nothing
//! may grow. `soak --wire websocket --minutes 1 --svg websocket.svg`

mod chart;
mod peers;
mod samples;
mod wires;

use std::error::Error;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use rescind::dialect::{ACP, Role};
use rescind::stdio::{ChildHandle, Command, this_process};
use rescind::transport::Transport as _;
use rescind::{Peer, Server, ServerCounts, ServerLimits};
use tokio::runtime::{Builder, Runtime, RuntimeMetrics};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::samples::{Held, Sample, growth, leaked, refused};
use crate::wires::{Address, Connect, Door, Wire};

/// Why a run could not start.
type Failure = Box<dyn Error + Send + Sync>;

/// The numbers of peers that follow the protocol and of those that do not.
const GOOD: u64 = 8;
const BAD: u64 = 4;
/// The time after which everything of bad peers must be gone.
const SETTLE: Duration = Duration::from_secs(20);
/// How often the heap is read after they are gone.
const LONGER: usize = 2;

fn main() -> ExitCode {
    let runtime = match Builder::new_multi_thread()
        .worker_threads(2)
        // Idle threads of blocking handlers end before the heap is counted.
        .thread_keep_alive(Duration::from_millis(500))
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    if std::env::args().nth(1).is_some_and(|word| word == wires::AGENT) {
        let served = runtime.block_on(serve());
        runtime.shutdown_background();
        return served.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    let options = Options::parse();
    let code = soak(&runtime, &options).unwrap_or_else(|error| failed(&error));
    if code != ExitCode::SUCCESS {
        eprintln!("{}: to run it again: {}", options.wire.name(), options.command());
    }
    runtime.shutdown_timeout(Duration::from_secs(5));
    code
}

fn failed(error: &Failure) -> ExitCode {
    eprintln!("soak: {error}");
    ExitCode::FAILURE
}

/// The agent of a child process.
async fn serve() -> Result<(), Failure> {
    let link = Box::new(this_process()).open().await?;
    let peer =
        Peer::builder(ACP).role(Role::Server).serve(wires::router()).limits(wires::limits()).attach(link)?;
    // The parent decides how it ends.
    let _ = peer.closed().await;
    Ok(())
}

fn soak(runtime: &Runtime, options: &Options) -> Result<ExitCode, Failure> {
    let metrics = runtime.metrics();
    let tally = Arc::new(Tally::default());
    let run = runtime.block_on(play(options, &metrics, &tally))?;
    let mut wrong = run.wrong();
    let (faults, first) = tally.faults();
    if faults > 0 {
        wrong.push(format!("{faults} calls or connections of good peers went wrong: {}", first.join("; ")));
    }
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    for (what, counter) in [
        ("call was made", &tally.calls),
        ("call was cancelled", &tally.cancelled),
        ("attack was made", &tally.attacks),
    ] {
        if count(counter) == 0 {
            wrong.push(format!("no {what}, so that nothing is known"));
        }
    }
    let asked = count(&tally.calls) + count(&tally.connections);
    wrong.extend(refused(count(&tally.overloaded), asked));
    let summary = format!(
        "{} calls, {} of them cancelled, {} refused as overloaded, on {} connections beside {} attacks, seed {}",
        count(&tally.calls),
        count(&tally.cancelled),
        count(&tally.overloaded),
        count(&tally.connections),
        count(&tally.attacks),
        options.seed
    );
    let wire = options.wire.name();
    if let Some(file) = &options.svg {
        let title = format!("{wire}: {:.0} seconds", options.time.as_secs_f64());
        let verdict = if wrong.is_empty() { "nothing grew" } else { "FAILED" };
        let verdict = format!("{verdict}; {summary}");
        std::fs::write(file, chart::chart(&title, &verdict, &run.samples, &run.before, &run.quiet))?;
    }
    println!("{wire}: {summary}");
    println!("{wire}: before {:?}", run.before);
    println!("{wire}: after {:?}", run.after);
    println!("{wire}: the heap after each load {:?}", run.held);
    for what in &wrong {
        eprintln!("{wire}: FAILED: {what}");
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The observations of a run.
struct Run {
    before: Sample,
    samples: Vec<Sample>,
    /// The range of samples of the second load.
    second: Range<usize>,
    /// The ranges of seconds in which the peers were gone.
    quiet: Vec<[f64; 2]>,
    after: Sample,
    /// The live part of the heap, after each load.
    held: [Held; 2],
}

impl Run {
    /// The violations.
    fn wrong(&self) -> Vec<String> {
        let second = self.samples.get(self.second.clone()).unwrap_or_default();
        let mut wrong = growth(second, &self.before, &self.after);
        let [first, second] = self.held;
        wrong.extend(leaked(first, second));
        wrong
    }
}

/// The server, the way to connect to it, and the values that are sampled.
struct Stage<'a> {
    options: &'a Options,
    tally: &'a Arc<Tally>,
    metrics: &'a RuntimeMetrics,
    connect: Connect,
    address: Address,
    counts: Option<ServerCounts>,
    /// A connection that stays for the whole run: a leak of each request in its connection remains visible.
    lasting: Peer,
    /// The process behind it, observed from outside.
    child: Option<ChildHandle>,
    begun: Instant,
}

async fn play(options: &Options, metrics: &RuntimeMetrics, tally: &Arc<Tally>) -> Result<Run, Failure> {
    let wire = options.wire;
    let met = Arc::clone(tally);
    let server = Server::builder([wire.dialect()])
        .serve(wires::router())
        .limits(wires::limits())
        .server_limits(ServerLimits::default())
        .on_peer(move |peer| met.watch(peer));
    let Door { server, connect, address } = wire.open(server).await?;
    let counts = server.as_ref().map(Server::counts);
    let serving = server.map(|server| tokio::spawn(server.run()));
    let (lasting, child) = if wire == Wire::Stdio {
        let (link, child) = Command::new(std::env::current_exe()?).arg(wires::AGENT).start()?;
        (peers::attach(wire, link, tally).await, Some(child))
    } else {
        (peers::open(wire, &connect, tally).await, None)
    };
    let lasting = lasting.ok_or("the first connection was not served")?;
    let begun = Instant::now();
    let stage = Stage { options, tally, metrics, connect, address, counts, lasting, child, begun };
    let run = stage.play().await?;
    drop(stage);
    if let Some(serving) = serving {
        serving.abort();
    }
    Ok(run)
}

impl Stage<'_> {
    /// A load for a third of the time, and one for two thirds, each until all peers have gone.
    async fn play(&self) -> Result<Run, Failure> {
        // The first request creates what then stays, such as the one link of stateless HTTP.
        peers::last(self.options.wire, &self.connect, self.tally).await;
        // The end of this peer must not count as a part of the initial state.
        let since = Instant::now();
        while self.counts.as_ref().is_some_and(|counts| counts.sessions() > 1) && since.elapsed() < SETTLE {
            sleep(Duration::from_millis(20)).await;
        }
        let before = self.look()?;
        let seconds = usize::try_from(self.options.time.as_secs()).unwrap_or(0);
        let mut samples = Vec::with_capacity(seconds + 300);
        let mut quiet = Vec::with_capacity(2);
        let first = self.options.time / 3;
        self.load(first, 0, &mut samples).await?;
        let held = self.settle(&before, &mut samples, &mut quiet).await?;
        let from = samples.len();
        self.load(first * 2, 1, &mut samples).await?;
        let second = from..samples.len();
        let held = [held, self.settle(&before, &mut samples, &mut quiet).await?];
        let after = samples.last().copied().unwrap_or(before);
        peers::last(self.options.wire, &self.connect, self.tally).await;
        Ok(Run { before, samples, second, quiet, after, held })
    }

    fn look(&self) -> Result<Sample, &'static str> {
        let child = self.child.as_ref().map(ChildHandle::pid);
        let (tasks, slots) = (self.metrics.num_alive_tasks(), self.tally.slots());
        Sample::now(self.begun.elapsed(), tasks, slots, self.counts.as_ref(), child)
            .ok_or("this system does not tell what a process holds, or the child is gone")
    }

    async fn held(&self) -> Result<Held, Failure> {
        if self.child.is_none() {
            return Ok(Held::now());
        }
        Ok(Held::now().and_of(&self.lasting).await?)
    }

    /// Good and bad peers for this time, and until the last of them has gone.
    async fn load(&self, time: Duration, which: u64, samples: &mut Vec<Sample>) -> Result<(), Failure> {
        let (wire, tally) = (self.options.wire, self.tally);
        tally.begin();
        let since = Instant::now();
        let seed = |n| self.options.seed.wrapping_mul(1000).wrapping_add(which * 100 + n);
        let mut peers = JoinSet::new();
        for n in 0..GOOD {
            peers.spawn(peers::visit(wire, Arc::clone(&self.connect), Arc::clone(tally), seed(n)));
        }
        for n in GOOD..GOOD + BAD {
            let (connect, address) = (Arc::clone(&self.connect), self.address.clone());
            peers.spawn(peers::attack(wire, connect, address, Arc::clone(tally), seed(n)));
        }
        peers.spawn(peers::stay(wire, self.lasting.clone(), Arc::clone(tally), seed(GOOD + BAD)));
        let mut each_second = interval(Duration::from_secs(1));
        each_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while since.elapsed() < time {
            each_second.tick().await;
            samples.push(self.look()?);
        }
        tally.end();
        let gone = async { while peers.join_next().await.is_some() {} };
        if timeout(Duration::from_secs(60), gone).await.is_err() {
            tally.fault("I13: a peer does not come to its end".to_owned());
        }
        Ok(())
    }

    /// Samples each second until all values are as before, or for long enough. Then it reads the heap for a little
    /// longer and keeps the smallest counts, because memory that is still being released is not a leak.
    async fn settle(
        &self,
        before: &Sample,
        samples: &mut Vec<Sample>,
        quiet: &mut Vec<[f64; 2]>,
    ) -> Result<Held, Failure> {
        let since = Instant::now();
        let from = self.begun.elapsed().as_secs_f64();
        loop {
            let now = self.look()?;
            samples.push(now);
            if now.is_back(before) || since.elapsed() > SETTLE {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        let mut least = self.held().await?;
        for _ in 0..LONGER {
            sleep(Duration::from_secs(1)).await;
            least = least.least(self.held().await?);
        }
        quiet.push([from, self.begun.elapsed().as_secs_f64()]);
        Ok(least)
    }
}

// The options of the command line.

/// Good and bad peers over one wire, half of all requests cancelled at random times. Exit code 1 if memory,
/// descriptors, tasks, requests or what the server counts grew, if a call hung or got another's answer, or if the
/// server came to refuse good peers.
#[derive(Debug, Parser)]
#[command(name = "soak", after_help = "example: soak --wire websocket --minutes 1 --svg websocket.svg")]
struct Options {
    /// The wire.
    #[arg(long, value_name = "NAME")]
    pub(crate) wire: Wire,
    /// The minutes under load.
    #[arg(long = "minutes", value_name = "N", default_value = "1", value_parser = minutes)]
    pub(crate) time: Duration,
    /// Writes a chart.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// What the peers draw from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    let time = Duration::try_from_secs_f64(minutes * 60.0).ok();
    let time = time.filter(|time| *time >= Duration::from_secs(4));
    time.ok_or_else(|| format!("{minutes} minutes are too short or too long"))
}

impl Options {
    /// The command that repeats this run, from the repository's root: the same calls and attacks, but not the same
    /// order of threads.
    pub(crate) fn command(&self) -> String {
        let (wire, minutes, seed) = (self.wire.name(), self.time.as_secs_f64() / 60.0, self.seed);
        let soak = "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072 cargo run --release -p rescind-integration-tests --bin soak --";
        format!("{soak} --wire {wire} --minutes {minutes} --seed {seed}")
    }
}

// The common counters of all peers of a run, and the failures.

/// The most faults that are kept. Further ones are only counted.
const KEPT: usize = 10;

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) calls: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) attacks: AtomicU64,
    /// Calls and handshakes of good peers that the server refused as overloaded.
    pub(crate) overloaded: AtomicU64,
    over: AtomicBool,
    faults: Mutex<(u64, Vec<String>)>,
    printed: AtomicBool,
    peers: Mutex<Vec<Peer>>,
}

impl Tally {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.over.store(false, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(crate) fn fault(&self, what: String) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.0 += 1;
        if faults.1.len() < KEPT {
            faults.1.push(what);
        }
    }

    pub(crate) fn faults(&self) -> (u64, Vec<String>) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds one end of a connection. Its requests are counted until it has none and is closed.
    pub(crate) fn watch(&self, peer: Peer) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
    }

    /// Prints, once, both ends of the connections that have requests or calls: the reader sees where a call that hangs is.
    pub(crate) fn print_busy(&self) {
        if self.printed.swap(true, Ordering::SeqCst) {
            return;
        }
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        for peer in peers.iter().filter(|peer| peer.stats().slots + peer.stats().calls > 0) {
            let (stats, queues, requests) = (peer.stats(), peer.queue_stats(), peer.requests());
            eprintln!("{}, closed: {}, {stats:?}, {queues:?}", peer.session(), peer.is_closed());
            for request in requests {
                eprintln!("    {request:?}");
            }
        }
    }

    /// The requests and calls at the ends of all connections, including closed ones.
    pub(crate) fn slots(&self) -> u64 {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = |peer: &Peer| {
            let stats = peer.stats();
            stats.slots + stats.calls
        };
        peers.retain(|peer| !peer.is_closed() || slots(peer) > 0);
        peers.iter().map(slots).sum()
    }
}
