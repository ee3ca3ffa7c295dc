//! Sends a message to a node that is no request of a client.

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};

use super::message::{About, Hop, HopKind};
use super::pool::{NodeBody, Pool, Unsent};
use crate::names::NodeName;
use crate::secret::Secret;

/// Why a message got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("nobody listens at its address")]
    Refused,
    #[error("{0}")]
    Other(String),
}

/// Sends a message to a node.
pub(crate) async fn send(
    pool: &Pool,
    secret: &Secret,
    from: Option<&NodeName>,
    kind: HopKind,
    to: Option<&NodeName>,
    url: &Uri,
    body: Vec<u8>,
) -> Result<Response<NodeBody>, Failed> {
    let hop = Hop { kind, from: from.cloned(), to: to.cloned(), client: None };
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.clone();
    let about = About { method: &Method::POST, uri: url, subject: &body };
    hop.put(secret, about, request.headers_mut());
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    pool.send(url, request.map(|()| body)).await.map_err(|why| match why {
        Unsent::Refused(_) => Failed::Refused,
        Unsent::Unreachable(_, error) => Failed::Other(error.to_string()),
        Unsent::Lost(error) => Failed::Other(error.to_string()),
    })
}
