use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::unix::pipe;

/// The read end of an anonymous pipe, opened again. A named pipe is left to a thread: opened again after its writers
/// are gone, it would never report its end to a reactor.
pub(super) fn reader(input: &OwnedFd) -> Option<pipe::Receiver> {
    let path = path(input)?;
    let target = std::fs::read_link(&path).ok()?;
    if !target.to_string_lossy().starts_with("pipe:") {
        return None;
    }
    pipe::Receiver::from_owned_fd(open(&path, OFlags::RDONLY)?).ok()
}

/// The write end of a pipe, opened again. `None`: it is not a pipe, or its reader is gone.
pub(super) fn writer(output: &OwnedFd) -> Option<pipe::Sender> {
    pipe::Sender::from_owned_fd(open(&path(output)?, OFlags::WRONLY)?).ok()
}

fn path(descriptor: &OwnedFd) -> Option<String> {
    let mode = rustix::fs::fstat(descriptor).ok()?.st_mode;
    FileType::from_raw_mode(mode).is_fifo().then(|| format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

fn open(path: &str, access: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
}
