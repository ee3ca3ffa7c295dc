//! The parts of one process in a cluster, which cancels, jobs, keys and routing share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http::StatusCode;
use rescind_core::RequestKey;
use rescind_http::RouteRefusal;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::engine::Engine;
use crate::hop::{About, Failed, Hello, Hop, HopKind, Unverified, send};
use crate::membership::{Member, Membership, OwnEntry};
use crate::names::{Incarnation, NodeName, SignedName};
use crate::pool::Pool;
use crate::secret::{Purpose, Secret};
use crate::signals::Signals;

/// When a client may try again that was refused because a node or the engine could not be reached.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(2);

/// How long a node may take to say that it lives.
const ALIVE: Duration = Duration::from_secs(1);

/// The parts of one process in a cluster. A process that only cancels or works has no name.
pub(crate) struct Process {
    pub(crate) node: Option<NodeName>,
    pub(crate) incarnation: Incarnation,
    pub(crate) secret: Secret,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) membership: Membership,
    pub(crate) pool: Pool,
    /// The keys of running requests.
    pub(crate) keys: Mutex<HashMap<RequestKey, Arc<str>>>,
    pub(crate) tasks: Mutex<Vec<AbortHandle>>,
    pub(crate) own: Mutex<Option<OwnEntry>>,
    /// What the program says of itself to other nodes.
    pub(crate) status: OnceLock<Box<dyn Fn() -> Value + Send + Sync>>,
}

impl Process {
    pub(crate) fn hello(&self) -> Hello {
        let node = self.node.as_ref().map_or_else(String::new, ToString::to_string);
        Hello { node, incarnation: self.incarnation.to_string() }
    }

    pub(crate) fn status(&self) -> Value {
        self.status.get().map_or(Value::Null, |status| status())
    }

    /// Checks that a message is of this cluster, and for this node.
    pub(crate) fn verify(&self, message: Unverified, about: About<'_>) -> Result<Hop, RouteRefusal> {
        let own = self.node.as_ref().ok_or_else(refused)?;
        message.verify(&self.secret, own, about).map_err(|_| refused())
    }

    /// Whether a node answers at its address. `None`: its port is open, and it has not answered in time.
    pub(crate) async fn lives(&self, member: &Member) -> Option<bool> {
        let asked = send(
            &self.pool,
            &self.secret,
            self.node.as_ref(),
            HopKind::Hello,
            Some(&member.name),
            &member.url,
            Vec::new(),
        );
        match tokio::time::timeout(ALIVE, Box::pin(asked)).await {
            Ok(Ok(_)) => Some(true),
            Ok(Err(Failed::Refused)) => Some(false),
            Ok(Err(Failed::Other(_))) | Err(_) => None,
        }
    }

    /// Makes a signed name of this node.
    pub(crate) fn new_name(&self, purpose: Purpose) -> Option<Arc<str>> {
        let name = SignedName::new(purpose, &self.secret, self.node.as_ref()?, self.incarnation)?;
        Some(Arc::clone(name.text()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        lock(&self.tasks).drain(..).for_each(|task| task.abort());
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("node", &self.node)
            .field("membership", &self.membership)
            .field("signals", &self.signals)
            .finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 403: the message is not of this cluster, or not for this node.
pub(crate) fn refused() -> RouteRefusal {
    RouteRefusal::new(StatusCode::FORBIDDEN, "this message is not of this cluster".to_owned())
}
