//! Which node serves a request: this one, or the owner of the session that it names.

mod forward;
mod serve;
mod shared;

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, request};
use rescind_core::{BoxFuture, PeerAddress, Principal, RequestId};
use rescind_http::{RouteRefusal, SessionRoute, SessionRouter};

use self::forward::forward;
use self::serve::serve;
use crate::cluster::Cluster;
use crate::hop::message::{About, Hop, HopKind, Unverified};
use crate::names::SignedName;
use crate::process::{RETRY_AFTER, refused};
use crate::secret::Purpose;

impl SessionRouter for Cluster {
    fn new_session_id(&self) -> Option<String> {
        self.0.new_name(Purpose::Session).map(|name| name.to_string())
    }

    fn route(&self, head: &mut request::Parts, session: Option<&str>) -> SessionRoute {
        match Hop::take(&mut head.headers) {
            Some(Ok(message)) => self.route_message(message, head, session),
            Some(Err(_)) => SessionRoute::Refused(refused()),
            None => self.route_client(session),
        }
    }

    fn cancel_shared(
        &self,
        principal: &Principal,
        id: &RequestId,
        frame: Bytes,
    ) -> BoxFuture<'static, Result<(), RouteRefusal>> {
        shared::cancel(Arc::clone(&self.0), principal, id, frame)
    }

    fn watch_shared(&self, principal: &Principal, id: &RequestId) -> Option<BoxFuture<'static, Bytes>> {
        Some(shared::watch(&self.0, principal, id))
    }
}

impl Cluster {
    /// A request of a client: to the owner of its session.
    fn route_client(&self, session: Option<&str>) -> SessionRoute {
        let inner = &self.0;
        let named = session.and_then(|id| SignedName::parse(Purpose::Session, &inner.secret, id));
        match named {
            Some(session) if Some(&session.node) != inner.node.as_ref() => {
                let cluster = Arc::clone(inner);
                SessionRoute::Elsewhere(Box::new(move |request| Box::pin(forward(cluster, session, request))))
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
                Box::pin(serve(cluster, message, request))
            }));
        }
        let subject = session.unwrap_or_default().as_bytes();
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
