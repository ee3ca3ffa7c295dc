//! The signals that a process watches: cancels, and the ends of jobs. A signal is recorded (the tombstone), then its doorbell rings.
//!
//! - B1 A watcher listens to the doorbell before it looks for the tombstone. So either the canceller's ring reaches it, or it
//!   finds the tombstone: no order of the two loses a signal.
//! - B2 After the connection to the engine was lost, every watched signal is listened to again and then looked for again.
//! - B3 A signal is reported once to each watch, with the first value that was seen. Later ones change nothing.
//! - B4 A signal that nobody watches any more costs this process nothing: its tombstone ends by its time to live.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rescind_core::LogText;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, EngineError, EngineEvents};

/// The most signals in one request to the engine.
const BATCH: usize = 512;
/// The wait after the engine failed, before the watched signals are asked about again.
const RETRY: Duration = Duration::from_millis(500);

/// The signals that this process watches.
#[derive(Default)]
pub(crate) struct Signals {
    watched: Mutex<HashMap<Arc<str>, Watched>>,
    /// Notified when doorbells may have been missed.
    stale: Arc<Notify>,
    changed: Mutex<Option<mpsc::UnboundedSender<Arc<str>>>>,
}

struct Watched {
    watches: usize,
    token: CancellationToken,
    value: Option<Arc<str>>,
}

impl Signals {
    fn watched(&self) -> MutexGuard<'_, HashMap<Arc<str>, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a signal until the result is dropped.
    pub(crate) fn watch(self: &Arc<Self>, name: &Arc<str>) -> Watch {
        let (token, is_new) = {
            let mut watched = self.watched();
            let entry = watched.entry(Arc::clone(name)).or_insert_with(|| Watched {
                watches: 0,
                token: CancellationToken::new(),
                value: None,
            });
            entry.watches += 1;
            (entry.token.clone(), entry.watches == 1)
        };
        if is_new {
            self.change(name);
        }
        Watch { signals: Arc::clone(self), name: Arc::clone(name), token }
    }

    /// Whether a watched signal has come.
    pub(crate) fn has_come(&self, name: &str) -> bool {
        self.watched().get(name).is_some_and(|watched| watched.value.is_some())
    }

    fn change(&self, name: &Arc<str>) {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(changed) = &*changed {
            let _ = changed.send(Arc::clone(name));
        }
    }

    fn all(&self) -> Vec<Arc<str>> {
        self.watched().keys().cloned().collect()
    }

    /// Keeps the engine in step with what is watched, until the signals are dropped.
    pub(crate) fn follow(
        self: &Arc<Self>,
        engine: Arc<dyn Engine>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (sender, changes) = mpsc::unbounded_channel();
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        follow(Arc::downgrade(self), Arc::clone(&self.stale), engine, changes)
    }

    /// Listens to these signals and looks for them (B1). Those that nobody watches any more are listened to no more.
    async fn settle(&self, engine: &dyn Engine, names: &[Arc<str>]) -> Result<(), EngineError> {
        let (wanted, unwanted): (Vec<_>, Vec<_>) = {
            let watched = self.watched();
            names.iter().cloned().partition(|name| watched.contains_key(name))
        };
        if !unwanted.is_empty() {
            engine.unsubscribe(&unwanted).await?;
        }
        if wanted.is_empty() {
            return Ok(());
        }
        engine.subscribe(&wanted).await?;
        for (name, value) in wanted.iter().zip(engine.look(&wanted).await?) {
            if let Some(value) = value {
                self.rung(name, &value);
            }
        }
        Ok(())
    }
}

impl EngineEvents for Signals {
    fn rung(&self, signal: &str, value: &str) {
        let token = {
            let mut watched = self.watched();
            let Some(entry) = watched.get_mut(signal) else { return };
            if entry.value.is_some() {
                return;
            }
            entry.value = Some(value.into());
            entry.token.clone()
        };
        token.cancel();
    }

    fn restored(&self) {
        self.stale.notify_one();
    }
}

async fn follow(
    signals: Weak<Signals>,
    stale: Arc<Notify>,
    engine: Arc<dyn Engine>,
    mut changes: mpsc::UnboundedReceiver<Arc<str>>,
) {
    // What has to be settled, and whether the last attempt failed.
    let (mut due, mut has_failed) = (HashSet::new(), false);
    let mut names = Vec::new();
    loop {
        let mut is_stale = false;
        tokio::select! {
            biased;
            count = changes.recv_many(&mut names, BATCH) => if count == 0 { return },
            () = stale.notified() => is_stale = true,
            () = tokio::time::sleep(RETRY), if has_failed => {}
            () = ready(()), if !has_failed && !due.is_empty() => {}
        }
        due.extend(names.drain(..));
        let Some(signals) = signals.upgrade() else { return };
        if is_stale {
            due.extend(signals.all());
        }
        let batch: Vec<Arc<str>> = due.iter().take(BATCH).cloned().collect();
        let settled = signals.settle(&*engine, &batch).await;
        has_failed = settled.is_err();
        match settled {
            Ok(()) => batch.iter().for_each(|name| drop(due.take(name))),
            Err(error) => tracing::debug!(error = %LogText::text(&error), "signals cannot be watched now"),
        }
    }
}

/// A watched signal, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    signals: Arc<Signals>,
    name: Arc<str>,
    token: CancellationToken,
}

impl Watch {
    /// Cancelled when the signal comes.
    pub(crate) const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The value, once the signal has come.
    pub(crate) fn value(&self) -> Option<Arc<str>> {
        self.signals.watched().get(&self.name).and_then(|watched| watched.value.clone())
    }

    /// Waits for the signal.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn come(&self) -> Arc<str> {
        self.token.cancelled().await;
        self.value().unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_last = {
            let mut watched = self.signals.watched();
            let Some(entry) = watched.get_mut(&self.name) else { return };
            entry.watches -= 1;
            let is_last = entry.watches == 0;
            if is_last {
                watched.remove(&self.name);
            }
            is_last
        };
        if is_last {
            self.signals.change(&self.name);
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("watched", &self.watched().len()).finish_non_exhaustive()
    }
}
