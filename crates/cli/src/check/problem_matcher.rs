//! GitHub's problem matcher, which makes an annotation of each problem in the report.

use std::path::{Path, absolute};

use crate::{Failure, output};

/// The matcher. Its pattern finds the lines that the report writes for problems.
const MATCHER: &str = include_str!("problem-matcher.json");

/// Writes the matcher to a file and tells GitHub where it is, before the first line that it matches.
///
/// # Errors
/// One sentence, if the file cannot be written.
pub(super) fn write(file: &Path) -> Result<(), Failure> {
    let failed = |error| format!("the problem matcher {} could not be written: {error}", file.display());
    std::fs::write(file, MATCHER).map_err(failed)?;
    let file = absolute(file).map_err(failed)?;
    output::message(&format!("::add-matcher::{}\n", file.display()));
    Ok(())
}
