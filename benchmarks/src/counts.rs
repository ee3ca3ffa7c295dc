//! Instructions and allocations, compared with budgets that may only be lowered.
//!
//! Allocations repeat exactly on every machine. Instructions repeat with the same compiler, profile, C library and
//! kind of processor (the last two select how memory is copied), except for the seeds of the hash tables, which are
//! random in each run: [`TOLERANCE`] allows for them. With another toolchain or machine, instructions are printed and
//! not judged.

use std::process::Command;

use rescind_core::dialect::ACP;
use serde_json::{Value, json};

use crate::harness::{Counted, allocations_of_ours};
use crate::transport_echo::{self, Echoes};
use crate::{steps, subjects};

/// How much a count of instructions may be above its budget, as a fraction.
pub const TOLERANCE: f64 = 0.005;

/// The number of counts, of which the least is used: of six counts, one was 0.65 % above the others.
const TIMES: usize = 3;

/// How far a count may be below its budget before the budget must be lowered, as a fraction.
pub const SLACK: f64 = 0.02;

/// The cost of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The operation.
    pub name: String,
    /// For one operation. `None` if nothing counts them.
    pub instructions: Option<u64>,
    /// For a thousand operations.
    pub allocations: u64,
    /// Compiler and machine of the instructions, if they differ from [`Counts::made_with`].
    pub made_with: Option<Vec<String>>,
}

/// Counts, and the toolchain and machine that they were made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Compiler, target, profile, C library, kind of processor.
    pub made_with: Vec<String>,
    /// Each operation once.
    pub counts: Vec<Count>,
}

/// The verdict about a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is within its budget.
    Held,
    /// It is not judged here.
    NotJudged,
    /// There is no budget for it, or one without a number.
    New,
    /// It is above its budget.
    Above,
    /// It is so far below its budget that the budget must be lowered.
    Lower,
}

impl Verdict {
    /// Whether the check fails with this verdict.
    #[must_use]
    pub const fn fails(&self) -> bool {
        matches!(self, Self::New | Self::Above | Self::Lower)
    }
}

impl Counts {
    /// Counts everything. This takes minutes with callgrind. Without valgrind only allocations are counted.
    #[must_use]
    pub fn measure() -> Self {
        let ours = subjects::rescind::COMPETITOR.name;
        let [echo, pair] = allocations_of_ours();
        let [request, settle, cancel] = steps::allocations_of_each(&ACP);
        let all = [
            (Counted::Echo(ours), echo),
            (Counted::Pair(ours), pair),
            (Counted::Request, request),
            (Counted::Settle, settle),
            (Counted::Cancel, cancel),
        ];
        let over = Echoes::all().map(|echoes| (Counted::Over(echoes), transport_echo::allocations(echoes)));
        let count = |(counted, allocations): (Counted, u64)| Count {
            name: counted.name(),
            instructions: counted.least_instructions(TIMES).map(|each| each.round() as u64),
            allocations,
            made_with: None,
        };
        Self { made_with: made_with(), counts: all.into_iter().chain(over).map(count).collect() }
    }

    /// Reads a file of [`to_json`](Self::to_json). Returns `None` if it is not one.
    #[must_use]
    pub fn from_json(text: &str) -> Option<Self> {
        let told: Value = serde_json::from_str(text).ok()?;
        let counts = told["counts"].as_array()?.iter().map(|count| {
            let name = count["name"].as_str()?.to_owned();
            let allocations = count["allocations_of_1000"].as_u64()?;
            let instructions = count["instructions"].as_u64();
            Some(Count { name, instructions, allocations, made_with: texts(&count["made_with"]) })
        });
        Some(Self { made_with: texts(&told["made_with"])?, counts: counts.collect::<Option<_>>()? })
    }

