//! How a failure is told: with an invariant's number, and the command that runs its test alone.

/// A wait that never ends. What it is for begins with the number of the invariant that ends it; else it is one of two: a caller is
/// settled (I13), and what is lost goes (L3).
pub(crate) fn hangs(what: &str) -> String {
    let mut letters = what.chars();
    let is_numbered =
        matches!(letters.next(), Some('I' | 'L')) && letters.next().is_some_and(|c| c.is_ascii_digit());
    if is_numbered { format!("hangs: {what}") } else { format!("hangs: I13 or L3: {what}") }
}

/// Tells of a test that panics how to run it alone, when it is dropped.
pub(crate) struct Again {
    /// What its failure breaks, where that is one for all of it.
    numbers: Option<&'static str>,
    /// In this program.
    name: String,
}

impl Again {
    pub(crate) fn new(name: impl Into<String>, numbers: Option<&'static str>) -> Self {
        Self { numbers, name: name.into() }
    }
}

impl Drop for Again {
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
