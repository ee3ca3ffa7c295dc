//! Distinguishes a peer that has disconnected from a peer that only ended its output. Both look the same to a reader.
//!
//! After the end of input the socket is watched through a second descriptor, which has a readiness of its own. The
//! check for the hang-up consumes the event "writable", which the writer must not lose.

use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use rescind_core::{Link, Receiver, TransportError, TransportEvent};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// What is known about the end of a connection's input.
#[derive(Clone, Default)]
pub(super) struct End(Arc<OnceLock<UnixStream>>);

impl End {
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
pub(super) struct Input {
    half: OwnedReadHalf,
    end: End,
}

impl Input {
    pub(super) fn new(half: OwnedReadHalf, end: End) -> Self {
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
pub(super) fn watched(mut link: Link, end: End) -> Link {
    link.rx = Box::pin(Watched { frames: link.rx, end, state: State::Open });
    link
}

struct Watched {
    frames: Pin<Box<dyn Receiver>>,
    end: End,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
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
                State::Open => {
                    let event = ready!(self.frames.as_mut().poll_event(cx));
                    if !matches!(event, Some(Ok(TransportEvent::HalfClosed))) {
                        return Poll::Ready(event);
                    }
                    if self.end.poll_gone(cx).is_ready() {
                        self.state = State::Gone;
                    } else {
                        self.state = State::HalfClosed;
                        return Poll::Ready(event);
                    }
                }
                State::HalfClosed if self.end.poll_gone(cx).is_ready() => self.state = State::Gone,
                State::HalfClosed => return self.frames.as_mut().poll_event(cx),
                State::Gone => return Poll::Ready(None),
            }
        }
    }
}
