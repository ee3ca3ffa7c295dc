//! Compares instructions and allocations with the budgets of a file. Exits with 1 if one is above its budget, or so
//! far below that the budget must be lowered; `--lower` lowers budgets and never raises one. It also exits with 1 if
//! the file has a budget for something that is not counted any more, or a budget without instructions.
//!
//! `counts FILE [--lower]`. Instructions need valgrind. Without it nothing is lowered. They are judged only if they
//! were counted with the same toolchain and machine as those of the file.

use std::path::Path;
use std::process::{Command, ExitCode};

use rescind_benchmarks::counts::{Count, Counts, SLACK, TOLERANCE, Verdict};
use rescind_benchmarks::harness;

fn main() -> ExitCode {
    harness::count_if_asked();
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (file, lower) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [file] => (Path::new(file), false),
        [file, "--lower"] => (Path::new(file), true),
        _ => {
            eprintln!("counts FILE [--lower]");
            return ExitCode::from(2);
        }
    };
    let budgets = std::fs::read_to_string(file).ok().and_then(|text| Counts::from_json(&text));
    if budgets.is_none() && !lower {
        eprintln!("{} is no file of budgets; --lower makes one.", file.display());
        return ExitCode::from(2);
    }
    let measured = Counts::measure();
    let budgets = budgets.unwrap_or_else(|| measured.clone());
    let failed = tell(&budgets, &measured, file);
    if lower && measured.lacks_instructions() {
        eprintln!("{} was not written: a budget without instructions would never be judged.", file.display());
        return ExitCode::from(2);
    }
    if lower {
        let text = format!("{:#}\n", budgets.lowered(&measured).to_json());
        if let Err(error) = std::fs::write(file, text) {
            eprintln!("{} could not be written: {error}", file.display());
            return ExitCode::from(2);
        }
    }
    let above = |count: &Count| budgets.judge(&measured, count).contains(&Verdict::Above);
    let fails = if lower { measured.counts.iter().any(above) } else { failed };
    if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints everything, and returns whether the check fails.
fn tell(budgets: &Counts, measured: &Counts, file: &Path) -> bool {
    println!("made with {}", measured.made_with.join("; "));
    if budgets.made_with != measured.made_with {
        println!(
            "INSTRUCTIONS ARE NOT JUDGED for budgets that were made with {}",
            budgets.made_with.join("; ")
        );
    }
    let valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    let uncounted = measured.lacks_instructions();
    if uncounted {
        let why =
            if valgrind { "valgrind is there and does not count them" } else { "valgrind is not there" };
        println!("INSTRUCTIONS ARE NOT COUNTED: {why}.");
    }
    for Count { name, .. } in budgets.gone(measured) {
        println!("{name:<34} IS COUNTED NO MORE: take it out of {} with --lower", file.display());
    }
    let mut failing = Vec::new();
    for count in &measured.counts {
        let budget = budgets.of(&count.name);
        let verdicts = budgets.judge(measured, count);
        let pairs = [
            ("instructions", count.instructions, budget.and_then(|budget| budget.instructions)),
            ("allocations of 1000", Some(count.allocations), budget.map(|budget| budget.allocations)),
        ];
        for ((what, counted, budget), verdict) in pairs.into_iter().zip(verdicts) {
            let shown = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
            let (counted, budget) = (shown(counted), shown(budget));
            let told = match verdict {
                Verdict::Held => "held".to_owned(),
                Verdict::NotJudged => "not judged".to_owned(),
                Verdict::New => format!("NO BUDGET in {}: add it with --lower", file.display()),
                Verdict::Above => "ABOVE THE BUDGET".to_owned(),
                Verdict::Lower => format!("lower the budget to {counted} (--lower does it)"),
            };
            let row = format!("{:<34} {what:<20} {counted:>8} of {budget:>8}  {told}", count.name);
            println!("{row}");
            if verdict.fails() {
                failing.push(row);
            }
        }
    }
    println!(
        "Instructions may be {} % above their budget, which is what the seeds of hash tables change, and {} % below; allocations are exact.",
        TOLERANCE * 100.0,
        SLACK * 100.0
    );
    // Again, because CI shows the end.
    for row in failing {
        println!("FAILED {row}");
    }
    valgrind && uncounted || budgets.fails(measured)
}
