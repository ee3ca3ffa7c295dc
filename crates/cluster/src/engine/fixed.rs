//! A cluster without an engine: a list of nodes. Each node records the signals of its own requests, and the others send
//! signals to it or wait for them there.

use std::collections::{HashMap, VecDeque};
use std::future::ready;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use rescind_core::LogText;
use rescind_http::SHARED_CANCEL_KEPT;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Answer, Beat, Engine, EngineError, EngineEvents};
use crate::hop::send;
use crate::hop::{HopKind, SignalMessage};
use crate::names::{NodeName, is_shared};
use crate::pool::{NodeBody, Pool};
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
    state: Mutex<FixedState>,
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
struct FixedState {
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

    fn state(&self) -> MutexGuard<'_, FixedState> {
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

// The list of the nodes of a cluster without an engine.

/// The nodes of a cluster without an engine, and their URLs. A clone is the same list.
#[derive(Clone, Debug, Default)]
pub struct NodeList(Arc<Mutex<Listed>>);

#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) urls: HashMap<NodeName, Uri>,
    /// Read anew whenever the members are read.
    file: Option<PathBuf>,
}

impl NodeList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A list in a file: a line `NAME=URL` for each node; `#` at the start of a line or after a space begins a comment. It is read
    /// again when a node is not known, and every three seconds. A file that names no node any more, or cannot be read, changes
    /// nothing.
    #[must_use]
    pub fn of_file(file: impl Into<PathBuf>) -> Self {
        let list = Self::default();
        list.listed().file = Some(file.into());
        list
    }

    /// Adds a node, or changes its URL.
    pub fn set(&self, name: NodeName, url: Uri) {
        self.listed().urls.insert(name, url);
    }

    /// Removes a node.
    pub fn remove(&self, name: &NodeName) {
        self.listed().urls.remove(name);
    }

    pub(crate) fn listed(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it names nodes, and not this one.
    pub(crate) fn lacks(&self, name: &NodeName) -> bool {
        let listed = self.listed();
        !listed.urls.is_empty() && !listed.urls.contains_key(name)
    }

    pub(crate) fn url(&self, name: &NodeName) -> Option<Uri> {
        self.listed().urls.get(name).cloned()
    }

    pub(crate) async fn read(&self) -> Result<(), EngineError> {
        let Some(file) = self.listed().file.clone() else { return Ok(()) };
        let text = tokio::fs::read_to_string(&file).await;
        let wrong = |why: &dyn std::fmt::Display| EngineError::List(format!("{}: {why}", file.display()));
        let text = text.map_err(|error| wrong(&error))?;
        let urls = parse(&without_comments(&text)).map_err(|error| wrong(&error))?;
        let mut listed = self.listed();
        // An editor may empty the file before it writes it.
        if urls.is_empty() && !listed.urls.is_empty() {
            return Err(wrong(&"it names no node"));
        }
        listed.urls = urls;
        Ok(())
    }
}

/// The lines of a file as a list, without its comments.
fn without_comments(text: &str) -> String {
    let entry = |line: &str| {
        let comment = line.match_indices('#').map(|(at, _)| at);
        let is_begin = |at: &usize| *at == 0 || line[..*at].ends_with([' ', '\t']);
        let end = comment.into_iter().find(is_begin).unwrap_or(line.len());
        line[..end].to_owned()
    };
    text.lines().map(entry).collect::<Vec<_>>().join(",")
}

/// Reads `NAME=URL,NAME=URL`.
pub(crate) fn parse(list: &str) -> Result<HashMap<NodeName, Uri>, String> {
    let mut nodes = HashMap::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, url) = entry.split_once('=').ok_or_else(|| format!("{entry:?} is not NAME=URL"))?;
        let name: NodeName = name.trim().parse().map_err(|error| format!("{name:?}: {error}"))?;
        if nodes.insert(name.clone(), node_url(url.trim())?).is_some() {
            return Err(format!("{name} is listed twice"));
        }
    }
    Ok(nodes)
}

