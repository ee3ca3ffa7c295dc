//! The headers that a browser needs so that a page of another origin can use this server: the answer to its preflight,
//! and the headers without which the page cannot read an answer (the Fetch standard, "HTTP CORS protocol").
//!
//! This module does not decide which origins are allowed: it handles a request after the checks of Host and Origin.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::response_body::{self, ResponseBody};
use crate::headers::MCP_PARAM;

/// The seconds for which a browser may cache a preflight. Chromium caches no preflight for longer.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
const VARY_ORIGIN: HeaderValue = HeaderValue::from_static("Origin");
const VARY_PREFLIGHT: HeaderValue = HeaderValue::from_static(
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network",
);
const TRUE: HeaderValue = HeaderValue::from_static("true");
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The methods and headers of a binding that web pages may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageAccess {
    /// The methods it serves.
    pub(crate) methods: &'static str,
    /// The request headers it reads.
    pub(crate) headers: &'static str,
    /// The headers of its answers that a page must be able to read.
    pub(crate) exposed: &'static str,
    /// Whether it also reads headers that mirror parameters.
    pub(crate) parameters: Parameters,
}

/// Whether a binding reads `Mcp-Param-*` headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameters {
    /// It reads none.
    Ignored,
    /// It reads any.
    Read,
}

/// The settings of the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSettings {
    /// Request headers beyond those of the binding.
    pub(crate) headers: Vec<HeaderName>,
    pub(crate) credentials: Credentials,
}

/// Whether pages may send the credentials that the browser keeps for this server: cookies, HTTP authentication, client
/// certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// They must not.
    #[default]
    Omitted,
    /// Pages of allowed origins may.
    Allowed,
}

/// A request of a page whose origin is allowed.
pub(super) struct Page {
    origin: HeaderValue,
    credentials: Credentials,
}

impl Page {
    /// The page that sends the request. `None`: no page sends it, or it names more than one origin.
    pub(super) fn of(headers: &HeaderMap, credentials: Credentials) -> Option<Self> {
        let mut values = headers.get_all(ORIGIN).iter();
        let origin = values.next()?.clone();
        values.next().is_none().then_some(Self { origin, credentials })
    }

    /// The answer to a preflight.
    pub(super) fn preflight(
        &self,
        asked: &HeaderMap,
        access: &PageAccess,
        settings: &PageSettings,
    ) -> Response<ResponseBody> {
        let mut response = response_body::plain(StatusCode::NO_CONTENT);
        let headers = response.headers_mut();
        self.allow_origin(headers);
        headers.insert(VARY, VARY_PREFLIGHT);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(access.methods));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(asked, access, settings));
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        // A page of a public site requests a private address, as Chromium reports it.
        if asked.get(REQUEST_PRIVATE_NETWORK).is_some_and(|value| value == TRUE) {
            headers.insert(ALLOW_PRIVATE_NETWORK, TRUE);
        }
        response
    }

    /// Allows the page to read an answer, whatever its status.
    pub(super) fn open(&self, response: &mut Response<ResponseBody>, access: &PageAccess) {
        let headers = response.headers_mut();
        self.allow_origin(headers);
        headers.append(VARY, VARY_ORIGIN);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(access.exposed));
    }

    /// Allows this origin and not `*`, so that a cached answer is not given to another page.
    fn allow_origin(&self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
        if self.credentials == Credentials::Allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
        }
    }
}

/// Whether a request only checks what a page may send.
pub(super) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Informs caches that the answer depends on the origin.
pub(super) fn vary(response: &mut Response<ResponseBody>) {
    response.headers_mut().append(VARY, VARY_ORIGIN);
}

/// The headers that the binding reads, the ones that the user allows, and the requested ones that mirror parameters.
fn allowed_headers(asked: &HeaderMap, access: &PageAccess, settings: &PageSettings) -> HeaderValue {
    let mut allowed = access.headers.to_owned();
    for name in &settings.headers {
        allowed.push_str(", ");
        allowed.push_str(name.as_str());
    }
    if access.parameters == Parameters::Read {
        let asked = asked.get_all(ACCESS_CONTROL_REQUEST_HEADERS).into_iter();
        let names = asked.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        // Parsed, so that only valid names are written back.
        for name in names.filter_map(|name| name.trim().parse::<HeaderName>().ok()) {
            if name.as_str().starts_with(MCP_PARAM) {
                allowed.push_str(", ");
                allowed.push_str(name.as_str());
            }
        }
    }
    HeaderValue::try_from(allowed).unwrap_or(HeaderValue::from_static(access.headers))
}
