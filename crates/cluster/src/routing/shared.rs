//! Cancels for servers without sessions: the signal of a principal and an id, which belongs to no node.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use rescind_core::{BoxFuture, Principal, RequestId};
use rescind_http::{RouteRefusal, SHARED_CANCEL_KEPT};

use crate::names::SHARED;
use crate::process::{Process, RETRY_AFTER};
use crate::secret::{Purpose, Secret};

/// The name of the signal that cancels this request. Principals are not shown to the engine.
fn signal_of(secret: &Secret, principal: &Principal, id: &RequestId) -> String {
    let mut json = Vec::new();
    id.write_json(&mut json);
    format!("{SHARED}{}", secret.sign(Purpose::Shared, &[principal.0.as_bytes(), &json]))
}

/// Sends a cancel to every process that runs a request of this principal with this id, or gets one soon.
pub(crate) fn cancel(
    cluster: Arc<Process>,
    principal: &Principal,
    id: &RequestId,
    frame: Bytes,
) -> BoxFuture<'static, Result<(), RouteRefusal>> {
    let name = signal_of(&cluster.secret, principal, id);
    Box::pin(async move {
        let frame = String::from_utf8_lossy(&frame);
        let sent = cluster.engine.signal(&name, &frame, SHARED_CANCEL_KEPT).await;
        sent.map_err(|error| {
            let text = format!("the cancel may not have reached every process: {error}");
            RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text).retry_after(RETRY_AFTER)
        })
    })
}

/// Waits for such a cancel.
pub(crate) fn watch(cluster: &Process, principal: &Principal, id: &RequestId) -> BoxFuture<'static, Bytes> {
    let watch = cluster.signals.watch(&signal_of(&cluster.secret, principal, id).into());
    Box::pin(async move { Bytes::copy_from_slice(watch.come().await.as_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::is_shared;

    #[test]
    fn a_signal_is_of_one_principal_and_one_id_in_type_and_value() {
        let secret = Secret::of_loopback();
        let name = |principal: &str, id: &RequestId| signal_of(&secret, &Principal(principal.into()), id);
        let first = name("ada", &RequestId::number(1));
        assert!(is_shared(&first) && !first.contains("ada"), "{first}");
        assert_eq!(first, name("ada", &RequestId::number(1)));
        for other in [
            name("bob", &RequestId::number(1)),
            name("ada", &RequestId::number(2)),
            name("ada", &RequestId::text("1").unwrap()),
        ] {
            assert_ne!(first, other);
        }
        assert!(!is_shared("cancelled.shared.1.2.3"));
    }
}
