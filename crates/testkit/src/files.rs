//! How many files a test's process may have open.

use std::io;

/// Lets this process open `many` files, as its system allows it to ask for: commonly it begins with 1,024, and a thousand
/// connections have two thousand ends in a test. On systems other than Unix there is no such limit, and nothing is done.
///
/// # Errors
/// More than the system lets this user ask for; the words say how many that is.
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

/// Lets this process open `many` files: here there is no limit to raise.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn allow_open_files(_: u64) -> io::Result<()> {
    Ok(())
}
