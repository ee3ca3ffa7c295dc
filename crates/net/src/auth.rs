//! The auth hook: the request it sees, and the credential or refusal it returns. HTTP and WebSocket share it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rescind_core::{BoxFuture, Principal};

/// The head of an HTTP request, or of the request that opens a WebSocket, and what is known of its connection.
///
/// ```
/// use rescind_core::Principal;
/// use rescind_net::{AuthRefusal, AuthRequest, Credential};
///
/// async fn hook(request: AuthRequest) -> Result<Credential, AuthRefusal> {
///     match request.header("Authorization") {
///         Some("Bearer a-secret") => Ok(Credential::of(Principal("ada".into()))),
///         Some(_) | None => Err(AuthRefusal::unauthorized("Bearer")),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), AuthRefusal> {
/// // A test of a hook makes the request itself.
/// let request = AuthRequest::new("POST", "/mcp").with_header("authorization", b"Bearer a-secret");
/// assert_eq!(hook(request).await?.principal(), Some(&Principal("ada".into())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct AuthRequest {
    method: String,
    path: String,
    query: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    address: Option<IpAddr>,
    certificates: PeerCertificates,
}

/// The address from which an HTTP request was sent. It is an extension of the request, for a service that is mounted in
/// a server of your own. The listeners of this workspace add it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// The certificates that a client showed in the TLS handshake of its connection: its own first, each in DER. Empty: it
/// showed none.
///
/// A server of your own, in which a service is mounted, adds them to the extensions of each request.
#[derive(Clone, Default)]
pub struct PeerCertificates(Arc<[Vec<u8>]>);

/// Whether a TLS server requests certificates of its clients. A certificate that a client shows must be issued by one
/// of the authorities that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The server requests one. A client without a certificate is accepted, and the auth hook gets no certificate.
    Optional,
    /// A client without a certificate is refused in the handshake.
    Required,
}

/// The sender of a request, and how long that is valid: the answer of an auth hook that accepts the request.
#[derive(Clone, Debug)]
#[must_use]
pub struct Credential {
    principal: Option<Principal>,
    expiry: Expiry,
}

#[derive(Clone, Copy, Debug)]
enum Expiry {
    Never,
    In(Duration),
    At(Instant),
}

/// The answer of an auth hook that refuses a request.
///
/// ```
/// use rescind_net::AuthRefusal;
///
/// let refusal = AuthRefusal::bearer("https://agents.example/.well-known/oauth-protected-resource");
/// assert_eq!(refusal.status(), 401);
/// let challenge = r#"Bearer resource_metadata="https://agents.example/.well-known/oauth-protected-resource""#;
/// assert_eq!(refusal.headers().next(), Some(("WWW-Authenticate", challenge)));
///
/// let refusal = AuthRefusal::new(429, "too many requests").with_header("Retry-After", "30");
/// assert_eq!(refusal.to_string(), "too many requests (429)");
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text} ({status})")]
#[must_use]
pub struct AuthRefusal {
    status: u16,
    text: String,
    headers: Vec<(String, String)>,
}

/// A hook that authenticates requests.
#[derive(Clone)]
pub struct AuthHook(Arc<Hook>);

type Hook = dyn Fn(AuthRequest) -> BoxFuture<'static, Result<Credential, AuthRefusal>> + Send + Sync;

impl AuthRequest {
    /// A request with this method and path, and nothing else.
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: None,
            headers: Vec::new(),
            address: None,
            certificates: PeerCertificates::default(),
        }
    }

    /// The head of a request, with the [`PeerAddress`] and the [`PeerCertificates`] from its extensions.
    #[cfg(feature = "http")]
    pub fn of<B>(request: &http::Request<B>) -> Self {
        let uri = request.uri();
        let certificates = request.extensions().get::<PeerCertificates>().cloned().unwrap_or_default();
        let asked = Self::new(request.method().as_str(), uri.path())
            .with_query(uri.query())
            .with_address(PeerAddress::of(request))
            .with_certificates(certificates);
        let headers = request.headers().iter();
        headers.fold(asked, |asked, (name, value)| asked.with_header(name.as_str(), value.as_bytes()))
    }

    /// Sets the query, without its `?`.
    pub fn with_query(mut self, query: Option<&str>) -> Self {
        self.query = query.map(str::to_owned);
        self
    }

    /// Adds a header.
    pub fn with_header(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the address of the client.
    pub const fn with_address(mut self, address: Option<IpAddr>) -> Self {
        self.address = address;
        self
    }

    /// Sets the certificates of the client.
    pub fn with_certificates(mut self, certificates: PeerCertificates) -> Self {
        self.certificates = certificates;
        self
    }

    /// The method. It is `GET` for a request that opens a WebSocket.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The query, without its `?`.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The first header with this name, if it is text. Names are compared without regard to case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let value = self.raw_headers().find(|(known, _)| known.eq_ignore_ascii_case(name))?.1;
        std::str::from_utf8(value).ok()
    }

    /// All headers with this name that are text.
    pub fn headers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.raw_headers().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        named.filter_map(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// All headers, in the order of the request if that is known.
    pub fn raw_headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The address of the client. `None`: the connection has none, or a server of your own did not set it.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The certificate of the client, followed by the certificates above it, each in DER. The server checked their
    /// authority. Empty: the client showed none, or the server did not request one.
    #[must_use]
    pub fn certificates(&self) -> &[Vec<u8>] {
        &self.certificates.0
    }
}

