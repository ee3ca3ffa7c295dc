//! Typed methods: one declaration of a method's name, params and answer, for the side that serves it and the side that
//! calls it.

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::driver::call::builder::CallBuilder;
use crate::driver::context::CallContext;
use crate::driver::handler::AsyncHandler;
use crate::driver::handler::error::HandlerError;
use crate::driver::handler::quick::QuickHandler;
use crate::driver::peer::Peer;
use crate::driver::router::Router;

/// A method: its name, the type of its params and the type of its answer.
///
/// The side that serves it registers a handler with [`Router::serve`]. The side that calls it uses [`Peer::request`] or
/// [`CallContext::request`]. The compiler then checks that both sides use the same types.
///
/// ```
/// use rescind_core::{CallContext, Method, Peer, Router, dialect, memory_pair};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Search { query: String }
///
/// impl Method for Search {
///     const NAME: &'static str = "search";
///     type Params = Self;
///     type Answer = Vec<String>;
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let router = Router::new().serve::<Search>(|_ctx: CallContext, params| async move { Ok(vec![params.query]) });
/// let (client, server) = memory_pair();
/// let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
/// let client = Peer::builder(dialect::ACP).attach(client)?;
/// assert_eq!(client.request::<Search>(&Search { query: "cat".to_owned() }).await?, ["cat"]);
/// # Ok(())
/// # }
/// ```
pub trait Method: 'static {
    /// The name of the method in messages.
    const NAME: &'static str;
    /// The params. They serialise to an object or an array; `()` is sent as no params.
    type Params: Serialize + DeserializeOwned + Send + 'static;
    /// The result of a request that succeeds.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
}

/// A handler of the method `M`: an async function of a [`CallContext`] and the params. Implemented for every such
/// function.
pub trait MethodHandler<M: Method>:
    Fn(CallContext, M::Params) -> <Self as MethodHandler<M>>::Future + Send + Sync + 'static
{
    /// The future of the handler.
    type Future: Future<Output = Result<M::Answer, HandlerError>> + Send + 'static;
}

impl<M, F, Fut> MethodHandler<M> for F
where
    M: Method,
    F: Fn(CallContext, M::Params) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<M::Answer, HandlerError>> + Send + 'static,
{
    type Future = Fut;
}

impl Router {
    /// Serves a typed method with an async function, as [`method`](Self::method) does for a name.
    #[must_use]
    pub fn serve<M: Method>(self, handler: impl MethodHandler<M>) -> Self {
        self.handler(Arc::from(M::NAME), Arc::new(AsyncHandler::new(handler)))
    }

    /// Serves a typed method with an async function that mostly answers without waiting, as [`quick`](Self::quick) does
    /// for a name. Read there what such a handler must not do.
    #[must_use]
    pub fn serve_quick<M: Method>(self, handler: impl MethodHandler<M>) -> Self {
        self.handler(Arc::from(M::NAME), Arc::new(QuickHandler::new(handler)))
    }
}

impl Peer {
    /// A call of a typed method, as [`call`](Self::call) is for a name.
    pub fn request<M: Method>(&self, params: &M::Params) -> CallBuilder<M::Answer> {
        self.call(M::NAME, params)
    }
}

impl CallContext {
    /// A call of a typed method as a child of this request, as [`call`](Self::call) is for a name.
    pub fn request<M: Method>(&self, params: &M::Params) -> CallBuilder<M::Answer> {
        self.call(M::NAME, params)
    }
}