/// Reads the URL of a node.
pub(crate) fn node_url(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(format!("{url:?} is no http:// or https:// URL")),
    }
}

impl FromIterator<(NodeName, Uri)> for NodeList {
    fn from_iter<I: IntoIterator<Item = (NodeName, Uri)>>(nodes: I) -> Self {
        let list = Self::default();
        list.listed().urls.extend(nodes);
        list
    }
}

// The signals that a node of a list keeps.

/// The most signals that a node keeps. Above it the oldest is forgotten.
const MAX_SIGNALS: usize = 100_000;

/// Signals that are kept for the same time each.
#[derive(Default)]
struct Records {
    recorded: HashMap<Arc<str>, Recorded>,
    /// In the order in which they were recorded.
    order: VecDeque<Arc<str>>,
}

struct Recorded {
    value: String,
    until: Instant,
}

impl Records {
    /// Records a signal for this time. The first value of a signal stays.
    fn record(&mut self, name: &str, value: &str, keep: Duration) {
        let now = Instant::now();
        while let Some(oldest) = self.order.front().cloned() {
            let is_over = self.recorded.get(&oldest).is_none_or(|recorded| recorded.until <= now);
            if !is_over && self.order.len() < MAX_SIGNALS {
                break;
            }
            self.order.pop_front();
            self.recorded.remove(&oldest);
        }
        let name: Arc<str> = name.into();
        if !self.recorded.contains_key(&name) {
            let recorded = Recorded { value: value.to_owned(), until: now + keep };
            self.recorded.insert(Arc::clone(&name), recorded);
            self.order.push_back(name);
        }
    }

    fn value(&self, name: &str) -> Option<String> {
        let recorded = self.recorded.get(name)?;
        (recorded.until > Instant::now()).then(|| recorded.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_has_comments_and_one_that_is_broken_for_a_moment_changes_nothing() {
        let file = std::env::temp_dir().join(format!("rescind-list-{}", std::process::id()));
        let list = NodeList::of_file(&file);
        assert!(matches!(list.read().await, Err(EngineError::List(_))), "there is no file");
        std::fs::write(&file, "").unwrap();
        list.read().await.unwrap();
        let text = "# three, or two nodes\nn1=http://127.0.0.1:1/rpc\t# the first\n\n  n2 = http://127.0.0.1:2/#rpc\n";
        std::fs::write(&file, text).unwrap();
        list.read().await.unwrap();
        let (one, two): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let is_read = || list.url(&one).is_some() && list.url(&two).is_some();
        assert!(is_read() && !list.lacks(&one) && list.lacks(&"n3".parse().unwrap()));
        for broken in ["", "# nothing\n", "n1\n", "n1=ftp://127.0.0.1\n", "n1=http://a/\nn1=http://b/\n"] {
            std::fs::write(&file, broken).unwrap();
            let error = list.read().await.unwrap_err().to_string();
            assert!(error.starts_with("the list of nodes: ") && is_read(), "{broken:?}: {error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(list.read().await.is_err() && is_read());
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_is_kept_for_its_time_and_may_come_again() {
        let time = Duration::from_secs(2);
        let mut records = Records::default();
        records.record("a", "first", time);
        records.record("a", "second", time);
        assert_eq!(records.value("a").as_deref(), Some("first"));
        assert_eq!(records.value("b"), None);
        tokio::time::advance(time).await;
        assert_eq!(records.value("a"), None);
        records.record("a", "third", time);
        tokio::time::advance(Duration::from_secs(1)).await;
        records.record("b", "later", time);
        assert_eq!(records.value("a").as_deref(), Some("third"));
        tokio::time::advance(Duration::from_secs(1)).await;
        records.record("c", "last", time);
        assert_eq!((records.value("a"), records.value("b").as_deref()), (None, Some("later")));
        assert_eq!((records.recorded.len(), records.order.len()), (2, 2));
    }
}
