use std::io;
use std::path::PathBuf;

use rescind_core::{TransportError, TransportErrorKind};

/// Why a pipe could not be made or reached. It is the source of the [`TransportError`] the wire gives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// The text names no pipe.
    #[error("`{}` names no pipe: {why}", .text.escape_debug())]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Somebody listens there.
    #[error("{} is in use: another process listens there; end it or choose another path", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// What is there is no socket, and was left alone.
    #[error("{} is there and is no socket; remove it or choose another path", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The directory is not ours alone.
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
    /// The peer runs as somebody else.
    #[error("the peer runs as user id {theirs} and this process as {ours}; only the same user may connect")]
    ForeignPeer {
        /// Our effective user id.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The system refused.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
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
