//! Sending a request again: to the address that a redirect names, with new credentials, or after the time that the server
//! asked for. None of these responses is given by a server that has begun the request.
//!
//! # Addresses and times
//!
//! `resolve` and `retry_after` read what the head of a response asks for: another address, or a later time.
//!
//! # Authorization
//!
//! The value of the header `Authorization` can change while a client is connected.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{LOCATION, WWW_AUTHENTICATE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use rescind_core::{BoxFuture, Deviation, TransportError, TransportEvent};

use crate::client::connector::Connector;
use crate::client::pool::{Pool, ResponseBody};
use crate::client::refused;
use crate::client::requester::{
    Attempts, Credentials, Failed, RedirectedTo, Requester, Sent, Target, address_of, beginning, default_port,
};
use crate::sync::Mutex;

/// The most redirects of one request.
const HOPS: usize = 5;
/// The longest `Retry-After` that is waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The most other servers whose connections are kept.
const OTHERS: usize = 4;
/// How often a request is sent again because its credentials were refused: those of then may have changed meanwhile.
const REFUSALS: usize = 3;
/// The error of a server that wants credentials with more rights (RFC 6750).
const MORE: &[u8] = b"insufficient_scope";
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
            StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
        )
}

/// Whether a response refuses the credentials of its request in a way that other credentials can change.
fn refuses_credentials(status: StatusCode, headers: &HeaderMap) -> bool {
    let wants_more = |value: &HeaderValue| value.as_bytes().windows(MORE.len()).any(|part| part == MORE);
    status == StatusCode::UNAUTHORIZED
        || status == StatusCode::FORBIDDEN && headers.get_all(WWW_AUTHENTICATE).iter().any(wants_more)
}

const fn is_redirect(status: StatusCode) -> bool {
    is_permanent(status) || matches!(status, StatusCode::FOUND | StatusCode::TEMPORARY_REDIRECT)
}

const fn is_permanent(status: StatusCode) -> bool {
    matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT)
}

