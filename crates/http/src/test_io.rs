//! Byte streams that replace sockets, for tests with their own network (feature `verify`).

#[cfg(feature = "verify")]
use std::fmt;
use std::io;
#[cfg(feature = "verify")]
use std::sync::Arc;

use rescind_net::PeerAddress;
#[cfg(feature = "verify")]
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
#[cfg(feature = "verify")]
use tokio::sync::mpsc;

/// A stream that the test supplies.
#[cfg(feature = "verify")]
pub trait GivenStream: AsyncRead + AsyncWrite + Send + Unpin {}

#[cfg(feature = "verify")]
impl<S: AsyncRead + AsyncWrite + Send + Unpin> GivenStream for S {}

/// Creates the streams of a client.
#[cfg(feature = "verify")]
#[derive(Clone)]
pub(crate) struct Dial(pub(crate) Arc<dyn Fn() -> io::Result<Box<dyn GivenStream>> + Send + Sync>);

#[cfg(feature = "verify")]
impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

#[cfg(feature = "verify")]
thread_local! {
    /// The number of ids made on this thread so far, if they must be the same in each run.
    static IDS: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// From now on the ids made on this thread are not secret: they are counted, and the same in each run. The size of an
/// id in HTTP/2 depends on its digits, so a random id would move all bytes after it.
#[cfg(feature = "verify")]
pub fn count_ids() {
    IDS.set(Some(0));
}

/// The next id, if ids are counted.
#[cfg(feature = "verify")]
pub(crate) fn counted_id() -> Option<Arc<str>> {
    let next = IDS.get()? + 1;
    IDS.set(Some(next));
    Some(format!("{next:032x}").into())
}

/// The source of a server's streams.
pub(crate) enum Source {
    Socket(TcpListener),
    #[cfg(feature = "verify")]
    Given(mpsc::UnboundedReceiver<Box<dyn GivenStream>>),
}

/// A stream that a server accepted.
pub(crate) enum Accepted {
    Socket(TcpStream),
    #[cfg(feature = "verify")]
    Given(Box<dyn GivenStream>),
}

impl Accepted {
    /// The address of the client.
    pub(crate) fn peer(&self) -> Option<PeerAddress> {
        match self {
            Self::Socket(stream) => stream.peer_addr().ok().map(|peer| PeerAddress(peer.ip())),
            #[cfg(feature = "verify")]
            Self::Given(_) => None,
        }
    }
}

impl Source {
    /// Whether the streams are supplied by a test. Then the sent bytes must not depend on the time of day.
    pub(crate) const fn is_given(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            #[cfg(feature = "verify")]
            Self::Given(_) => true,
        }
    }

    /// The next stream.
    ///
    /// # Cancel safety
    /// Dropping the future loses no stream.
    pub(crate) async fn accept(&mut self) -> io::Result<Accepted> {
        match self {
            Self::Socket(socket) => socket.accept().await.map(|(stream, _)| Accepted::Socket(stream)),
            #[cfg(feature = "verify")]
            Self::Given(given) => match given.recv().await {
                Some(stream) => Ok(Accepted::Given(stream)),
                None => std::future::pending().await,
            },
        }
    }
}
