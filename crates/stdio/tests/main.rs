//! The tests of pipes: those of children and of this process.
//!
//! This file checks the transport against the contract: over pipes, which use the reactor, and over sockets, which use
//! threads.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod child;
mod this_process;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rescind_core::{BoxFuture, Framing, Link, Transport};
use rescind_stdio::Descriptors;
use rescind_testkit::conformance::{Harness, RawBytes};

const MAX_FRAME: usize = 400 * 1024;

/// One direction through the operating system.
type Way = fn() -> (OwnedFd, OwnedFd);

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().unwrap()
}

fn socket() -> (OwnedFd, OwnedFd) {
    let (a, b) = UnixStream::pair().unwrap();
    a.shutdown(std::net::Shutdown::Write).unwrap();
    (a.into(), b.into())
}

#[derive(Debug)]
struct Descriptor(Framing, Way);

impl Descriptor {
    async fn open(&self, input: OwnedFd, output: OwnedFd) -> Link {
        let wire = Descriptors::new(input, output).framing(self.0).max_frame(MAX_FRAME);
        Box::new(wire).open().await.unwrap()
    }
}

impl Harness for Descriptor {
    async fn connect(&self) -> (Link, Link) {
        let (from_a, to_b) = self.1();
        let (from_b, to_a) = self.1();
        (self.open(from_a, to_a).await, self.open(from_b, to_b).await)
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let (input, far) = self.1();
        let (drain, output) = self.1();
        let link = self.open(input, output).await;
        Some((link, Box::new(Raw { framing: self.0, output: Some(far.into()), _drain: drain })))
    }
}

struct Raw {
    framing: Framing,
    output: Option<std::fs::File>,
    _drain: OwnedFd,
}

impl RawBytes for Raw {
    fn frame(&self, body: &[u8]) -> Vec<u8> {
        let mut out = bytes::BytesMut::new();
        self.framing.encode(body, &mut out);
        out.to_vec()
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        let bytes = bytes.to_vec();
        let output = self.output.as_ref().map(std::fs::File::try_clone);
        Box::pin(async move {
            let mut output = output.ok_or(io::ErrorKind::BrokenPipe)??;
            tokio::task::spawn_blocking(move || output.write_all(&bytes)).await?
        })
    }

    fn end(&mut self) -> BoxFuture<'_, io::Result<()>> {
        self.output = None;
        Box::pin(async { Ok(()) })
    }
}

mod pipes_by_line {
    rescind_testkit::conformance!(super::Descriptor(rescind_core::Framing::Newline, super::pipe));
}

mod pipes_by_length {
    rescind_testkit::conformance!(super::Descriptor(rescind_core::Framing::ContentLength, super::pipe));
}

mod sockets_by_line {
    rescind_testkit::conformance!(super::Descriptor(rescind_core::Framing::Newline, super::socket));
}
