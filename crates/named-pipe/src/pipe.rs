//! What both ends of a pipe share: its address, its settings and its errors.

use std::fmt;
use std::io;
use std::path::{MAIN_SEPARATOR, PathBuf, is_separator};
use std::str::FromStr;

use rescind_core::{ByteStream, Framing, Link, PeerInfo, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};

/// The name of the transport.
pub(crate) const NAME: &str = "named-pipe";

/// The address of a pipe: a path, or a name.
///
/// A name is a file in the directory `rescind` of the user's runtime directory (`XDG_RUNTIME_DIR`). Without a runtime
/// directory it is a file in the directory `rescind-UID` of the directory for temporary files. A listener creates the
/// directory. On Windows a name is `\\.\pipe\NAME`, and a path must begin with `\\.\pipe\`.
///
/// ```
/// # use rescind_named_pipe::PipeAddress;
/// let named: PipeAddress = "my-agent".parse()?;
/// let placed: PipeAddress = "./run/my-agent.sock".parse()?;
/// assert_eq!(named, PipeAddress::name("my-agent")?);
/// assert_eq!(placed, PipeAddress::path("./run/my-agent.sock"));
/// # Ok::<(), rescind_named_pipe::PipeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipeAddress(Repr);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    Path(PathBuf),
    Name(String),
}

impl PipeAddress {
    /// The pipe with this path.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self(Repr::Path(path.into()))
    }

    /// The pipe with this name.
    ///
    /// # Errors
    /// [`PipeError::Address`] if it is empty, `.` or `..`, or contains a separator or a control character.
    pub fn name(name: &str) -> Result<Self, PipeError> {
        let why = match name {
            "" | "." | ".." => "a name is a file's, such as `my-agent`",
            _ if name.contains(is_separator) => "a name holds no separator; what holds one is a path",
            _ if name.contains(char::is_control) => "a name holds no control character",
            _ => return Ok(Self(Repr::Name(name.to_owned()))),
        };
        Err(PipeError::Address { text: name.to_owned(), why })
    }

    /// The file of the pipe. Nothing is created.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        match &self.0 {
            Repr::Path(path) => path.clone(),
            Repr::Name(name) => directory_of_names().join(name),
        }
    }

    /// Whether a listener creates its directory.
    #[cfg(unix)]
    pub(crate) const fn is_name(&self) -> bool {
        matches!(self.0, Repr::Name(_))
    }
}

impl FromStr for PipeAddress {
    type Err = PipeError;

    /// A text with a separator is a path. Every other text is a name.
    fn from_str(text: &str) -> Result<Self, PipeError> {
        if text.contains('\0') {
            return Err(PipeError::Address { text: text.to_owned(), why: "a path holds no NUL" });
        }
        if text.ends_with(is_separator) {
            return Err(PipeError::Address { text: text.to_owned(), why: "it is a directory's path" });
        }
        if text.contains(is_separator) { Ok(Self::path(text)) } else { Self::name(text) }
    }
}

/// As it is parsed.
impl fmt::Display for PipeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            // Without a separator it would be parsed as a name.
            Repr::Path(path) if !path.to_string_lossy().contains(is_separator) => {
                write!(f, ".{MAIN_SEPARATOR}{}", path.display())
            }
            Repr::Path(path) => write!(f, "{}", path.display()),
            Repr::Name(name) => f.write_str(name),
        }
    }
}

/// The directory of the pipes that have only a name.
#[cfg(unix)]
fn directory_of_names() -> PathBuf {
    place_of_names(
        std::env::var_os("XDG_RUNTIME_DIR"),
        &std::env::temp_dir(),
        rustix::process::geteuid().as_raw(),
    )
}

#[cfg(unix)]
fn place_of_names(runtime: Option<std::ffi::OsString>, temporary: &std::path::Path, user: u32) -> PathBuf {
    match runtime.map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() && runtime.is_dir() => runtime.join("rescind"),
        // Others can write there, so the name contains the id of the user.
        _ => temporary.join(format!("rescind-{user}")),
    }
}

#[cfg(windows)]
fn directory_of_names() -> PathBuf {
    PathBuf::from(r"\\.\pipe")
}

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

/// The settings that both sides of a pipe have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) framing: Option<Framing>,
    pub(crate) max_frame: Option<usize>,
}

impl Settings {
    pub(crate) fn link<R, W>(self, reader: R, writer: W, peer: Option<String>) -> Link
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let peer = peer.unwrap_or_else(|| "a process of this user".to_owned());
        let stream = ByteStream::new(reader, writer).name(NAME).meta(PeerInfo::of_peer(&peer));
        let stream = match self.framing {
            Some(framing) => stream.framing(framing),
            None => stream,
        };
        match self.max_frame {
            Some(bytes) => stream.max_frame(bytes).into_link(),
            None => stream.into_link(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_neither_a_name_nor_a_path_is_refused_with_a_reason() {
        for (text, word) in [
            ("", "a file's"),
            ("..", "a file's"),
            ("a\tb", "control"),
            ("\0abstract", "NUL"),
            ("some/where/", "directory"),
        ] {
            let error = text.parse::<PipeAddress>().unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains('\0'), "{error}");
        }
    }

    #[test]
    fn a_displayed_address_parses_to_the_same_address() {
        for text in ["agent", "./agent", "/run/agent.sock", "../agent"] {
            let address: PipeAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(PipeAddress::path("agent").to_string().parse::<PipeAddress>().unwrap().file(), {
            PathBuf::from("./agent")
        });
    }

    #[cfg(unix)]
    #[test]
    fn a_name_lies_in_a_directory_of_this_user() {
        let file = PipeAddress::name("agent").unwrap().file();
        assert_eq!(file.file_name().unwrap(), "agent");
        assert!(file.parent().unwrap().file_name().unwrap().to_string_lossy().starts_with("rescind"));
    }

    #[cfg(unix)]
    #[test]
    fn names_lie_in_the_runtime_directory_where_there_is_one() {
        let there = std::env::temp_dir();
        let place = |runtime: Option<&str>| place_of_names(runtime.map(std::ffi::OsString::from), &there, 7);
        assert_eq!(place(there.to_str()), there.join("rescind"));
        for none in [None, Some(""), Some("relative"), Some("/no/such/directory")] {
            assert_eq!(place(none), there.join("rescind-7"), "{none:?}");
        }
    }
}