impl Requester {
    /// Sends a request as often as its responses ask for it: over at most [`HOPS`] redirects, with new credentials until
    /// they were fetched for it once, and once after the time to wait. Returns the last response.
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
        let (mut may_wait, mut is_permanent) = (method == Method::POST, true);
        let mut refusals_left = REFUSALS;
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
            } else if let (true, Some(number), 1..) =
                (refuses_credentials(status, response.headers()), shown, refusals_left)
            {
                let Some(authorization) = &self.0.client.authorization else { return Ok(response) };
                let refusal = CredentialRefusal::of(status, response.headers());
                let renewed = tokio::select! {
                    biased;
                    () = attempts.stopped() => return Err(stopped()),
                    renewed = authorization.renewed(number, refusal) => renewed.map_err(failed)?,
                };
                refusals_left = match renewed {
                    Renewed::Earlier => refusals_left - 1,
                    Renewed::Now => 0,
                    Renewed::Not => return Ok(self.arrived(response, &way, false)),
                };
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
            response = Self::send_one(target, request, urgency).await.map_err(|failed| {
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
        let authorization = self.0.client.authorization.as_ref().filter(|_| !response.status().is_success());
        if let Some(value) = authorization.and_then(|authorization| authorization.current().0) {
            response.extensions_mut().insert(Credentials(value));
        }
        if way.len() > 1 && is_permanent && response.status().is_success() {
            *self.0.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(target));
        }
        if !Arc::ptr_eq(target, &self.0.base) {
            let other_server = (!target.is_own).then(|| target.uri.clone());
            let to = RedirectedTo { address: address_of(&target.uri), other_server, is_permanent };
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
    Failed::stopped("the call was cancelled, or the client has closed, before its request was sent again")
}

/// The error of a request that failed where it was redirected to.
fn failed_at(target: &Target, status: StatusCode, failed: &Failed) -> Failed {
    let (to, why) = (address_of(&target.uri), &failed.error.source);
    let text = format!("the server redirected the request to {to} with {status}, where it failed: {why}");
    Failed { sent: failed.sent, error: TransportError::new(failed.error.kind, text) }
}

fn failed(text: String) -> Failed {
    Failed::new(true, text)
}

/// The address that a `Location` names, relative to the address of its request.
///
/// # Errors
/// Why it cannot be followed.
pub(crate) fn resolve(base: &Uri, location: &str) -> Result<Uri, &'static str> {
    let location = location.split('#').next().unwrap_or_default().trim();
    let (scheme, rest) = match scheme_of(location) {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => (base.scheme_str().unwrap_or("http").to_owned(), location),
    };
    let scheme: Scheme = match &*scheme {
        "http" => Scheme::HTTP,
        "https" if cfg!(feature = "rustls") => Scheme::HTTPS,
        "https" => return Err("https needs the feature `rustls`"),
        _ => return Err("its scheme is neither http nor https"),
    };
    if base.scheme_str() == Some("https") && scheme == Scheme::HTTP {
        return Err("it leads from https to http");
    }
    let (authority, target): (Authority, String) = if let Some(rest) = rest.strip_prefix("//") {
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let slash = if target.starts_with('/') { "" } else { "/" };
        (authority.parse().map_err(|_| "its host is not valid")?, format!("{slash}{target}"))
    } else if rest.len() < location.len() {
        return Err("it has a scheme and no host");
    } else {
        (base.authority().cloned().ok_or("its host is not known")?, joined(base, rest))
    };
    if authority.as_str().contains('@') {
        return Err("it has a user name or a password");
    }
    if authority.host().is_empty() {
        return Err("it has no host");
    }
    let target: PathAndQuery = without_dots(&target).parse().map_err(|_| "its path is not valid")?;
    Uri::builder()
        .scheme(scheme)
        .authority(authority)
        .path_and_query(target)
        .build()
        .map_err(|_| "it is not a URL")
}

fn scheme_of(location: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = location.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then_some((scheme, rest))
}

/// A path that is relative to another one.
fn joined(base: &Uri, location: &str) -> String {
    let path = base.path();
    match location.bytes().next() {
        None => base.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        Some(b'/') => location.to_owned(),
        Some(b'?') => format!("{path}{location}"),
        Some(_) => {
            let folder = path.rfind('/').and_then(|end| path.get(..=end)).unwrap_or("/");
            format!("{folder}{location}")
        }
    }
}

/// Removes `.` and `..` from a path.
fn without_dots(target: &str) -> String {
    let (path, query) = target.find('?').map_or((target, ""), |at| target.split_at(at));
    if !path.contains("/.") {
        return target.to_owned();
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for part in path.split('/').skip(1) {
        is_folder = matches!(part, "." | "..");
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if is_folder && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}{query}", parts.join("/"))
}

/// The time that a `Retry-After` asks to wait.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(date(text)?))?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

/// The seconds since 1970 of a date as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = text.split_once(", ")?.1.split(' ');
    let day: u64 = parts.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = parts.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut time =
        parts.next()?.splitn(3, ':').map(|part| part.parse::<u64>().ok().filter(|part| *part < 61));
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    if parts.next()? != "GMT" {
        return None;
    }
    // Days from 1 March of year 0, in which a leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

/// The longest time that a refresh may take.
const REFRESH_TIME: Duration = Duration::from_secs(10);

type Hook = dyn Fn(Authorization, CredentialRefusal) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// What a server says of the credentials that it refuses, for [`Authorization::on_refusal`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CredentialRefusal {
    /// 401, or 403 if other credentials would have the rights.
    pub status: u16,
    /// The values of `WWW-Authenticate`.
    pub challenges: Vec<String>,
}

impl CredentialRefusal {
    fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let challenges = challenges.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        Self { status: status.as_u16(), challenges: challenges.collect() }
    }
}

/// Whether there is a value other than the one that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewed {
    /// It was there already.
    Earlier,
    /// It was fetched because of this refusal.
    Now,
    Not,
}

/// The value of the header `Authorization`, for [`HttpClient::authorization`](crate::client::HttpClient::authorization). It can
/// change at any time, and each request sends the latest value. A clone is the same value. It is never logged.
///
/// ```
/// use rescind_http::{Authorization, HttpClient};
///
/// # fn main() -> Result<(), rescind_core::TransportError> {
/// let authorization = Authorization::new("Bearer first")?.refresh(|authorization| async move {
///     // A server has answered with 401. Fetch a new token here.
///     let _ = authorization.set("Bearer second");
/// });
/// let client = HttpClient::new("http://127.0.0.1:8000/mcp")?.authorization(&authorization);
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Authorization(Arc<Shared>);

struct Shared {
    value: Mutex<Version>,
    refresh: Option<Box<Hook>>,
    /// One refresh runs at a time.
    turn: tokio::sync::Mutex<()>,
}

