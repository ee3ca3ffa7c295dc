//! Measures everything, next to the other libraries and the floor, and prints it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use rescind_benchmarks::harness::{
    self, PARTS, Results, Ruling, Run, Verdict, judge, measure, take_clock, take_load, take_memory,
};
use rescind_benchmarks::report::Tables;
use rescind_benchmarks::{cross_process, report};
use serde_json::Value;

/// Measures the cost of cancelling, of this library, the other libraries and the floor, in one run.
#[derive(Debug, Parser)]
#[command(name = "report", version)]
struct Options {
    /// What to measure.
    #[arg(default_value = "all", value_parser = clap::builder::PossibleValuesParser::new(PARTS))]
    part: String,
    /// Writes budgets and results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a page with charts.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes the tables of the documentation as JSON, and as a page without charts beside it (`.html`).
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// The first sentence of these tables: the date and the options of the run, and how the programs were built.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "tables")]
    about: String,
    /// Measures nothing: writes the page of these tables again, from their JSON.
    #[arg(long, value_name = "FILE", exclusive = true)]
    render: Option<PathBuf>,
    /// Takes the counts of memory, which this program does not count without the feature `count`, from the JSON of a run with it.
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// Takes a load test from the JSON of `load_test --json`. May be given more than once.
    #[arg(long, value_name = "FILE")]
    load: Vec<PathBuf>,
    /// Takes the newcomer's clock from an object with the seconds of "matrix" and of "test".
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
    /// Counted rounds, after two that warm up.
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only checks that everything runs. The figures have no meaning. Exits with 1 if something of this library or a
    /// floor does not run, or if a budget lacks its figure.
    #[arg(long)]
    short: bool,
    /// Exits with 1 if a budget is not met, or the part has none.
    #[arg(long)]
    strict: bool,
}

fn main() -> ExitCode {
    cross_process::serve_if_asked();
    harness::serve_if_asked();
    harness::count_if_asked();
    harness::play_large_if_asked();
    let options = Options::parse();
    if let Some(file) = &options.render {
        return if render(file) { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    let rounds = if options.short { 2 } else { usize::from(options.rounds) };
    let files = match Files::read(&options) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let mut results = measure(&Run::new(rounds, options.short), &options.part);
    if let Err(error) = files.add_to(&mut results) {
        eprintln!("a file could not be used: {error}");
        return ExitCode::from(2);
    }
    let verdicts = judge(&results);
    report::print(&results, &verdicts);
    if options.short {
        println!("A short run shows that all of it runs; its figures mean nothing.");
    }
    let written = [
        options.json.map(|file| write(&file, &format!("{:#}\n", report::to_json(&results, &verdicts)))),
        options.html.map(|file| write(&file, &report::page(&results, &verdicts))),
        options.tables.map(|file| {
            let tables = Tables::new(&results, &verdicts, &options.about);
            let json = serde_json::to_string_pretty(&tables).expect("texts are JSON");
            write(&file, &format!("{json}\n")) && render(&file)
        }),
    ];
    if written.contains(&Some(false)) {
        return ExitCode::from(2);
    }
    let failed = options.short && verdicts.iter().any(Verdict::lacks_its_figure);
    let are = |ruling| verdicts.iter().any(|verdict| verdict.ruling == ruling);
    let met = are(Ruling::Met) && !are(Ruling::NotMet);
    if failed || options.strict && !met {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The figures that other runs and other programs wrote.
struct Files {
    memory: Option<Value>,
    loads: Vec<Value>,
    clock: Option<Value>,
}

impl Files {
    fn read(options: &Options) -> Result<Self, String> {
        Ok(Self {
            memory: options.memory.as_deref().map(read).transpose()?,
            loads: options.load.iter().map(|file| read(file)).collect::<Result<_, _>>()?,
            clock: options.clock.as_deref().map(read).transpose()?,
        })
    }

    fn add_to(&self, results: &mut Results) -> Result<(), String> {
        if let Some(memory) = &self.memory {
            let taken = take_memory(results, memory);
            eprintln!("{taken} counts are from the other run");
        }
        self.loads.iter().try_for_each(|load| take_load(results, load))?;
        self.clock.as_ref().map_or(Ok(()), |clock| take_clock(results, clock))
    }
}

/// A run that was written as JSON.
fn read(file: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let run = text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    run.map_err(|error| format!("{} could not be read: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> bool {
    let written = std::fs::write(file, text);
    if let Err(error) = &written {
        eprintln!("{} could not be written: {error}", file.display());
    }
    written.is_ok()
}

/// Writes the page of these tables beside their JSON.
fn render(file: &Path) -> bool {
    let tables = read(file).and_then(|tables| {
        serde_json::from_value::<Tables>(tables)
            .map_err(|error| format!("{} has no tables: {error}", file.display()))
    });
    match tables {
        Ok(tables) => write(&file.with_extension("html"), &report::tables_page(&tables)),
        Err(error) => {
            eprintln!("{error}");
            false
        }
    }
}
