//! Asking the auth hook, and what becomes of requests whose credential expires.

use std::sync::Arc;
use std::time::Instant;

use http::{Request, Response};
use rescind_core::{AuthHook, AuthRefusal, AuthRequest, Credential, Principal};

use super::refusal::Refused;
use super::{ReplyBody, RequestBody, Responder};

/// When the credential of a request expires: among its extensions, for what outlives its answer.
#[derive(Clone, Copy, Debug)]
struct Expires(Instant);

/// Answers a request of somebody the hook knows.
pub(super) async fn answer(
    responder: Arc<dyn Responder>,
    hook: AuthHook,
    within: std::time::Duration,
    mut request: Request<RequestBody>,
) -> Response<ReplyBody> {
    let asked = hook.ask(AuthRequest::of(&request), within);
    let credential = match asked.await {
        Ok(credential) => credential,
        Err(refusal) => return responder.refuse(Refused::by_hook(&refusal)),
    };
    let principal = credential.principal().cloned();
    let Some(at) = credential.deadline(tokio::time::Instant::now().into_std()) else {
        return responder.respond(request, principal).await;
    };
    request.extensions_mut().insert(Expires(at));
    let answer = Arc::clone(&responder).respond(request, principal);
    match tokio::time::timeout_at(at.into(), answer).await {
        Ok(response) => response.map(|body| body.expires(at.into())),
        Err(_) => responder.refuse(Refused::by_hook(&AuthRefusal::expired())),
    }
}

/// The credential of a request that passed the hook, or for which there is none.
pub(crate) fn credential<B>(request: &Request<B>, principal: Option<Principal>) -> Credential {
    let credential = principal.map_or(Credential::anonymous(), Credential::of);
    match request.extensions().get::<Expires>() {
        Some(Expires(at)) => credential.expires_at(*at),
        None => credential,
    }
}
