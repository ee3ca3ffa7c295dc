//! The limit of open files of a test process.

use std::io;

/// Raises the limit of open files of this process to `many`, as far as the system permits. The usual limit is 1,024,
/// and a test of a thousand connections has two thousand ends. On systems other than Unix there is no such limit, and
/// the function does nothing.
///
/// # Errors
/// If `many` is above the hard limit of this user. The error contains that limit.
#[cfg(unix)]
pub fn allow_open_files(many: u64) -> io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|allowed| allowed >= many) {
        return Ok(());
    }
    if let Some(most) = limit.maximum.filter(|most| *most < many) {
        return Err(io::Error::other(format!(
            "{many} open files are needed and this user may ask for {most}"
        )));
    }
    limit.current = Some(many);
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Does nothing: this system has no limit of open files to raise.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn allow_open_files(_: u64) -> io::Result<()> {
    Ok(())
}
