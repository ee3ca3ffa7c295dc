//! Which hosts a server serves, and which web pages may send requests to it. It takes strings, or with the feature
//! `http` the head of a request, and returns a decision.
//!
//! Every transport that begins with an HTTP request uses it. A host is compared by name and port. Names are compared
//! without regard to case, and a `Host` without its trailing dot; addresses by value, IPv6 in brackets. An origin is a
//! scheme, a host and a port. Without a port it has the default of `http` and `ws` (80) or of `https` and `wss` (443).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rescind_core::{TransportError, TransportErrorKind};

/// The hosts that a server serves. Default: only loopback names (`localhost` and the addresses of loopback), on any
/// port.
///
/// A browser that was directed to this server with another name (DNS rebinding) sends that name, and is refused.
///
/// ```
/// use rescind_net::{HostPolicy, HostRefusal};
///
/// let mut hosts = HostPolicy::default();
/// hosts.allow("agent.example")?;
/// assert!(hosts.check(None, [&b"agent.example:8080"[..]]).is_ok());
/// assert!(hosts.check(None, [&b"localhost"[..]]).is_ok());
/// assert_eq!(hosts.check(None, [&b"rebound.example"[..]]).err(), Some(HostRefusal::NotServed));
/// # Ok::<(), rescind_net::InvalidAllowEntry>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct HostPolicy {
    listed: Vec<Listed<HostName>>,
    others: OtherHosts,
    advice: Option<Arc<str>>,
}

/// The hosts that are served although they are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OtherHosts {
    #[default]
    Loopback,
    /// Loopback names, and any address: DNS rebinding needs a name.
    Addresses,
    Any,
}

/// The pages that may send requests. Default: pages of loopback, and pages of the same host and port as the request.
///
/// A request without `Origin` is accepted: a page of another origin always sends one.
///
/// ```
/// use rescind_net::{HostPolicy, OriginPolicy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = HostPolicy::default().check(None, [&b"localhost:8080"[..]])?;
/// let mut origins = OriginPolicy::default();
/// origins.allow("https://app.example")?;
/// assert_eq!(origins.check([&b"https://app.example"[..]], &host)?, Some("https://app.example"));
/// assert_eq!(origins.check([], &host)?, None);
/// assert!(origins.check([&b"https://other.example"[..]], &host).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct OriginPolicy {
    listed: Vec<ListedOrigin>,
    any: bool,
}

/// The host of a request, from its head.
#[derive(Clone, Copy, Debug)]
pub struct RequestHost<'a> {
    name: Name<'a>,
    port: Option<u16>,
}

/// Why a request's host is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostRefusal {
    /// The request names no host. Its HTTP status is 400, as that of `Several` and `Malformed`.
    #[error("the request must name its host")]
    Missing,
    /// There are several `Host` headers, or `Host` and the request's target (`:authority` in HTTP/2) differ.
    #[error("the request names more than one host")]
    Several,
    /// The value is not a host with an optional port. User names are not allowed either.
    #[error("the request's host is not a host name or address")]
    Malformed,
    /// The server does not serve this host. Its HTTP status is 421.
    #[error("this host is not served here: allow it by name in the server's settings")]
    NotServed,
}

/// An entry that cannot be in a list of allowed hosts or origins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` cannot be allowed: {why}", entry.escape_debug())]
pub struct InvalidAllowEntry {
    entry: String,
    why: &'static str,
}

impl From<InvalidAllowEntry> for TransportError {
    fn from(error: InvalidAllowEntry) -> Self {
        Self::new(TransportErrorKind::Open, error)
    }
}

/// `name`, or `name:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed<N> {
    name: N,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedOrigin {
    scheme: String,
    host: Listed<HostName>,
}

/// The name of a host in lower case, or its address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HostName {
    Address(IpAddr),
    Name(String),
}

