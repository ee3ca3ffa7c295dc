//! Sending a request again: to the address that a redirect names, with new credentials, or after the time that the server
//! asked for. None of these responses is given by a server that has begun the request.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::LOCATION;
use http::{Method, Response, StatusCode, Uri};
use rescind_core::{Deviation, TransportError, TransportErrorKind, TransportEvent};

use super::connector::Connector;
use super::location::{resolve, retry_after};
use super::pool::Pool;
use super::refusal::{RedirectedTo, beginning};
use super::requester::{Attempts, Failed, Requester, Sent, Target, address_of, default_port};
use super::response_body::ResponseBody;

/// The most redirects of one request.
const HOPS: usize = 5;
/// The longest `Retry-After` that is waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The most other servers whose connections are kept.
const OTHERS: usize = 4;
/// The most bytes of the body of a redirect that are read so that its connection can be used again.
const LEFTOVER: usize = 16 * 1024;

/// The largest body that is kept, in bytes. A larger one would take its memory until the server answers.
const MAX_KEPT: usize = 1024 * 1024;

/// The body of a request for the case that it must be sent again. `None`: it is too large to be kept.
pub(crate) fn kept(body: &Bytes) -> Option<Bytes> {
    (body.len() <= MAX_KEPT).then(|| body.clone())
}

/// The error of a request that would have to be sent again, and whose body was not kept.
pub(crate) fn not_kept(what: &str) -> Failed {
    failed(format!("{what}; the request was not sent again, because it is larger than 1 MiB"))
}

/// Whether a response with this status may lead to another attempt.
pub(super) const fn asks_for_more(status: StatusCode) -> bool {
    is_redirect(status)
        || matches!(
            status,
            StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        )
}

const fn is_redirect(status: StatusCode) -> bool {
    is_permanent(status) || matches!(status, StatusCode::FOUND | StatusCode::TEMPORARY_REDIRECT)
}

const fn is_permanent(status: StatusCode) -> bool {
    matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT)
}

