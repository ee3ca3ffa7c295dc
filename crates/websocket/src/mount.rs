//! WebSocket connections through an existing HTTP server.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use rescind_core::{BoxFuture, Endpoint, Link, Listener, TransportError};
use rescind_net::Credential;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::handshake::{Refusal, Upgrading, upgrade};
use crate::options::UpgradeOptions;

/// A handler for upgrade requests of an HTTP server, and the listener that yields their connections.
///
/// ```no_run
/// # #[cfg(feature = "axum")]
/// # fn example() -> axum::Router {
/// let (upgrades, listener) = rescind_websocket::mount(rescind_websocket::UpgradeOptions::new());
/// // `listener` is passed to a server, and the route to the existing application.
/// # drop(listener);
/// axum::Router::new().route("/agent", axum::routing::any(upgrades))
/// # }
/// ```
#[must_use]
pub fn mount(options: UpgradeOptions) -> (Upgrades, MountedListener) {
    // There are two queues, each with the whole limit: the connections that the HTTP server has answered, and those for
    // which the listener waits. A connection moves from the first to the second when the listener is polled.
    let (sender, receiver) = channel(options.handshakes);
    let limit = options.handshakes;
    let endpoint = Endpoint("a route of an HTTP server".to_owned());
    let upgrades = Upgrades { options: Arc::new(options), sender };
    (upgrades, MountedListener { receiver, limit, opening: FuturesUnordered::new(), endpoint })
}

/// Handles the upgrade requests of an HTTP server. With the feature `axum` it is a handler for a route.
///
/// Clones belong to one listener. The listener ends when all are dropped.
#[derive(Clone)]
pub struct Upgrades {
    options: Arc<UpgradeOptions>,
    sender: Sender<Upgrading>,
}

impl Upgrades {
    /// Answers a request. If it is a valid upgrade, the listener yields the connection.
    ///
    /// The request must come from a hyper server that allows upgrades, as axum's does. The auth hook gets the
    /// [`PeerAddress`](rescind_net::PeerAddress) and the [`PeerCertificates`](rescind_net::PeerCertificates) among
    /// its extensions.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn answer<B>(&self, request: &mut Request<B>) -> Response<String> {
        self.answer_for(request, &Credential::anonymous()).await
    }

    /// Answers a request that the HTTP server has authenticated. Its principal is the principal of the connection,
    /// unless the auth hook of [`UpgradeOptions`] returns another. The connection ends when either credential expires.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn answer_for<B>(&self, request: &mut Request<B>, credential: &Credential) -> Response<String> {
        match self.take(request, credential).await {
            Ok(response) => response,
            Err(refusal) => {
                tracing::debug!(refusal = %rescind_core::LogText::text(&refusal), "a WebSocket was refused");
                refusal.into_response()
            }
        }
    }

    async fn take<B>(
        &self,
        request: &mut Request<B>,
        credential: &Credential,
    ) -> Result<Response<String>, Refusal> {
        let place = self.sender.try_reserve().map_err(|error| match error {
            TrySendError::Full(()) => Refusal::busy(),
            TrySendError::Closed(()) => Refusal::closed(),
        })?;
        let (response, upgrading) = upgrade(request, &self.options).await?;
        // The listener may have closed while the auth hook ran.
        if self.sender.is_closed() {
            return Err(Refusal::closed());
        }
        place.send(upgrading.on_behalf_of(credential));
        Ok(response)
    }
}

/// A handler for a route of GET requests, or better of all methods: it refuses the others itself.
#[cfg(feature = "axum")]
impl<S: Send + Sync + 'static> axum::handler::Handler<(), S> for Upgrades {
    type Future = BoxFuture<'static, axum::response::Response>;

    fn call(self, mut request: axum::extract::Request, _: S) -> Self::Future {
        use axum::response::IntoResponse as _;
        Box::pin(async move { self.answer(&mut request).await.into_response() })
    }
}

impl fmt::Debug for Upgrades {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrades").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A listener that yields the connections of upgrade requests.
pub struct MountedListener {
    receiver: Receiver<Upgrading>,
    limit: usize,
    opening: FuturesUnordered<BoxFuture<'static, Result<Link, TransportError>>>,
    endpoint: Endpoint,
}

impl MountedListener {
    /// Sets the URL of the route, such as `ws://127.0.0.1:8080/agent`.
    #[must_use]
    pub fn at(mut self, endpoint: &str) -> Self {
        endpoint.clone_into(&mut self.endpoint.0);
        self
    }
}

impl Listener for MountedListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        loop {
            if let Poll::Ready(Some(done)) = Pin::new(&mut self.opening).poll_next(cx) {
                return Poll::Ready(Some(done));
            }
            if self.opening.len() >= self.limit {
                return Poll::Pending;
            }
            match self.receiver.poll_recv(cx) {
                Poll::Ready(Some(upgrading)) => self.opening.push(Box::pin(upgrading.link())),
                Poll::Ready(None) if self.opening.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn stop_accepting(mut self: Pin<&mut Self>) -> bool {
        self.receiver.close();
        while self.receiver.try_recv().is_ok() {}
        self.opening.clear();
        false
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }
}

impl fmt::Debug for MountedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountedListener")
            .field("endpoint", &self.endpoint)
            .field("opening", &self.opening.len())
            .finish_non_exhaustive()
    }
}
