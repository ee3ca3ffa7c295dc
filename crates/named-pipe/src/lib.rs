//! Named pipes as a wire: Unix domain sockets, and the named pipes of Windows.
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
//! On Unix a pipe is a socket file. It must lie in a directory that belongs to us and has mode 0700; the file has mode
//! 0600; and either side refuses a peer of another user id ([`PipeError::ForeignPeer`]). The abstract namespace, where
//! anyone may connect, is never used. On Windows the pipe's security descriptor admits its owner and SYSTEM and nobody
//! over the network.
//!
//! # A file that is left behind
//! A listener holds a lock file beside its socket (`NAME.lock`) for as long as it lives, and removes both when it is
//! dropped, the socket only if it is still its own. A socket left behind by a process that died is taken over by the
//! next listener once it has the lock and a connection to the socket was refused. A listener that lives is never
//! displaced: the second one is told [`PipeError::InUse`].
//!
//! # How connections end
//! A peer that ended its output is still answered; one that is gone, which the socket tells, is gone at once, and what
//! it had asked for is cancelled.
//!
//! # What was run where
//! The tests ran on Linux. What is there for Windows was compiled for `x86_64-pc-windows-gnu` and not run. There,
//! output cannot be ended alone, as shutting a pipe down does nothing: closing drops the whole stream, and what the
//! peer still sends is lost.

mod address;
mod error;
mod listener;
mod transport;
#[cfg(unix)]
mod unix;
#[cfg(any(windows, test))]
mod whole;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use self::unix as system;
#[cfg(windows)]
use self::windows as system;

pub use address::PipeAddress;
pub use error::PipeError;
pub use listener::NamedPipeListener;
pub use transport::NamedPipeTransport;
