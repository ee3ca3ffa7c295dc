//! One process of a cluster.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use rescind_core::{ClusterKeys, TaskStore};
use rescind_http::SessionRouter;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::engine::fixed::FixedEngine;
use crate::engine::fixed::{NodeList, node_url, parse};
use crate::engine::{Beat, Engine, EngineError, EngineEvents};
use crate::hop::{Failed, send};
use crate::hop::{Hello, HopKind};
use crate::keys::CancelBus;
use crate::keys::Jobs;
use crate::keys::Keys;
use crate::membership::{Located, Membership, OwnEntry, TIME_TO_LIVE};
use crate::names::{Incarnation, NodeName};
use crate::pool::{NodeBody, Pool};
use crate::process::{Process, lock};
use crate::secret::Secret;
use crate::signals::Signals;
use crate::task_records::TaskRecords;

/// The most bytes of an answer to a question, a hello or one for a status.
const MAX_ANSWER: usize = 64 * 1024;
/// The time in which a node must answer it.
const HELLO: Duration = Duration::from_secs(1);
/// How often a name is tried that another process seems to hold.
const RETRY_NAME: Duration = Duration::from_millis(500);

/// One process of a cluster: it holds sessions, reaches those of other processes, and cancels requests by their keys. A clone
/// is the same process.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use rescind_cluster::{Cluster, Secret};
/// use rescind_core::{Listener, Router, Server, dialect};
/// use rescind_http::{HttpServer, Streamable};
///
/// # async fn serve(router: Router) -> Result<(), Box<dyn std::error::Error>> {
/// let secret = Secret::read("/run/secrets/cluster")?;
/// let cluster = Cluster::connect("redis://127.0.0.1:6379".parse()?, Some("n1".parse()?), secret).await?;
/// let listener =
///     HttpServer::new(Streamable::new()).path("/mcp").session_router(cluster.router()).bind("0.0.0.0:8000").await?;
/// cluster.join("http://10.0.0.1:8000/mcp").await?;
/// Server::builder([dialect::MCP]).serve(router).cluster_keys(cluster.keys()).listen(listener).run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cluster(pub(crate) Arc<Process>);

/// Why a process is not part of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The engine did not answer, or refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A node must have a name.
    #[error("this process has no name in the cluster")]
    NoName,
    /// Another living process has the name.
    #[error("another living node has the name {0}")]
    NameTaken(NodeName),
    /// The list of nodes names others, and not this one.
    #[error("the list of nodes does not name {0}")]
    NotListed(NodeName),
    /// The engine has an entry of this name that was not signed with the secret of this cluster.
    #[error(
        "the engine has an entry of {0} that is not of this cluster: is another cluster on it, or has a node another secret?"
    )]
    ForeignEntry(NodeName),
    /// The URL is not one that others could use.
    #[error("{0}")]
    Url(String),
    /// Without a secret of its own a cluster is for one machine.
    #[error("without a secret only addresses of loopback can be advertised: {0} is none")]
    NotLoopback(String),
    /// The program is built without this engine.
    #[error("this program is built without {0}")]
    NotBuiltIn(&'static str),
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes")]
    NoRandomness,
}

