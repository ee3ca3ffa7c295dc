use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Reads and waits until there is input or [`Stop`] is dropped, whether the descriptor is in blocking mode or not.
pub(super) struct BlockingReader {
    input: OwnedFd,
    stop: UnixStream,
}

/// Dropping it ends the reading.
pub(super) struct Stop {
    _end: UnixStream,
}

impl BlockingReader {
    pub(super) fn new(input: OwnedFd) -> io::Result<(Self, Stop)> {
        let (stop, end) = UnixStream::pair()?;
        Ok((Self { input, stop }, Stop { _end: end }))
    }
}

impl Read for BlockingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut watched = [wait_for(&self.stop, PollFlags::IN), wait_for(&self.input, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [stop, _] = watched;
            if !stop.revents().is_empty() {
                return Ok(0);
            }
            match rustix::io::read(&self.input, &mut *out) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return Ok(done?),
            }
        }
    }
}

/// Writes and waits, whether the descriptor is in blocking mode or not.
pub(super) struct BlockingWriter(OwnedFd);

impl BlockingWriter {
    pub(super) fn new(output: OwnedFd) -> Self {
        Self(output)
    }
}

impl Write for BlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.0, bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut watched = [wait_for(&self.0, PollFlags::OUT)];
                    match poll(&mut watched, None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wait_for(descriptor: &impl AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(descriptor.as_fd(), flags)
}
