//! The fixture as a process that listens.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// A pipe endpoint that no other test uses.
pub(crate) fn pipe() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("pipe:rescind-cli-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
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
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
