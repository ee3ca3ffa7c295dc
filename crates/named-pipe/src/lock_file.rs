//! The right to a path.
//!
//! 1. A process that listens at a path holds the lock of the file beside it, from before it binds the socket until
//!    after it removes it. So only one process at a time checks whether a socket is stale, and no process removes the
//!    socket of another.
//! 2. A lock is valid only while its file is still the one at its path: the previous holder may have removed the file.
//! 3. A socket is removed only while it is the file that was bound, or after a connection to it was refused.
//! 4. The directory of a socket keeps other users out, also on systems that ignore the mode of a socket.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::net::UnixStream;

use crate::pipe::PipeError;

/// The most attempts to lock, if the file is replaced meanwhile.
const MAX_ATTEMPTS: usize = 16;

/// Exists while a socket listens.
#[derive(Debug)]
pub(crate) struct SocketLock {
    file: PathBuf,
    lock_file: PathBuf,
    lock: OwnedFd,
    /// The file that was bound: device and inode.
    bound: Option<(u64, u64)>,
}

impl SocketLock {
    /// Takes the path, and removes a socket that a dead process left there.
    pub(crate) async fn take(file: &Path) -> Result<Self, PipeError> {
        let mut name = file.as_os_str().to_owned();
        name.push(".lock");
        let lock_file = PathBuf::from(name);
        let lock = lock(file, &lock_file)?;
        let claim = Self { file: file.to_owned(), lock_file, lock, bound: None };
        clear(file).await?;
        Ok(claim)
    }

    /// The socket exists: removes the access of other users, and stores its identity.
    pub(crate) fn bound(&mut self) -> io::Result<()> {
        self.bound = identity(&self.file);
        fs::set_permissions(&self.file, fs::Permissions::from_mode(0o600))
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if self.bound.is_some() && self.bound == identity(&self.file) {
            drop(fs::remove_file(&self.file));
        }
        drop(fs::remove_file(&self.lock_file));
        // A child process that has just started may hold a copy of the descriptor for a moment.
        let _unlocked = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    let found = file.symlink_metadata().ok()?;
    Some((found.dev(), found.ino()))
}

fn lock(file: &Path, lock_file: &Path) -> Result<OwnedFd, PipeError> {
    let failed = |error: Errno| PipeError::io("could not lock", lock_file, error);
    for _ in 0..MAX_ATTEMPTS {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(lock_file, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(PipeError::InUse { path: file.to_owned() }),
            Err(error) => return Err(failed(error)),
        }
        let held = fstat(&lock).map_err(failed)?;
        if identity(lock_file).is_some_and(|(_, inode)| inode == held.st_ino) {
            return Ok(lock);
        }
    }
    Err(PipeError::InUse { path: file.to_owned() })
}

/// Removes a socket on which no process listens. Every other file stays.
async fn clear(file: &Path) -> Result<(), PipeError> {
    let found = match file.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(PipeError::io("could not look at", file, error)),
    };
    if !found.file_type().is_socket() {
        return Err(PipeError::NotASocket { path: file.to_owned() });
    }
    match UnixStream::connect(file).await {
        // A process listens there without this lock: another program. A listener with a full queue is alive too.
        Ok(_) => Err(PipeError::InUse { path: file.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(PipeError::InUse { path: file.to_owned() })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(file)
            .map_err(|error| PipeError::io("could not remove the socket left behind at", file, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(PipeError::io("could not check for a listener on", file, error)),
    }
}

/// The directory of a file.
pub(crate) fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => file,
    }
}

/// Creates a directory that only this user can access, if it does not exist.
pub(crate) fn make_directory(directory: &Path) -> Result<(), PipeError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(PipeError::io("could not make the directory", directory, error)),
    }
}

/// Refuses a directory that other users can read or change.
pub(crate) fn check_owner(directory: &Path) -> Result<(), PipeError> {
    let refused = |why: String| PipeError::Directory { directory: directory.to_owned(), why };
    let found = directory
        .symlink_metadata()
        .map_err(|error| PipeError::io("could not look at the directory", directory, error))?;
    let (ours, mode) = (geteuid().as_raw(), found.mode() & 0o777);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_directory_lies_in_the_current_one() {
        assert_eq!(directory_of(Path::new("agent")), Path::new("."));
        assert_eq!(directory_of(Path::new("run/agent")), Path::new("run"));
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        // The root directory belongs to root and is open to all. It is refused for one of the two reasons.
        let error = check_owner(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("mode 0") || error.contains("belongs to user id 0"), "{error}");
    }
}