impl Cluster {
    /// Connects to a cluster. `node`: the name of this process, if it holds sessions; a process that only cancels or works
    /// needs none.
    ///
    /// # Errors
    /// The engine cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt.
    pub async fn connect(
        address: ClusterAddress,
        node: Option<NodeName>,
        secret: Secret,
    ) -> Result<Self, JoinError> {
        let signals = Arc::new(Signals::default());
        let pool = Pool::default();
        let events: Arc<dyn EngineEvents> = Arc::clone(&signals) as _;
        let engine: Arc<dyn Engine> = match address {
            ClusterAddress::Static(list) => {
                Arc::new(FixedEngine::new(list, node.clone(), secret.clone(), pool.clone(), events))
            }
            ClusterAddress::Redis(url) => redis(&url, events).await?,
            ClusterAddress::Nats(url) => nats(&url, events).await?,
        };
        let following = tokio::spawn(signals.follow(Arc::clone(&engine)));
        let inner = Process {
            node,
            incarnation: Incarnation::new().ok_or(JoinError::NoRandomness)?,
            membership: Membership::new(Arc::clone(&engine), secret.clone()),
            secret,
            engine,
            signals,
            pool,
            keys: Mutex::default(),
            tasks: Mutex::new(vec![following.abort_handle()]),
            own: Mutex::default(),
            own_tasks: Mutex::default(),
            status: OnceLock::new(),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Sets the certificates for `https` between nodes, before [`join`](Self::join). With a client certificate in it, and
    /// servers that require one, the nodes know each other by TLS as well.
    #[cfg(feature = "rustls")]
    pub fn tls(&self, tls: rescind_http::ClientTls) {
        self.0.pool.set_tls(tls);
    }

    /// The router of sessions for [`HttpServer::session_router`](rescind_http::HttpServer::session_router).
    #[must_use]
    pub fn router(&self) -> Arc<dyn SessionRouter> {
        Arc::new(self.clone())
    }

    /// The keys of requests for [`ServerBuilder::cluster_keys`](rescind_core::ServerBuilder::cluster_keys).
    #[must_use]
    pub fn keys(&self) -> Arc<dyn ClusterKeys> {
        Arc::new(Keys::new(&self.0))
    }

    /// The tasks of all nodes for [`Tasks::set_store`](rescind_core::Tasks::set_store): any node asks the node of a task about it, and
    /// cancels it there. How the task of a dead node has ended, and that one which had not ended is lost, is recorded in the engine; a
    /// list of nodes has no place for records.
    #[must_use]
    pub fn task_store(&self) -> Arc<dyn TaskStore> {
        Arc::new(TaskRecords::new(&self.0))
    }

    /// Cancels requests by their keys.
    #[must_use]
    pub fn cancel_bus(&self) -> CancelBus {
        CancelBus(Arc::clone(&self.0))
    }

    /// Hands work to other processes.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        Jobs(Arc::clone(&self.0))
    }

    /// The nodes that live.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.0.membership
    }

    /// Makes this process a node that the others reach at `url`: it sends a heartbeat every 3 s, and counts as living for
    /// 10 s after the last one. A name whose former process does not answer any more is taken over.
    ///
    /// # Errors
    /// [`JoinError::NameTaken`] if another living process has the name; [`JoinError::Url`] and
    /// [`JoinError::NotLoopback`] for a URL that cannot be used; [`JoinError::Engine`].
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt. The name may be held for 10 s.
    pub async fn join(&self, url: &str) -> Result<(), JoinError> {
        let inner = &self.0;
        let name = inner.node.as_ref().ok_or(JoinError::NoName)?;
        let url = node_url(url).map_err(JoinError::Url)?;
        if is_unspecified(&url) && !inner.engine.is_list() {
            return Err(JoinError::Url(format!("{url} is no address that others reach: advertise one")));
        }
        self.check_loopback(&url)?;
        let own = OwnEntry::new(name, &url, inner.incarnation, &inner.secret);
        self.take_name(name, &own).await?;
        inner.membership.read().await?;
        if inner.engine.lacks(name) {
            return Err(JoinError::NotListed(name.clone()));
        }
        if inner.engine.is_list() {
            inner.membership.members().iter().try_for_each(|member| self.check_loopback(&member.url))?;
        }
        *lock(&inner.own) = Some(own.clone());
        let keeping = tokio::spawn(inner.membership.clone().keep(own));
        lock(&inner.tasks).push(keeping.abort_handle());
        Ok(())
    }

    /// Whether another process has taken the name of this node, for example while this one was suspended for longer than 10 s. Other
    /// nodes do not reach its sessions any more, and it refuses new ones, until it has its name again.
    #[must_use]
    pub fn has_lost_its_name(&self) -> bool {
        self.0.membership.has_lost_its_name()
    }

    /// Sets what this node tells the others of itself, when they ask for it with [`statuses`](Self::statuses). The function
    /// must not block. Only the first call counts. Default: `null`.
    pub fn tell_status(&self, status: impl Fn() -> Value + Send + Sync + 'static) {
        let _ = self.0.status.set(Box::new(status));
    }

