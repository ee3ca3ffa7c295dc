//! MCP's revisions with sessions and the one without, on the same path.
//!
//! The headers of a request decide its revision: its `MCP-Protocol-Version`, else a part that only one revision has,
//! such as the version in a body's `_meta` or the header that mirrors the method. A request without any of these
//! belongs to the older revisions, which did not require them. A session knows its revision, whatever its name is. A
//! POST without a session, of a version that neither binding knows, opens a session if it is `initialize`, which
//! negotiates in its body. Others get the answer of the newest revision: 400, and -32022 with the versions that it serves.

use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response};
use http_body_util::Full;
use rescind_core::{BoxFuture, MirroredBodies};

use crate::envelope::{MCP_METHOD, MCP_PROTOCOL_VERSION, MCP_SESSION_ID};
use crate::server::checks::{HeadFields, PageAccess, Parameters, Refused};
use crate::server::{
    AcceptQueue, Caller, RequestBody, Responder, ResponseBody, ServerBinding, Settings, body, sealed,
};
use crate::stateless::{self, Stateless};
use crate::streamable::{FirstMessage, Streamable};

/// The server side of the bindings `streamable` and `stateless` together, for an [`HttpServer`](crate::HttpServer). A
/// client of any revision of MCP gets the matching binding.
///
/// The listener yields links of both bindings. Serve them with both dialects.
#[derive(Clone, Debug, Default)]
#[must_use = "a binding serves as part of a server"]
pub struct McpRevisions {
    streamable: Streamable,
    stateless: Stateless,
}

impl McpRevisions {
    /// Both bindings, with these settings.
    pub const fn new(streamable: Streamable, stateless: Stateless) -> Self {
        Self { streamable, stateless }
    }
}

impl sealed::Sealed for McpRevisions {}

#[expect(private_interfaces, reason = "sealed: only this crate makes bindings")]
impl ServerBinding for McpRevisions {
    fn responder(self, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Arc<dyn Responder> {
        Arc::new(Both {
            bodies: self.stateless.bodies,
            versions: self.stateless.versions_served().to_vec(),
            known: self.streamable.known_versions().to_vec(),
            opening: self.streamable.opening().clone(),
            streamable: self.streamable.responder(settings, accept_queue.clone()),
            stateless: self.stateless.responder(settings, accept_queue),
            settings: Arc::clone(settings),
        })
    }
}

/// The methods and headers that web pages may use, of both bindings.
const PAGE_ACCESS: PageAccess = PageAccess {
    methods: "GET, POST, DELETE",
    headers: "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id, traceparent, tracestate",
    exposed: "Mcp-Session-Id, WWW-Authenticate, Retry-After",
    parameters: Parameters::Read,
};

struct Both {
    bodies: &'static MirroredBodies,
    /// The versions of the revision without sessions.
    versions: Vec<String>,
    /// The versions of the revisions with sessions.
    known: Vec<String>,
    opening: FirstMessage,
    streamable: Arc<dyn Responder>,
    stateless: Arc<dyn Responder>,
    settings: Arc<Settings>,
}

/// The revision that the head of a request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    WithSessions,
    Without,
    /// A version that neither knows and no session, or a version without sessions and not what it requires.
    Unfit,
    Nothing,
}

impl Both {
    fn said(&self, method: &Method, headers: &HeaderMap) -> Said {
        let version = headers.get(MCP_PROTOCOL_VERSION).and_then(|version| version.to_str().ok());
        let is_mirrored = headers.contains_key(MCP_METHOD);
        let is_post = *method == Method::POST;
        match version.map(str::trim) {
            Some(version) if self.versions.iter().any(|own| own == version) => {
                if is_post && !is_mirrored {
                    Said::Unfit
                } else {
                    Said::Without
                }
            }
            Some(version) if self.known.iter().any(|known| known == version) => Said::WithSessions,
            _ if !is_post => Said::WithSessions,
            Some(_) if headers.contains_key(MCP_SESSION_ID) => Said::WithSessions,
            Some(_) if !is_mirrored => Said::Unfit,
            None if !is_mirrored => Said::Nothing,
            Some(_) | None => Said::Without,
        }
    }

    /// Looks into the body if the head does not decide.
    async fn look(
        &self,
        said: Said,
        request: Request<RequestBody>,
        caller: &Caller,
    ) -> Result<(Said, Request<RequestBody>), Refused> {
        let client = caller.client(&self.settings);
        let (head, body) = request.into_parts();
        let limit = self.settings.max_frame;
        // Without a session id, the message opens a session or is refused.
        let limit = if head.headers.contains_key(MCP_SESSION_ID) { limit } else { limit.min(body::OPENING) };
        body::check_length(head.version, &HeadFields::of(&head.headers), limit)?;
        let within = self.settings.body_timeout;
        let (body, bytes) = body::read(body, limit, within, client.budget()).await?;
        // The binding reads the body again and holds its bytes then.
        drop(bytes);
        let plain = body::without_mark(&body);
        let has_sessions = match said {
            Said::Unfit => self.opening.is_handshake(&plain),
            Said::WithSessions | Said::Without | Said::Nothing => {
                !stateless::names_a_version(&plain, self.bodies)
            }
        };
        let said = if has_sessions { Said::WithSessions } else { Said::Without };
        let body = RequestBody::other(Full::new(body));
        Ok((said, Request::from_parts(head, body)))
    }
}

impl Responder for Both {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        Box::pin(async move {
            let mut request = request;
            let mut said = self.said(request.method(), request.headers());
            if matches!(said, Said::Nothing | Said::Unfit) {
                match self.look(said, request, &caller).await {
                    Ok((seen, again)) => (said, request) = (seen, again),
                    Err(refused) => return refused.into_response(),
                }
            }
            let responder = if said == Said::Without { &self.stateless } else { &self.streamable };
            Arc::clone(responder).respond(request, caller).await
        })
    }

    fn page_access(&self) -> &'static PageAccess {
        &PAGE_ACCESS
    }

    fn shut(&self) {
        self.streamable.shut();
        self.stateless.shut();
    }

    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        let (streamable, stateless) = (self.streamable.held(), self.stateless.held());
        (streamable.0 + stateless.0, streamable.1 + stateless.1)
    }
}
