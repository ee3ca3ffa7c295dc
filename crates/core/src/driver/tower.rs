//! Handlers as tower services, and a peer as one (feature `tower`).
//!
//! A cancel is not a message through a tower stack. A service sees the cancel of its request in the request's context,
//! and a call through a service is cancelled by dropping its future.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::value::RawValue;
use tower_service::Service;

use crate::driver::call::Starting;
use crate::driver::call::builder::CallBuilder;
use crate::driver::context::{CallContext, HandlerError};
use crate::driver::handler::AsyncHandler;
use crate::driver::json_text::{Frame, JsonText, read_params};
use crate::driver::peer::Peer;
use crate::driver::router::Router;
use crate::error::CallError;

/// A request of the peer, as a tower service takes it.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServiceRequest {
    /// The request's context: its cancel signal, its ids, its child calls.
    pub context: CallContext,
    /// Its params.
    pub params: RawParams,
}

/// Params as JSON text.
#[derive(Clone)]
pub struct RawParams(Option<JsonText>);

impl RawParams {
    /// The JSON; empty if the request has no params.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map(JsonText::as_bytes).unwrap_or_default()
    }

    /// The params as a value.
    ///
    /// # Errors
    /// An `INVALID_PARAMS` error, with which the request can be answered.
    pub fn read<P: DeserializeOwned>(&self) -> Result<P, HandlerError> {
        Ok(read_params(self.0.clone(), |_| ())?)
    }
}

impl std::fmt::Debug for RawParams {
    /// Without the params, which may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawParams").field("bytes", &self.as_bytes().len()).finish()
    }
}

impl<'de> serde::Deserialize<'de> for RawParams {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer).map_err(D::Error::custom)?;
        Ok(Self(Some(raw).filter(|raw| raw.get() != "null").map(JsonText::of_value)))
    }
}

impl Router {
    /// Serves a method with a tower service and its layers. The service is cloned for each request, and its readiness
    /// is awaited in that request's task, so a service that is not ready delays no other request.
    #[must_use]
    pub fn service<S, R>(self, name: impl AsRef<str>, service: S) -> Self
    where
        S: Service<ServiceRequest, Response = R> + Clone + Send + Sync + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send + 'static,
        R: Serialize + Send + 'static,
    {
        let handler = move |context: CallContext, params: RawParams| {
            let mut service = service.clone();
            async move {
                let boxed = |error: S::Error| HandlerError::from_boxed(error.into());
                poll_fn(|cx| service.poll_ready(cx)).await.map_err(boxed)?;
                service.call(ServiceRequest { context, params }).await.map_err(boxed)
            }
        };
        self.handler(Arc::from(name.as_ref()), Arc::new(AsyncHandler::new(handler)))
    }
}

/// A call to a peer, as a tower service takes it.
///
/// ```
/// use rescind_core::{CallContext, CallRequest, Peer, Router, dialect, memory_pair};
/// use tower_service::Service;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = memory_pair();
/// # let router = Router::new().method("greet", async |_: CallContext, (name,): (String,)| Ok(format!("Hello, {name}")));
/// # let _serving = Peer::builder(dialect::ACP).serve(router).attach(server)?;
/// let mut peer = Peer::builder(dialect::ACP).attach(client)?;
/// // Layers around the peer see this value. Dropping the future cancels the call.
/// let answer = Service::call(&mut peer, CallRequest::new("greet", &["Ada"])?).await?;
/// assert_eq!(answer.get(), r#""Hello, Ada""#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CallRequest {
    method: Arc<str>,
    params: Option<Box<RawValue>>,
}

impl CallRequest {
    /// A call of this method.
    ///
    /// # Errors
    /// [`CallError::Params`] if the params cannot be written as JSON.
    pub fn new<P: Serialize + ?Sized>(method: impl Into<Arc<str>>, params: &P) -> Result<Self, CallError> {
        let method = method.into();
        match serde_json::value::to_raw_value(params) {
            Ok(params) => Ok(Self { params: Some(params).filter(|params| params.get() != "null"), method }),
            Err(error) => Err(CallError::Params { method: method.to_string(), what: error.to_string() }),
        }
    }
}

/// Always ready. Too many calls in flight are an error of the call ([`CallError::TooMany`]). Dropping the future
/// cancels the call.
impl Service<CallRequest> for Peer {
    type Response = Box<RawValue>;
    type Error = CallError;
    type Future = Starting<Box<RawValue>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> Self::Future {
        let CallRequest { method, params } = request;
        let frame = Frame::checked(self.connection().max_frame, method, params);
        Starting::new(CallBuilder::of_frame(self.connection(), frame).start())
    }
}
