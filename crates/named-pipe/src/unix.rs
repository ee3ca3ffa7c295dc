//! Unix domain sockets.
//!
//! The reader of a connection distinguishes a peer that has disconnected from a peer that only ended its output. Both look
//! the same to it. After the end of input the socket is watched through a second descriptor, which has a readiness of its
//! own. The check for the hang-up consumes the event "writable", which the writer must not lose.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use interprocess::local_socket::ListenerOptions;
use interprocess::local_socket::ToFsName as _;
use interprocess::local_socket::tokio::{Listener, Stream};
use interprocess::os::unix::local_socket::FilesystemUdSocket;
use rescind_core::{Link, Receiver, TransportError, TransportEvent};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{Instant, sleep};

pub(crate) use crate::lock_file::SocketLock;
use crate::lock_file::{check_owner, directory_of, make_directory};
use crate::pipe::{PipeAddress, PipeError, Settings};

/// How long a connection to a listener with a full queue is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A socket at this address, and the right to its path.
pub(crate) async fn listen(address: &PipeAddress) -> Result<(Listener, SocketLock), PipeError> {
    let file = address.file();
    let directory = directory_of(&file);
    if address.is_name() {
        make_directory(directory)?;
    }
    check_owner(directory)?;
    let mut claim = SocketLock::take(&file).await?;
    let socket = bind(&file).map_err(|error| PipeError::io("could not listen on", &file, error))?;
    claim.bound().map_err(|error| PipeError::io("could not take over", &file, error))?;
    Ok((socket, claim))
}

fn bind(file: &Path) -> io::Result<Listener> {
    let name = file.to_fs_name::<FilesystemUdSocket>()?;
    // The claim removes the file, after it has checked that the file is still its own.
    ListenerOptions::new().name(name).reclaim_name(false).create_tokio()
}

pub(crate) fn accepted(stream: Stream, settings: Settings) -> Result<Link, TransportError> {
    let Stream::UdSocket(stream) = stream;
    link(UnixStream::from(stream), settings)
}

/// Uses tokio directly: interprocess 2.4.7 treats a listener with a full queue as connected.
pub(crate) async fn connect(file: &Path, settings: Settings) -> Result<Link, TransportError> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(file).await {
            Ok(stream) => return link(stream, settings),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < CONNECT_TIMEOUT => {
                sleep(RETRY_INTERVAL).await;
            }
            Err(error) => return Err(PipeError::io("could not connect to", file, error).into()),
        }
    }
}

fn link(stream: UnixStream, settings: Settings) -> Result<Link, TransportError> {
    let peer = stream.peer_cred()?;
    check_same_user(peer.uid())?;
    let name = peer.pid().map(|pid| format!("process {pid}"));
    let (reader, writer) = stream.into_split();
    let end = InputEnd::default();
    let link = settings.link(Input::new(reader, end.clone()), writer, name);
    Ok(watched(link, end))
}

/// The peer must run as the user of this process. root counts as another user.
fn check_same_user(theirs: u32) -> Result<(), PipeError> {
    compare(rustix::process::geteuid().as_raw(), theirs)
}

const fn compare(ours: u32, theirs: u32) -> Result<(), PipeError> {
    if ours == theirs { Ok(()) } else { Err(PipeError::ForeignPeer { ours, theirs }) }
}

/// What is known about the end of a connection's input.
#[derive(Clone, Default)]
struct InputEnd(Arc<OnceLock<UnixStream>>);

impl InputEnd {
    fn reached(&self, stream: &OwnedReadHalf) {
        let second = stream.as_ref().as_fd().try_clone_to_owned().map(std::os::unix::net::UnixStream::from);
        // Without a free descriptor the connection counts as half closed, which the driver's own limits bound.
        if let Ok(second) = second.and_then(UnixStream::from_std) {
            let _first = self.0.set(second);
        }
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(second) = self.0.get() else { return Poll::Pending };
        while !is_gone(second) {
            if ready!(second.poll_write_ready(cx)).is_err() {
                break;
            }
            let taken: io::Result<()> = second.try_io(Interest::WRITABLE, || {
                if is_gone(second) { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
            if taken.is_ok() {
                break;
            }
        }
        Poll::Ready(())
    }
}

/// Whether both directions are closed.
fn is_gone(stream: &UnixStream) -> bool {
    let mut look = [PollFd::new(stream, PollFlags::empty())];
    let seen = rustix::event::poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    seen.is_ok() && look.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

/// The reading half, which reports the end of its input.
struct Input {
    half: OwnedReadHalf,
    end: InputEnd,
}

impl Input {
    fn new(half: OwnedReadHalf, end: InputEnd) -> Self {
        Self { half, end }
    }
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        ready!(Pin::new(&mut self.half).poll_read(cx, buffer))?;
        if room > 0 && buffer.remaining() == room {
            self.end.reached(&self.half);
        }
        Poll::Ready(Ok(()))
    }
}

/// The same link, which closes as soon as its peer has disconnected.
fn watched(mut link: Link, end: InputEnd) -> Link {
    link.rx = Box::pin(Watched { frames: link.rx, end, state: WatchedState::Open });
    link
}

struct Watched {
    frames: Pin<Box<dyn Receiver>>,
    end: InputEnd,
    state: WatchedState,
}

#[derive(Clone, Copy)]
enum WatchedState {
    Open,
    /// Input has ended. Output is open, as far as is known.
    HalfClosed,
    Gone,
}

impl Receiver for Watched {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        loop {
            match self.state {
                WatchedState::Open => {
                    let event = ready!(self.frames.as_mut().poll_event(cx));
                    if !matches!(event, Some(Ok(TransportEvent::HalfClosed))) {
                        return Poll::Ready(event);
                    }
                    if self.end.poll_gone(cx).is_ready() {
                        self.state = WatchedState::Gone;
                    } else {
                        self.state = WatchedState::HalfClosed;
                        return Poll::Ready(event);
                    }
                }
                WatchedState::HalfClosed if self.end.poll_gone(cx).is_ready() => {
                    self.state = WatchedState::Gone;
                }
                WatchedState::HalfClosed => return self.frames.as_mut().poll_event(cx),
                WatchedState::Gone => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_another_user_is_refused_and_both_are_named() {
        assert!(compare(1000, 1000).is_ok());
        for (ours, theirs) in [(1000, 1001), (1000, 0), (0, 1000)] {
            let error = compare(ours, theirs).unwrap_err();
            assert!(matches!(error, PipeError::ForeignPeer { .. }));
            let text = error.to_string();
            assert!(text.contains(&ours.to_string()) && text.contains(&theirs.to_string()), "{text}");
        }
        let current_uid = rustix::process::geteuid().as_raw();
        assert!(check_same_user(current_uid).is_ok());
        assert!(check_same_user(current_uid.wrapping_add(1)).is_err());
    }
}
