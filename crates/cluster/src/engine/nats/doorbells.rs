//! The subscription to the doorbells, and the connection's return.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Event, Message, Subscriber};
use futures_util::StreamExt as _;
use futures_util::future::{Fuse, FutureExt as _};
use rescind_core::LogText;
use tokio::time::sleep;

use super::layout::Layout;
use super::server::{Changes, Server};
use super::store::OPERATION;
use super::{EngineError, EngineEvents};

/// The time between two questions whether the server is ready.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// The names whose doorbells are reported.
pub(super) struct Doorbells {
    server: Server,
    /// What comes before the name in a subject.
    prefix: String,
    layout: Layout,
    events: Arc<dyn EngineEvents>,
    state: Mutex<State>,
}

struct State {
    names: HashSet<Arc<str>>,
    /// Whether the server has the subscription.
    is_listening: bool,
}

impl Doorbells {
    pub(super) fn new(server: Server, prefix: String, layout: Layout, events: Arc<dyn EngineEvents>) -> Self {
        let state = Mutex::new(State { names: HashSet::new(), is_listening: true });
        Self { server, prefix, layout, events, state }
    }

    /// After `Away` the names stay in the set, and `restored` is reported when the server has the subscription again.
    pub(super) fn subscribe(&self, names: &[Arc<str>]) -> Result<(), EngineError> {
        let mut state = self.state();
        state.names.extend(names.iter().cloned());
        if state.is_listening { Ok(()) } else { Err(self.server.disconnected()) }
    }

    pub(super) fn unsubscribe(&self, names: &[Arc<str>]) {
        let mut state = self.state();
        for name in names {
            state.names.remove(name);
        }
    }

    /// Rings for a record that was there before.
    pub(super) async fn ring(&self, name: &str, value: &str) -> Result<(), EngineError> {
        let ringing = async {
            let subject = format!("{}{name}", self.prefix);
            let rung = self.server.client.publish(subject, value.to_owned().into()).await;
            rung.map_err(|error| self.server.away(error))?;
            self.server.client.flush().await.map_err(|error| self.server.away(error))
        };
        self.server.limited(ringing).await?
    }

    pub(super) async fn run(self: Arc<Self>, mut rings: Subscriber, mut changes: Changes) {
        let mut returning = pin!(Fuse::terminated());
        loop {
            tokio::select! {
                message = rings.next() => match message {
                    Some(message) => self.recv(&message),
                    None => return,
                },
                change = changes.recv() => match change {
                    Some(Event::Disconnected) => {
                        self.state().is_listening = false;
                        returning.set(Fuse::terminated());
                        let server = LogText::name(self.server.address());
                        tracing::warn!(%server, "lost the connection to NATS");
                    }
                    Some(Event::Connected) if !self.state().is_listening => {
                        returning.set(self.ready().fuse());
                    }
                    // The client dropped messages because too many came at once.
                    Some(Event::SlowConsumer(_)) => self.events.restored(),
                    Some(_) => {}
                    None => return,
                },
                () = &mut returning => {
                    self.state().is_listening = true;
                    let server = LogText::name(self.server.address());
                    tracing::info!(%server, "connected to NATS again");
                    self.events.restored();
                }
            }
        }
    }

    /// Returns when the server has all buckets and queues. It had the subscription before these questions.
    async fn ready(&self) {
        while let Err(error) = self.layout.open(&self.server).await {
            tracing::debug!(error = %LogText::text(error), "NATS is not ready");
            sleep(READY_INTERVAL).await;
        }
    }

    fn recv(&self, message: &Message) {
        let is_deleted = message.headers.as_ref().is_some_and(|headers| headers.get(OPERATION).is_some());
        let name = message.subject.strip_prefix(&self.prefix);
        let value = std::str::from_utf8(&message.payload);
        let (Some(name), Ok(value), false) = (name, value, is_deleted) else { return };
        let is_subscribed = self.state().names.contains(name);
        if is_subscribed {
            self.events.rung(name, value);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
