//! `rescind check` of the foreign peers, and `rescind check --init`.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rescind::Framing;
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link};
use rescind_check::{CONTRADICTS, CheckSettings, PeerSource, Started, check, contradictions};
use rescind_testkit::runner::LinkSubject;
use rescind_testkit::{Fact, Profile, RequestKind};
use serde_json::Value;

// `rescind check` over the tables.

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

// `rescind check --init` of language servers: what it measures and writes, and whether the check can use it.

const RESCIND: &str = env!("CARGO_BIN_EXE_rescind");

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("init::slow_references_are_written_with_their_times", slow_references),
        Trial::test("init::nothing_slow_is_said_with_what_was_tried", nothing_slow),
        Trial::test("init::an_error_of_one_request_does_not_end_it", one_error),
        Trial::test("init::a_tool_is_called_only_if_it_only_reads", reading_tools),
    ]
}

/// A document in a folder of its own, which is removed on drop.
struct Document(PathBuf);

impl Document {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rescind-init-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = "def often(x):\n    return often(x)\n\nlast = often(1)\n";
        std::fs::write(folder.join("a.py"), text).unwrap();
        Self(folder)
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn rescind(options: &[&str], dialect: &str, flags: &[&str]) -> Output {
    let peer = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(RESCIND);
    command.args(["check", "--dialect", dialect]).args(options).arg("--").arg(peer);
    command.arg(crate::AS_PEER).arg(dialect).args(flags).stdin(Stdio::null()).output().unwrap()
}

/// The profile that is written, as text.
fn written(options: &[&str], dialect: &str, flags: &[&str]) -> Result<String, Failed> {
    let output = rescind(&[&["--init"], options].concat(), dialect, flags);
    if output.status.code() != Some(0) {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn ensure(holds: bool, text: &str) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(text.into()) }
}

fn slow_references() -> Result<(), Failed> {
    let document = Document::new("slow");
    let file = document.0.join("a.py");
    let flags = ["--work=2000"];
    let text = written(&["--document", file.to_str().unwrap()], "lsp", &flags)?;
    let profile = Profile::from_toml(&text)?;
    let slow = profile.requests.get(&RequestKind::Slow).ok_or(text.as_str())?;
    let quick = profile.requests.get(&RequestKind::Quick).ok_or(text.as_str())?;
    ensure(slow.method == "textDocument/references" && quick.method == "textDocument/hover", &text)?;
    // Measured three times, and the place is that of a name.
    let times = text
        .lines()
        .find(|line| line.starts_with("# The slowest of those that were tried"))
        .ok_or(text.as_str())?;
    ensure(times.matches(" s").count() >= 3 && slow.params["position"]["line"].is_u64(), &text)?;
    ensure(text.contains("#   textDocument/hover at "), &text)?;

    // The check can use it as it is.
    let place = document.0.join("written.toml");
    std::fs::write(&place, &text)?;
    let checked = rescind(&["--json", "--profile", place.to_str().unwrap()], "lsp", &flags);
    let report: Value = serde_json::from_slice(&checked.stdout)
        .map_err(|_| String::from_utf8_lossy(&checked.stderr).into_owned())?;
    let facts = report["facts"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["name"] == "cancels_running").unwrap();
    ensure(fact["answer"] == "yes" && checked.status.code() == Some(0), &fact.to_string())
}

fn nothing_slow() -> Result<(), Failed> {
    let document = Document::new("quick");
    let file = document.0.join("a.py");
    let text = written(&["--document", file.to_str().unwrap()], "lsp", &["--work=1"])?;
    let profile = Profile::from_toml(&text)?;
    // On a very busy machine an answer may take 50 ms each time, but not 20 times as long as another.
    ensure(!profile.requests.contains_key(&RequestKind::Slow), &text)?;
    ensure(text.contains("# Nothing that was tried is slow each time"), &text)?;
    for tried in ["#   textDocument/references at 1:5: ", "#   textDocument/hover at 1:5: "] {
        ensure(text.contains(tried), &text)?;
    }
    Ok(())
}

fn one_error() -> Result<(), Failed> {
    let document = Document::new("error");
    let file = document.0.join("a.py");
    let text = written(&["--document", file.to_str().unwrap()], "lsp", &["--work=400", "--quick-fails"])?;
    ensure(text.contains("textDocument/hover at 1:5: it was refused: "), &text)?;
    let times = text.lines().find(|line| line.starts_with("#   textDocument/references at 1:5: "));
    ensure(times.is_some_and(|line| line.matches(',').count() == 2), &text)?;
    let profile = Profile::from_toml(&text)?;
    ensure(profile.requests.contains_key(&RequestKind::Slow), &text)
}

fn reading_tools() -> Result<(), Failed> {
    let text = written(&[], "mcp", &["--reading-tools"])?;
    ensure(text.contains("#   the tool add: ") && !text.contains("the tool count: "), &text)?;
    let text = written(&[], "mcp", &[])?;
    ensure(text.contains("# None was called") && !text.contains("#   the tool "), &text)
}
