//! Opens the connection of a run on its wire.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rescind_core::dialect::Role;
use rescind_core::{ByteStream, Framing, Peer, PeerBuilder};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::both::Side;
use super::judge::Judge;
use super::net::Net;
use super::plan::Plan;
use super::rng::Rng;
use super::tap::tap;
use super::work::router;
use super::{Case, Wire};

/// A connection, from both sides.
pub(super) struct Opened {
    pub(super) client: Peer,
    /// The server's side, once it is there: over HTTP that is when the client has sent something.
    pub(super) server: Arc<PeerOpened>,
    pub(super) net: Net,
    /// What frames the bytes, where the wire is bytes and no more.
    pub(super) framing: Option<Framing>,
    /// What accepts; ends when it is dropped.
    pub(super) serving: Vec<Serving>,
}

/// A side that may come late. Those who wait for it go on in the order in which they came, which tokio's own `watch` does not
/// promise.
#[derive(Debug, Default)]
pub(super) struct PeerOpened {
    peer: Mutex<Option<Peer>>,
    told: Notify,
}

impl PeerOpened {
    /// It is there. Later ones, of other sessions, are not waited for.
    pub(super) fn tell(&self, peer: Peer) {
        self.lock().get_or_insert(peer);
        self.told.notify_waiters();
    }

    /// It, if it is there.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.lock().clone()
    }

    /// Waits for it.
    pub(super) async fn wait(&self) -> Peer {
        loop {
            let mut told = pin!(self.told.notified());
            told.as_mut().enable();
            if let Some(peer) = self.peer() {
                return peer;
            }
            told.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Peer>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that ends with this.
pub(super) struct Serving(AbortHandle);

impl Serving {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a connection is made from.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) case: &'a Case,
    pub(super) plan: &'a Plan,
    pub(super) net: &'a Net,
    pub(super) judge: &'a Judge,
}

/// What a side's connection is made with.
pub(super) fn builder(side: Side, setting: &Setting<'_>) -> PeerBuilder {
    let role = match side {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    Peer::builder(setting.case.dialect.clone())
        .serve(Arc::new(router(side, setting.judge)))
        .limits(setting.plan.limits.of(side).clone())
        .role(role)
}

impl Setting<'_> {
    /// Opens it.
    ///
    /// # Errors
    /// What could not be opened; the network may have been cut by then.
    pub(super) async fn open(&self, rng: &mut Rng) -> Result<Opened, String> {
        match self.case.wire {
            Wire::Memory => self.memory(rng),
            Wire::WebSocket => self.websocket().await,
            Wire::HttpStreamable => self.streamable(rng).await,
            Wire::HttpStateless => self.stateless(rng).await,
            Wire::HttpAcp => self.acp().await,
        }
    }

    /// Both framings, whatever the dialect's own is.
    fn memory(&self, rng: &mut Rng) -> Result<Opened, String> {
        let framing = rng.pick(Framing::Newline, &[Framing::ContentLength]);
        self.net.record();
        let ends = self.net.connect().map_err(|error| error.to_string())?;
        let attach = |side, end| {
            let link = ByteStream::whole(end).framing(framing).into_link();
            builder(side, self).attach(tap(link, side, self.judge)).map_err(|error| error.to_string())
        };
        let client = attach(Side::Client, ends.client)?;
        let server = Arc::new(PeerOpened::default());
        server.tell(attach(Side::Server, ends.server)?);
        Ok(Opened { client, server, net: self.net.clone(), framing: Some(framing), serving: Vec::new() })
    }
}
