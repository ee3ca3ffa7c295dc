use std::io;
use std::path::PathBuf;

use rescind_stdio::Command;

/// The program that is started if a wire needs separate processes.
///
/// It is run as `PROGRAM ARG.. fixture --dialect D --listen stdio [--options FILE.json]` to serve the fixture, and as
/// `PROGRAM ARG.. relay ADDRESS WORD` to send the word to a TCP address and then copy between it and its stdin and
/// stdout. The command line `rescind` is such a program. A test binary can be one too.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    leading: Vec<String>,
}

impl Program {
    /// This program, without leading arguments.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), leading: Vec::new() }
    }

    /// The running program.
    ///
    /// # Errors
    /// If the system does not report its path.
    pub fn this() -> io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }

    /// Adds a leading argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.leading.push(argument.into());
        self
    }

    /// The program as a process that is not a peer by its stdin and stdout.
    pub(super) fn process(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.path);
        command.args(&self.leading);
        command
    }

    pub(super) fn command(&self) -> Command {
        Command::new(&self.path).args(&self.leading)
    }
}
