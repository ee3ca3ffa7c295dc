//! A separate address for each test, ways to open a connection, and frames that pass.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::{Link, Listener as _, Transport as _, TransportError, TransportEvent};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind_testkit::support::frames;

/// The stream of a client that is not this library's.
#[cfg(unix)]
pub(crate) type Stream = tokio::net::UnixStream;
#[cfg(windows)]
pub(crate) type Stream = tokio::net::windows::named_pipe::NamedPipeClient;

/// A number that no other test has.
fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A private directory that is deleted on drop.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct TempPath(PathBuf);

#[cfg(unix)]
impl TempPath {
    pub(crate) fn new() -> Self {
        Self::with_mode(0o700)
    }

    pub(crate) fn with_mode(mode: u32) -> Self {
        use std::fs;
        use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
        let directory = std::env::temp_dir().join(format!("rescind-pipe-{}-{}", std::process::id(), next()));
        fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        Self(directory)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("agent.sock")
    }
}

#[cfg(unix)]
impl AsRef<std::path::Path> for TempPath {
    fn as_ref(&self) -> &std::path::Path {
        &self.0
    }
}

#[cfg(unix)]
impl Drop for TempPath {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A pipe's path. Windows removes the pipe with its last handle.
#[cfg(windows)]
#[derive(Debug)]
pub(crate) struct TempPath(PathBuf);

#[cfg(windows)]
impl TempPath {
    pub(crate) fn new() -> Self {
        Self(PathBuf::from(format!(r"\\.\pipe\rescind-pipe-{}-{}\agent.sock", std::process::id(), next())))
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.clone()
    }
}

impl TempPath {
    pub(crate) fn address(&self) -> PipeAddress {
        PipeAddress::path(self.file())
    }

    /// Connects without this library.
    #[cfg(unix)]
    pub(crate) async fn connect(&self) -> Stream {
        Stream::connect(self.file()).await.unwrap()
    }

    /// Connects without this library.
    #[cfg(windows)]
    #[expect(clippy::unused_async, reason = "on Unix it waits")]
    pub(crate) async fn connect(&self) -> Stream {
        tokio::net::windows::named_pipe::ClientOptions::new().open(self.file()).unwrap()
    }
}

pub(crate) async fn open(transport: NamedPipeTransport) -> Result<Link, TransportError> {
    Box::new(transport).open().await
}

pub(crate) async fn accept(listener: &mut NamedPipeListener) -> Result<Link, TransportError> {
    listener.accept().await.unwrap()
}

/// The stream of another program's client, and our end.
pub(crate) async fn pair() -> (Stream, Link) {
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let far = place.connect().await;
    (far, accept(&mut listener).await.unwrap())
}

/// Checks that a frame sent at one end arrives at the other.
pub(crate) async fn passes(from: &mut Link, to: &mut Link, text: &str) {
    frames::send(from, text.to_owned()).await.unwrap();
    assert_eq!(frames::body(to).await, text);
}

/// Between fork and exec a new process has all descriptors of this one: a connection that is dropped in that moment looks half closed,
/// and a program that is being copied is "Text file busy". A test that starts a process takes this lock to write, one that expects the
/// end of a connection takes it to read.
pub(crate) static STARTS: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

pub(crate) async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    let event = poll_fn(|cx| link.rx.as_mut().poll_event(cx));
    tokio::time::timeout(Duration::from_secs(30), event).await.unwrap()
}

/// Whether the system gives a name to one listener alone. Wine 8 gives it to each that asks for the first instance.
pub(crate) fn names_are_exclusive(test: &str) -> bool {
    #[cfg(windows)]
    {
        use tokio::net::windows::named_pipe::ServerOptions;
        let place = TempPath::new();
        let first = || ServerOptions::new().first_pipe_instance(true).create(place.file());
        let held = first().unwrap();
        if first().is_ok() {
            skipped(test, "this system gives the first instance of a pipe twice");
            return false;
        }
        drop(held);
    }
    #[cfg(unix)]
    let _ = test;
    true
}

/// Not with a macro, whose output the test harness hides when a test passes.
pub(crate) fn skipped(test: &str, why: &str) {
    use std::io::Write as _;
    std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes()).unwrap();
}
