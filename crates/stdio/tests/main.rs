//! The tests of pipes: those of children and of this process.
//!
//! This file checks the transport against the contract: over pipes, which use the reactor, and over sockets, which use
//! threads.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod child;

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

/// This process's own stdin and stdout: the test starts itself again as the server.
mod this_process {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use rescind_core::{CloseReason, Link, Transport, TransportEvent};
    use rescind_testkit::support::frames;

    const SERVES: &str = "RESCIND_TEST_SERVES";

    async fn echo(mut link: Link) {
        while let Some(Ok(event)) = poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await {
            let TransportEvent::Message(inbound) = event else { break };
            println!("a stray line");
            frames::send(&mut link, inbound.body).await.unwrap();
        }
        poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
    }

    /// The server that the test below starts. Without the variable it does nothing.
    #[test]
    fn serves_when_it_is_started_to() {
        if std::env::var_os(SERVES).is_none() {
            return;
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            echo(Box::new(rescind_stdio::this_process()).open().await.unwrap()).await;
            let again = Box::new(rescind_stdio::this_process()).open().await;
            assert!(again.is_err(), "there is only one stdin");
        });
        eprintln!("served");
        std::process::exit(0);
    }

    fn serve(input: Stdio, output: Stdio) -> std::process::Child {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "this_process::serves_when_it_is_started_to",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(SERVES, "1")
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn ends_well(mut child: std::process::Child) {
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(child.wait().unwrap().success(), "{stderr}");
        assert!(stderr.contains("a stray line") && stderr.contains("served"), "{stderr}");
    }

    #[test]
    fn pipes_carry_the_frames_and_stray_lines_land_on_stderr() {
        let mut child = serve(Stdio::piped(), Stdio::piped());
        child.stdin.take().unwrap().write_all(b"{\"id\":1}\n{\"id\":2}\n").unwrap();
        let mut stdout = String::new();
        child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        assert!(stdout.ends_with("{\"id\":1}\n{\"id\":2}\n"), "{stdout}");
        assert!(!stdout.contains("stray"), "{stdout}");
        ends_well(child);
    }

    #[test]
    fn files_carry_the_frames_too() {
        let folder = std::env::temp_dir().join(format!("rescind-stdio-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (input, output) = (folder.join("in"), folder.join("out"));
        std::fs::write(&input, "{\"id\":1}\n").unwrap();
        let opened = (std::fs::File::open(&input).unwrap(), std::fs::File::create(&output).unwrap());
        ends_well(serve(opened.0.into(), opened.1.into()));
        let written = std::fs::read_to_string(&output).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(written.ends_with("{\"id\":1}\n"), "{written}");
    }

    #[test]
    fn input_that_ended_before_the_open_is_reported_as_ended() {
        let mut child = serve(Stdio::piped(), Stdio::piped());
        drop(child.stdin.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(child.wait().unwrap().success() && stderr.contains("served"), "{stderr}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_flags_of_a_shared_pipe_are_unchanged() {
        // Closed in the child, so that its input ends with our end.
        let (input, far) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut far = std::fs::File::from(far);
        let shared = input.try_clone().unwrap();
        let mut child = serve(input.into(), Stdio::piped());
        far.write_all(b"{}\n").unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"{}\n") {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        let flags = rustix::fs::fcntl_getfl(&shared).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "it serves, and our end still blocks");
        drop((far, stdout));
        ends_well(child);
    }
}
