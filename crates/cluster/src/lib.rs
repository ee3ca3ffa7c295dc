//! Rescind on more than one machine: requests reach the process that holds their session, and cancels reach the work that they
//! are about, whichever process received them.
//!
//! Each process is a node of a [`Cluster`]. The nodes meet in Redis (feature `redis`), in NATS (feature `nats`), or by a
//! [`NodeList`]. `docs/cluster.md` of the repository describes the setup, what clients see, and the keys and values for programs in other
//! languages.
//!
//! ```
//! use rescind_cluster::{Cluster, NodeList, Secret};
//! use rescind_core::{CallContext, Cause, CauseKind, Listener, Outcome, Peer, Router, Server, dialect};
//! use rescind_http::{HttpClient, HttpServer, Streamable, StreamableTransport};
//! use serde_json::Value;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (nodes, secret) = (NodeList::new(), Secret::new(*b"at least 16 bytes of secret")?);
//! let mut clusters = Vec::new();
//! for name in ["n1", "n2"] {
//!     let cluster = Cluster::connect(nodes.clone().into(), Some(name.parse()?), secret.clone()).await?;
//!     let server = HttpServer::new(Streamable::new()).session_router(cluster.router());
//!     let listener = server.bind("127.0.0.1:0").await?;
//!     let url = listener.endpoint().0;
//!     nodes.set(name.parse()?, url.parse()?);
//!     cluster.join(&url).await?;
//!     let router = Router::new().method("initialize", async |_: CallContext, _: Value| Ok(Value::Null)).method(
//!         "wait",
//!         async |ctx: CallContext, _: Value| {
//!             let key = ctx.cluster_key();
//!             ctx.notify("key", &[key.as_deref()]).await?;
//!             ctx.run_until_cancelled(std::future::pending::<()>()).await?;
//!             Ok(Value::Null)
//!         },
//!     );
//!     let server = Server::builder(dialect::ACP).serve(router).cluster_keys(cluster.keys()).listen(listener);
//!     tokio::spawn(server.run());
//!     clusters.push((cluster, url));
//! }
//!
//! // A client of the first node. The second one cancels its request.
//! let client = HttpClient::new(&clusters[0].1)?;
//! let peer = Peer::builder(dialect::ACP).connect(StreamableTransport::new(client)).await?;
//! peer.call::<_, Value>("initialize", &()).await?;
//! let call = peer.call::<_, Value>("wait", &()).start()?;
//! let mut notifications = call.notifications_where(|notification| notification.method() == "key");
//! let [key]: [String; 1] = notifications.next().await.ok_or("the call has ended")?.params()?;
//! clusters[1].0.cancel_bus().cancel(&key, &Cause::new(CauseKind::Operator)).await?;
//! assert!(matches!(call.outcome().await, Outcome::Cancelled(_)));
//! # Ok(())
//! # }
//! ```

mod cluster;
mod engine;
mod hop;
mod keys;
mod membership;
mod names;
mod pool;
mod process;
mod routing;
mod secret;
mod signals;
mod task_records;

pub use cluster::{Cluster, ClusterAddress, InvalidClusterAddress, JoinError};
pub use engine::EngineError;
pub use engine::fixed::NodeList;
pub use keys::{CancelBus, CancelError, CancelWatch, Job, Jobs, SubmittedJob};
pub use membership::{Member, Membership};
pub use names::{InvalidNodeName, NodeName};
pub use secret::{Secret, SecretError};