    /// What the other living nodes tell of themselves. A node that does not answer within a second is left out.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn statuses(&self) -> Vec<(NodeName, Value)> {
        let inner = &self.0;
        inner.membership.refresh_if_old().await;
        let others =
            inner.membership.members().into_iter().filter(|member| Some(&member.name) != inner.node.as_ref());
        let asked = others.map(|member| async move {
            let sent = send(
                &inner.pool,
                &inner.secret,
                inner.node.as_ref(),
                HopKind::Status,
                Some(&member.name),
                &member.url,
                Vec::new(),
            );
            let response = tokio::time::timeout(HELLO, Box::pin(sent)).await.ok()?.ok()?;
            let status = read_json(response).await?;
            Some((member.name, status))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Leaves the cluster: no other node sends requests here any more. Call it when the sessions have ended. A process that
    /// ends without it counts as living for 10 s.
    ///
    /// # Errors
    /// The engine does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future has the effect of a process that ends without it.
    pub async fn leave(&self) -> Result<(), EngineError> {
        let own = lock(&self.0.own).take();
        lock(&self.0.tasks).drain(..).for_each(|task| task.abort());
        match own {
            Some(own) => self.0.engine.leave(own.name.as_str(), &own.text).await,
            None => Ok(()),
        }
    }

    /// A cluster without a secret of its own is for one machine.
    fn check_loopback(&self, url: &Uri) -> Result<(), JoinError> {
        if self.0.secret.is_given() || is_loopback(url) || is_unspecified(url) {
            return Ok(());
        }
        Err(JoinError::NotLoopback(url.to_string()))
    }

    /// Writes the entry of this node, once no living process holds its name.
    async fn take_name(&self, name: &NodeName, own: &OwnEntry) -> Result<(), JoinError> {
        let inner = &self.0;
        let patience = tokio::time::Instant::now() + TIME_TO_LIVE + RETRY_NAME;
        while let Beat::Taken(entry) = inner.membership.first_beat(own, patience).await? {
            let Some(holder) = inner.membership.read_entry(name, &entry) else {
                // Its address may lead anywhere. An entry that nobody renews ends after its time to live.
                if tokio::time::Instant::now() > patience {
                    return Err(JoinError::ForeignEntry(name.clone()));
                }
                tokio::time::sleep(RETRY_NAME).await;
                continue;
            };
            match self.greet(&holder.url).await {
                Greeted::Lives(life) if holder.incarnation.is_some_and(|held| held.to_string() == life) => {
                    return Err(JoinError::NameTaken(name.clone()));
                }
                // Its process has ended: nobody listens there, or another life does.
                Greeted::Lives(_) | Greeted::Nobody => inner.engine.leave(name.as_str(), &entry).await?,
                // It may be stopped. Then its entry ends after its time to live.
                Greeted::Silent if tokio::time::Instant::now() > patience => {
                    return Err(JoinError::NameTaken(name.clone()));
                }
                Greeted::Silent => tokio::time::sleep(RETRY_NAME).await,
            }
        }
        if inner.engine.is_list() {
            inner.membership.read().await?;
            if let Located::At(listed) = inner.membership.locate(name).await {
                if let Greeted::Lives(life) = self.greet(&listed.url).await {
                    if life != inner.incarnation.to_string() {
                        return Err(JoinError::NameTaken(name.clone()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks the node at this URL which life of which node it is.
    async fn greet(&self, url: &Uri) -> Greeted {
        let inner = &self.0;
        let asked = async {
            let sent =
                send(&inner.pool, &inner.secret, inner.node.as_ref(), HopKind::Hello, None, url, Vec::new());
            let response = match sent.await {
                Ok(response) => response,
                Err(Failed::Refused) => return Greeted::Nobody,
                Err(Failed::Other(_)) => return Greeted::Silent,
            };
            let hello: Option<Hello> = read_json(response).await;
            hello.map_or(Greeted::Nobody, |hello| Greeted::Lives(hello.incarnation))
        };
        tokio::time::timeout(HELLO, asked).await.unwrap_or(Greeted::Silent)
    }
}

/// Reads the answer to a short question.
async fn read_json<T: DeserializeOwned>(response: Response<NodeBody>) -> Option<T> {
    if response.status() != StatusCode::OK {
        return None;
    }
    let reading = tokio::time::timeout(HELLO, Limited::new(response.into_body(), MAX_ANSWER).collect());
    serde_json::from_slice(&reading.await.ok()?.ok()?.to_bytes()).ok()
}

/// What was found at the address of a node.
enum Greeted {
    /// A node in this life.
    Lives(String),
    /// No node of this cluster.
    Nobody,
    /// Nothing yet.
    Silent,
}

fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

fn is_loopback(url: &Uri) -> bool {
    host(url) == "localhost" || host(url).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether it is the URL of a listener on all addresses.
fn is_unspecified(url: &Uri) -> bool {
    host(url).parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}

/// The prefix of all names in an engine.
#[cfg(any(feature = "redis", feature = "nats"))]
const PREFIX: &str = "rescind";

#[cfg(feature = "redis")]
async fn redis(url: &str, events: Arc<dyn EngineEvents>) -> Result<Arc<dyn Engine>, JoinError> {
    Ok(Arc::new(crate::engine::redis::RedisEngine::connect(url, PREFIX, events).await?))
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::unused_async, reason = "it waits where Redis is built in")]
async fn redis(_: &str, _: Arc<dyn EngineEvents>) -> Result<Arc<dyn Engine>, JoinError> {
    Err(JoinError::NotBuiltIn("Redis (feature `redis`)"))
}

#[cfg(feature = "nats")]
async fn nats(url: &str, events: Arc<dyn EngineEvents>) -> Result<Arc<dyn Engine>, JoinError> {
    Ok(Arc::new(crate::engine::nats::NatsEngine::connect(url, PREFIX, events).await?))
}

#[cfg(not(feature = "nats"))]
#[expect(clippy::unused_async, reason = "it waits where NATS is built in")]
async fn nats(_: &str, _: Arc<dyn EngineEvents>) -> Result<Arc<dyn Engine>, JoinError> {
    Err(JoinError::NotBuiltIn("NATS (feature `nats`)"))
}

/// Where the nodes of a cluster meet.
///
/// ```
/// use rescind_cluster::ClusterAddress;
///
/// for address in ["redis://127.0.0.1:6379", "nats://127.0.0.1:4222", "static:n1=http://10.0.0.1:80/mcp,n2=http://10.0.0.2:80/mcp"] {
///     assert!(address.parse::<ClusterAddress>().is_ok());
/// }
/// assert!("mysql://localhost".parse::<ClusterAddress>().is_err());
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum ClusterAddress {
    /// Redis 7 or Valkey: `redis://HOST:PORT`, or `rediss://` with TLS.
    Redis(String),
    /// NATS with `JetStream`: `nats://HOST:PORT`, or `tls://`.
    Nats(String),
    /// A list of nodes, without an engine: `static:NAME=URL,...`, or `static:@FILE` with such a list in a file.
    Static(NodeList),
}

/// This is not the address of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidClusterAddress(String);

impl FromStr for ClusterAddress {
    type Err = InvalidClusterAddress;

    fn from_str(address: &str) -> Result<Self, InvalidClusterAddress> {
        if let Some(list) = address.strip_prefix("static:") {
            if let Some(file) = list.strip_prefix('@') {
                return Ok(Self::Static(NodeList::of_file(file)));
            }
            let nodes = parse(list).map_err(InvalidClusterAddress)?;
            if nodes.is_empty() {
                return Err(InvalidClusterAddress("the list names no node".to_owned()));
            }
            return Ok(Self::Static(nodes.into_iter().collect()));
        }
        match address.split_once("://") {
            Some(("redis" | "rediss", _)) => Ok(Self::Redis(address.to_owned())),
            Some(("nats" | "tls", _)) => Ok(Self::Nats(address.to_owned())),
            _ => Err(InvalidClusterAddress(
                "a cluster is redis://HOST:PORT, nats://HOST:PORT, static:NAME=URL,... or static:@FILE"
                    .to_owned(),
            )),
        }
    }
}

/// The URL may have a password, so it is not shown.
impl fmt::Debug for ClusterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis(_) => "Redis",
            Self::Nats(_) => "Nats",
            Self::Static(_) => "Static",
        })
    }
}

impl From<NodeList> for ClusterAddress {
    fn from(list: NodeList) -> Self {
        Self::Static(list)
    }
}
