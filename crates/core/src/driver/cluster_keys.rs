//! The names of requests in a cluster of processes.

use std::sync::Arc;

use crate::driver::context::CallContext;

/// Makes cluster-wide keys of requests: who has the key of a request can cancel it from another process. Set it with
/// [`PeerBuilder::cluster_keys`](crate::PeerBuilder::cluster_keys). The crate `rescind-cluster` implements it.
pub trait ClusterKeys: Send + Sync {
    /// The key of this request: the same at each call for one request, and never that of another one. From now on,
    /// until the request ends, it can be cancelled by this key. `None`: the request has ended, or no key could be made.
    fn key_of(&self, request: &CallContext) -> Option<Arc<str>>;
}
