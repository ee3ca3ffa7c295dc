//! The parts of one process in a cluster, which cancels, jobs, keys and routing share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use rescind_core::{ListedTask, OwnTasks, Principal, RequestKey};
use rescind_http::RouteRefusal;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::engine::Engine;
use crate::hop::{About, Failed, Hello, Hop, HopKind, TaskMessage, Unverified, send};
use crate::membership::{Member, Membership, OwnEntry};
use crate::names::{Incarnation, NodeName, SignedName};
use crate::pool::Pool;
use crate::secret::{Purpose, Secret};
use crate::signals::Signals;

/// When a client may try again that was refused because a node or the engine could not be reached.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(2);

/// How long a node may take to begin its answer about a task. It may wait a second for the record of the task's end.
const TOLD: Duration = Duration::from_secs(2);
/// The time in which the answer must arrive.
const ANSWERED: Duration = Duration::from_secs(10);
/// The longest answer, in bytes: a result is text in its JSON, which may double its length.
const MAX_TOLD: usize = 48 << 20;

/// What a node says of its tasks.
pub(crate) enum Told<T> {
    /// Its answer.
    Answer(T),
    /// Nobody listens at its address.
    Dead,
    /// It has not answered.
    Silent,
}

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
    /// The tasks about which other nodes ask.
    pub(crate) own_tasks: Mutex<Vec<OwnTasks>>,
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

    /// Asks a node about its tasks, or cancels one there.
    pub(crate) async fn ask_about_tasks<T: DeserializeOwned>(
        &self,
        member: &Member,
        message: &TaskMessage,
    ) -> Told<T> {
        let asked = send(
            &self.pool,
            &self.secret,
            self.node.as_ref(),
            HopKind::Task,
            Some(&member.name),
            &member.url,
            serde_json::to_vec(message).unwrap_or_default(),
        );
        let response = match tokio::time::timeout(TOLD, Box::pin(asked)).await {
            Ok(Ok(response)) if response.status() == StatusCode::OK => response,
            Ok(Err(Failed::Refused)) => return Told::Dead,
            Ok(Ok(_) | Err(Failed::Other(_))) | Err(_) => return Told::Silent,
        };
        let reading = Limited::new(response.into_body(), MAX_TOLD).collect();
        let Ok(Ok(body)) = tokio::time::timeout(ANSWERED, reading).await else { return Told::Silent };
        serde_json::from_slice(&body.to_bytes()).map_or(Told::Silent, Told::Answer)
    }

    /// The answer to that question of another node, as JSON.
    pub(crate) async fn tell_of_tasks(&self, message: TaskMessage) -> Vec<u8> {
        let own = lock(&self.own_tasks).clone();
        let (id, cancels) = match message {
            TaskMessage::Tell(id) => (id, false),
            TaskMessage::Cancel(id) => (id, true),
            TaskMessage::List(principal, after) => {
                let principal = Principal(principal.into());
                let listed: Vec<ListedTask> =
                    own.iter().flat_map(|tasks| tasks.list(&principal, after.as_ref())).collect();
                return serde_json::to_vec(&listed).unwrap_or_default();
            }
        };
        let mut told = None;
        for tasks in own {
            told = if cancels { tasks.cancel(&id).await } else { tasks.record(&id).await };
            if told.is_some() {
                break;
            }
        }
        serde_json::to_vec(&told).unwrap_or_default()
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
