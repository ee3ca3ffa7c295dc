//! The server's part of the handshake: the checks of a request before it becomes a connection.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rescind_core::{Link, PeerInfo, Principal, TransportError, TransportErrorKind};
use rescind_net::{AuthRefusal, AuthRequest, Credential, HostRefusal, PeerAddress};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::link::{self, OnClose};
use crate::options::{LinkOptions, UpgradeOptions};

/// Accepts a request that opens a WebSocket. Returns the answer to send, and the connection, which opens when the
/// answer is sent.
///
/// The request must come from a hyper server that allows upgrades, as axum's does. Further headers may be added to the
/// answer, which has status 101. The auth hook gets the [`PeerAddress`] and the
/// [`PeerCertificates`](rescind_net::PeerCertificates) from the request's extensions.
///
/// # Errors
/// The request is refused. [`Refusal::into_response`] is the answer.
///
/// # Cancel safety
/// Dropping the future drops the connection.
pub async fn upgrade<B>(
    request: &mut Request<B>,
    options: &UpgradeOptions,
) -> Result<(Response<String>, Upgrading), Refusal> {
    let asked = CheckedRequest::new(request, options);
    asked?.answer(options, options.handshake_timeout).await
}

/// The same, with this time for the auth hook.
pub(crate) async fn upgrade_within<B>(
    request: &mut Request<B>,
    options: &UpgradeOptions,
    left: Duration,
) -> Result<(Response<String>, Upgrading), Refusal> {
    let asked = CheckedRequest::new(request, options);
    asked?.answer(options, left).await
}

/// A request that passed all checks except the auth hook.
struct CheckedRequest {
    subprotocol: Option<String>,
    accept: HeaderValue,
    /// The request for the auth hook, if there is a hook.
    auth_request: Option<AuthRequest>,
    address: Option<IpAddr>,
    on_upgrade: OnUpgrade,
}

impl CheckedRequest {
    fn new<B>(request: &mut Request<B>, options: &UpgradeOptions) -> Result<Self, Refusal> {
        let (subprotocol, accept) = check(request, options)?;
        let auth_request = options.auth.is_some().then(|| AuthRequest::of(request));
        let address = PeerAddress::of(request);
        Ok(Self { subprotocol, accept, auth_request, address, on_upgrade: hyper::upgrade::on(request) })
    }

    async fn answer(
        self,
        options: &UpgradeOptions,
        left: Duration,
    ) -> Result<(Response<String>, Upgrading), Refusal> {
        let credential = match (&options.auth, self.auth_request) {
            (Some(auth), Some(auth_request)) => auth.ask(auth_request, left).await?,
            (_, _) => Credential::anonymous(),
        };
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(name) = self.subprotocol.as_deref().and_then(|name| HeaderValue::from_str(name).ok()) {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, name);
        }
        for (name, value) in &options.answered_with {
            let value = value();
            if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(&value)) {
                headers.entry(name.clone()).or_insert(value);
            }
        }
        let mut meta = PeerInfo::of_peer("a WebSocket client");
        meta.address = self.address;
        let upgrading = Upgrading {
            on_upgrade: self.on_upgrade,
            options: options.link.clone(),
            timeout: options.handshake_timeout,
            meta,
            expires: None,
            subprotocol: self.subprotocol,
            on_close: Hook(None),
        };
        Ok((response, upgrading.on_behalf_of(&credential)))
    }
}

fn check<B>(
    request: &Request<B>,
    options: &UpgradeOptions,
) -> Result<(Option<String>, HeaderValue), Refusal> {
    let headers = request.headers();
    let host = options.hosts.check_head(request.uri(), headers).map_err(|why| match why {
        HostRefusal::Missing | HostRefusal::Several | HostRefusal::Malformed => {
            Refusal::bad_request(&why.to_string())
        }
        HostRefusal::NotServed => Refusal::host(options.hosts.advice()),
    })?;
    if options.path.as_deref().is_some_and(|path| without_slash(path) != without_slash(request.uri().path()))
    {
        return Err(Refusal::not_found());
    }
    options.origins.check_head(headers, &host).map_err(|_| Refusal::origin())?;
    if request.method() != Method::GET {
        return Err(Refusal::method());
    }
    // RFC 9110, 7.8: an `Upgrade` in a request of HTTP/1.0 must be ignored.
    if request.version() < Version::HTTP_11 {
        return Err(Refusal::not_an_upgrade());
    }
    if !(has_token(headers, CONNECTION, "upgrade") && has_token(headers, UPGRADE, "websocket")) {
        return Err(Refusal::not_an_upgrade());
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(Refusal::version());
    }
    let accept = accept_of(headers)?;
    Ok((subprotocol_of(headers, &options.subprotocols), accept))
}

/// Whether a header that is a list contains this word.
pub(crate) fn has_token(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    tokens(headers, name).any(|listed| listed.eq_ignore_ascii_case(word))
}

fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn accept_of(headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    match (keys.next().map(HeaderValue::as_bytes), keys.next()) {
        (Some(key), None) if is_key(key) => HeaderValue::from_str(&derive_accept_key(key)).ok(),
        _ => None,
    }
    .ok_or_else(|| Refusal::bad_request("Sec-WebSocket-Key must be there once, 16 bytes in Base64"))
}

/// 16 bytes in Base64: 22 characters and two characters of padding.
fn is_key(key: &[u8]) -> bool {
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    key.strip_suffix(b"==").is_some_and(|digits| digits.len() == 22 && digits.iter().all(digit))
}

/// The first subprotocol that the client offers and this server knows.
fn subprotocol_of(headers: &HeaderMap, spoken: &[String]) -> Option<String> {
    tokens(headers, SEC_WEBSOCKET_PROTOCOL)
        .find(|offered| spoken.iter().any(|name| name == offered))
        .map(ToOwned::to_owned)
}

