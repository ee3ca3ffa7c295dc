//! `rescind check --client`: plays the server to a client of another project.

mod relay_listener;
mod source;

use std::fmt::Write as _;
use std::time::Duration;

use rescind::dialect::Dialect;
use rescind_testkit::client_check::{ClientSettings, check_client};
use rescind_testkit::{Answer, Demand, Report};

use self::source::ProgramSource;
use crate::args::Check;
use crate::check::shown;
use crate::endpoint::{Endpoint, Side, Target};
use crate::serving::stop_signal;
use crate::{Exit, Failure, output, table};

pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    if args.command.is_empty() {
        return Err("there is no client to check; give the COMMAND that starts it after `--`".to_owned());
    }
    let dialect = Dialect::by_name(args.dialect).ok_or("there is no such dialect")?;
    let endpoint = args.listen.clone().unwrap_or(Endpoint::Stdio);
    let target = Target::new(endpoint, &dialect, args.flags(), Side::Server)?;
    let mut source = ProgramSource::new(target, args.command.clone())?;
    let mut settings = ClientSettings::default();
    settings.step = Duration::from_millis(args.step_timeout);
    settings.start = settings.start.max(settings.step);
    let progress = crate::matrix::progress(0);
    let checked = tokio::select! {
        checked = check_client(args.dialect, &mut source, &settings, |name| progress.set_message(name.to_owned())) => checked,
        () = stop_signal() => return Err("the check was interrupted, and the client was stopped".to_owned()),
    };
    progress.finish_and_clear();
    let report = checked.map_err(|unusable| unusable.to_string())?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        output::message(&lines(&report));
        output::result(&format!("{text}\n"))?;
    } else {
        output::result(&lines(&report))?;
    }
    Ok(if report.summary.faults == 0 { Exit::Held } else { Exit::Broke })
}

/// The report as text: each fact, and the frames behind each `no`.
fn lines(report: &Report) -> String {
    let mut text = String::new();
    for fact in &report.facts {
        let answer = match (fact.answer, fact.demand) {
            (Answer::Yes, _) => "yes      ",
            (Answer::No, Demand::Must) => "NO       ",
            (Answer::No, Demand::Should | Demand::Open) => "no       ",
            (Answer::Unsure, _) => "unsure   ",
            (Answer::NotAsked, _) => "not asked",
        };
        let _ = writeln!(text, "{answer}  {} ({})", fact.statement, fact.name);
        let _ = writeln!(text, "           {}", shown(&fact.detail));
        if fact.answer == Answer::No {
            let demand = match fact.demand {
                Demand::Must => "must",
                Demand::Should => "should",
                Demand::Open => "open",
            };
            let _ = writeln!(text, "           {demand}: {}", fact.source);
            for line in &fact.trace {
                let _ = writeln!(text, "             {} {}", table::arrow(line.direction), shown(&line.text));
            }
        }
    }
    let summary = report.summary;
    let yes = report.facts.iter().filter(|fact| fact.answer == Answer::Yes).count();
    let _ = writeln!(text, "{yes} yes, {} faults, {} deviations", summary.faults, summary.deviations);
    text
}
