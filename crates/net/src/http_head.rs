//! The head of an HTTP request, in the form that the checks of [`origin`](crate::origin) and the auth hook use. It is
//! the same for HTTP requests and for the request that opens a WebSocket.

use std::net::IpAddr;

use http::header::{HOST, HeaderValue, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Request, Uri};

use crate::auth::{AuthRequest, PeerAddress, PeerCertificates};
use crate::origin::{HostPolicy, HostRefusal, OriginPolicy, OriginRefused, RequestHost};

impl HostPolicy {
    /// Runs [`check`](Self::check) on the target and the `Host` headers of a request.
    ///
    /// # Errors
    /// The host is refused. The error is the reason.
    pub fn check_head<'a>(
        &self,
        target: &'a Uri,
        headers: &'a HeaderMap,
    ) -> Result<RequestHost<'a>, HostRefusal> {
        let hosts = headers.get_all(HOST).into_iter().map(HeaderValue::as_bytes);
        self.check(target.authority().map(Authority::as_str), hosts)
    }
}

impl OriginPolicy {
    /// Runs [`check`](Self::check) on the `Origin` headers of a request.
    ///
    /// # Errors
    /// The origin is refused.
    pub fn check_head<'a>(
        &self,
        headers: &'a HeaderMap,
        host: &RequestHost<'_>,
    ) -> Result<Option<&'a str>, OriginRefused> {
        self.check(headers.get_all(ORIGIN).into_iter().map(HeaderValue::as_bytes), host)
    }
}

impl PeerAddress {
    /// The address in the extensions of a request.
    pub fn of<B>(request: &Request<B>) -> Option<IpAddr> {
        request.extensions().get::<Self>().map(|from| from.0)
    }
}

impl AuthRequest {
    /// The head of a request, with the [`PeerAddress`] and the [`PeerCertificates`] from its extensions.
    pub fn of<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let certificates = request.extensions().get::<PeerCertificates>().cloned().unwrap_or_default();
        let asked = Self::new(request.method().as_str(), uri.path())
            .with_query(uri.query())
            .with_address(PeerAddress::of(request))
            .with_certificates(certificates);
        let headers = request.headers().iter();
        headers.fold(asked, |asked, (name, value)| asked.with_header(name.as_str(), value.as_bytes()))
    }
}
