//! The fixture as a process that listens, checks of a running peer, and the files of a test.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

pub(crate) fn rescind(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    rescind(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// `rescind fixture --listen`, after it has printed its endpoint. Killed on drop.
pub(crate) struct Fixture {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The endpoint that it printed.
    pub(crate) endpoint: String,
}

impl Fixture {
    pub(crate) fn listen(dialect: &str, endpoint: &str, more: &[&str]) -> Self {
        let mut child = rescind(&["fixture", "--dialect", dialect, "--listen", endpoint])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let endpoint = line.trim_end().strip_prefix("listening on ");
        let endpoint = endpoint.unwrap_or_else(|| panic!("it said: {line}")).to_owned();
        Self { child, stderr, endpoint }
    }

    /// The exit code after this signal, and what else it wrote to stderr.
    #[cfg(unix)]
    pub(crate) fn end_by(mut self, signal: rustix::process::Signal) -> (Option<i32>, String) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        if signal == rustix::process::Signal::KILL {
            // The next one takes over the files that are left.
            self.endpoint.clear();
        }
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        remove_pipe(&self.endpoint);
    }
}

/// Removes the files of a pipe, which a program that was killed leaves behind.
pub(crate) fn remove_pipe(endpoint: &str) {
    if let Some(file) = endpoint.strip_prefix("pipe:") {
        drop(std::fs::remove_file(file));
        drop(std::fs::remove_file(format!("{file}.lock")));
    }
}

/// Checks a running peer and returns the report.
pub(crate) fn check(dialect: &str, endpoint: &str, more: &[&str]) -> Value {
    let arguments = [&["check", "--dialect", dialect, "--json"], more, &[endpoint]].concat();
    let done = output(&arguments);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["summary"]["broke"], 0);
    assert!(report["summary"]["held"].as_u64().unwrap() > 20, "{}", report["summary"]);
    let silent = report["cells"]
        .as_array()
        .unwrap()
        .iter()
        .find(|cell| cell["outcome"] == "not-asked" && cell["why"].as_str().unwrap().is_empty());
    assert_eq!(silent, None, "a hole without a word");
    report
}

pub(crate) fn assert_out_of_reach(done: &Output, why: &str) {
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}{}", text(&done.stdout));
    assert!(said.contains("could not be reached") && said.contains(why), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(done.stdout.is_empty(), "{}", text(&done.stdout));
}

/// A directory for a test's files, deleted on drop.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new() -> Self {
        // The tests of a process run at the same time, and each deletes its own directory.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("rescind-cli-files-{process}-{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let file = self.0.join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
