//! A TCP path that a test can cut: both ends get a reset and no other message, as when a machine is lost. Later
//! connections fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// The connections that were accepted, and those that have ended.
#[derive(Default)]
struct Counts {
    came: AtomicUsize,
    over: AtomicUsize,
}

/// An address that forwards bytes to a server, on any number of connections, until it is cut or dropped.
pub(crate) struct CuttableTcp {
    /// The address for clients.
    pub(crate) place: String,
    counts: Arc<Counts>,
    stop: oneshot::Sender<()>,
    forwards: JoinHandle<()>,
}

impl CuttableTcp {
    pub(crate) async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let counts = Arc::default();
        let forwards = accept(listener, server.to_owned(), Arc::clone(&counts), stopped);
        Self { place, counts, stop, forwards: tokio::spawn(forwards) }
    }

    /// How many connections were accepted so far, and how many of them have ended.
    pub(crate) fn connections(&self) -> (usize, usize) {
        (self.counts.came.load(Ordering::Relaxed), self.counts.over.load(Ordering::Relaxed))
    }

    /// Cuts the path. When this returns, nothing is forwarded any more, not even bytes that were on their way.
    pub(crate) async fn cut(self) {
        drop(self.stop);
        self.forwards.await.unwrap();
    }
}

async fn accept(
    listener: TcpListener,
    server: String,
    counts: Arc<Counts>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut forwarded = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = listener.accept() => {
                let (near, _) = accepted.unwrap();
                counts.came.fetch_add(1, Ordering::Relaxed);
                let (server, counts) = (server.clone(), Arc::clone(&counts));
                forwarded.spawn(async move {
                    // Each end learns of the other's end by its own.
                    let _ = forward(near, &server).await;
                    counts.over.fetch_add(1, Ordering::Relaxed);
                });
            }
            Some(_) = forwarded.join_next() => {}
        }
    }
    drop(listener);
    forwarded.shutdown().await;
}

async fn forward(near: TcpStream, server: &str) -> io::Result<()> {
    near.set_nodelay(true)?;
    let far = TcpStream::connect(server).await?;
    far.set_nodelay(true)?;
    let mut ends = Ends { near, far, are_over: false };
    copy_bidirectional(&mut ends.near, &mut ends.far).await?;
    ends.are_over = true;
    Ok(())
}

/// Both halves of a connection. They are reset, unless each has ended normally.
struct Ends {
    near: TcpStream,
    far: TcpStream,
    are_over: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if !self.are_over {
            for end in [&self.near, &self.far] {
                let _ = end.set_zero_linger();
            }
        }
    }
}
