//! Serves the page at an address of its own.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The most connections at the same time. Further ones wait until one ends.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// The longest time for the head of a request, also of the next one on a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The live page at an address. It is served while [`run`](Self::run) is polled.
#[must_use = "the page is served when `run` is awaited"]
pub struct PageServer {
    listener: TcpListener,
    address: SocketAddr,
    path: String,
    router: Router,
}

impl PageServer {
    pub(crate) const fn new(
        listener: TcpListener,
        address: SocketAddr,
        path: String,
        router: Router,
    ) -> Self {
        Self { listener, address, path, router }
    }

    /// The URL of the page, with its token, which is all that is needed to see the page and to stop requests.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the page, and never ends.
    ///
    /// # Cancel safety
    /// Dropping the future closes the address and all connections.
    pub async fn run(self) {
        let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = accepted else {
                // It is out of descriptors. Some may be free soon.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Updates are small and are read by a person.
            let _ = stream.set_nodelay(true);
            let service = TowerToHyperService::new(self.router.clone());
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_headers(64)
                .serve_connection(TokioIo::new(stream), service);
            connections.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection of the live page ended");
                }
                drop(permit);
            });
        }
    }
}

impl fmt::Debug for PageServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageServer").field("address", &self.address).finish_non_exhaustive()
    }
}
