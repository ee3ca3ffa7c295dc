//! Whether a test that is named somewhere is one: built, marked, and not ignored.

use std::collections::BTreeSet;

use libtest_mimic::Trial;

/// The names of trials that are run.
pub(crate) struct Built(BTreeSet<String>);

impl Built {
    pub(crate) fn of(trials: &[Trial]) -> Self {
        let run = trials.iter().filter(|trial| !trial.has_ignored_flag());
        Self(run.map(|trial| trial.name().to_owned()).collect())
    }

    /// Whether the name of one begins so. Elsewhere than on Linux some are not made, as a line of the run says.
    pub(crate) fn has(&self, name: &str) -> bool {
        !cfg!(target_os = "linux") || self.0.iter().any(|built| built.starts_with(name))
    }
}

/// Whether there is a function of this name that is marked as a test, by what stands right above it and not further up, and not
/// ignored.
pub(crate) fn is_function(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    source.match_indices(&function).any(|(at, _)| is_marked(source.get(..at).unwrap_or_default()))
}

fn is_marked(before: &str) -> bool {
    let above = before.rsplit('\n').skip(1).map(str::trim);
    let marks: Vec<_> = above.take_while(|line| line.starts_with("#[") || line.starts_with("//")).collect();
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    marks.iter().any(is_test) && !marks.iter().any(|line| line.starts_with("#[ignore"))
}
