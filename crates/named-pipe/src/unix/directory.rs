//! The directory of a socket keeps other users out, also on systems that ignore the mode of a socket.

use std::env;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::PipeError;

/// The directory of the pipes that have only a name.
pub(crate) fn directory_of_names() -> PathBuf {
    place_of_names(env::var_os("XDG_RUNTIME_DIR"), &env::temp_dir(), current_uid())
}

fn place_of_names(runtime: Option<OsString>, temporary: &Path, user: u32) -> PathBuf {
    match runtime.map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() && runtime.is_dir() => runtime.join("rescind"),
        // Others can write there, so the name contains the id of the user.
        _ => temporary.join(format!("rescind-{user}")),
    }
}

/// The directory of a file.
pub(super) fn of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => file,
    }
}

/// Creates a directory that only this user can access, if it does not exist.
pub(super) fn make(directory: &Path) -> Result<(), PipeError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(PipeError::io("could not make the directory", directory, error)),
    }
}

/// Refuses a directory that other users can read or change.
pub(super) fn check_owner(directory: &Path) -> Result<(), PipeError> {
    let refused = |why: String| PipeError::Directory { directory: directory.to_owned(), why };
    let found = directory
        .symlink_metadata()
        .map_err(|error| PipeError::io("could not look at the directory", directory, error))?;
    let (ours, mode) = (current_uid(), found.mode() & 0o777);
    if found.is_symlink() {
        return Err(refused("is a symbolic link".to_owned()));
    }
    if !found.is_dir() {
        return Err(refused("is not a directory".to_owned()));
    }
    if found.uid() != ours {
        return Err(refused(format!("belongs to user id {}, and this process runs as {ours}", found.uid())));
    }
    if mode != 0o700 {
        return Err(refused(format!("has mode {mode:04o}")));
    }
    Ok(())
}

fn current_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_in_the_runtime_directory_where_there_is_one() {
        let there = env::temp_dir();
        let place = |runtime: Option<&str>| place_of_names(runtime.map(OsString::from), &there, 7);
        assert_eq!(place(there.to_str()), there.join("rescind"));
        for none in [None, Some(""), Some("relative"), Some("/no/such/directory")] {
            assert_eq!(place(none), there.join("rescind-7"), "{none:?}");
        }
    }

    #[test]
    fn a_file_without_a_directory_lies_in_the_current_one() {
        assert_eq!(of(Path::new("agent")), Path::new("."));
        assert_eq!(of(Path::new("run/agent")), Path::new("run"));
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        // The root directory belongs to root and is open to all. It is refused for one of the two reasons.
        let error = check_owner(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("mode 0") || error.contains("belongs to user id 0"), "{error}");
    }
}
