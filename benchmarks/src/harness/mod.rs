//! The run: every workload with every competitor, and the results.

mod allocation_figures;
mod budgets;
mod figures;
mod instructions;
mod interleave;
mod other_runs;
mod wires;
mod workloads;

#[cfg(feature = "count")]
pub use allocation_figures::allocations_of_ours;
pub use budgets::{Ruling, Verdict, judge, tally};
pub use figures::{Distribution, Figure, Fit, Row, set_ratios};
pub use instructions::{Counted, count_if_asked};
pub use interleave::{Bound, Case, Entrant, Place, Work, enter, find, play, serve_if_asked};
pub use other_runs::{take_clock, take_load, take_memory};
pub use wires::play_large_if_asked;

use indicatif::{ProgressBar, ProgressStyle};

use crate::subject::{Name, Pace, set_pace};
use crate::{subjects, wire_subjects};

/// The programs that do the least that the work needs. A ratio is to the first that has a figure.
const FLOORS: [Name; 3] = [subjects::FLOOR.name, wire_subjects::ENVELOPES.name, subjects::CHANNELS.name];

/// Rounds that warm up and do not count.
pub const WARM: usize = 2;

/// The parts that can be requested.
///
/// `budget` has what the budgets need and nothing else.
/// `memory` has what is counted and not timed.
/// `W11` and `clock` are measured by other programs: their figures come from files.
pub const PARTS: [&str; 18] = [
    "all", "W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10", "W11", "scale", "wires", "machine",
    "clock", "memory", "budget",
];

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Counted rounds. Each is two turns of every competitor.
    pub rounds: usize,
    /// Whether it only checks that everything runs.
    pub short: bool,
    /// The progress, on stderr.
    pub bar: ProgressBar,
}

impl Run {
    /// A run with its progress on stderr.
    ///
    /// # Panics
    /// Never, because the template is a constant.
    #[must_use]
    pub fn new(rounds: usize, short: bool) -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:24}] {pos:>3}/{len:<3} {msg}");
        bar.set_style(style.expect("the template is right").progress_chars("=> "));
        if short {
            set_pace(Pace::Short);
        }
        Self { rounds, short, bar }
    }

    /// Begins a case of this many steps. Without a terminal for the bar, it prints a line.
    pub fn begin(&self, what: &str, steps: usize) {
        if self.bar.is_hidden() {
            eprintln!("{what}");
        }
        self.bar.set_length(steps as u64);
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    /// One step is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// The full number, or the short one in a short run.
    #[must_use]
    pub const fn of(&self, full: usize, short: usize) -> usize {
        if self.short { short } else { full }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The parts that were run. Each has its budgets.
    pub parts: Vec<&'static str>,
    /// Whether the run only checked that everything runs.
    pub short: bool,
    /// Whether counts of memory were taken from another run.
    pub took_memory: bool,
    /// Every figure.
    pub rows: Vec<Row>,
    /// The growth of figures.
    pub growth: Vec<Growth>,
}

/// How a figure of one competitor grows.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The figure: "bytes a request in flight".
    pub what: &'static str,
    /// The number with which it grows: "requests in flight".
    pub with: &'static str,
    /// Nanoseconds or bytes.
    pub unit: &'static str,
    /// The competitor.
    pub name: Name,
    /// The numbers, and the figure for one at each of them.
    pub points: Vec<(f64, f64)>,
}

/// Measures this part, or all of them.
#[must_use]
pub fn measure(run: &Run, part: &str) -> Results {
    let mut results = Results { short: run.short, ..Results::default() };
    let competitors = subjects::all();
    let asked = |one: &str| match part {
        "all" => !matches!(one, "all" | "budget" | "memory"),
        "memory" => matches!(one, "W5" | "W6" | "W8" | "scale" | "machine"),
        "budget" => !matches!(one, "all" | "budget" | "memory" | "scale"),
        _ => one == part,
    };
    for one in PARTS.into_iter().filter(|one| asked(one)) {
        results.parts.push(one);
        match one {
            "W5" => {
                allocation_figures::allocations(run, &competitors, &mut results);
                instructions::measure(run, &competitors, &mut results);
            }
            "W8" => allocation_figures::in_flight(run, &competitors, &mut results),
            "scale" => workloads::measure_scale(run, &mut results),
            "W10" => wires::measure_large(run, &mut results),
            "wires" => {
                wires::measure(run, &mut results);
                if !run.short {
                    instructions::measure_servers(run, &mut results);
                }
            }
            "W11" | "clock" => {}
            "machine" => allocation_figures::machine(run, &mut results),
            "W1" | "W2" => {
                let echoing = competitors.iter().copied().chain(subjects::TYPED).chain(subjects::servers());
                workloads::measure(run, one, &echoing.collect::<Vec<_>>(), &mut results);
            }
            "W3" => {
                let cancelling = competitors.iter().copied().chain(subjects::servers());
                workloads::measure(run, one, &cancelling.collect::<Vec<_>>(), &mut results);
            }
            _ => workloads::measure(run, one, &competitors, &mut results),
        }
    }
    set_ratios(&mut results.rows, &FLOORS);
    run.bar.finish_and_clear();
    results
}