impl Requester {
    /// Sends a request as often as its responses ask for it: over at most [`HOPS`] redirects, once with new credentials,
    /// and once after the time to wait. Returns the last response.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing more is sent. The same holds from when the request is stopped.
    pub(super) async fn send_further(
        &self,
        sent: Sent,
        mut response: Response<ResponseBody>,
        attempts: &impl Attempts,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Failed> {
        let Sent { method, target, mut shown, urgency } = sent;
        let mut way = vec![target];
        let (mut may_wait, mut may_refresh, mut is_permanent) = (method == Method::POST, true, true);
        loop {
            let status = response.status();
            let Some(target) = way.last().cloned() else { return Ok(response) };
            let asks_to_wait =
                matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
            let wait = retry_after(response.headers())
                .filter(|wait| asks_to_wait && may_wait && *wait <= LONGEST_WAIT);
            if is_redirect(status) {
                is_permanent &= self::is_permanent(status);
                way.push(self.redirected(&way, &target, &response)?);
            } else if let (StatusCode::UNAUTHORIZED, Some(number), true) = (status, shown, may_refresh) {
                may_refresh = false;
                let Some(authorization) = &self.0.client.authorization else { return Ok(response) };
                let is_new = tokio::select! {
                    biased;
                    () = attempts.stopped() => return Err(stopped()),
                    is_new = authorization.refreshed(number) => is_new,
                };
                if !is_new {
                    return Ok(self.arrived(response, &way, false));
                }
                tracing::info!("the server refused the credentials; the request is sent with new ones");
            } else if wait.is_none() {
                return Ok(self.arrived(response, &way, is_permanent));
            }
            // Reads what is left of a short response, so that its connection can be used again.
            let _read = beginning(response.into_body(), LEFTOVER).await;
            if let Some(wait) = wait {
                may_wait = false;
                tracing::info!(%status, ?wait, "the server asked to send a request later");
                tokio::select! {
                    biased;
                    () = attempts.stopped() => return Err(stopped()),
                    () = tokio::time::sleep(wait) => {}
                }
            }
            if attempts.stopped().now_or_never().is_some() {
                return Err(stopped());
            }
            let Some(target) = way.last() else { return Err(stopped()) };
            let (request, now_shown) =
                self.request(target, method.clone(), attempts.headers(), body.clone(), None);
            shown = now_shown;
            response = self.send_one(target, request, urgency).await.map_err(|failed| {
                if is_redirect(status) { failed_at(target, status, &failed) } else { failed }
            })?;
        }
    }

    /// The next address of a request.
    fn redirected(
        &self,
        way: &[Arc<Target>],
        from: &Target,
        response: &Response<ResponseBody>,
    ) -> Result<Arc<Target>, Failed> {
        let status = response.status();
        let location =
            response.headers().get(LOCATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let at = address_of(&from.uri);
        let Some(location) = location else {
            return Err(failed(format!("the server answered with {status} and no Location ({at})")));
        };
        self.0.inbound_queue.push_event(TransportEvent::Deviation {
            deviation: Deviation::Redirect,
            sent: format!("{} from {at}", status.as_u16()).into(),
        });
        // A user name and a password are not shown.
        let shown = match location.split_once("//") {
            Some((scheme, rest)) if rest.contains('@') => format!("{scheme}//...@"),
            _ => rescind_core::LogText::text(&location).to_string(),
        };
        let next = resolve(&from.uri, &location).map_err(|why| {
            failed(format!(
                "the server redirects {at} to {shown} with {status}, which is not followed: {why}"
            ))
        })?;
        let is_circle = way.iter().any(|target| target.uri == next);
        if is_circle || way.len() > HOPS {
            let what =
                if is_circle { "the redirects go in a circle" } else { "there are too many redirects" };
            let mut names: Vec<String> = way.iter().map(|target| address_of(&target.uri)).collect();
            names.push(address_of(&next));
            let names = names.join(" -> ");
            return Err(failed(format!(
                "{what}, the last with {status}: {}",
                rescind_core::LogText::text(names)
            )));
        }
        Ok(Arc::new(self.target_of(next)))
    }

    /// An address, with the connections to its server.
    fn target_of(&self, uri: Uri) -> Target {
        let http2 = self.0.client.http2;
        if is_same_origin(&uri, &self.0.base.uri) {
            return Target::new(Arc::clone(&self.0.base.pool), uri, http2, true);
        }
        let mut others = self.0.others.lock().unwrap_or_else(PoisonError::into_inner);
        let known = others.iter().find(|other| is_same_origin(&uri, &other.uri));
        if let Some(known) = known {
            return Target::new(Arc::clone(&known.pool), uri, http2, false);
        }
        let pool = Pool::new(Connector::new(&self.0.client, &uri));
        if others.len() >= OTHERS {
            others.remove(0);
        }
        others.push(Arc::new(Target::new(Arc::clone(&pool), uri.clone(), http2, false)));
        drop(others);
        Target::new(pool, uri, http2, false)
    }

    /// Notes where a response came from. If the request was moved for good, the next ones are sent there.
    fn arrived(
        &self,
        mut response: Response<ResponseBody>,
        way: &[Arc<Target>],
        is_permanent: bool,
    ) -> Response<ResponseBody> {
        let Some(target) = way.last() else { return response };
        if way.len() > 1 && is_permanent && response.status().is_success() {
            *self.0.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(target));
        }
        if !Arc::ptr_eq(target, &self.0.base) {
            let to = RedirectedTo { address: address_of(&target.uri), is_other_origin: !target.is_own };
            response.extensions_mut().insert(to);
        }
        response
    }
}

/// The response to a request whose body was not kept.
pub(super) fn sent_once(
    target: &Target,
    response: Response<ResponseBody>,
) -> Result<Response<ResponseBody>, Failed> {
    let status = response.status();
    if is_redirect(status) {
        return Err(not_kept(&format!("the server redirects {} with {status}", address_of(&target.uri))));
    }
    Ok(response)
}

pub(crate) fn is_same_origin(one: &Uri, other: &Uri) -> bool {
    let host = |uri: &Uri| uri.host().unwrap_or_default().to_ascii_lowercase();
    let port = |uri: &Uri| uri.port_u16().unwrap_or_else(|| default_port(uri));
    one.scheme() == other.scheme() && host(one) == host(other) && port(one) == port(other)
}

fn stopped() -> Failed {
    let text = "the call was cancelled before its request was sent again";
    Failed { sent: false, error: TransportError::new(TransportErrorKind::Io, text) }
}

/// The error of a request that failed where it was redirected to.
fn failed_at(target: &Target, status: StatusCode, failed: &Failed) -> Failed {
    let (to, why) = (address_of(&target.uri), &failed.error.source);
    let text = format!("the server redirected the request to {to} with {status}, where it failed: {why}");
    Failed { sent: failed.sent, error: TransportError::new(failed.error.kind, text) }
}

fn failed(text: String) -> Failed {
    Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) }
}