/// Shows neither headers nor the query: they may contain secrets.
impl fmt::Debug for AuthRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("address", &self.address)
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "http")]
impl PeerAddress {
    /// The address in the extensions of a request.
    pub fn of<B>(request: &http::Request<B>) -> Option<IpAddr> {
        request.extensions().get::<Self>().map(|from| from.0)
    }
}

impl PeerCertificates {
    /// A chain, the client's own certificate first, each in DER.
    #[must_use]
    pub fn new(chain: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self(chain.into_iter().collect())
    }
}

impl fmt::Debug for PeerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerCertificates").field(&self.0.len()).finish()
    }
}

impl Credential {
    /// The request belongs to this principal.
    pub const fn of(principal: Principal) -> Self {
        Self { principal: Some(principal), expiry: Expiry::Never }
    }

    /// The request is accepted without a principal.
    pub const fn anonymous() -> Self {
        Self { principal: None, expiry: Expiry::Never }
    }

    /// Limits it to this time after the hook's answer. Then the event streams and WebSocket connections that it opened
    /// end.
    pub const fn expires_in(mut self, time: Duration) -> Self {
        self.expiry = Expiry::In(time);
        self
    }

    /// Limits it to this point in time. Then the event streams and WebSocket connections that it opened end.
    pub const fn expires_at(mut self, at: Instant) -> Self {
        self.expiry = Expiry::At(at);
        self
    }

    /// The principal that sends the request.
    #[must_use]
    pub const fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// The time at which it expires. A duration that the hook gave counts from `now`.
    #[must_use]
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.expiry {
            Expiry::Never => None,
            Expiry::In(time) => now.checked_add(time),
            Expiry::At(at) => Some(at),
        }
    }
}

impl AuthRefusal {
    /// Refuses with this status, 400 to 599 (any other becomes 403), and this text for the client.
    pub fn new(status: u16, text: &str) -> Self {
        let status = if matches!(status, 400..=599) { status } else { 403 };
        Self { status, text: text.to_owned(), headers: Vec::new() }
    }

    /// 401 with this `WWW-Authenticate`, such as `Bearer` or `Basic realm="agents"`.
    pub fn unauthorized(challenge: &str) -> Self {
        Self::new(401, "the credentials are missing or not valid").with_header(WWW_AUTHENTICATE, challenge)
    }

    /// 401 with `WWW-Authenticate: Bearer` and the location of the metadata of the protected resource: "MCP servers
    /// MUST use the HTTP header `WWW-Authenticate` when returning a 401 Unauthorized to indicate the location of the
    /// resource server metadata URL" (MCP, authorization; RFC 9728, 5.1).
    pub fn bearer(resource_metadata: &str) -> Self {
        Self::unauthorized(&format!("Bearer resource_metadata={}", quoted(resource_metadata)))
    }

    /// 403: the token is valid, and its scopes do not suffice (RFC 6750, 3.1). The header names the scopes that
    /// suffice, separated by spaces, and the location of the metadata of the protected resource.
    pub fn insufficient_scope(scope: &str, resource_metadata: &str) -> Self {
        let challenge = format!(
            "Bearer error=\"insufficient_scope\", scope={}, resource_metadata={}",
            quoted(scope),
            quoted(resource_metadata)
        );
        Self::new(403, "the credentials do not allow this").with_header(WWW_AUTHENTICATE, &challenge)
    }

    /// 403: the sender is not allowed to send this request. The client gets the text.
    pub fn forbidden(text: &str) -> Self {
        Self::new(403, text)
    }

