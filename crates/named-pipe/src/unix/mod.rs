//! Unix domain sockets.

mod directory;
mod hangup;
mod lock_file;
mod peer;

use std::io;
use std::path::Path;
use std::time::Duration;

use interprocess::local_socket::ListenerOptions;
use interprocess::local_socket::ToFsName as _;
use interprocess::local_socket::tokio::{Listener, Stream};
use interprocess::os::unix::local_socket::FilesystemUdSocket;
use rescind_core::{Link, TransportError};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

pub(crate) use self::directory::directory_of_names;
pub(crate) use self::lock_file::SocketLock;
use crate::transport::Settings;
use crate::{PipeAddress, PipeError};

/// How long a connection to a listener with a full queue is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A socket at this address, and the right to its path.
pub(crate) async fn listen(address: &PipeAddress) -> Result<(Listener, SocketLock), PipeError> {
    let file = address.file();
    let directory = directory::of(&file);
    if address.is_name() {
        directory::make(directory)?;
    }
    directory::check_owner(directory)?;
    let mut claim = SocketLock::take(&file).await?;
    let socket = bind(&file).map_err(|error| PipeError::io("could not listen on", &file, error))?;
    claim.bound().map_err(|error| PipeError::io("could not take over", &file, error))?;
    Ok((socket, claim))
}

fn bind(file: &Path) -> io::Result<Listener> {
    let name = file.to_fs_name::<FilesystemUdSocket>()?;
    // The claim removes the file, after it has checked that the file is still its own.
    ListenerOptions::new().name(name).reclaim_name(false).create_tokio()
}

pub(crate) fn accepted(stream: Stream, settings: Settings) -> Result<Link, TransportError> {
    let Stream::UdSocket(stream) = stream;
    link(UnixStream::from(stream), settings)
}

/// Uses tokio directly: interprocess 2.4.7 treats a listener with a full queue as connected.
pub(crate) async fn connect(file: &Path, settings: Settings) -> Result<Link, TransportError> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(file).await {
            Ok(stream) => return link(stream, settings),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < CONNECT_TIMEOUT => {
                sleep(RETRY_INTERVAL).await;
            }
            Err(error) => return Err(PipeError::io("could not connect to", file, error).into()),
        }
    }
}

fn link(stream: UnixStream, settings: Settings) -> Result<Link, TransportError> {
    let peer = stream.peer_cred()?;
    peer::check_same_user(peer.uid())?;
    let name = peer.pid().map(|pid| format!("process {pid}"));
    let (reader, writer) = stream.into_split();
    let end = hangup::End::default();
    let link = settings.link(hangup::Input::new(reader, end.clone()), writer, name);
    Ok(hangup::watched(link, end))
}
