use std::io;
use std::path::PathBuf;

use rescind_core::{TransportError, TransportErrorKind};

/// Why a pipe could not be made or reached. It is the source of the transport's [`TransportError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// The text is not an address of a pipe.
    #[error("`{}` does not name a pipe: {why}", .text.escape_debug())]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another process listens on the path.
    #[error("{} is in use: another process listens there; end it or choose another path", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The file at the path is not a socket. It was not changed.
    #[error("{} exists and is not a socket; remove it or choose another path", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The directory is not a directory of this user alone.
    #[error(
        "the directory {} {why}; a pipe must lie in a directory that is yours and has mode 0700",
        .directory.display()
    )]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The peer runs as another user.
    #[error("the peer runs as user id {theirs} and this process as {ours}; only the same user may connect")]
    ForeignPeer {
        /// The effective user id of this process.
        ours: u32,
        /// The user id of the peer.
        theirs: u32,
    },
    /// The system refused an operation.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl PipeError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        Self::Io { what, path: path.into(), source: error.into() }
    }
}

impl From<PipeError> for TransportError {
    fn from(error: PipeError) -> Self {
        Self::new(TransportErrorKind::Open, error)
    }
}