/// A value, with the number of values before it.
#[derive(Clone)]
struct Version {
    number: u64,
    /// `None`: requests are sent without the header.
    value: Option<HeaderValue>,
}

impl Authorization {
    /// A value, for example `Bearer TOKEN`.
    ///
    /// # Errors
    /// It is not valid in a header.
    pub fn new(value: &str) -> Result<Self, TransportError> {
        Ok(Self::first(Some(parse(value)?)))
    }

    /// No value yet: requests are sent without the header until one is [`set`](Self::set).
    #[must_use]
    pub fn unset() -> Self {
        Self::first(None)
    }

    fn first(value: Option<HeaderValue>) -> Self {
        let value = Mutex::new(Version { number: 0, value });
        Self(Arc::new(Shared { value, refresh: None, turn: tokio::sync::Mutex::default() }))
    }

    /// Calls this function when a server answers with 401. It may [`set`](Self::set) a new value: then the request that
    /// was refused is sent once more. It may take 10 s at most. If many requests are refused at once, it is called once
    /// for all of them. Call it before the value is given to a client: clones that exist already have no such function.
    #[must_use]
    pub fn refresh<F>(self, hook: impl Fn(Self) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.on_refusal(move |this, refusal| {
            let refreshed = (refusal.status == StatusCode::UNAUTHORIZED).then(|| hook(this));
            async move {
                let Some(refreshed) = refreshed else { return Ok(()) };
                if tokio::time::timeout(REFRESH_TIME, refreshed).await.is_err() {
                    tracing::warn!("the refresh of an authorization did not end in time");
                }
                Ok(())
            }
        })
    }

    /// The same for a function that needs what the server says, is also called when a server answers with 403 and the
    /// error `insufficient_scope`, and may take any time. If it returns an error, this is the error of the requests that
    /// wait. It replaces a function of [`refresh`](Self::refresh).
    #[must_use]
    pub fn on_refusal<F>(self, hook: impl Fn(Self, CredentialRefusal) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let value = self.version();
        let refresh: Option<Box<Hook>> = Some(Box::new(move |this, refusal| Box::pin(hook(this, refusal))));
        Self(Arc::new(Shared { value: Mutex::new(value), refresh, turn: tokio::sync::Mutex::default() }))
    }

    /// Sends this value from the next request on.
    ///
    /// # Errors
    /// It is not valid in a header. The old value stays.
    pub fn set(&self, value: &str) -> Result<(), TransportError> {
        let value = Some(parse(value)?);
        let mut current = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        if current.value != value {
            *current = Version { number: current.number + 1, value };
        }
        drop(current);
        Ok(())
    }

    /// The current value, and its number.
    pub(super) fn current(&self) -> (Option<HeaderValue>, u64) {
        let Version { number, value } = self.version();
        (value, number)
    }

    /// Called when the value with this number was refused. Returns whether there is another one now.
    ///
    /// # Errors
    /// That of the function that was set.
    ///
    /// # Cancel safety
    /// Dropping the future drops the refresh that runs.
    pub(super) async fn renewed(&self, refused: u64, refusal: CredentialRefusal) -> Result<Renewed, String> {
        let _turn = self.0.turn.lock().await;
        if self.version().number != refused {
            return Ok(Renewed::Earlier);
        }
        let Some(refresh) = &self.0.refresh else { return Ok(Renewed::Not) };
        refresh(self.clone(), refusal).await?;
        Ok(if self.version().number == refused { Renewed::Not } else { Renewed::Now })
    }

