//! The tests of named pipes.
//!
//! This file checks the transport against the contract, with both framings.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod common;
mod connections;
#[cfg(unix)]
mod other_users;
#[cfg(unix)]
mod ownership;

use std::io;

use rescind_core::{BoxFuture, Framing, Link};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport};
use rescind_testkit::conformance::{Harness, RawBytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::task::JoinHandle;

use crate::common::{Stream, TempPath, accept, open};

const MAX_FRAME: usize = 400 * 1024;

#[derive(Debug)]
struct Pipe(Framing);

impl Pipe {
    async fn listen(&self, place: &TempPath) -> NamedPipeListener {
        NamedPipeListener::bind(&place.address()).await.unwrap().framing(self.0).max_frame(MAX_FRAME)
    }
}

impl Harness for Pipe {
    async fn connect(&self) -> (Link, Link) {
        let place = TempPath::new();
        let mut listener = self.listen(&place).await;
        let client = NamedPipeTransport::new(place.address()).framing(self.0).max_frame(MAX_FRAME);
        let near = open(client).await.unwrap();
        (near, accept(&mut listener).await.unwrap())
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let place = TempPath::new();
        let mut listener = self.listen(&place).await;
        let far = place.connect().await;
        let link = accept(&mut listener).await.unwrap();
        let (mut answers, output) = tokio::io::split(far);
        let drain =
            tokio::spawn(
                async move { while answers.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} },
            );
        Some((link, Box::new(Raw { framing: self.0, output: Some(output), drain: Some(drain) })))
    }
}

struct Raw {
    framing: Framing,
    output: Option<WriteHalf<Stream>>,
    drain: Option<JoinHandle<()>>,
}

impl RawBytes for Raw {
    fn frame(&self, body: &[u8]) -> Vec<u8> {
        let mut out = bytes::BytesMut::new();
        self.framing.encode(body, &mut out);
        out.to_vec()
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.output.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(bytes).await })
    }

    fn end(&mut self) -> BoxFuture<'_, io::Result<()>> {
        let (output, drain) = (self.output.take(), self.drain.take());
        Box::pin(async move {
            output.ok_or(io::ErrorKind::BrokenPipe)?.shutdown().await?;
            // A pipe of Windows ends when it is closed, and its other half is there.
            if let (Some(drain), true) = (drain, cfg!(windows)) {
                drain.abort();
                let _aborted = drain.await;
            }
            Ok(())
        })
    }
}

macro_rules! both_framings {
    ($($without:tt)*) => {
        mod by_line {
            rescind_testkit::conformance!(super::Pipe(rescind_core::Framing::Newline), $($without)*);
        }

        mod by_length {
            rescind_testkit::conformance!(super::Pipe(rescind_core::Framing::ContentLength), $($without)*);
        }
    };
}

#[cfg(unix)]
both_framings!(without {});
#[cfg(windows)]
both_framings!(without { a_closed_side_still_reads: "a pipe of Windows closes in both directions at once" });
