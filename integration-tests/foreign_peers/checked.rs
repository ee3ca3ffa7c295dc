//! `rescind check` over the tables.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rescind::Framing;
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link};
use rescind_check::{CONTRADICTS, CheckSettings, PeerSource, Started, check, contradictions};
use rescind_testkit::runner::LinkSubject;
use rescind_testkit::{Fact, Profile};
use serde_json::Value;

/// A foreign peer as a program.
struct ForeignPeer {
    dialect: &'static str,
    flags: Vec<String>,
    profile: Profile,
    last: Arc<Mutex<Option<ChildHandle>>>,
}

impl PeerSource for ForeignPeer {
    fn start(&mut self) -> Started {
        let arguments =
            [&[crate::AS_PEER.to_owned(), self.dialect.to_owned()], self.flags.as_slice()].concat();
        let framing = if self.dialect == "lsp" { Framing::ContentLength } else { Framing::Newline };
        let last = Arc::clone(&self.last);
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let link = Command::new(std::env::current_exe().unwrap())
                .args(&arguments)
                .framing(framing)
                .child_kill_grace(Duration::from_millis(500))
                .start()
                .map_err(|error| error.to_string());
            let link = link.map(|(link, child)| {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
                link
            });
            Box::pin(async move { link })
        };
        let subject = LinkSubject::new(Box::new(connect)).with_half_close();
        Started { subject, profile: self.profile.clone() }
    }

    fn process_group(&self) -> Option<u32> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(ChildHandle::pid)
    }

    fn wire(&self) -> &'static str {
        "stdio"
    }
}

/// What the check says of a peer.
pub(crate) struct Checked {
    pub(crate) report: Value,
    pub(crate) took: Duration,
}

/// Checks a peer. `profile`: a file in `profiles/`. The error is the sentence why it cannot be checked.
pub(crate) fn run(dialect: &'static str, flags: &[&str], profile: Option<&str>) -> Result<Checked, String> {
    run_with(dialect, flags, profile, &CheckSettings::default())
}

pub(crate) fn run_with(
    dialect: &'static str,
    flags: &[&str],
    profile: Option<&str>,
    settings: &CheckSettings,
) -> Result<Checked, String> {
    let text = match profile {
        Some(name) => {
            let folder =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/foreign_peers/profiles");
            std::fs::read_to_string(folder.join(name)).unwrap()
        }
        None => "name = \"a peer without a profile\"".to_owned(),
    };
    let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    if !flags.iter().any(|flag| flag.starts_with("--work=")) {
        flags.push("--work=1000".to_owned());
    }
    let profile = Profile::from_toml(&text).unwrap();
    let mut peer = ForeignPeer { dialect, flags, profile, last: Arc::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    let report = runtime.block_on(check(dialect, &mut peer, settings, |_| {})).map_err(|why| why.0)?;
    runtime.shutdown_timeout(Duration::from_secs(5));
    no_contradiction(&report.facts)?;
    Ok(Checked { report: serde_json::to_value(report).unwrap(), took: begun.elapsed() })
}

/// No two facts of a report exclude each other, and none had to give way to another.
fn no_contradiction(facts: &[Fact]) -> Result<(), String> {
    let answers: Vec<_> = facts.iter().map(|fact| (fact.name, fact.answer)).collect();
    let both = contradictions(&answers);
    let gave_way = facts.iter().find(|fact| fact.detail.starts_with(CONTRADICTS));
    match (both.as_slice(), gave_way) {
        ([], None) => Ok(()),
        ([], Some(fact)) => Err(format!("{}: {}", fact.name, fact.detail)),
        (both, _) => Err(format!("facts exclude each other: {both:?}")),
    }
}

impl Checked {
    /// The facts with this answer.
    pub(crate) fn facts(&self, answer: &str) -> Vec<&Value> {
        let facts = self.report["facts"].as_array().unwrap();
        facts.iter().filter(|fact| fact["answer"] == answer).collect()
    }

    /// The scenarios with this outcome.
    pub(crate) fn cells(&self, outcome: &str) -> Vec<&Value> {
        let cells = self.report["cells"].as_array().unwrap();
        cells.iter().filter(|cell| cell["outcome"] == outcome).collect()
    }

    /// The exit code that the report means.
    pub(crate) fn exit(&self) -> i32 {
        let count = |name: &str| self.report["summary"][name].as_u64().unwrap();
        i32::from(count("broke") + count("faults") > 0)
    }
}
