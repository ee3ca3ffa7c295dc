//! The handlers of methods and notifications.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasherDefault;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collections::UnkeyedHasher;
use crate::driver::call::builder::CallBuilder;
use crate::driver::context::{CallContext, HandlerError};
use crate::driver::handler::{AsyncHandler, BlockingHandler, QuickHandler};
use crate::driver::json_text::{JsonText, read_params};
use crate::driver::notifications::tasks::ArrivalOrder;
use crate::driver::peer::Peer;
use crate::driver::state::{Handler, NotificationHandler, Notified};
use crate::driver::tasks::Tasks;
use crate::message::Deviation;
use crate::transport::BoxFuture;

/// The methods and notifications that this side serves.
///
/// Params are read with serde. If they do not fit, the request is answered with `INVALID_PARAMS` and the handler does
/// not run. A method without a handler is answered with `METHOD_NOT_FOUND`. A handler that panics is answered with
/// `INTERNAL_ERROR`; other handlers continue.
///
/// ```
/// use rescind_core::Router;
///
/// let router = Router::new()
///     .method("echo", |_ctx, words: Vec<String>| async move { Ok(words) })
///     .blocking("count", |ctx, (to,): (u64,)| {
///         for _ in 0..to {
///             ctx.check()?;
///         }
///         Ok(to)
///     });
/// # let _ = router;
/// ```
#[derive(Default)]
pub struct Router {
    methods: Names<Route>,
    fallback: Option<Arc<dyn Handler>>,
    notifications: Names<Arc<dyn NotificationHandler>>,
    notification_fallback: Option<Arc<dyn NotificationHandler>>,
    in_order: bool,
    reads_ahead: Option<usize>,
    tasks: Option<Tasks>,
}

/// By names that only this side chooses. A peer looks names up and adds none, so their hash has no key.
type Names<T> = HashMap<Arc<str>, T, BuildHasherDefault<UnkeyedHasher>>;

#[derive(Default)]
struct Route {
    handler: Option<Arc<dyn Handler>>,
    server_cancellable: bool,
}

/// The route of a request.
pub(crate) struct Routed {
    pub(crate) method: Arc<str>,
    pub(crate) handler: Option<Arc<dyn Handler>>,
    pub(crate) server_cancellable: bool,
}

