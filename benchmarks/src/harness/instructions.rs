//! Instructions, counted by callgrind. They repeat, while times do not.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rescind_core::HandlerResult;
use rescind_core::dialect::ACP;

use super::allocation_figures::{NOT_COUNTED, PLACE};
use super::budgets::ONE_CORE;
use super::figures::{Figure, Row};
use super::interleave::{Place, enter, find};
use super::{Results, Run};
use crate::cross_process::{Far, OurClient, Serves, Wire};
use crate::raw::{self, RawClient};
use crate::resources::one_thread;
use crate::subject::{BURST, Competitor, Echo, Name, Pace, Subject, Told, set_pace};
#[cfg(feature = "count")]
use crate::transport_echo::{EchoClient, Echoes};
use crate::{steps, subjects};

const COUNTS: &str = "RESCIND_BENCHMARK_COUNTS";
/// Makes the C library copy with vectors. callgrind counts `rep movsb` once for each byte, so a count would depend on the sizes
/// in which the system passes large messages on.
const NO_STRING_INSTRUCTIONS: &str = "glibc.cpu.x86_rep_movsb_threshold=0x10000000";
/// The rounds of two runs whose difference counts, so that what comes before and after the rounds is not included.
const FEW: usize = 3 * BURST;
const COUNTED: usize = 1000;
/// A count that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(120);

/// The counted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// An echo without a cancel.
    Echo(Name),
    /// A request and its cancel.
    Pair(Name),
    /// An echo over a transport, with its streams in memory.
    #[cfg(feature = "count")]
    Over(Echoes),
    /// A step of the bare machine: a request arrives.
    Request,
    /// Its handler answers and ends.
    Settle,
    /// A cancel of it arrives instead.
    Cancel,
}

impl Counted {
    /// Its name in the file of budgets.
    #[must_use]
    pub fn name(self) -> String {
        let name = match self {
            Self::Echo(_) => "echo",
            Self::Pair(_) => "request and cancel",
            #[cfg(feature = "count")]
            Self::Over(echoes) => return echoes.name(),
            Self::Request => "machine: receive a request",
            Self::Settle => "machine: answer it and end",
            Self::Cancel => "machine: receive a cancel",
        };
        name.to_owned()
    }

    /// The function whose instructions are counted. `None` for a whole request: the whole program.
    const fn function(self) -> Option<&'static str> {
        match self {
            Self::Echo(_) | Self::Pair(_) => None,
            #[cfg(feature = "count")]
            Self::Over(_) => None,
            Self::Request => Some("rescind_benchmarks::steps::receive_request"),
            Self::Settle => Some("rescind_benchmarks::steps::settle"),
            Self::Cancel => Some("rescind_benchmarks::steps::receive_cancel"),
        }
    }

    /// Instructions of one operation. `None` without valgrind, or if it does not count.
    #[must_use]
    pub fn instructions(self) -> Option<f64> {
        self.least_instructions(1)
    }

    /// The same, as the least of this many counts, because the seeds of the hash tables only add to a count.
    #[must_use]
    pub fn least_instructions(self, times: usize) -> Option<f64> {
        let least = |rounds| (0..times).map(|_| self.collected(rounds)).min().flatten();
        let [few, counted] = self.rounds();
        let all = least(few + counted)?.saturating_sub(least(few)?);
        Some(all as f64 / counted as f64)
    }

    /// The rounds that warm up, and those that are counted. Fewer if each takes long.
    const fn rounds(self) -> [usize; 2] {
        match self {
            #[cfg(feature = "count")]
            Self::Over(Echoes { bytes: 4096.., .. }) => [FEW / 3, COUNTED / 10],
            _ => [FEW, COUNTED],
        }
    }

    /// The count of callgrind for this program with this many rounds.
    fn collected(self, rounds: usize) -> Option<u64> {
        let (Self::Echo(Name { library, configuration, .. })
        | Self::Pair(Name { library, configuration, .. })) = self
        else {
            return self.asked(rounds, "", "");
        };
        self.asked(rounds, library, configuration)
    }

    fn asked(self, rounds: usize, library: &str, configuration: &str) -> Option<u64> {
        let mut counting = Command::new("valgrind");
        counting.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        if let Some(function) = self.function() {
            counting.arg(format!("--toggle-collect={function}*"));
        }
        let counting = counting
            .arg(std::env::current_exe().ok()?)
            .env(COUNTS, format!("{}\n{library}\n{configuration}\n{rounds}", self.name()))
            .env("GLIBC_TUNABLES", NO_STRING_INSTRUCTIONS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let told = told_in_time(counting)?;
        let counted = told.lines().find_map(|line| line.split_once("Collected :"))?.1;
        counted.trim().parse().ok()
    }

    /// Does the operation this many times, in the program that callgrind runs.
    fn play(self, rounds: usize) {
        match self {
            Self::Echo(name) | Self::Pair(name) => {
                let competitor = find(name.library, name.configuration).expect("one of ours");
                one_thread().block_on(async {
                    let mut entrant = enter(&competitor, Place::OneThread, 64.max(2 * BURST)).await;
                    if let Some(subject) = &mut entrant.subject {
                        self.ask(subject.as_mut(), rounds).await;
                    }
                });
            }
            #[cfg(feature = "count")]
            Self::Over(echoes) => {
                one_thread().block_on(async { EchoClient::open(echoes).await.echo(rounds).await })
            }
            Self::Request | Self::Settle | Self::Cancel => {
                let (mut server, now) = (steps::session(&ACP), Instant::now());
                for id in 0..rounds as i64 {
                    let Some(key) = steps::receive_request(&mut server, now, id) else { continue };
                    if self == Self::Cancel {
                        steps::receive_cancel(&mut server, now, id);
                    }
                    let end =
                        if self == Self::Cancel { HandlerResult::Stopped } else { HandlerResult::Value };
                    steps::settle(&mut server, now, key, end);
                }
            }
        }
    }

    async fn ask(self, subject: &mut dyn Subject, rounds: usize) {
        if matches!(self, Self::Pair(_)) {
            assert_eq!(subject.pairs(rounds).await, Told::Measured, "it cancels");
        } else {
            let mut took = Vec::with_capacity(FEW + COUNTED);
            subject.echo(Echo { bytes: 64, in_flight: 1, count: rounds }, &mut took).await;
        }
    }
}