    /// Adds a header. A header that HTTP does not allow is omitted. Headers about the body or the connection are
    /// omitted too.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The text that the client gets.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The headers of the answer.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let usable = |name: &str| NOT_A_HOOKS.iter().all(|other| !name.eq_ignore_ascii_case(other));
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        headers.filter(move |(name, _)| usable(name))
    }

    /// The credential of a request expired before its answer began.
    #[doc(hidden)]
    pub fn expired() -> Self {
        let refusal = Self::new(401, "the credentials have expired");
        refusal.with_header(WWW_AUTHENTICATE, "Bearer error=\"invalid_token\"")
    }
}

const WWW_AUTHENTICATE: &str = "WWW-Authenticate";

/// Headers that belong to the transport.
const NOT_A_HOOKS: [&str; 6] =
    ["connection", "content-length", "content-type", "trailer", "transfer-encoding", "upgrade"];

/// A quoted string (RFC 9110, 5.6.4).
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl AuthHook {
    /// A hook that calls this function. Its future may wait. It must not block.
    pub fn new<F, A>(hook: F) -> Self
    where
        F: Fn(AuthRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Credential, AuthRefusal>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(hook(request))))
    }

    /// Calls the hook. The returned credential has the time at which it expires.
    ///
    /// # Errors
    /// The hook refused (its refusal), did not answer in time (503), panicked (500), or its credential has expired
    /// already (401).
    ///
    /// # Cancel safety
    /// Dropping the future drops the hook's future.
    pub async fn ask(&self, request: AuthRequest, within: Duration) -> Result<Credential, AuthRefusal> {
        let guarded = async {
            let asked = catch_unwind(AssertUnwindSafe(|| (self.0)(request))).ok()?;
            let mut asked = pin!(asked);
            poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| asked.as_mut().poll(cx))) {
                Ok(Poll::Ready(answer)) => Poll::Ready(Some(answer)),
                Ok(Poll::Pending) => Poll::Pending,
                Err(_) => Poll::Ready(None),
            })
            .await
        };
        let answer = match tokio::time::timeout(within, guarded).await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                tracing::error!("the auth hook panicked");
                return Err(AuthRefusal::new(500, "the credentials could not be checked"));
            }
            Err(_) => {
                tracing::warn!(?within, "the auth hook did not answer in time");
                let refusal = AuthRefusal::new(503, "the credentials could not be checked in time");
                return Err(refusal.with_header("Retry-After", "1"));
            }
        };
        let credential = answer?;
        let now = tokio::time::Instant::now().into_std();
        match credential.deadline(now) {
            Some(at) if at <= now => Err(AuthRefusal::expired()),
            Some(at) => Ok(credential.expires_at(at)),
            None => Ok(Credential { expiry: Expiry::Never, ..credential }),
        }
    }
}

impl fmt::Debug for AuthHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthHook").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_quoted() {
        let refusal = AuthRefusal::insufficient_scope("files:\"read\"", "https://a.example/\\");
        let challenge = "Bearer error=\"insufficient_scope\", scope=\"files:\\\"read\\\"\", \
                         resource_metadata=\"https://a.example/\\\\\"";
        assert_eq!(refusal.headers().collect::<Vec<_>>(), [("WWW-Authenticate", challenge)]);
        assert_eq!(AuthRefusal::new(200, "").status(), 403, "a refusal is an error");
        let refusal = AuthRefusal::forbidden("no").with_header("Content-Length", "7").with_header("X", "1");
        assert_eq!(refusal.headers().collect::<Vec<_>>(), [("X", "1")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_that_hangs_panics_or_returns_an_expired_credential_refuses() {
        let asked = || AuthRequest::new("GET", "/");
        let within = Duration::from_secs(10);
        let hangs = AuthHook::new(|_| std::future::pending());
        assert_eq!(hangs.ask(asked(), within).await.unwrap_err().status(), 503);
        let panics =
            AuthHook::new(|_| -> std::future::Ready<Result<Credential, AuthRefusal>> { panic!("now") });
        assert_eq!(panics.ask(asked(), within).await.unwrap_err().status(), 500);
        let panics = AuthHook::new(|_| async { panic!("later") });
        assert_eq!(panics.ask(asked(), within).await.unwrap_err().status(), 500);
        let expired = AuthHook::new(|_| async { Ok(Credential::anonymous().expires_in(Duration::ZERO)) });
        assert_eq!(expired.ask(asked(), within).await.unwrap_err().status(), 401);
        let holds =
            AuthHook::new(|_| async { Ok(Credential::anonymous().expires_in(Duration::from_secs(5))) });
        let now = tokio::time::Instant::now().into_std();
        let credential = holds.ask(asked(), within).await.unwrap();
        assert_eq!(credential.deadline(now), Some(now + Duration::from_secs(5)));
    }
}
