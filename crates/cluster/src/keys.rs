//! The keys of running requests.
//!
//! A request that has a key is cancelled by a signal of its key, and the signal is recorded when the request is cancelled in
//! another way. So a process that watches the key, such as a worker, is signalled whatever cancelled the request.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rescind_core::{Cause, ClusterKeys, KeyedRequest, LogText, RequestKey};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::cancel_bus::{CancelBus, CancelWatch, cancelled};
use crate::process::{Process, lock};
use crate::secret::Purpose;

/// How long a cancel, or the end of a job, is tried to be recorded while the engine is away.
pub(crate) const RECORD_LIMIT: Duration = Duration::from_secs(60);
/// The time between two attempts.
pub(crate) const RETRY: Duration = Duration::from_millis(500);

/// Makes the keys of requests. It does not keep the cluster alive.
pub(crate) struct Keys(Weak<Process>);

impl Keys {
    pub(crate) fn new(cluster: &Arc<Process>) -> Self {
        Self(Arc::downgrade(cluster))
    }
}

impl ClusterKeys for Keys {
    fn key_of(&self, request: Arc<dyn KeyedRequest>) -> Option<Arc<str>> {
        let inner = self.0.upgrade()?;
        let number = request.request_key();
        let (key, watch) = {
            let mut keys = lock(&inner.keys);
            if let Some(key) = keys.get(&number) {
                return Some(Arc::clone(key));
            }
            let key = inner.new_name(Purpose::Key)?;
            let watch = CancelWatch::new(inner.signals.watch(&cancelled(&key).into()));
            keys.insert(number, Arc::clone(&key));
            (key, watch)
        };
        let listed = Listed {
            cluster: Weak::clone(&self.0),
            number,
            key: Arc::clone(&key),
            request: Arc::clone(&request),
            watch,
            is_recorded: false,
        };
        request.cancel_with(Box::pin(listed.cancelled()));
        Some(key)
    }
}

/// The key of a running request, in the list of its cluster until this value is dropped.
struct Listed {
    cluster: Weak<Process>,
    number: RequestKey,
    key: Arc<str>,
    request: Arc<dyn KeyedRequest>,
    watch: CancelWatch,
    is_recorded: bool,
}

impl Listed {
    /// Waits until the signal of the key comes.
    async fn cancelled(mut self) -> Cause {
        tokio::select! {
            biased;
            cause = self.watch.cancelled() => return cause,
            _ = self.request.cancelled() => {}
        }
        self.record();
        // The request keeps its key until it ends.
        pending().await
    }

    /// Records that the request is cancelled, unless its key's signal did it.
    fn record(&mut self) {
        if self.is_recorded || self.watch.cause().is_some() {
            return;
        }
        let (Some(cause), Some(cluster)) = (self.request.cause(), self.cluster.upgrade()) else { return };
        // Outside of a runtime the program ends.
        let Ok(runtime) = Handle::try_current() else { return };
        self.is_recorded = true;
        drop(runtime.spawn(record(CancelBus(cluster), Arc::clone(&self.key), cause)));
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // A handler that ends at once may end before the task of this value has noticed the cancel.
        self.record();
        if let Some(cluster) = self.cluster.upgrade() {
            lock(&cluster.keys).remove(&self.number);
        }
    }
}

/// Records a cancel, also if the engine is away for a while.
async fn record(bus: CancelBus, key: Arc<str>, cause: Cause) {
    let until = Instant::now() + RECORD_LIMIT;
    while let Err(error) = bus.cancel(&key, &cause).await {
        if Instant::now() >= until {
            tracing::warn!(error = %LogText::text(&error), "the cancel of a request with a key was not recorded");
            return;
        }
        sleep(RETRY).await;
    }
}