/// W5: instructions of an echo. Reports if there is no valgrind.
pub(super) fn measure(run: &Run, competitors: &[Competitor], results: &mut Results) {
    let ours = subjects::rescind::COMPETITOR;
    let all: Vec<_> = if run.short {
        vec![ours]
    } else {
        competitors.iter().copied().chain(subjects::variants()).collect()
    };
    run.begin("W5 instructions of an echo", all.len());
    for Competitor { name, .. } in all {
        let each = Counted::Echo(name).instructions();
        let figure =
            each.map_or(Figure::Said("not counted"), |value| Figure::Number { value, unit: "instructions" });
        results.rows.push(Row::new("W5", "an echo".to_owned(), PLACE, "instructions", name, figure));
        run.step();
    }
}

/// The stderr of the process, if it ends with success and in time. Otherwise nothing was counted.
fn told_in_time(mut counting: Child) -> Option<String> {
    let mut stderr = counting.stderr.take()?;
    let (ended, told) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        // Reads until the process ends.
        let _ = stderr.read_to_string(&mut text);
        let _ = ended.send(text);
    });
    let told = told.recv_timeout(LONGEST);
    if told.is_err() {
        let _ = counting.kill();
    }
    let ended = counting.wait();
    let _ = reading.join();
    ended.ok().filter(ExitStatus::success)?;
    told.ok()
}

/// Counts and does not return, if this process was started to be counted.
///
/// # Panics
/// If there is no such operation.
pub fn count_if_asked() {
    let Ok(asked) = std::env::var(COUNTS) else { return };
    let asked: Vec<_> = asked.split('\n').collect();
    let [what, library, configuration, rounds] = asked[..] else {
        panic!("what is counted is named by four lines");
    };
    let name = find(library, configuration).map_or(subjects::FLOOR.name, |competitor| competitor.name);
    let all = [Counted::Echo(name), Counted::Pair(name), Counted::Request, Counted::Settle, Counted::Cancel];
    #[cfg(feature = "count")]
    let all = all.into_iter().chain(Echoes::all().map(Counted::Over));
    let counted = all.into_iter().find(|counted| counted.name() == what).expect("something counted");
    set_pace(Pace::Counted);
    counted.play(rounds.parse().expect("a number"));
    std::process::exit(0);
}

// Instructions of the server's side of an echo between two processes, counted by callgrind.

/// The measure.
pub(super) const OF_SERVER: &str = "instructions of the server's side";
/// The transports whose server is counted.
pub(super) const COUNTED_WIRES: [Wire; 5] =
    [Wire::Streamable, Wire::Stateless, Wire::Streamable2, Wire::Stateless2, Wire::Acp];
/// The echoes of two runs whose difference counts, so that what comes before and after them is not included.
const FEW_ECHOES: usize = 200;
const COUNTED_ECHOES: usize = 1000;
/// How often each run is counted. The least is used: timers and the seeds of the hash tables only add to a count.
const TIMES: usize = 2;

/// Counts this library and the floor.
pub(super) fn measure_servers(run: &Run, results: &mut Results) {
    run.begin("wires: instructions", COUNTED_WIRES.len() * 2);
    for wire in COUNTED_WIRES {
        for (name, serves) in
            [(subjects::FLOOR.name, Serves::Raw), (subjects::rescind::COMPETITOR.name, Serves::Ours)]
        {
            let each = instructions(wire, serves);
            let figure = each.map_or(NOT_COUNTED, |value| Figure::Number { value, unit: "instructions" });
            results.rows.push(Row::new("wires", wire.name().to_owned(), ONE_CORE, OF_SERVER, name, figure));
            run.step();
        }
    }
}

/// Instructions of one echo. `None`: they are not counted.
fn instructions(wire: Wire, serves: Serves) -> Option<f64> {
    let least = |echoes| (0..TIMES).map(|_| collected(wire, serves, echoes)).min().flatten();
    Some(
        least(FEW_ECHOES + COUNTED_ECHOES)?.saturating_sub(least(FEW_ECHOES)?) as f64 / COUNTED_ECHOES as f64,
    )
}

fn collected(wire: Wire, serves: Serves, echoes: usize) -> Option<u64> {
    Place::Pipes.run(async move {
        let mut far = Far::start_counted(wire, serves).await?;
        if serves == Serves::Raw {
            let frame = raw::frame(wire, 64);
            let mut client = RawClient::open(wire, &mut far).await;
            for _ in 0..echoes {
                client.echo(&frame).await;
            }
        } else {
            let params = wire.params(64);
            let mut client = OurClient::open(wire, &mut far).await;
            for _ in 0..echoes {
                client.echo(&params).await;
            }
        }
        far.collected().await
    })
}
