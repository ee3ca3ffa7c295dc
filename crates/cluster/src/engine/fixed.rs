//! A cluster without an engine: a list of nodes. Each node records the signals of its own requests, and the others send
//! signals to it or wait for them there.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use rescind_core::LogText;
use rescind_http::SHARED_CANCEL_KEPT;
use tokio::task::AbortHandle;

use super::node_list::NodeList;
use super::records::Records;
use super::{Answer, Beat, Engine, EngineError, EngineEvents};
use crate::hop::message::{HopKind, SignalMessage};
use crate::hop::pool::{NodeBody, Pool};
use crate::hop::send::send;
use crate::names::{NodeName, is_shared};
use crate::secret::Secret;

/// The time in which another node must answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The wait after a node could not be asked for a signal.
const RETRY: Duration = Duration::from_millis(500);
/// The longest value of a signal, in bytes.
const MAX_VALUE: usize = 16 * 1024;

/// The engine of a list of nodes.
pub(crate) struct FixedEngine {
    nodes: Nodes,
    state: Mutex<State>,
}

/// How this process reaches the nodes of its list.
#[derive(Clone)]
struct Nodes {
    list: NodeList,
    own: Option<NodeName>,
    secret: Secret,
    pool: Pool,
    events: Arc<dyn EngineEvents>,
}

#[derive(Default)]
struct State {
    /// The signals of this node.
    own: Records,
    /// The signals that belong to no node.
    shared: Records,
    /// The tasks that wait at other nodes.
    waiting: HashMap<Arc<str>, AbortHandle>,
}

impl FixedEngine {
    pub(crate) fn new(
        list: NodeList,
        own: Option<NodeName>,
        secret: Secret,
        pool: Pool,
        events: Arc<dyn EngineEvents>,
    ) -> Self {
        Self { nodes: Nodes { list, own, secret, pool, events }, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a signal of this node, or one that belongs to no node, and rings.
    fn record(&self, name: &str, value: &str, keep: Duration) {
        if is_shared(name) {
            self.state().shared.record(name, value, keep.min(SHARED_CANCEL_KEPT));
        } else {
            self.state().own.record(name, value, keep);
        }
        self.nodes.events.rung(name, value);
    }

    /// The value of a signal that is recorded here.
    fn recorded(&self, name: &str) -> Option<String> {
        let state = self.state();
        if is_shared(name) { state.shared.value(name) } else { state.own.value(name) }
    }
}

impl Nodes {
    /// The node that a signal is about.
    fn node_of(signal: &str) -> Option<NodeName> {
        signal.split('.').nth(1)?.parse().ok()
    }

    fn is_own(&self, signal: &str) -> bool {
        self.own.is_some() && Self::node_of(signal) == self.own
    }

    /// Where the signal is recorded. `None`: here.
    async fn place(&self, signal: &str) -> Result<Option<(NodeName, Uri)>, EngineError> {
        let node = signal.split('.').nth(1).and_then(|name| name.parse::<NodeName>().ok());
        let node =
            node.ok_or_else(|| EngineError::Refused("the name of a signal names no node".to_owned()))?;
        if self.own.as_ref() == Some(&node) {
            return Ok(None);
        }
        if self.list.url(&node).is_none() {
            self.list.read().await?;
        }
        match self.list.url(&node) {
            Some(url) => Ok(Some((node, url))),
            None => Err(EngineError::List(format!("there is no node {node}"))),
        }
    }

    async fn send(
        &self,
        kind: HopKind,
        (node, url): (NodeName, Uri),
        message: &SignalMessage,
    ) -> Result<Response<NodeBody>, EngineError> {
        let body = serde_json::to_vec(message).unwrap_or_default();
        let sent = send(&self.pool, &self.secret, self.own.as_ref(), kind, Some(&node), &url, body);
        let response = tokio::time::timeout(ANSWER, sent)
            .await
            .map_err(|_| EngineError::Away(format!("the node {node} does not answer")))?
            .map_err(|why| EngineError::Away(format!("the node {node}: {why}")))?;
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::FORBIDDEN => Err(EngineError::List(format!("the node {node} has another secret"))),
            status => Err(EngineError::List(format!("the node {node} answered {status}"))),
        }
    }

    /// Sends a signal that belongs to no node to every other node of the list.
    async fn send_to_others(&self, message: &SignalMessage, within: Duration) -> Result<(), EngineError> {
        let others: Vec<_> = {
            let listed = self.list.listed();
            let others = listed.urls.iter().filter(|(name, _)| Some(*name) != self.own.as_ref());
            others.map(|(name, url)| (name.clone(), url.clone())).collect()
        };
        let sending = others.into_iter().map(|(name, url)| async move {
            let sent = self.send(HopKind::Signal, (name.clone(), url), message);
            // A node that takes it later than this has no use for it.
            let late = |_| EngineError::Away(format!("the node {name} does not answer"));
            tokio::time::timeout(within, sent).await.map_err(late)?.map(drop)
        });
        let failed: Vec<_> = join_all(sending).await.into_iter().filter_map(Result::err).collect();
        let Some(first) = failed.first() else { return Ok(()) };
        if failed.len() == 1 {
            return Err(first.clone());
        }
        let texts: Vec<_> = failed
            .iter()
            .map(|error| match error {
                EngineError::List(text) | EngineError::Away(text) | EngineError::Refused(text) => {
                    text.as_str()
                }
            })
            .collect();
        Err(EngineError::List(texts.join("; ")))
    }

    /// Waits at the node that records a signal, which tells it also if it was recorded before. It goes on until the signal
    /// comes or the task is aborted.
    async fn wait(self, name: Arc<str>) {
        let message = SignalMessage { name: name.to_string(), value: String::new(), keep_ms: 0 };
        loop {
            let waited = async {
                let Some(place) = self.place(&name).await? else { return Ok(None) };
                let response = self.send(HopKind::Watch, place, &message).await?;
                let value = Limited::new(response.into_body(), MAX_VALUE).collect().await;
                value
                    .map(|value| Some(value.to_bytes()))
                    .map_err(|error| EngineError::Away(error.to_string()))
            };
            match waited.await {
                Ok(Some(value)) => return self.events.rung(&name, &String::from_utf8_lossy(&value)),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(error = %LogText::text(&error), "a signal cannot be waited for now");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

impl Engine for FixedEngine {
    fn signal<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
            let message = SignalMessage { name: name.to_owned(), value: value.to_owned(), keep_ms };
            if is_shared(name) {
                self.record(name, value, keep);
                self.nodes.send_to_others(&message, keep).await?;
            } else if let Some(place) = self.nodes.place(name).await? {
                self.nodes.send(HopKind::Signal, place, &message).await?;
            } else {
                self.record(name, value, keep);
            }
            Ok(())
        })
    }

    /// A signal that belongs to no node is not sent on.
    fn receive<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, ()> {
        if !is_shared(name) {
            return self.signal(name, value, keep);
        }
        self.record(name, value, keep);
        Box::pin(ready(Ok(())))
    }

    /// Does not wait for the other nodes: they keep what they record.
    fn subscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async move {
            for name in names.iter().filter(|name| !is_shared(name) && !self.nodes.is_own(name)) {
                let mut state = self.state();
                if state.waiting.get(name).is_none_or(AbortHandle::is_finished) {
                    let task = tokio::spawn(self.nodes.clone().wait(Arc::clone(name)));
                    state.waiting.insert(Arc::clone(name), task.abort_handle());
                }
            }
            Ok(())
        })
    }

