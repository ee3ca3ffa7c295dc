//! Which node serves a request: this one, or the owner of the session that it names.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{CONNECTION, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, Uri, Version, request};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use rescind_core::{BoxFuture, LogText, Principal, RequestId};
use rescind_http::{RouteRefusal, RoutedBody, SHARED_CANCEL_KEPT, SessionRoute, SessionRouter};
use rescind_net::PeerAddress;
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::hop::{About, Hop, HopKind, SignalMessage, Unverified};
use crate::membership::{Located, Member};
use crate::names::{SHARED, SignedName};
use crate::pool::{NodeBody, Unsent};
use crate::process::{Process, RETRY_AFTER, refused};
use crate::secret::{Purpose, Secret};

impl SessionRouter for Cluster {
    fn new_session_id(&self) -> Option<String> {
        self.0.new_name(Purpose::Session).map(|name| name.to_string())
    }

    fn route(&self, head: &mut request::Parts, session: Option<&str>) -> SessionRoute {
        match Hop::take(&mut head.headers) {
            Some(Ok(message)) => self.route_message(message, head, session),
            Some(Err(_)) => SessionRoute::Refused(refused()),
            None => self.route_client(head, session),
        }
    }

    fn cancel_shared(
        &self,
        principal: &Principal,
        id: &RequestId,
        frame: Bytes,
    ) -> BoxFuture<'static, Result<(), RouteRefusal>> {
        cancel_shared(Arc::clone(&self.0), principal, id, frame)
    }

    fn watch_shared(&self, principal: &Principal, id: &RequestId) -> Option<BoxFuture<'static, Bytes>> {
        Some(watch_shared(&self.0, principal, id))
    }
}

impl Cluster {
    /// A request of a client: to the owner of its session, or of the task that it is about.
    fn route_client(&self, head: &request::Parts, session: Option<&str>) -> SessionRoute {
        let inner = &self.0;
        let named = match session {
            Some(id) => SignedName::parse(Purpose::Session, &inner.secret, id),
            None => task_of(head).and_then(|id| SignedName::parse(Purpose::Key, &inner.secret, id)),
        };
        match named {
            Some(named) if Some(&named.node) != inner.node.as_ref() => {
                let cluster = Arc::clone(inner);
                let about = match session {
                    Some(_) => Subject::Session,
                    None if cancels_task(head) => Subject::CancelOfTask,
                    None => Subject::Task,
                };
                SessionRoute::Elsewhere(Box::new(move |request| {
                    Box::pin(forward(cluster, named, about, request))
                }))
            }
            // Only this node could serve a new session, or a request without one.
            None if session.is_none() && self.has_lost_its_name() => {
                let text = "another process has taken the name of this node in its cluster";
                let refusal = RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
                SessionRoute::Refused(refusal.retry_after(RETRY_AFTER))
            }
            // A session that no node of this cluster made is unknown here as well.
            Some(_) | None => SessionRoute::Here,
        }
    }

    /// A message of another node. A forwarded request is served here, whether or not its session is known here: it is never
    /// forwarded again.
    fn route_message(
        &self,
        message: Unverified,
        head: &mut request::Parts,
        session: Option<&str>,
    ) -> SessionRoute {
        if message.kind() != HopKind::Forward {
            let cluster = Arc::clone(&self.0);
            return SessionRoute::Elsewhere(Box::new(move |request| {
                Box::pin(answer_node(cluster, message, request))
            }));
        }
        let subject = session.or_else(|| task_of(head)).unwrap_or_default().as_bytes();
        let verified = self.0.verify(message, About { method: &head.method, uri: &head.uri, subject });
        let hop = match verified {
            Ok(hop) => hop,
            Err(refusal) => return SessionRoute::Refused(refusal),
        };
        // The limits of a client count for its own address, and not for that of the node that it reached.
        head.extensions.remove::<PeerAddress>();
        if let Some(client) = hop.client {
            head.extensions.insert(PeerAddress(client));
        }
        SessionRoute::Here
    }
}

/// The id of the task that a request without a session is about. MCP's extension for tasks, "Routing Headers": by
/// this header, requests for one task are routed to the server that holds its state.
fn task_of(head: &request::Parts) -> Option<&str> {
    let text = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
    text(METHOD).filter(|method| method.starts_with("tasks/")).and_then(|_| text(NAME))
}

/// Whether such a request cancels the task.
fn cancels_task(head: &request::Parts) -> bool {
    head.headers.get(METHOD).is_some_and(|method| method == "tasks/cancel")
}

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

// Sends a client's request to the node that holds its session or its task.

/// Fields about one connection, which are not passed on (RFC 9110, 7.6.1).
const OF_A_CONNECTION: [HeaderName; 6] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The subject of a forwarded request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Session,
    Task,
    CancelOfTask,
}

