//! The form of a failure: an invariant's number, and the command that runs the test alone.

/// The name of a wait that may never end. If `what` begins with the number of an invariant, a hang violates that
/// invariant. Otherwise it is one of two: a caller is settled (I13), and lost connections end (L3).
pub(crate) fn numbered(what: &str) -> String {
    let mut letters = what.chars();
    let is_numbered =
        matches!(letters.next(), Some('I' | 'L')) && letters.next().is_some_and(|c| c.is_ascii_digit());
    if is_numbered { what.to_owned() } else { format!("I13 or L3: {what}") }
}

/// Prints on drop how to run a test alone, if the test panics.
pub(crate) struct RerunCommand {
    /// The invariant that a failure violates, if it is the same for the whole test.
    numbers: Option<&'static str>,
    /// The name of the test in this program.
    name: String,
}

impl RerunCommand {
    pub(crate) fn new(name: impl Into<String>, numbers: Option<&'static str>) -> Self {
        Self { numbers, name: name.into() }
    }
}

impl Drop for RerunCommand {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Self { numbers, name } = self;
        let (program, release) =
            (env!("CARGO_CRATE_NAME"), if cfg!(debug_assertions) { "" } else { " --release" });
        let broken = numbers.map(|numbers| format!("{numbers} is broken: ")).unwrap_or_default();
        let command =
            format!("cargo test{release} -p rescind-integration-tests --test {program} -- --exact '{name}'");
        eprintln!("{broken}{name} failed. To run it again: {command}");
    }
}