impl Router {
    /// A router that serves nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves a method with an async function. Each request runs as a task of its own. For a handler that mostly answers
    /// without waiting, [`quick`](Self::quick) saves the task. Measure both: with several workers it may be slower.
    #[must_use]
    pub fn method<F, P, R, Fut>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.handler(Arc::from(name.as_ref()), Arc::new(AsyncHandler::new(handler)))
    }

    /// Serves a method with an async function that mostly answers without waiting, such as a lookup in a table.
    ///
    /// The connection's task polls the handler's future once, after it has read the frames that arrived with the request.
    /// If the future is ready, the answer is sent at once, without a task. If it is not, the same future becomes a task
    /// of its own, as with [`method`](Self::method). Outcomes are the same as with `method` in every case: cancels,
    /// deadlines, panics, limits and shutdowns have the same effect. A request that waits for a permit
    /// ([`Limits::max_running_handlers`](crate::Limits::max_running_handlers)) starts as a task.
    ///
    /// # Until the first `.await` that waits
    /// Code before the first `.await` that waits runs on the connection's task. While it runs, the connection reads
    /// nothing and writes nothing: **a cancel of any request of this connection is held up for as long**, and so are all
    /// answers. It must not compute for long, block, or wait for this connection by other means than `.await`. A debug
    /// build logs a warning if a first poll takes more than a millisecond. Task-local values, and
    /// [`tokio::task::id`](https://docs.rs/tokio/latest/tokio/task/fn.id.html), are those of the connection's task
    /// there.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::Arc;
    /// use rescind_core::{CallContext, Router};
    ///
    /// let capitals = Arc::new(HashMap::from([("France".to_owned(), "Paris")]));
    /// let router = Router::new()
    ///     // Right: a lookup is ready at its first poll.
    ///     .quick("capital", move |_ctx: CallContext, (country,): (String,)| {
    ///         let capitals = Arc::clone(&capitals);
    ///         async move { Ok(capitals.get(&country).copied()) }
    ///     })
    ///     // Wrong as `quick`: it computes for long before it awaits anything, and every cancel of the connection would
    ///     // wait for it. `blocking` runs it on a thread of its own.
    ///     .blocking("sum", |ctx, (to,): (u64,)| {
    ///         let mut sum = 0_u64;
    ///         for number in 0..to {
    ///             ctx.check()?;
    ///             sum = sum.wrapping_add(number);
    ///         }
    ///         Ok(sum)
    ///     });
    /// # let _ = router;
    /// ```
    #[must_use]
    pub fn quick<F, P, R, Fut>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.handler(Arc::from(name.as_ref()), Arc::new(QuickHandler::new(handler)))
    }

    /// Serves a method with a function that blocks, on a thread of the blocking pool. Such a thread cannot be aborted:
    /// call [`CallContext::check`] often.
    #[must_use]
    pub fn blocking<F, P, R>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Result<R, HandlerError> + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.handler(Arc::from(name.as_ref()), Arc::new(BlockingHandler::new(handler)))
    }

    /// Serves every method without a handler of its own. [`CallContext::method`] returns the name.
    #[must_use]
    pub fn fallback<F, P, R, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.fallback = Some(Arc::new(AsyncHandler::new(handler)));
        self
    }

    /// Serves every method without a handler of its own, as [`quick`](Self::quick) does for a name. Read there what such
    /// a handler must not do.
    #[must_use]
    pub fn quick_fallback<F, P, R, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.fallback = Some(Arc::new(QuickHandler::new(handler)));
        self
    }

    /// Declares that this side may cancel requests of this method without a cancel of the peer (LSP). They are answered
    /// with the dialect's error for that case.
    #[must_use]
    pub fn server_cancellable(mut self, name: impl AsRef<str>) -> Self {
        self.methods.entry(Arc::from(name.as_ref())).or_default().server_cancellable = true;
        self
    }

    /// Starts the handler of a request only after the handlers of the notifications before it have ended. Default: the
    /// dialect decides. LSP requires it, so that a request about a document sees every change before it.
    ///
    /// A request that is cancelled while it waits is answered at once, and its handler does not run. Notifications of
    /// [`concurrent_notification`](Self::concurrent_notification) are not waited for. A notification's handler must not
    /// wait for a request that arrived after the notification.
    ///
    /// It has no effect where clients share a connection (stateless HTTP).
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Stops reading from the peer while more than about this many of its notifications wait for their handlers.
    /// Reading goes on when half of them are handled. Default: reading never stops, and notifications above
    /// [`Limits::max_queued_notifications`](crate::Limits::max_queued_notifications) are dropped.
    ///
    /// While reading is stopped, cancels and answers of the peer are not read either, and its disconnect is not noticed.
    /// Notifications that arrived before the connection closed are handled nevertheless. Use it where notifications are
    /// passed on to a slower reader and none may be lost. Their handlers must end when that reader is gone.
    #[must_use]
    pub const fn pause_reading_at(mut self, waiting: usize) -> Self {
        self.reads_ahead = Some(waiting);
        self
    }

    /// Handles a notification. Such handlers run one at a time, in the order in which the notifications arrived.
    ///
    /// A notification whose params cannot be read is logged and dropped.
    #[must_use]
    pub fn notification<F, P, Fut>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(Peer, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.notified(Arc::from(name.as_ref()), Order::Kept, move |notified, params| {
            handler(Peer::new(&notified.connection), params)
        })
    }

    /// Handles a notification in order with the others, and tells its handler which requests arrived before it. Use it
    /// for a protocol's own cancel notification, which means the requests before it and no later one. See
    /// [`ArrivalOrder`].
    #[must_use]
    pub fn placed_notification<F, P, Fut>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(Peer, ArrivalOrder, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.notified(Arc::from(name.as_ref()), Order::Kept, move |notified, params| {
            handler(Peer::new(&notified.connection), ArrivalOrder::of(&notified), params)
        })
    }

    /// Handles a notification out of order: each runs as a task of its own.
    #[must_use]
    pub fn concurrent_notification<F, P, Fut>(self, name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(Peer, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.notified(Arc::from(name.as_ref()), Order::Free, move |notified, params| {
            handler(Peer::new(&notified.connection), params)
        })
    }

    /// Handles every notification without a handler of its own, in order with the others.
    #[must_use]
    pub fn notification_fallback<F, P, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Peer, Arc<str>, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let function = move |notified: Notified, params| {
            handler(Peer::new(&notified.connection), notified.method, params)
        };
        let handler = TypedNotification { function, order: Order::Kept, params: PhantomData };
        self.notification_fallback = Some(Arc::new(handler));
        self
    }

    pub(crate) fn handler(mut self, name: Arc<str>, handler: Arc<dyn Handler>) -> Self {
        self.methods.entry(name).or_default().handler = Some(handler);
        self
    }

    fn notified<F, P, Fut>(mut self, name: Arc<str>, order: Order, function: F) -> Self
    where
        F: Fn(Notified, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.notifications.insert(name, Arc::new(TypedNotification { function, order, params: PhantomData }));
        self
    }

    pub(crate) fn with_tasks(mut self, tasks: &Tasks) -> Self {
        self.tasks = Some(tasks.clone());
        self
    }

    /// Serves a method that has no handler.
    #[must_use]
    pub(crate) fn unless_served<F, P, R, Fut>(self, name: &'static str, handler: F) -> Self
    where
        F: Fn(CallContext, P) -> Fut + Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        if self.methods.get(name).is_some_and(|route| route.handler.is_some()) {
            return self;
        }
        self.method(name, handler)
    }

    pub(crate) const fn kept_tasks(&self) -> Option<&Tasks> {
        self.tasks.as_ref()
    }

    pub(crate) const fn is_in_order(&self) -> bool {
        self.in_order
    }

    pub(crate) const fn reads_ahead(&self) -> Option<usize> {
        self.reads_ahead
    }

    pub(crate) fn serves_nothing(&self) -> bool {
        self.methods.values().all(|route| route.handler.is_none())
            && self.fallback.is_none()
            && self.notifications.is_empty()
            && self.notification_fallback.is_none()
    }

    pub(crate) fn route(&self, method: &str) -> Routed {
        match self.methods.get_key_value(method) {
            Some((name, route)) => Routed {
                method: Arc::clone(name),
                handler: route.handler.as_ref().or(self.fallback.as_ref()).map(Arc::clone),
                server_cancellable: route.server_cancellable,
            },
            None => Routed {
                method: Arc::from(method),
                handler: self.fallback.as_ref().map(Arc::clone),
                server_cancellable: false,
            },
        }
    }

    pub(crate) fn route_notification(
        &self,
        method: &str,
    ) -> Option<(Arc<str>, Arc<dyn NotificationHandler>)> {
        match self.notifications.get_key_value(method) {
            Some((name, handler)) => Some((Arc::clone(name), Arc::clone(handler))),
            None => {
                self.notification_fallback.as_ref().map(|handler| (Arc::from(method), Arc::clone(handler)))
            }
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut methods: Vec<_> = self.methods.keys().collect();
        methods.sort();
        f.debug_struct("Router").field("methods", &methods).finish_non_exhaustive()
    }
}

/// Whether a notification is handled in order with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Kept,
    Free,
}

struct TypedNotification<F, P> {
    function: F,
    order: Order,
    params: PhantomData<fn(P)>,
}

impl<F, P, Fut> NotificationHandler for TypedNotification<F, P>
where
    F: Fn(Notified, P) -> Fut + Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    fn keeps_order(&self) -> bool {
        self.order == Order::Kept
    }

    fn handle(&self, notified: Notified, params: Option<JsonText>) -> BoxFuture<'static, ()> {
        let Ok(params) =
            read_params::<P>(params, |sent| notified.connection.deviates(Deviation::LoneSurrogate, sent))
        else {
            tracing::debug!(rpc.method = %crate::log_text::LogText::name(&notified.method), "a notification's params do not fit its handler");
            return Box::pin(std::future::ready(()));
        };
        Box::pin((self.function)(notified, params))
    }
}

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
