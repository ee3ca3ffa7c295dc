//! The refusals of requests. The crate's docs have the table of all of them.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use rescind_net::AuthRefusal;
use serde::Serialize;

use super::response_body::ResponseBody;
use crate::headers::JSON;

/// A refusal that the transport itself creates: the message was not passed on.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    text: Cow<'static, str>,
    headers: Vec<(HeaderName, HeaderValue)>,
    code: i32,
    null_id: bool,
}

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

impl Refused {
    pub(crate) fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        let own = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        let code = if own { INTERNAL_ERROR } else { INVALID_REQUEST };
        Self { status, text: text.into(), headers: Vec::new(), code, null_id: false }
    }

    /// 400: the request cannot be understood.
    pub(crate) fn bad(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// 400: the body is not JSON.
    pub(crate) fn unreadable(text: &'static str) -> Self {
        Self { code: PARSE_ERROR, ..Self::bad(text) }
    }

    /// 400: the `Last-Event-ID` is not the id of an event of the stream.
    pub(crate) fn foreign_event() -> Self {
        Self::bad("Last-Event-ID is none of this server's")
    }

    /// 400: a stream cannot be resumed after this event.
    pub(crate) fn forgotten_events() -> Self {
        Self::bad("the events after this Last-Event-ID are not kept any more")
    }

    /// The refusal of the auth hook. A header that HTTP does not allow is left out.
    pub(crate) fn by_hook(refusal: &AuthRefusal) -> Self {
        let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
        let headers =
            refusal.headers().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
        Self { headers: headers.collect(), ..Self::new(status, refusal.text().to_owned()) }
    }

    /// 403: the request is from a page of another origin.
    pub(crate) fn origin() -> Self {
        Self::new(StatusCode::FORBIDDEN, "requests from this Origin are not allowed")
    }

    /// 404.
    pub(crate) fn not_found(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    /// 405, with the methods that are served.
    pub(crate) fn method(allowed: &'static str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this method is not served here")
            .with(ALLOW, HeaderValue::from_static(allowed))
    }

    /// 406.
    pub(crate) fn not_acceptable(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, text)
    }

    /// 408: the body did not arrive in time.
    pub(crate) fn body_too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")
    }

    /// 409.
    pub(crate) fn conflict(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    /// 411.
    pub(crate) fn length_required() -> Self {
        Self::new(StatusCode::LENGTH_REQUIRED, "a Content-Length or a chunked body is required")
    }

    /// 413: a batch of too many messages.
    pub(crate) fn large_batch(most: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a batch may have at most {most} messages"))
    }

    /// 413.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit} bytes"))
    }

    /// 415.
    pub(crate) fn media_type() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json in UTF-8")
    }

    /// 415: the body is compressed, or encoded in another way.
    pub(crate) fn encoded() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "no Content-Encoding is supported: send the body as it is",
        )
        .with(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
    }

    /// 421: the request is for a host that this server does not serve.
    pub(crate) fn misdirected(advice: Option<&str>) -> Self {
        const TEXT: &str = "this server does not serve that Host";
        let text = advice.map_or(Cow::Borrowed(TEXT), |advice| Cow::Owned(format!("{TEXT}: {advice}")));
        Self::new(StatusCode::MISDIRECTED_REQUEST, text)
    }

    /// 429, with the seconds after which the client may try again.
    pub(crate) fn too_many(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, text).after(Duration::from_secs(1))
    }

    /// 501: a batch, in a protocol that has none.
    pub(crate) fn batch() -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "Invalid message: batches are not allowed here")
    }

    /// 503, with the seconds after which the client may try again.
    pub(crate) fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text).after(Duration::from_secs(1))
    }

    /// 500: the session or the server ended before the answer. The request may have begun, so this is neither the 404 of a
    /// session that is not known nor a 503: after those a client may send it again.
    pub(crate) fn unanswered() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the session has ended before the answer")
    }

    /// 503: there is no memory for the message.
    pub(crate) fn memory() -> Self {
        Self::unavailable("the limit memory is reached")
    }

    /// Says after how long the client may try again, in whole seconds.
    pub(crate) fn after(self, wait: Duration) -> Self {
        self.with(RETRY_AFTER, HeaderValue::from(wait.as_secs() + u64::from(wait.subsec_nanos() > 0)))
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The body contains `id: null`, as JSON-RPC requires.
    pub(crate) const fn with_null_id(mut self) -> Self {
        self.null_id = true;
        self
    }

    /// A JSON-RPC error without an id, as MCP specifies for refusals, or with the id `null`.
    pub(crate) fn into_response(self) -> Response<ResponseBody> {
        let error = Error { code: self.code, message: &self.text };
        let refusal = ErrorResponse { jsonrpc: "2.0", id: self.null_id.then_some(()), error };
        let body = serde_json::to_vec(&refusal).unwrap_or_default();
        let mut response = Response::new(ResponseBody::full(Bytes::from(body)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        for (name, value) in self.headers {
            response.headers_mut().append(name, value);
        }
        response
    }
}

#[derive(Serialize)]
struct ErrorResponse<'a> {
    jsonrpc: &'static str,
    /// Written as `null`, or left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<()>,
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: i32,
    message: &'a str,
}
