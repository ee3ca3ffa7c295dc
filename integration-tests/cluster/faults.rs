//! A proxy of TCP that can delay, or drop everything as a broken network does.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    All,
    ToTheServer,
    Nothing,
}

/// A proxy on a free port. It ends when it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    to: Arc<Mutex<SocketAddr>>,
    passes: watch::Sender<Passes>,
    /// How often all connections were broken.
    breaks: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before this address. Each byte arrives `delay` later than it was sent.
    pub(crate) async fn start(to: SocketAddr, delay: Duration) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let (passes, _) = watch::channel(Passes::All);
        let (breaks, _) = watch::channel(0);
        let to = Arc::new(Mutex::new(to));
        let task = tokio::spawn(accept(socket, Arc::clone(&to), delay, passes.clone(), breaks.clone()));
        Self { port, to, passes, breaks, task }
    }

    /// A proxy whose address is needed before that of its server.
    pub(crate) async fn start_before_its_server() -> Self {
        Self::start(SocketAddr::from(([127, 0, 0, 1], 1)), Duration::ZERO).await
    }

    /// New connections go to this address.
    pub(crate) fn set_server(&self, to: SocketAddr) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Drops all bytes from now on. Connections stay open, and new ones are accepted by nobody that reads.
    pub(crate) fn cut(&self) {
        self.passes.send_replace(Passes::Nothing);
    }

    /// From now on passes what clients send, and nothing back.
    pub(crate) fn cut_answers(&self) {
        self.passes.send_replace(Passes::ToTheServer);
    }

    /// Ends all connections.
    pub(crate) fn break_connections(&self) {
        self.breaks.send_modify(|breaks| *breaks += 1);
    }

    /// Passes bytes again. Those that were held meanwhile arrive now, as a network repeats them.
    pub(crate) fn mend(&self) {
        self.passes.send_replace(Passes::All);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    socket: TcpListener,
    to: Arc<Mutex<SocketAddr>>,
    delay: Duration,
    passes: watch::Sender<Passes>,
    breaks: watch::Sender<u64>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept() => accepted,
        };
        let Ok((client, _)) = accepted else { return };
        let to = *to.lock().unwrap_or_else(PoisonError::into_inner);
        let (passes, mut breaks) = (passes.subscribe(), breaks.subscribe());
        connections.spawn(async move {
            tokio::select! {
                _ended = pass(client, to, delay, passes) => {}
                _broken = breaks.changed() => {}
            }
        });
    }
}

/// Passes both directions until either ends.
async fn pass(
    client: TcpStream,
    to: SocketAddr,
    delay: Duration,
    mut passes: watch::Receiver<Passes>,
) -> io::Result<()> {
    passes.wait_for(|passes| *passes != Passes::Nothing).await.map_err(io::Error::other)?;
    let server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        ended = one_way(client_in, server_out, delay, passes.clone(), |passes| passes != Passes::Nothing) => ended,
        ended = one_way(server_in, client_out, delay, passes, |passes| passes == Passes::All) => ended,
    }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
    mut passes: watch::Receiver<Passes>,
    is_open: fn(Passes) -> bool,
) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let reading = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            let piece = (Instant::now() + delay, buffer[..count].to_vec());
            sender.send(piece).await.map_err(io::Error::other)?;
        }
    };
    let writing = async {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            passes.wait_for(|passes| is_open(*passes)).await.map_err(io::Error::other)?;
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