/// The name of a host as it was sent, or its address.
#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl HostPolicy {
    /// Serves this host too: a name or an address. Without a port it is served on any port, else only on this port.
    /// IPv6 addresses are in brackets.
    ///
    /// # Errors
    /// The host is neither a name nor an address, for example a URL.
    pub fn allow(&mut self, host: &str) -> Result<(), InvalidAllowEntry> {
        let (name, port) =
            authority(host).ok_or_else(|| not_allowable(host, "it is not `name` or `name:port`"))?;
        self.listed.push(Listed { name: name.without_dot().to_owned(), port });
        Ok(())
    }

    /// Serves every host, for a server behind a proxy that checks the host.
    pub fn allow_any(&mut self) {
        self.others = OtherHosts::Any;
    }

    /// Sets what the refusal of a host says besides the reason: how the operator of this server allows a host, such as
    /// `allow it with --allow-host NAME`. Default: nothing.
    pub fn set_advice(&mut self, advice: &str) {
        self.advice = Some(advice.into());
    }

    /// What the refusal of a host says besides the reason.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// Sets the address on which the server listens. A server that listens beyond loopback also serves any address,
    /// because it cannot know its own.
    pub fn bound_to(&mut self, address: IpAddr) {
        if self.others == OtherHosts::Loopback && !address.to_canonical().is_loopback() {
            self.others = OtherHosts::Addresses;
        }
    }

    /// The host of a request, from its target if the target names a host (`:authority` in HTTP/2, the absolute form in
    /// HTTP/1.1), and from its `Host` headers.
    ///
    /// # Errors
    /// Why it is refused. "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1 request message
    /// that lacks a Host header field and to any request message that contains more than one Host header field line or
    /// a Host header field with an invalid field value" (RFC 9112, 3.2).
    pub fn check<'a>(
        &self,
        target: Option<&'a str>,
        hosts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<RequestHost<'a>, HostRefusal> {
        let mut hosts = hosts.into_iter();
        let header = hosts.next().map(RequestHost::read).transpose()?;
        if hosts.next().is_some() {
            return Err(HostRefusal::Several);
        }
        let target = target.map(|target| RequestHost::read(target.as_bytes())).transpose()?;
        let host = match (target, header) {
            (None, None) => return Err(HostRefusal::Missing),
            (Some(host), None) | (None, Some(host)) => host,
            (Some(target), Some(header)) if target.is_same(&header) => target,
            (Some(_), Some(_)) => return Err(HostRefusal::Several),
        };
        if self.allows(&host) { Ok(host) } else { Err(HostRefusal::NotServed) }
    }

    /// Runs [`check`](Self::check) on the target and the `Host` headers of a request.
    ///
    /// # Errors
    /// The host is refused. The error is the reason.
    #[cfg(feature = "http")]
    pub fn check_head<'a>(
        &self,
        target: &'a http::Uri,
        headers: &'a http::HeaderMap,
    ) -> Result<RequestHost<'a>, HostRefusal> {
        let hosts = headers.get_all(http::header::HOST).into_iter().map(http::HeaderValue::as_bytes);
        self.check(target.authority().map(http::uri::Authority::as_str), hosts)
    }

    fn allows(&self, host: &RequestHost<'_>) -> bool {
        let name = host.name.without_dot();
        let by_kind = match (self.others, name) {
            (OtherHosts::Any, _) | (OtherHosts::Addresses, Name::Address(_)) => true,
            (OtherHosts::Loopback | OtherHosts::Addresses, _) => name.is_loopback(),
        };
        by_kind || self.listed.iter().any(|listed| listed.name.is(name) && is_port(listed.port, host.port))
    }
}

/// A listed host without a port is served on any port. A `Host` without a port means the default port of its scheme,
/// which is not known here.
fn is_port(listed: Option<u16>, asked: Option<u16>) -> bool {
    match (listed, asked) {
        (None, _) => true,
        (Some(port), None) => is_default(port),
        (Some(listed), Some(asked)) => listed == asked,
    }
}

const fn is_default(port: u16) -> bool {
    matches!(port, 80 | 443)
}

impl OriginPolicy {
    /// Allows pages of this origin to send requests, for example `https://app.example` or `http://app.example:8080`.
    ///
    /// # Errors
    /// It is not an origin: it has a path (also a trailing slash) or a user name, or it has no scheme or no host.
    /// `null` is not allowed either: every sandboxed frame and local file sends it, so it does not identify the page.
    pub fn allow(&mut self, origin: &str) -> Result<(), InvalidAllowEntry> {
        if origin.eq_ignore_ascii_case("null") {
            return Err(not_allowable(
                origin,
                "any sandboxed page sends it; name the origins that are meant",
            ));
        }
        let (scheme, rest) = scheme(origin).ok_or_else(|| {
            not_allowable(origin, "an origin begins with a scheme, as in `https://app.example`")
        })?;
        if rest.contains(['/', '?', '#', '\\']) {
            return Err(not_allowable(origin, "an origin has no path and no trailing slash"));
        }
        let (name, port) = authority(rest)
            .ok_or_else(|| not_allowable(origin, "an origin is `scheme://host` or `scheme://host:port`"))?;
        let host = Listed { name: name.to_owned(), port: port.or(default_port(scheme)) };
        self.listed.push(ListedOrigin { scheme: scheme.to_ascii_lowercase(), host });
        Ok(())
    }

    /// Allows pages of every origin to send requests, also `null`.
    pub fn allow_any(&mut self) {
        self.any = true;
    }

    /// Whether pages of every origin may send requests.
    #[must_use]
    pub const fn allows_any(&self) -> bool {
        self.any
    }

