//! The right to a path.
//!
//! 1. A process that listens at a path holds the lock of the file beside it, from before it binds the socket until
//!    after it removes it. So only one process at a time checks whether a socket is stale, and no process removes the
//!    socket of another.
//! 2. A lock is valid only while its file is still the one at its path: the previous holder may have removed the file.
//! 3. A socket is removed only while it is the file that was bound, or after a connection to it was refused.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::Errno;
use tokio::net::UnixStream;

use crate::PipeError;

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
