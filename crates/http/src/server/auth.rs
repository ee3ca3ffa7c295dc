//! Calls the auth hook, and ends requests whose credential expires.

use std::sync::Arc;
use std::time::Instant;

use http::{Request, Response};
use rescind_core::{AuthHook, AuthRefusal, AuthRequest, Credential, Principal};

use super::refusal::Refused;
use super::{Caller, RequestBody, Responder, ResponseBody};

/// When the credential of a request expires. It is stored in the extensions of the request, for tasks that outlive the
/// response.
#[derive(Clone, Copy, Debug)]
struct Expires(Instant);

/// Answers a request that the hook accepts.
pub(super) async fn answer(
    responder: Arc<dyn Responder>,
    hook: AuthHook,
    within: std::time::Duration,
    mut request: Request<RequestBody>,
    caller: Caller,
) -> Response<ResponseBody> {
    let asked = hook.ask(AuthRequest::of(&request), within);
    let credential = match asked.await {
        Ok(credential) => credential,
        Err(refusal) => return responder.refuse(Refused::by_hook(&refusal)),
    };
    let caller = Caller { principal: credential.principal().cloned(), ..caller };
    let Some(at) = credential.deadline(tokio::time::Instant::now().into_std()) else {
        return responder.respond(request, caller).await;
    };
    request.extensions_mut().insert(Expires(at));
    let answer = Arc::clone(&responder).respond(request, caller);
    match tokio::time::timeout_at(at.into(), answer).await {
        Ok(response) => response.map(|body| body.expires(at.into())),
        Err(_) => responder.refuse(Refused::by_hook(&AuthRefusal::expired())),
    }
}

/// The credential of a request that the hook accepted, or the anonymous one if there is no hook.
pub(crate) fn credential<B>(request: &Request<B>, principal: Option<Principal>) -> Credential {
    let credential = principal.map_or(Credential::anonymous(), Credential::of);
    match request.extensions().get::<Expires>() {
        Some(Expires(at)) => credential.expires_at(*at),
        None => credential,
    }
}
