//! Named pipes as a transport: Unix domain sockets, and the named pipes of Windows.
//!
//! ```
//! # #[cfg(unix)]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rescind_core::{Listener, Transport};
//! use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
//!
//! let address = PipeAddress::name(&format!("rescind-doc-{}", std::process::id()))?;
//! let mut listener = NamedPipeListener::bind(&address).await?;
//! let near = Box::new(NamedPipeTransport::new(address)).open().await?;
//! let far = listener.accept().await.ok_or("the listener ended")??;
//! assert!(near.traits.ordered && far.traits.ordered);
//! # Ok(())
//! # }
//! # #[cfg(not(unix))]
//! # fn main() {}
//! ```
//!
//! # Who may connect
//! On Unix a pipe is a socket file with mode 0600. Its directory must belong to the user and have mode 0700. Each side
//! refuses a peer of another user id ([`PipeError::ForeignPeer`]). The abstract namespace, where any process may
//! connect, is never used. On Windows the security descriptor of the pipe admits only its owner and SYSTEM, and no one
//! over the network.
//!
//! # A file that is left behind
//! A listener holds a lock file beside its socket (`NAME.lock`) until it is dropped. Then it removes both files, but the
//! socket only if it is the one that it made. If a process ended and left a socket, the next listener replaces it. It does
//! so only if it gets the lock and if a connection to the socket is refused. A second listener cannot replace one that is
//! in use: it gets [`PipeError::InUse`].
//!
//! # How connections end
//! A peer that closed its output is still answered. A peer that disconnected is noticed at once, and its requests are
//! cancelled.
//!
//! On Windows the output cannot be closed alone: closing drops the whole stream, later frames of the peer are lost, and a
//! peer whose output has ended is gone. The tests run on Linux, and under Wine.

#[cfg(unix)]
mod lock_file;
mod pipe;
#[cfg(any(windows, test))]
mod shared_stream;
mod transport;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use self::unix as system;
#[cfg(windows)]
use self::windows as system;

pub use pipe::{PipeAddress, PipeError};
pub use transport::{NamedPipeListener, NamedPipeTransport};
