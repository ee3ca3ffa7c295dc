//! Which test catches which planted bug.

use rescind_core::failpoint::Failpoint;
use rescind_testkit::support::table;

/// A bug, and the test that fails because of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) failpoint: Failpoint,
    /// A test of the program `mutations`, or one with the prefix of an engine with a separate program: `attacks::`,
    /// `faults::`, `known_bugs::`, `threads::` (and its file), `soak::` (a wire).
    pub(crate) test: &'static str,
    /// The text of the failure: an invariant's number if there is one.
    pub(crate) says: &'static str,
}

/// The table: every bug once, and many of them also with a second engine: those whose first test was written for this
/// table are caught by an existing engine too, except `quick-too-early`: elsewhere a cancel and an answer that pass each
/// other have two right outcomes. Of `reference::each_kept_case_that_once_failed_passes`, only the
/// regression that is kept for the bug runs.
pub(crate) fn mutations() -> Vec<Row> {
    let row = |[bug, test, says]: [&'static str; 3]| {
        let failpoint = Failpoint::ALL.iter().find(|failpoint| failpoint.name() == bug);
        Row { failpoint: *failpoint.unwrap_or_else(|| panic!("no bug is named {bug}")), test, says }
    };
    let rows: Vec<_> = table(include_str!("table.txt")).map(row).collect();
    assert_eq!(rows.len(), Failpoint::ALL.len() + 41, "the rows of the table");
    rows
}
