//! Opens the connection of a run on its transport.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rescind_core::dialect::Role;
use rescind_core::{ByteStream, Framing, Peer, PeerBuilder};
use rescind_testkit::support::Serving;
use tokio::sync::Notify;

use super::judge::Judge;
use super::net::Net;
use super::plan::Plan;
use super::rng::Rng;
use super::sides::Side;
use super::tap::tap;
use super::work::router;
use super::{Case, Wire};

/// A connection, from both sides.
pub(super) struct Opened {
    pub(super) client: Peer,
    /// The server's side, as soon as it exists: over HTTP that is when the client has sent something.
    pub(super) server: Arc<PeerOpened>,
    pub(super) net: Net,
    /// The framing of the bytes, if the transport is a byte stream.
    pub(super) framing: Option<Framing>,
    /// The accepting tasks. They end on drop.
    pub(super) serving: Vec<Serving>,
}

/// A side that may come late. Waiters continue in the order in which they came, which tokio's `watch` does not
/// guarantee.
#[derive(Debug, Default)]
pub(super) struct PeerOpened {
    peer: Mutex<Option<Peer>>,
    opened_notify: Notify,
}

impl PeerOpened {
    /// Sets it. Later ones, of other sessions, are not awaited.
    pub(super) fn tell(&self, peer: Peer) {
        self.lock().get_or_insert(peer);
        self.opened_notify.notify_waiters();
    }

    /// Returns it, if it is set.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.lock().clone()
    }

    /// Waits for it.
    pub(super) async fn wait(&self) -> Peer {
        loop {
            let mut opened_notify = pin!(self.opened_notify.notified());
            opened_notify.as_mut().enable();
            if let Some(peer) = self.peer() {
                return peer;
            }
            opened_notify.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Peer>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parameters of a connection.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) case: &'a Case,
    pub(super) plan: &'a Plan,
    pub(super) net: &'a Net,
    pub(super) judge: &'a Judge,
}

/// The builder of a side's connection.
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
    /// The reason why it could not be opened. The network may have been cut by then.
    pub(super) async fn open(&self, rng: &mut Rng) -> Result<Opened, String> {
        match self.case.wire {
            Wire::Memory => self.memory(rng),
            Wire::WebSocket => self.websocket().await,
            Wire::HttpStreamable => self.streamable(rng).await,
            Wire::HttpStateless => self.stateless(rng).await,
            Wire::HttpAcp => self.acp().await,
        }
    }

    /// Both framings, whatever the dialect's default is.
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
