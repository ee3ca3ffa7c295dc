//! The names of requests in a cluster of processes.

use std::sync::Arc;

use crate::cause::Cause;
use crate::driver::request_log::info::RequestKey;
use crate::transport::BoxFuture;

/// Makes cluster-wide keys of requests: who has the key of a request can cancel it from another process. Set it with
/// [`PeerBuilder::cluster_keys`](crate::PeerBuilder::cluster_keys). The crate `rescind-cluster` implements it.
pub trait ClusterKeys: Send + Sync {
    /// The key of this request: the same at each call for one request, and never that of another one. From now on,
    /// until the request ends, it can be cancelled by this key. `None`: no key could be made.
    fn key_of(&self, request: Arc<dyn KeyedRequest>) -> Option<Arc<str>>;
}

/// A request that gets a key. [`CallContext`](crate::CallContext) is one.
pub trait KeyedRequest: Send + Sync {
    /// As [`CallContext::request_key`](crate::CallContext::request_key).
    fn request_key(&self) -> RequestKey;

    /// As [`CallContext::cause`](crate::CallContext::cause).
    fn cause(&self) -> Option<Cause>;

    /// As [`CallContext::cancelled`](crate::CallContext::cancelled).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn cancelled(&self) -> BoxFuture<'_, Cause>;

    /// As [`CallContext::cancel_with`](crate::CallContext::cancel_with).
    fn cancel_with(&self, cause: BoxFuture<'static, Cause>);
}
