use std::future::{Ready, ready};

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};

use crate::routed::Upgrades;

/// A handler for a route of GET requests, or better of any: it refuses other methods itself.
impl<S: Send + Sync + 'static> Handler<(), S> for Upgrades {
    type Future = Ready<Response>;

    fn call(self, mut request: Request, _: S) -> Self::Future {
        ready(self.answer(&mut request).into_response())
    }
}