    /// The form of the file.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let count = |Count { name, instructions, allocations, made_with }: &Count| {
            let mut told =
                json!({"name": name, "instructions": instructions, "allocations_of_1000": allocations});
            if let Some(made_with) = made_with {
                told["made_with"] = json!(made_with);
            }
            told
        };
        json!({"made_with": self.made_with, "counts": self.counts.iter().map(count).collect::<Vec<_>>()})
    }

    /// The budget of this name.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&Count> {
        self.counts.iter().find(|count| count.name == name)
    }

    /// The verdicts about a count's instructions and allocations, with `self` as the budgets.
    #[must_use]
    pub fn judge(&self, measured: &Self, count: &Count) -> [Verdict; 2] {
        let Some(budget) = self.of(&count.name) else { return [Verdict::New, Verdict::New] };
        let instructions = match (count.instructions, budget.instructions) {
            // Otherwise a budget that was written without valgrind would never be judged.
            (_, None) => Verdict::New,
            (Some(counted), Some(instructions)) if self.is_of(budget, measured) => {
                let ratio = counted as f64 / instructions as f64;
                if ratio > 1.0 + TOLERANCE {
                    Verdict::Above
                } else if ratio < 1.0 - SLACK {
                    Verdict::Lower
                } else {
                    Verdict::Held
                }
            }
            (Some(_) | None, Some(_)) => Verdict::NotJudged,
        };
        let allocations = match count.allocations.cmp(&budget.allocations) {
            std::cmp::Ordering::Less => Verdict::Lower,
            std::cmp::Ordering::Equal => Verdict::Held,
            std::cmp::Ordering::Greater => Verdict::Above,
        };
        [instructions, allocations]
    }

    /// Whether the instructions of this budget were counted as the measured ones were.
    fn is_of(&self, budget: &Count, measured: &Self) -> bool {
        *budget.made_with.as_ref().unwrap_or(&self.made_with) == measured.made_with
    }

    /// The budgets for operations that are not counted any more. Each makes the check fail until it is removed.
    pub fn gone<'a>(&'a self, measured: &'a Self) -> impl Iterator<Item = &'a Count> {
        self.counts.iter().filter(|budget| measured.of(&budget.name).is_none())
    }

    /// Whether the check fails, with `self` as the budgets.
    #[must_use]
    pub fn fails(&self, measured: &Self) -> bool {
        let fails = |count: &Count| self.judge(measured, count).iter().any(Verdict::fails);
        self.gone(measured).next().is_some() || measured.counts.iter().any(fails)
    }

    /// Whether the instructions of an operation were not counted.
    #[must_use]
    pub fn lacks_instructions(&self) -> bool {
        self.counts.iter().any(|count| count.instructions.is_none())
    }

    /// These budgets, each lowered to the measured value if that is less. With another toolchain or machine, the
    /// measured instructions are used.
    #[must_use]
    pub fn lowered(&self, measured: &Self) -> Self {
        let least = |count: &Count| {
            let Some(budget) = self.of(&count.name) else { return count.clone() };
            let same = self.is_of(budget, measured);
            let both = count.instructions.zip(budget.instructions).filter(|_| same);
            Count {
                name: count.name.clone(),
                instructions: both.map_or(count.instructions, |(a, b)| Some(a.min(b))),
                allocations: count.allocations.min(budget.allocations),
                made_with: None,
            }
        };
        Self { made_with: measured.made_with.clone(), counts: measured.counts.iter().map(least).collect() }
    }
}

fn texts(told: &Value) -> Option<Vec<String>> {
    told.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
}

