use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use rescind_core::BoxFuture;

use crate::mount::Upgrades;

/// A handler for a route of GET requests, or better of all methods: it refuses the others itself.
impl<S: Send + Sync + 'static> Handler<(), S> for Upgrades {
    type Future = BoxFuture<'static, Response>;

    fn call(self, mut request: Request, _: S) -> Self::Future {
        Box::pin(async move { self.answer(&mut request).await.into_response() })
    }
}
