use http::header::{
    ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Response, StatusCode};
use rescind_core::AuthRefusal;

#[doc = include_str!("../refusals.md")]
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

    pub(super) fn bad_request(text: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no WebSocket is served under this path")
    }

    pub(super) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket is opened with GET").with(ALLOW, "GET")
    }

    pub(super) fn host(advice: Option<&str>) -> Self {
        let advice = advice.unwrap_or("it accepts only the host names that are configured");
        Self::new(StatusCode::MISDIRECTED_REQUEST, format!("this server does not serve this host: {advice}"))
    }

    pub(super) fn origin() -> Self {
        Self::new(StatusCode::FORBIDDEN, "pages of this origin may not connect here")
    }

    pub(super) fn not_an_upgrade() -> Self {
        Self::new(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket: ask for an upgrade")
            .with(UPGRADE, "websocket")
    }

    pub(super) fn version() -> Self {
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