    fn version(&self) -> Version {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn parse(value: &str) -> Result<HeaderValue, TransportError> {
    let mut value: HeaderValue = value.parse().map_err(refused)?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_location_is_read_relative_to_its_request() {
        let base: Uri = "http://host:8000/a/mcp?x=1".parse().unwrap();
        for (location, address) in [
            ("/mcp/", "http://host:8000/mcp/"),
            ("mcp/", "http://host:8000/a/mcp/"),
            ("../b?y=2#part", "http://host:8000/b?y=2"),
            ("./", "http://host:8000/a/"),
            ("../../../x/.", "http://host:8000/x/"),
            ("?y=2", "http://host:8000/a/mcp?y=2"),
            ("", "http://host:8000/a/mcp?x=1"),
            ("//other/mcp", "http://other/mcp"),
            ("http://other:1", "http://other:1/"),
            ("HTTP://other?q", "http://other/?q"),
            (" /padded ", "http://host:8000/padded"),
        ] {
            assert_eq!(resolve(&base, location).unwrap().to_string(), address, "{location}");
        }
        for location in [
            "file:///etc/passwd",
            "ftp://host/",
            "javascript:alert(1)",
            "http:/mcp",
            "http://",
            "http://user:secret@host/",
            "http://a b/",
            "/a b",
            "data:,x",
            "//",
        ] {
            assert!(resolve(&base, location).is_err(), "{location}");
        }
        let secure: Uri = "https://host/mcp".parse().unwrap();
        assert!(resolve(&secure, "http://host/mcp").is_err());
        assert_eq!(resolve(&secure, "/x").is_ok(), cfg!(feature = "rustls"));
    }

    #[test]
    fn a_time_to_wait_is_a_number_of_seconds_or_a_date() {
        let read = |text: &str| {
            retry_after(&HeaderMap::from_iter([(http::header::RETRY_AFTER, text.parse().unwrap())]))
        };
        assert_eq!(read("0"), Some(Duration::ZERO));
        assert_eq!(read(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(read("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        for text in ["", "-1", "1.5", "soon", "Sun, 06 Nov", "Sun, 06 Nov 1994 08:49:37 UTC", "a, 0 Feb 0 x"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO), "it is over");
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(date("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    }

    #[tokio::test]
    async fn many_refusals_of_one_value_make_one_refresh() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let authorization = Authorization::new("Bearer a").unwrap().refresh(move |authorization| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                authorization.set("Bearer b").unwrap();
            }
        });
        let (_, refused) = authorization.current();
        let all = (0..100).map(|_| authorization.renewed(refused, refusal()));
        let all: Vec<_> = futures_util::future::join_all(all).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(all.iter().filter(|renewed| **renewed == Renewed::Now).count(), 1);
        assert_eq!(all.iter().filter(|renewed| **renewed == Renewed::Earlier).count(), 99);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(authorization.current().0.unwrap(), "Bearer b");
        assert_eq!(
            format!("{authorization:?} {:?}", authorization.current()),
            "Authorization (Some(Sensitive), 1)"
        );
    }

    fn refusal() -> CredentialRefusal {
        CredentialRefusal::of(StatusCode::UNAUTHORIZED, &HeaderMap::new())
    }

    #[tokio::test]
    async fn a_refresh_that_fails_says_why_and_sees_the_challenge() {
        let authorization = Authorization::unset()
            .on_refusal(async |_, refusal| Err(format!("{}: {:?}", refusal.status, refusal.challenges)));
        assert_eq!(authorization.current(), (None, 0));
        let headers = HeaderMap::from_iter([(WWW_AUTHENTICATE, "Bearer error=\"x\"".parse().unwrap())]);
        let refusal = CredentialRefusal::of(StatusCode::UNAUTHORIZED, &headers);
        let why = authorization.renewed(0, refusal).await.unwrap_err();
        assert_eq!(why, r#"401: ["Bearer error=\"x\""]"#);
    }

    #[test]
    fn only_a_403_that_wants_a_larger_scope_refuses_credentials() {
        let with = |text: &str| HeaderMap::from_iter([(WWW_AUTHENTICATE, text.parse().unwrap())]);
        assert!(refuses_credentials(StatusCode::UNAUTHORIZED, &HeaderMap::new()));
        assert!(refuses_credentials(
            StatusCode::FORBIDDEN,
            &with("Bearer error=\"insufficient_scope\", scope=\"a b\"")
        ));
        assert!(!refuses_credentials(StatusCode::FORBIDDEN, &with("Bearer error=\"invalid_token\"")));
        assert!(!refuses_credentials(StatusCode::FORBIDDEN, &HeaderMap::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_that_changes_nothing_or_never_ends_leaves_the_value() {
        let same =
            Authorization::new("Bearer a").unwrap().refresh(async |same| same.set("Bearer a").unwrap());
        let hung = Authorization::new("Bearer a").unwrap().refresh(async |_| std::future::pending().await);
        let broken =
            Authorization::new("Bearer a").unwrap().refresh(async |own| assert!(own.set("\n").is_err()));
        for authorization in [same, hung, broken, Authorization::new("Bearer a").unwrap()] {
            assert_eq!(authorization.renewed(0, refusal()).await, Ok(Renewed::Not));
            assert_eq!(authorization.current().0.unwrap(), "Bearer a");
        }
    }
}
