//! The memory of a cluster outside its nodes: the nodes that live, the cancels that were recorded, and the doorbells of their
//! watchers.
//!
//! An engine is Redis, NATS, or the nodes themselves with a list of their addresses.

pub(crate) mod fixed;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "nats")]
mod nats_server;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::sync::Arc;
use std::time::Duration;

use rescind_core::BoxFuture;
#[cfg(any(feature = "redis", feature = "nats"))]
use tokio::sync::Mutex;
#[cfg(any(feature = "redis", feature = "nats"))]
use tokio::time::timeout;

use crate::names::NodeName;

/// Why the engine did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// It cannot be reached, or did not answer in time.
    #[error("the engine of the cluster cannot be reached: {0}")]
    Away(String),
    /// It answered with an error, for example because its memory is full.
    #[error("the engine of the cluster refused: {0}")]
    Refused(String),
    /// The list of nodes, or one of its nodes, cannot be read or reached.
    #[error("the list of nodes: {0}")]
    List(String),
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// The entry is this node's.
    Held,
    /// Another node holds the name, with this entry.
    #[cfg_attr(
        not(any(feature = "redis", feature = "nats")),
        expect(dead_code, reason = "a list of nodes has no entries")
    )]
    Taken(String),
}

pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, EngineError>>;

/// Where the engine reports what happens.
pub(crate) trait EngineEvents: Send + Sync {
    /// The doorbell of a signal rang.
    fn rung(&self, signal: &str, value: &str);

    /// Doorbells may have been missed: the connection was lost and is back.
    #[cfg_attr(
        not(any(feature = "redis", feature = "nats")),
        expect(dead_code, reason = "a list of nodes waits at each node again")
    )]
    fn restored(&self);
}

/// An engine. Each signal has a name; its value is recorded before its doorbell rings.
pub(crate) trait Engine: Send + Sync {
    /// Records a signal for this time, then rings. The first value of a signal stays.
    fn signal<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, ()>;

    /// Records and rings a signal that another node sent to this one.
    fn receive<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, ()> {
        self.signal(name, value, keep)
    }

    /// Listens to the doorbells of these signals. When it returns, every later ring is reported.
    fn subscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()>;

    /// Listens to them no more.
    fn unsubscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()>;

    /// The recorded values of these signals, in their order.
    fn look<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, Vec<Option<String>>>;

    /// Records a value for this time that nobody watches; [`look`](Self::look) finds it. The first value of a name stays, and is
    /// returned if it is another one. A list of nodes keeps nothing.
    fn keep<'a>(&'a self, _name: &'a str, _value: &'a str, _keep: Duration) -> Answer<'a, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// Removes the values with these names that were recorded with [`keep`](Self::keep).
    fn forget<'a>(&'a self, _names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Adds an item to a list for this time, or for the longest time of another item. A list of nodes keeps nothing.
    fn enlist<'a>(&'a self, _list: &'a str, _item: &'a str, _keep: Duration) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Removes an item from a list.
    fn strike<'a>(&'a self, _list: &'a str, _item: &'a str) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The items of a list, in no order.
    fn enlisted<'a>(&'a self, _list: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Writes or renews the entry of a node, unless another one holds the name.
    fn beat<'a>(&'a self, node: &'a str, entry: &'a str, keep: Duration) -> Answer<'a, Beat>;

    /// Removes the entry of a node if it is this one.
    fn leave<'a>(&'a self, node: &'a str, entry: &'a str) -> Answer<'a, ()>;

    /// The nodes that live, and their entries.
    fn members(&self) -> Answer<'_, Vec<(String, String)>>;

    /// Whether it is a list that names nodes, and not this one.
    fn lacks(&self, _name: &NodeName) -> bool {
        false
    }

    /// Whether the members are a list of an operator, whose entries have no signatures.
    fn is_list(&self) -> bool {
        false
    }

    /// Adds a job to the queue of the workers.
    fn push_job<'a>(&'a self, job: &'a str) -> Answer<'a, ()>;

    /// Takes the oldest job. `None`: there was none for some seconds.
    fn take_job(&self) -> Answer<'_, Option<String>>;
}

/// How long a server waits for a job.
#[cfg(any(feature = "redis", feature = "nats"))]
const JOB_WAIT: Duration = Duration::from_secs(5);

/// A take that was begun and has not ended.
#[cfg(any(feature = "redis", feature = "nats"))]
type Taking = BoxFuture<'static, Result<Option<String>, EngineError>>;

/// One take of a job at a time. It outlives the future of its caller: the next caller gets its job.
#[cfg(any(feature = "redis", feature = "nats"))]
#[derive(Default)]
struct Takes(Mutex<Option<Taking>>);

#[cfg(any(feature = "redis", feature = "nats"))]
impl Takes {
    /// Continues the take under way, or begins one. `None`: no job, or other callers were before this one all the time.
    async fn next(&self, begin: impl FnOnce() -> Taking) -> Result<Option<String>, EngineError> {
        let Ok(mut taking) = timeout(JOB_WAIT, self.0.lock()).await else { return Ok(None) };
        let taken = taking.get_or_insert_with(begin).await;
        *taking = None;
        taken
    }
}

#[cfg(test)]
mod tests;