/// Sends the request to the owner of the session or the task and returns its response, once (a forwarded request is never
/// forwarded again).
async fn forward(
    cluster: Arc<Process>,
    owner: SignedName,
    about: Subject,
    request: Request<RoutedBody>,
) -> Result<Response<RoutedBody>, RouteRefusal> {
    let mut request = between_nodes(request);
    let mut located = cluster.membership.locate(&owner.node).await;
    // Twice at most: the second time with an address that was read anew.
    for is_fresh in [false, true] {
        let member = match located {
            Located::At(member) if member.incarnation.is_none_or(|life| life == owner.incarnation) => member,
            // Its owner has started again since, or the view is old.
            Located::At(_) if !is_fresh => {
                located = cluster.membership.locate_again(&owner.node).await;
                continue;
            }
            Located::At(_) | Located::Gone if about != Subject::Session => {
                return answer_from_record(&cluster, &owner, request).await;
            }
            Located::At(_) | Located::Gone => return Err(refuse_gone()),
            Located::Unknown => return Err(refuse_unknown()),
        };
        cluster.sign(&mut request, &member, owner.text().as_bytes());
        request = match cluster.pool.send(&member.url, request).await {
            Ok(response) => return Ok(from_node(response)),
            Err(Unsent::Lost(error)) => {
                tracing::debug!(node = %member.name, error = %LogText::text(&error), "a forwarded request was lost");
                return Err(refuse_lost());
            }
            Err(Unsent::Refused(request)) => {
                located = relocate(&cluster, &member, true).await;
                *request
            }
            Err(Unsent::Unreachable(request, error)) => {
                tracing::debug!(node = %member.name, error = %LogText::text(&error), "a node cannot be reached");
                located = relocate(&cluster, &member, false).await;
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
    match located {
        Located::Gone if about != Subject::Session => answer_from_record(&cluster, &owner, request).await,
        // It waits for its owner on the bus.
        Located::At(_) if about == Subject::CancelOfTask => {
            answer_from_record(&cluster, &owner, request).await
        }
        Located::At(_) => Err(refuse_unreachable()),
        Located::Gone => Err(refuse_gone()),
        Located::Unknown => Err(refuse_unknown()),
    }
}

/// A question about a task of a dead node, which this node answers from its record. It is sent as to another node, which serves
/// what it gets.
async fn answer_from_record(
    cluster: &Process,
    task: &SignedName,
    mut request: Request<RoutedBody>,
) -> Result<Response<RoutedBody>, RouteRefusal> {
    let own = cluster.node.as_ref().filter(|_| !cluster.engine.is_list());
    let Some(Located::At(own)) = (match own {
        Some(name) => Some(cluster.membership.locate(name).await),
        None => None,
    }) else {
        return Err(refuse_gone());
    };
    cluster.sign(&mut request, &own, task.text().as_bytes());
    match cluster.pool.send(&own.url, request).await {
        Ok(response) => Ok(from_node(response)),
        Err(_) => Err(refuse_gone()),
    }
}

/// Where a node is that does not answer at its address. Nobody listens there (`is_refused`): it is dead, unless it has moved.
async fn relocate(cluster: &Process, member: &Member, is_refused: bool) -> Located {
    match cluster.membership.locate_again(&member.name).await {
        Located::At(again) if again.url == member.url && is_refused => {
            // The engine may show a dead node for some seconds, or while it is full. Without it the node may have moved.
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
fn from_node(response: Response<NodeBody>) -> Response<RoutedBody> {
    let (mut head, body) = response.into_parts();
    strip(&mut head.headers);
    head.version = Version::HTTP_11;
    Response::from_parts(head, body.map_err(Into::into).boxed_unsync())
}

impl Process {
    /// Signs a client's request for this node.
    fn sign(&self, request: &mut Request<RoutedBody>, to: &Member, owner: &[u8]) {
        let hop = Hop {
            kind: HopKind::Forward,
            from: self.node.clone(),
            to: Some(to.name.clone()),
            client: PeerAddress::of(request),
        };
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let about = About { method: &method, uri: &uri, subject: owner };
        hop.put(&self.secret, about, request.headers_mut());
    }
}

/// 404: as for each session that has ended.
fn refuse_gone() -> RouteRefusal {
    let text = "this session or task has ended: the node that held it is gone";
    RouteRefusal::new(StatusCode::NOT_FOUND, text.to_owned())
}

/// 503: the session may live.
fn refuse_unknown() -> RouteRefusal {
    let text = "the node that holds this session or task is not known now, because the members of the cluster cannot be read";
    RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()).retry_after(RETRY_AFTER)
}

/// 503: the session lives, as far as is known.
fn refuse_unreachable() -> RouteRefusal {
    let text = "the node that holds this session or task cannot be reached now";
    RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()).retry_after(RETRY_AFTER)
}

/// 502: the owner may have begun with the request.
fn refuse_lost() -> RouteRefusal {
    let text = "the node that holds this session or task was lost while this request was under way";
    RouteRefusal::new(StatusCode::BAD_GATEWAY, text.to_owned())
}

// Answers the messages of other nodes that are no requests of clients.

/// The longest message between nodes, in bytes.
const MAX_MESSAGE: usize = 16 * 1024;
/// The time in which a message must arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers a message.
async fn answer_node(
    cluster: Arc<Process>,
    message: Unverified,
    request: Request<RoutedBody>,
) -> Result<Response<RoutedBody>, RouteRefusal> {
    let (head, body) = request.into_parts();
    let Ok(Some(body)) = tokio::time::timeout(MESSAGE_TIMEOUT, read(body)).await else {
        return Err(RouteRefusal::new(StatusCode::BAD_REQUEST, "the message could not be read".to_owned()));
    };
    let about = About { method: &head.method, uri: &head.uri, subject: &body };
    let hop = cluster.verify(message, about)?;
    match hop.kind {
        HopKind::Hello => Ok(answer(serde_json::to_vec(&cluster.hello()).unwrap_or_default())),
        HopKind::Status => Ok(answer(cluster.status().to_string().into_bytes())),
        HopKind::Signal => {
            let signal: SignalMessage = read_message(&body)?;
            cluster
                .engine
                .receive(&signal.name, &signal.value, Duration::from_millis(signal.keep_ms))
                .await
                .map_err(|error| RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
            Ok(answer(Vec::new()))
        }
        HopKind::Watch => {
            let watch = cluster.signals.watch(&read_message::<SignalMessage>(&body)?.name.into());
            // The head shows that it is watched. The body follows when the signal comes.
            let come = async move { Ok(Frame::data(Bytes::from(watch.come().await.as_bytes().to_vec()))) };
            let body = StreamBody::new(stream::once(come));
            Ok(Response::new(body.boxed_unsync()))
        }
        HopKind::Task => Ok(answer(cluster.tell_of_tasks(read_message(&body)?).await)),
        HopKind::Forward => Err(refused()),
    }
}

/// Reads a whole message. `None`: it is too long, or broke off.
async fn read(mut body: RoutedBody) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if whole.len() + data.len() > MAX_MESSAGE {
            return None;
        }
        whole.extend_from_slice(&data);
    }
    Some(whole.freeze())
}

fn read_message<T: DeserializeOwned>(body: &[u8]) -> Result<T, RouteRefusal> {
    let unreadable =
        |_| RouteRefusal::new(StatusCode::BAD_REQUEST, "the message is not of its kind".to_owned());
    serde_json::from_slice(body).map_err(unreadable)
}

fn answer(body: Vec<u8>) -> Response<RoutedBody> {
    Response::new(Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync())
}

// Cancels for servers without sessions: the signal of a principal and an id, which belongs to no node.

/// The name of the signal that cancels this request. Principals are not shown to the engine.
fn signal_of(secret: &Secret, principal: &Principal, id: &RequestId) -> String {
    let mut json = Vec::new();
    id.write_json(&mut json);
    format!("{SHARED}{}", secret.sign(Purpose::Shared, &[principal.0.as_bytes(), &json]))
}

/// Sends a cancel to every process that runs a request of this principal with this id, or gets one soon.
fn cancel_shared(
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
fn watch_shared(cluster: &Process, principal: &Principal, id: &RequestId) -> BoxFuture<'static, Bytes> {
    let watch = cluster.signals.watch(&signal_of(&cluster.secret, principal, id).into());
    Box::pin(async move { Bytes::copy_from_slice(watch.come().await.as_bytes()) })
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, OnceLock};

    use super::*;
    use crate::membership::tests::with_a_full_engine;
    use crate::names::{Incarnation, is_shared};
    use crate::pool::Pool;

    #[tokio::test]
    async fn a_node_that_refuses_connections_is_dead_also_while_the_engine_is_full() {
        let secret = Secret::of_loopback();
        let (membership, engine) = with_a_full_engine("http://127.0.0.1:1/", &secret).await;
        let process = Process {
            node: None,
            incarnation: Incarnation::new().unwrap(),
            secret,
            engine,
            signals: Arc::default(),
            membership,
            pool: Pool::default(),
            keys: Mutex::default(),
            tasks: Mutex::default(),
            own: Mutex::default(),
            own_tasks: Mutex::default(),
            status: OnceLock::new(),
        };
        let Located::At(member) = process.membership.locate(&"n1".parse().unwrap()).await else {
            panic!("it is a member")
        };
        assert_eq!(relocate(&process, &member, true).await, Located::Gone);
        // It may only be slow.
        assert_eq!(relocate(&process, &member, false).await, Located::At(member));
    }

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
