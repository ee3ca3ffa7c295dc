//! The far side of `rescind relay`: the client starts that command as its server, and it connects back to here.

use std::io;
use std::net::SocketAddr;

use rescind::transport::{Link, Transport as _};
use rescind::{ByteStream, Framing};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

/// Accepts the relays of one run.
pub(super) struct RelayListener {
    listener: TcpListener,
    address: SocketAddr,
    word: String,
    framing: Framing,
}

impl RelayListener {
    pub(super) async fn bind(framing: Framing) -> Result<Self, String> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(|error| format!("the system gave no random bits: {error}"))?;
        let word = format!("{:032x}", u128::from_ne_bytes(bits));
        let bound = async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            let address = listener.local_addr()?;
            Ok::<_, io::Error>((listener, address))
        };
        let (listener, address) =
            bound.await.map_err(|error| format!("no address of this machine could be used: {error}"))?;
        Ok(Self { listener, address, word, framing })
    }

    /// The command that the client starts as its server.
    pub(super) fn command(&self) -> Result<Vec<String>, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("the path of this program is unknown: {error}"))?
            .into_os_string()
            .into_string()
            .map_err(|_| "the path of this program is not UTF-8, and the client could not be given it")?;
        Ok(vec![program, "relay".to_owned(), self.address.to_string(), self.word.clone()])
    }

    /// Passes on each connection that begins with the word. Other programs may connect to this port too.
    pub(super) async fn serve(self, links: UnboundedSender<Link>) {
        let mut callers = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let Ok((stream, _)) = accepted else { return };
                    callers.spawn(heard(stream, self.word.len()));
                }
                Some(Ok(Some((stream, word)))) = callers.join_next() => {
                    if word != self.word.as_bytes() || stream.set_nodelay(true).is_err() {
                        continue;
                    }
                    let (from, to) = stream.into_split();
                    let opened = Box::new(ByteStream::new(from, to).framing(self.framing)).open().await;
                    if let Ok(link) = opened {
                        drop(links.send(link));
                    }
                }
            }
        }
    }
}

async fn heard(mut stream: TcpStream, length: usize) -> Option<(TcpStream, Vec<u8>)> {
    let mut word = vec![0; length];
    stream.read_exact(&mut word).await.ok()?;
    Some((stream, word))
}
