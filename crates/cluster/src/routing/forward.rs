//! Sends a client's request to the node that holds its session.

use std::sync::Arc;

use http::header::{CONNECTION, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use rescind_core::{LogText, PeerAddress};
use rescind_http::{RouteRefusal, RoutedBody};

use crate::hop::message::{About, Hop, HopKind};
use crate::hop::pool::{NodeBody, Unsent};
use crate::membership::{Located, Member};
use crate::names::SignedName;
use crate::process::{Process, RETRY_AFTER};

/// Fields about one connection, which are not passed on (RFC 9110, 7.6.1).
const OF_A_CONNECTION: [HeaderName; 6] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Sends the request to the owner of the session and returns its response, once (a forwarded request is never forwarded
/// again).
pub(crate) async fn forward(
    cluster: Arc<Process>,
    session: SignedName,
    request: Request<RoutedBody>,
) -> Result<Response<RoutedBody>, RouteRefusal> {
    let mut request = between_nodes(request);
    let mut located = cluster.membership.locate(&session.node).await;
    // Twice at most: the second time with an address that was read anew.
    for is_fresh in [false, true] {
        let member = match located {
            Located::At(member) if member.incarnation.is_none_or(|life| life == session.incarnation) => {
                member
            }
            // Its owner has started again since, or the view is old.
            Located::At(_) if !is_fresh => {
                located = cluster.membership.locate_again(&session.node).await;
                continue;
            }
            Located::At(_) | Located::Gone => return Err(gone()),
            Located::Unknown => return Err(unknown()),
        };
        cluster.sign(&mut request, &member, session.text().as_bytes());
        request = match cluster.pool.send(&member.url, request).await {
            Ok(response) => return Ok(from_node(response)),
            Err(Unsent::Lost(error)) => {
                tracing::debug!(node = %member.name, error = %LogText::text(&error), "a forwarded request was lost");
                return Err(lost());
            }
            Err(Unsent::Refused(request)) => {
                located = moved(&cluster, &member, true).await;
                *request
            }
            Err(Unsent::Unreachable(request, error)) => {
                tracing::debug!(node = %member.name, error = %LogText::text(&error), "a node cannot be reached");
                located = moved(&cluster, &member, false).await;
                *request
            }
        };
        // Reading the members anew has shown the same address, or a new one that is tried now.
        if let Located::At(again) = &located {
            if again.url == member.url {
                break;
            }
        }
    }
    Err(match located {
        Located::At(_) => unreachable(),
        Located::Gone => gone(),
        Located::Unknown => unknown(),
    })
}

/// Where a node is that does not answer at its address. Nobody listens there (`is_refused`): it is dead, unless it has moved.
async fn moved(cluster: &Process, member: &Member, is_refused: bool) -> Located {
    match cluster.membership.locate_again(&member.name).await {
        Located::At(again) if again.url == member.url && is_refused => {
            // The engine may show a dead node for some seconds. Without the engine it may as well have moved.
            if cluster.membership.is_current() { Located::Gone } else { Located::Unknown }
        }
        located => located,
    }
}

/// The request as it goes between nodes: over HTTP/2, with the host that its client named.
fn between_nodes(mut request: Request<RoutedBody>) -> Request<RoutedBody> {
    let host = request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = request.uri().clone().into_parts();
    parts.authority = parts.authority.or(host);
    parts.scheme = Some(Scheme::HTTP);
    parts.path_and_query = parts.path_and_query.or_else(|| Some(PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.remove(HOST);
    strip(headers);
    request
}

/// Removes the fields about one connection, and those that it names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_A_CONNECTION.iter().chain([&KEEP_ALIVE, &PROXY_CONNECTION]).chain(&named) {
        headers.remove(name);
    }
}

/// The response of a node as this one gives it to the client.
pub(crate) fn from_node(response: Response<NodeBody>) -> Response<RoutedBody> {
    let (mut head, body) = response.into_parts();
    strip(&mut head.headers);
    head.version = Version::HTTP_11;
    Response::from_parts(head, body.map_err(Into::into).boxed_unsync())
}

impl Process {
    /// Signs a client's request for this node.
    fn sign(&self, request: &mut Request<RoutedBody>, to: &Member, session: &[u8]) {
        let hop = Hop {
            kind: HopKind::Forward,
            from: self.node.clone(),
            to: Some(to.name.clone()),
            client: PeerAddress::of(request),
        };
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let about = About { method: &method, uri: &uri, subject: session };
        hop.put(&self.secret, about, request.headers_mut());
    }
}

/// 404: as for each session that has ended.
fn gone() -> RouteRefusal {
    let text = "this session has ended: the node that held it is gone";
    RouteRefusal::new(StatusCode::NOT_FOUND, text.to_owned())
}

/// 503: the session may live.
fn unknown() -> RouteRefusal {
    let text = "the node that holds this session is not known now, because the members of the cluster cannot be read";
    RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()).retry_after(RETRY_AFTER)
}

/// 503: the session lives, as far as is known.
fn unreachable() -> RouteRefusal {
    let text = "the node that holds this session cannot be reached now";
    RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()).retry_after(RETRY_AFTER)
}

/// 502: the owner may have begun with the request.
fn lost() -> RouteRefusal {
    let text = "the node that holds this session was lost while this request was under way";
    RouteRefusal::new(StatusCode::BAD_GATEWAY, text.to_owned())
}