/// What instructions depend on besides the source.
fn made_with() -> Vec<String> {
    let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let libc = libc.map(|told| String::from_utf8_lossy(&told.stdout).trim().to_owned());
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = about.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
    };
    // The C library and `memchr` select their loops by these flags.
    let flags = ["avx2", "erms", "fsrm", "avx512vl"];
    let has = flags.into_iter().filter(|flag| field("flags").split(' ').any(|one| one == *flag));
    let processor: Vec<_> = std::iter::once(field("vendor_id")).chain(has).collect();
    vec![
        env!("BUILT_WITH").to_owned(),
        format!("{}, profile {}", env!("BUILT_FOR"), env!("BUILT_AS")),
        libc.unwrap_or_default(),
        processor.join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(with: &str, instructions: u64, allocations: u64) -> Counts {
        let name = "echo".to_owned();
        let count = Count { name, instructions: Some(instructions), allocations, made_with: None };
        Counts { made_with: vec![with.to_owned()], counts: vec![count] }
    }

    fn judged(budget: &Counts, measured: &Counts) -> [Verdict; 2] {
        budget.judge(measured, &measured.counts[0])
    }

    #[test]
    fn counts_above_the_budget_fail_and_counts_far_below_must_lower_it() {
        let budget = counts("rustc 1", 10_000, 15);
        for (instructions, allocations, expected) in [
            (10_000, 15, [Verdict::Held, Verdict::Held]),
            (10_050, 15, [Verdict::Held, Verdict::Held]),
            (10_051, 16, [Verdict::Above, Verdict::Above]),
            (9_800, 15, [Verdict::Held, Verdict::Held]),
            (9_799, 14, [Verdict::Lower, Verdict::Lower]),
        ] {
            assert_eq!(judged(&budget, &counts("rustc 1", instructions, allocations)), expected);
        }
        assert_eq!([Verdict::Above, Verdict::Lower, Verdict::New].map(|verdict| verdict.fails()), [true; 3]);
    }

    #[test]
    fn instructions_of_another_compiler_are_shown_and_allocations_judged() {
        let (budget, other) = (counts("rustc 1", 10_000, 15), counts("rustc 2", 20_000, 16));
        assert_eq!(judged(&budget, &other), [Verdict::NotJudged, Verdict::Above]);
        assert!(!Verdict::NotJudged.fails());
    }

    #[test]
    fn a_budget_with_a_compiler_of_its_own_is_judged_with_that_one() {
        let mut budget = counts("rustc 1", 10_000, 15);
        budget.counts[0].made_with = Some(vec!["rustc 2".to_owned()]);
        assert_eq!(judged(&budget, &counts("rustc 1", 20_000, 15))[0], Verdict::NotJudged);
        assert_eq!(judged(&budget, &counts("rustc 2", 20_000, 15))[0], Verdict::Above);
        let lowered = budget.lowered(&counts("rustc 2", 9_000, 15));
        assert_eq!(lowered, counts("rustc 2", 9_000, 15));
    }

    #[test]
    fn a_budget_without_a_count_fails_until_it_is_removed() {
        let (mut budget, measured) = (counts("rustc 1", 10_000, 15), counts("rustc 1", 10_000, 15));
        assert!(!budget.fails(&measured));
        let name = "renamed".to_owned();
        budget.counts.push(Count { name, instructions: Some(1), allocations: 0, made_with: None });
        assert_eq!(budget.gone(&measured).map(|count| count.name.as_str()).collect::<Vec<_>>(), ["renamed"]);
        assert!(budget.fails(&measured));
        assert!(!budget.lowered(&measured).fails(&measured));
    }

    #[test]
    fn a_budget_without_instruction_counts_fails_until_they_are_counted() {
        let measured = counts("rustc 1", 10_000, 15);
        let mut budget = measured.clone();
        budget.counts[0].instructions = None;
        assert!(budget.lacks_instructions());
        for with in ["rustc 1", "rustc 2"] {
            let measured = counts(with, 10_000, 15);
            assert_eq!(judged(&budget, &measured), [Verdict::New, Verdict::Held]);
            assert!(budget.fails(&measured));
        }
        assert!(budget.fails(&budget));
        assert_eq!(budget.lowered(&measured), measured);
    }

    #[test]
    fn budgets_only_go_down_except_with_another_compiler() {
        let budget = counts("rustc 1", 10_000, 15);
        assert_eq!(budget.lowered(&counts("rustc 1", 11_000, 16)), budget);
        assert_eq!(budget.lowered(&counts("rustc 1", 9_000, 14)), counts("rustc 1", 9_000, 14));
        assert_eq!(budget.lowered(&counts("rustc 2", 11_000, 16)), counts("rustc 2", 11_000, 15));
    }

    #[test]
    fn the_file_is_read_as_written_and_other_files_are_refused() {
        let mut told = counts("rustc 1", 10_000, 15);
        let (name, made_with) = ("uncounted".to_owned(), Some(vec!["rustc 2".to_owned()]));
        told.counts.push(Count { name, instructions: None, allocations: 0, made_with });
        assert_eq!(Counts::from_json(&told.to_json().to_string()), Some(told));
        assert_eq!(Counts::from_json("{}"), None);
    }
}
