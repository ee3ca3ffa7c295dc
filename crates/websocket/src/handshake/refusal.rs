use http::header::{
    ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, SEC_WEBSOCKET_VERSION, UPGRADE, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};

#[doc = include_str!("../refusals.md")]
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} ({status})", text.trim_end())]
pub struct Refusal {
    status: StatusCode,
    text: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.push('\n');
        Self { status, text, header: None }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, HeaderValue::from_static(value)));
        self
    }

    /// 401: who asks is not known. The challenge, such as `Bearer`, says how to tell; one that is no header value is
    /// left out.
    #[must_use]
    pub fn unauthorized(challenge: &str) -> Self {
        let mut refusal = Self::new(StatusCode::UNAUTHORIZED, "say who you are");
        refusal.header = HeaderValue::from_str(challenge).ok().map(|value| (WWW_AUTHENTICATE, value));
        refusal
    }

    /// 403: who asks may not. The text goes to the client.
    #[must_use]
    pub fn forbidden(text: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
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

    pub(super) fn host() -> Self {
        let text = "this host is not served here: the server has a list of the names it goes by";
        Self::new(StatusCode::MISDIRECTED_REQUEST, text)
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
    }

    pub(crate) fn closed() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "connections are not accepted any more")
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The answer to the request. Its body is plain text; it fits hyper and axum alike.
    #[must_use]
    pub fn into_response(self) -> Response<String> {
        let mut response = Response::new(self.text);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        response
    }
}
