//! Handlers as tower services, and a peer as a tower service.
#![cfg(feature = "tokio")]
#![cfg(feature = "tower")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use rescind_core::dialect::ACP;
use rescind_core::{CallRequest, Peer, Router, ServiceRequest, memory_pair};
use serde_json::{Value, json};
use tower_service::Service;

/// Answers with the params. Requires a call of `poll_ready` first.
#[derive(Clone, Default)]
struct Echo {
    ready: bool,
}

impl Service<ServiceRequest> for Echo {
    type Response = Value;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Value, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ServiceRequest) -> Self::Future {
        assert!(self.ready, "a service is called only when it is ready");
        Box::pin(async move {
            if request.context.method() == "wait" {
                let cause = request.context.cancelled().await;
                return Ok(json!(format!("{:?}", cause.kind())));
            }
            Ok(request.params.read().unwrap())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_serves_a_method_and_a_peer_is_a_service() {
    let (near, far) = memory_pair();
    let router = Router::new().service("echo", Echo::default()).service("wait", Echo::default());
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let mut client = Peer::builder(ACP).attach(near).unwrap();
    poll_fn(|cx| Service::poll_ready(&mut client, cx)).await.unwrap();
    let request = CallRequest::new("echo", &json!({"a": [1, "x"]})).unwrap();
    let answer = Service::call(&mut client, request).await.unwrap();
    assert_eq!(answer.get(), r#"{"a":[1,"x"]}"#);

    let waiting = Service::call(&mut client, CallRequest::new("wait", &()).unwrap());
    while server.stats().running == 0 {
        tokio::task::yield_now().await;
    }
    drop(waiting);
    while server.stats().slots > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.stats().cancelled, 1, "dropping the future of a call cancels it");
}

#[tokio::test]
async fn a_service_gets_raw_params_and_none_for_null() {
    #[derive(Clone)]
    struct ParamsEcho;

    impl Service<ServiceRequest> for ParamsEcho {
        type Response = String;
        type Error = Infallible;
        type Future = std::future::Ready<Result<String, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: ServiceRequest) -> Self::Future {
            std::future::ready(Ok(String::from_utf8_lossy(request.params.as_bytes()).into_owned()))
        }
    }

    let (near, far) = memory_pair();
    let _server = Peer::builder(ACP).serve(Router::new().service("params", ParamsEcho)).attach(far).unwrap();
    let mut client = Peer::builder(ACP).attach(near).unwrap();
    for (params, expected) in [(json!([1, " x"]), r#"[1," x"]"#), (json!({}), "{}"), (Value::Null, "")] {
        let request = CallRequest::new("params", &params).unwrap();
        let answer = Service::call(&mut client, request).await.unwrap();
        assert_eq!(serde_json::from_str::<String>(answer.get()).unwrap(), expected, "{params}");
    }
}