/// A path with and without a slash at its end is the same.
fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

/// A connection whose handshake was answered. It opens when the answer is sent.
#[must_use = "the connection comes with `link`"]
pub struct Upgrading {
    on_upgrade: OnUpgrade,
    options: LinkOptions,
    timeout: Duration,
    meta: PeerInfo,
    /// When the connection ends.
    expires: Option<Instant>,
    subprotocol: Option<String>,
    on_close: Hook,
}

impl Upgrading {
    /// Sets the name of the peer for logs.
    pub fn peer(mut self, name: &str) -> Self {
        self.meta.peer = Some(name.into());
        self
    }

    /// Sets the address of the client. It identifies a client without a principal.
    pub const fn address(mut self, address: IpAddr) -> Self {
        self.meta.address = Some(address);
        self
    }

    /// Sets the credential, if an HTTP server has authenticated the request: its principal is that of the connection's
    /// messages. A principal that the auth hook of [`UpgradeOptions`] returned stays. The connection ends when either
    /// credential expires.
    pub fn on_behalf_of(mut self, credential: &Credential) -> Self {
        if self.meta.principal.is_none() {
            self.meta.principal = credential.principal().cloned();
        }
        let expires = credential.deadline(tokio::time::Instant::now().into_std());
        self.expires = [self.expires, expires].into_iter().flatten().min();
        self
    }

    /// Calls this function once: when the connection has ended, or when it is dropped before it opened. It must not
    /// block.
    pub fn on_close(mut self, hook: impl FnOnce() + Send + 'static) -> Self {
        self.on_close.0 = Some(Box::new(hook));
        self
    }

    /// The subprotocol that both sides use.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// The principal that the auth hook returned.
    #[must_use]
    pub fn principal(&self) -> Option<&Principal> {
        self.meta.principal.as_ref()
    }

    /// Waits for the connection.
    ///
    /// # Errors
    /// The client has disconnected, or the answer was not sent within the time of the handshake.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn link(self) -> Result<Link, TransportError> {
        let failed = |why: Box<dyn std::error::Error + Send + Sync>| {
            TransportError::new(TransportErrorKind::Open, why)
        };
        let io = match tokio::time::timeout(self.timeout, self.on_upgrade).await {
            Ok(Ok(io)) => io,
            Ok(Err(error)) => return Err(failed(error.into())),
            Err(_) => return Err(failed("the handshake took too long".into())),
        };
        let link = link::served(
            TokioIo::new(io),
            &self.options,
            self.meta,
            self.expires,
            self.on_close.into_inner(),
        );
        Ok(link.await)
    }
}

/// Runs when it is dropped, unless it was kept.
struct Hook(Option<OnClose>);

impl Hook {
    fn into_inner(mut self) -> Option<OnClose> {
        self.0.take()
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some(hook) = self.0.take() {
            hook();
        }
    }
}

impl fmt::Debug for Upgrading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrading")
            .field("meta", &self.meta)
            .field("subprotocol", &self.subprotocol)
            .finish_non_exhaustive()
    }
}

#[doc = include_str!("refusals.md")]
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} ({status})", text.trim_end())]
pub struct Refusal {
    status: StatusCode,
    text: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.push('\n');
        Self { status, text, headers: Vec::new() }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    fn bad_request(text: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no WebSocket is served under this path")
    }

    fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket is opened with GET").with(ALLOW, "GET")
    }

    fn host(advice: Option<&str>) -> Self {
        let advice = advice.unwrap_or("it accepts only the host names that are configured");
        Self::new(StatusCode::MISDIRECTED_REQUEST, format!("this server does not serve this host: {advice}"))
    }

    fn origin() -> Self {
        Self::new(StatusCode::FORBIDDEN, "pages of this origin may not connect here")
    }

    fn not_an_upgrade() -> Self {
        Self::new(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket: ask for an upgrade")
            .with(UPGRADE, "websocket")
    }

    fn version() -> Self {
        let text = "only version 13 of WebSocket is spoken here";
        Self::new(StatusCode::UPGRADE_REQUIRED, text).with(SEC_WEBSOCKET_VERSION, "13")
    }

    pub(crate) fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections open at once: try again")
            .with(RETRY_AFTER, "1")
    }

    pub(crate) fn closed() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "connections are not accepted any more")
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The answer to the request. Its body is plain text. hyper and axum both accept it.
    #[must_use]
    pub fn into_response(self) -> Response<String> {
        let mut response = Response::new(self.text);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

/// The answer of the auth hook. A header that HTTP does not allow is omitted.
impl From<AuthRefusal> for Refusal {
    fn from(refusal: AuthRefusal) -> Self {
        let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
        let headers =
            refusal.headers().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
        Self { headers: headers.collect(), ..Self::new(status, refusal.text()) }
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;

    use super::*;

    #[tokio::test]
    async fn an_answer_has_the_headers_it_is_given_and_those_of_the_handshake() {
        let options = UpgradeOptions::new()
            .answer_with("Acp-Connection-Id", || "c1".to_owned())
            .answer_with("upgrade", || "something else".to_owned())
            .answer_with("x-bad-value", || "a\nb".to_owned())
            .answer_with("no name", String::new);
        let mut request = Request::get("/")
            .header(HOST, "localhost")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, "AAAAAAAAAAAAAAAAAAAAAA==")
            .body(())
            .unwrap();
        let (response, _upgrading) = upgrade(&mut request, &options).await.unwrap();
        let headers = response.headers();
        assert_eq!(headers.len(), 4, "{headers:?}");
        assert_eq!(headers["acp-connection-id"], "c1");
        assert_eq!(headers[UPGRADE], "websocket");
    }
}
