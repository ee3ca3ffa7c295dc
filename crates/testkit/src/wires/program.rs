use std::io;
use std::path::PathBuf;

use rescind_stdio::Command;

/// The program that is started where a wire needs a process of its own.
///
/// It is run as `PROGRAM ARG.. fixture --dialect D --listen stdio [--options FILE.json]`, to serve the fixture, and as
/// `PROGRAM ARG.. relay ADDRESS WORD`, to say the word to a TCP address and then copy between it and its stdin and stdout. The command line `rescind`
/// is such a program, and a test binary can be its own.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    leading: Vec<String>,
}

impl Program {
    /// This program, without arguments before the others.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), leading: Vec::new() }
    }

    /// The program that runs now.
    ///
    /// # Errors
    /// The system does not say which file that is.
    pub fn this() -> io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }

    /// One more argument before the others.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.leading.push(argument.into());
        self
    }

    pub(super) fn command(&self) -> Command {
        Command::new(&self.path).args(&self.leading)
    }
}