    /// Checks the `Origin` headers of a request to this host. `Ok(None)`: it has none. `Ok(Some(origin))`: this origin
    /// is allowed. It is the value that CORS repeats.
    ///
    /// # Errors
    /// The origin is not allowed: 403. Two `Origin` headers are refused, whatever they say.
    pub fn check<'a>(
        &self,
        origins: impl IntoIterator<Item = &'a [u8]>,
        host: &RequestHost<'_>,
    ) -> Result<Option<&'a str>, OriginRefused> {
        let mut origins = origins.into_iter();
        let Some(origin) = origins.next() else { return Ok(None) };
        let origin = std::str::from_utf8(origin).map_err(|_| OriginRefused)?;
        if origins.next().is_none() && (self.any || self.allows(origin, host)) {
            Ok(Some(origin))
        } else {
            Err(OriginRefused)
        }
    }

    /// Runs [`check`](Self::check) on the `Origin` headers of a request.
    ///
    /// # Errors
    /// The origin is refused.
    #[cfg(feature = "http")]
    pub fn check_head<'a>(
        &self,
        headers: &'a http::HeaderMap,
        host: &RequestHost<'_>,
    ) -> Result<Option<&'a str>, OriginRefused> {
        let origins = headers.get_all(http::header::ORIGIN).into_iter().map(http::HeaderValue::as_bytes);
        self.check(origins, host)
    }

    fn allows(&self, origin: &str, host: &RequestHost<'_>) -> bool {
        let Some((scheme, rest)) = scheme(origin) else { return false };
        let Some((name, port)) = authority(rest) else { return false };
        let port = port.or(default_port(scheme));
        let is_page = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
        let is_same_host = || name.is_same(host.name) && port == host.port.or(default_port(scheme));
        let is_listed = |listed: &ListedOrigin| {
            listed.scheme.eq_ignore_ascii_case(scheme)
                && listed.host.name.is(name)
                && listed.host.port == port
        };
        (is_page && (name.is_loopback() || is_same_host())) || self.listed.iter().any(is_listed)
    }
}

/// Pages of this origin may not send requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests from this Origin are not allowed")]
pub struct OriginRefused;

impl<'a> RequestHost<'a> {
    fn read(value: &'a [u8]) -> Result<Self, HostRefusal> {
        let text = std::str::from_utf8(value).map_err(|_| HostRefusal::Malformed)?;
        let (name, port) = authority(text).ok_or(HostRefusal::Malformed)?;
        Ok(Self { name, port })
    }

    /// Whether both name the same host. They come from one request, and either may omit a default port.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_port = match (self.port, other.port) {
            (Some(port), None) | (None, Some(port)) => is_default(port),
            (one, other) => one == other,
        };
        is_same_port && self.name.is_same(other.name)
    }
}

impl<'a> Name<'a> {
    fn is_same(self, other: Name<'_>) -> bool {
        match (self, other) {
            (Self::Address(one), Name::Address(other)) => one == other,
            (Self::Name(one), Name::Name(other)) => one.eq_ignore_ascii_case(other),
            (Self::Address(_), Name::Name(_)) | (Self::Name(_), Name::Address(_)) => false,
        }
    }

    /// Whether it can only mean this machine.
    fn is_loopback(self) -> bool {
        match self {
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// The name without its trailing dot. The dot only says that the client does not search its own domains.
    fn without_dot(self) -> Name<'a> {
        match self {
            Self::Address(_) => self,
            Self::Name(name) => Self::Name(name.strip_suffix('.').unwrap_or(name)),
        }
    }

    fn to_owned(self) -> HostName {
        match self {
            Self::Address(address) => HostName::Address(address),
            Self::Name(name) => HostName::Name(name.to_ascii_lowercase()),
        }
    }
}

impl HostName {
    fn is(&self, name: Name<'_>) -> bool {
        let own = match self {
            Self::Address(address) => Name::Address(*address),
            Self::Name(name) => Name::Name(name),
        };
        own.is_same(name)
    }
}

/// `scheme://rest`.
fn scheme(origin: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = origin.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then_some((scheme, rest))
}

fn default_port(scheme: &str) -> Option<u16> {
    let is_one_of = |schemes: [&str; 2]| schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known));
    if is_one_of(["http", "ws"]) {
        Some(80)
    } else if is_one_of(["https", "wss"]) {
        Some(443)
    } else {
        None
    }
}

/// Reads `name`, `name:port`, `[v6]` or `[v6]:port`. An empty port counts as none. `None`: it is something else.
fn authority(text: &str) -> Option<(Name<'_>, Option<u16>)> {
    let (name, port) = if let Some(inner) = text.strip_prefix('[') {
        let (address, port) = inner.split_once(']')?;
        (Name::Address(IpAddr::V6(address.parse::<Ipv6Addr>().ok()?)), port)
    } else {
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_name) {
            return None;
        }
        (name.parse().map_or(Name::Name(name), |address| Name::Address(IpAddr::V4(address))), port)
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        Some("") => None,
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Some(digits.parse().ok()?),
        None | Some(_) => return None,
    };
    Some((name, port))
}

fn not_allowable(entry: &str, why: &'static str) -> InvalidAllowEntry {
    InvalidAllowEntry { entry: entry.to_owned(), why }
}

impl fmt::Display for RequestHost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Name::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Name::Address(address) => write!(f, "{address}")?,
            Name::Name(name) => f.write_str(name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}
