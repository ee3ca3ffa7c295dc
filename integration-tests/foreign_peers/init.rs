//! `rescind check --init` of language servers: what it measures and writes, and whether the check can use it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use libtest_mimic::{Failed, Trial};
use rescind_testkit::{Profile, RequestKind};
use serde_json::Value;

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
    let mut command = Command::new(RESCIND);
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
