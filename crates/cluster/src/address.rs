//! The URL of a cluster.

use std::fmt;
use std::str::FromStr;

use crate::engine::node_list::{NodeList, parse};

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