    fn unsubscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async move {
            for name in names {
                let waiting = self.state().waiting.remove(name);
                if let Some(waiting) = waiting {
                    waiting.abort();
                }
            }
            Ok(())
        })
    }

    /// Another node tells of its signals when they are waited for, also of those before.
    fn look<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, Vec<Option<String>>> {
        Box::pin(async move { Ok(names.iter().map(|name| self.recorded(name)).collect()) })
    }

    fn beat<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> Answer<'a, Beat> {
        Box::pin(async { Ok(Beat::Held) })
    }

    fn leave<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn members(&self) -> Answer<'_, Vec<(String, String)>> {
        Box::pin(async {
            self.nodes.list.read().await?;
            let listed = self.nodes.list.listed();
            // Entries of an operator's list have no signatures.
            let entry = |url: &Uri| serde_json::json!({"url": url.to_string()}).to_string();
            Ok(listed.urls.iter().map(|(name, url)| (name.to_string(), entry(url))).collect())
        })
    }

    fn lacks(&self, name: &NodeName) -> bool {
        self.nodes.list.lacks(name)
    }

    fn is_list(&self) -> bool {
        true
    }

    fn push_job<'a>(&'a self, _: &'a str) -> Answer<'a, ()> {
        Box::pin(async { Err(no_queue()) })
    }

    fn take_job(&self) -> Answer<'_, Option<String>> {
        Box::pin(async { Err(no_queue()) })
    }
}

fn no_queue() -> EngineError {
    EngineError::Refused("a list of nodes has no queue of jobs: use Redis or NATS".to_owned())
}

impl Drop for FixedEngine {
    fn drop(&mut self) {
        for (_, waiting) in self.state().waiting.drain() {
            waiting.abort();
        }
    }
}
