//! A separate directory for each test, and two ways to open a connection.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::{Link, Listener as _, Transport as _, TransportError};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};

/// A private directory that is deleted on drop.
#[derive(Debug)]
pub(crate) struct TempPath(PathBuf);

impl TempPath {
    pub(crate) fn new() -> Self {
        Self::with_mode(0o700)
    }

    pub(crate) fn with_mode(mode: u32) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("rescind-pipe-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        Self(directory)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    pub(crate) fn address(&self) -> PipeAddress {
        PipeAddress::path(self.file())
    }
}

impl AsRef<Path> for TempPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

pub(crate) async fn open(transport: NamedPipeTransport) -> Result<Link, TransportError> {
    Box::new(transport).open().await
}

pub(crate) async fn accept(listener: &mut NamedPipeListener) -> Result<Link, TransportError> {
    listener.accept().await.unwrap()
}
