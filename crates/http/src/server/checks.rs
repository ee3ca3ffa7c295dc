//! The checks of host, media types and `Accept`, before a body is read.
//!
//! # CORS
//!
//! The headers that a browser needs so that a page of another origin can use this server: the answer to its preflight,
//! and the headers without which the page cannot read an answer (the Fetch standard, "HTTP CORS protocol").
//!
//! Which origins are allowed is decided before, by the service.
//!
//! # Refusals
//!
//! `Refused` is a refusal of a request. The crate's docs have the table of all refusals.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ALLOW,
    CONTENT_ENCODING, CONTENT_TYPE, ORIGIN, RETRY_AFTER, VARY,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use rescind_core::{Principal, TraceContext};
use rescind_net::{AuthHook, AuthRefusal, AuthRequest, Credential, HostPolicy, HostRefusal, RequestHost};
use serde::Serialize;

use crate::envelope::{BOTH, EVENT_STREAM, JSON, MCP_PARAM, SHARED_BODY};
use crate::server::body::{self, ResponseBody};
use crate::server::{Caller, RequestBody, Responder};

/// Refuses a host that this server does not serve (DNS rebinding): 400 unless exactly one valid host is named, else
/// 421.
pub(crate) fn host<'a>(
    uri: &'a Uri,
    fields: &HeadFields<'a>,
    policy: &HostPolicy,
) -> Result<RequestHost<'a>, Refused> {
    let target = uri.authority().map(Authority::as_str);
    let host = match fields.host {
        Field::Several(_) => Err(HostRefusal::Several),
        Field::Absent | Field::Once(_) => {
            policy.check(target, fields.host.first().map(HeaderValue::as_bytes))
        }
    };
    host.map_err(|why| match why {
        HostRefusal::Missing | HostRefusal::Several | HostRefusal::Malformed => Refused::bad(why.to_string()),
        HostRefusal::NotServed => Refused::misdirected(policy.advice()),
    })
}

/// Refuses an encoded body: 415.
pub(crate) fn content_encoding(fields: &HeadFields<'_>) -> Result<(), Refused> {
    if fields.content_encoding.is_absent() {
        return Ok(());
    }
    let values = fields.headers.get_all(CONTENT_ENCODING).into_iter();
    let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let is_plain = |coding: &[u8]| {
        let coding = coding.trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    };
    if codings.all(is_plain) { Ok(()) } else { Err(Refused::encoded()) }
}

/// Refuses a body that is not JSON in UTF-8: 415.
pub(crate) fn content_type(fields: &HeadFields<'_>) -> Result<(), Refused> {
    let Field::Once(value) = fields.content_type else { return Err(Refused::media_type()) };
    if value.as_bytes() == JSON.as_bytes() {
        return Ok(());
    }
    let mut parts = value.to_str().unwrap_or_default().split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(JSON));
    let is_utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        Some(_) | None => true,
    });
    if is_json && is_utf8 { Ok(()) } else { Err(Refused::media_type()) }
}

/// Refuses a client that does not accept both JSON and event streams: 406.
pub(crate) fn accepts_both(fields: &HeadFields<'_>) -> Result<(), Refused> {
    let is_usual = fields.accept.first().is_some_and(|value| value.as_bytes() == BOTH.as_bytes());
    if is_usual || (accepts(fields.headers, JSON) && accepts(fields.headers, EVENT_STREAM)) {
        return Ok(());
    }
    Err(Refused::not_acceptable("Accept must list application/json and text/event-stream"))
}

/// Refuses a client that does not accept event streams: 406.
pub(crate) fn accepts_events(fields: &HeadFields<'_>) -> Result<(), Refused> {
    if accepts(fields.headers, EVENT_STREAM) {
        return Ok(());
    }
    Err(Refused::not_acceptable("Accept must list text/event-stream"))
}

/// Whether a media type is listed in `Accept`, by name or by range, and not with a weight of zero.
pub(crate) fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let group = media.split('/').next().unwrap_or_default();
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let named = name == "*/*"
                || name.eq_ignore_ascii_case(media)
                || name.split_once('/').is_some_and(|(of, any)| any == "*" && of.eq_ignore_ascii_case(group));
            named && !parts.any(is_zero_weight)
        })
}

fn is_zero_weight(parameter: &str) -> bool {
    let Some((name, weight)) = parameter.split_once('=') else { return false };
    name.trim().eq_ignore_ascii_case("q") && weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0)
}

/// When the credential of a request expires. It is stored in the extensions of the request, for tasks that outlive the
/// response.
#[derive(Clone, Copy, Debug)]
struct Expires(Instant);

/// Answers a request that the hook accepts.
pub(super) async fn answer(
    responder: Arc<dyn Responder>,
    hook: AuthHook,
    within: std::time::Duration,
    mut request: Request<RequestBody>,
    caller: Caller,
) -> Response<ResponseBody> {
    let asked = hook.ask(AuthRequest::of(&request), within);
    let credential = match asked.await {
        Ok(credential) => credential,
        Err(refusal) => return responder.refuse(Refused::by_hook(&refusal)),
    };
    let caller = Caller { principal: credential.principal().cloned(), ..caller };
    let Some(at) = credential.deadline(tokio::time::Instant::now().into_std()) else {
        return responder.respond(request, caller).await;
    };
    request.extensions_mut().insert(Expires(at));
    let answer = Arc::clone(&responder).respond(request, caller);
    match tokio::time::timeout_at(at.into(), answer).await {
        Ok(response) => response.map(|body| body.expires(at.into())),
        Err(_) => responder.refuse(Refused::by_hook(&AuthRefusal::expired())),
    }
}

/// The credential of a request that the hook accepted, or the anonymous one if there is no hook.
pub(crate) fn credential<B>(request: &Request<B>, principal: Option<Principal>) -> Credential {
    let credential = principal.map_or(Credential::anonymous(), Credential::of);
    match request.extensions().get::<Expires>() {
        Some(Expires(at)) => credential.expires_at(*at),
        None => credential,
    }
}

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
        let mut response = body::plain(StatusCode::NO_CONTENT);
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

/// A field that is read if it occurs once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Field<'a> {
    #[default]
    Absent,
    Once(&'a HeaderValue),
    /// It occurs more than once. The first value.
    Several(&'a HeaderValue),
}

/// The fields of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadFields<'a> {
    pub(crate) headers: &'a HeaderMap,
    /// The bytes of all names and values.
    pub(crate) bytes: usize,
    pub(crate) host: Field<'a>,
    pub(crate) origin: Field<'a>,
    pub(crate) accept: Field<'a>,
    pub(crate) content_type: Field<'a>,
    pub(crate) content_encoding: Field<'a>,
    pub(crate) content_length: Field<'a>,
    pub(crate) transfer_encoding: Field<'a>,
    pub(crate) traceparent: Field<'a>,
    pub(crate) mcp_version: Field<'a>,
    pub(crate) mcp_session: Field<'a>,
    pub(crate) mcp_method: Field<'a>,
    pub(crate) mcp_name: Field<'a>,
    pub(crate) acp_connection: Field<'a>,
    pub(crate) acp_session: Field<'a>,
}

impl<'a> Field<'a> {
    /// The field of one name that is not among those of [`HeadFields`].
    pub(crate) fn named(headers: &'a HeaderMap, name: &HeaderName) -> Self {
        let mut field = Self::Absent;
        headers.get_all(name).iter().for_each(|value| field.add(value));
        field
    }

    fn add(&mut self, value: &'a HeaderValue) {
        *self = match *self {
            Self::Absent => Self::Once(value),
            Self::Once(first) | Self::Several(first) => Self::Several(first),
        };
    }

    pub(crate) const fn is_absent(self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(crate) const fn first(self) -> Option<&'a HeaderValue> {
        match self {
            Self::Absent => None,
            Self::Once(value) | Self::Several(value) => Some(value),
        }
    }

    /// The text of a field that may occur only once.
    pub(crate) fn single(self, name: &str) -> Result<Option<&'a str>, Refused> {
        let text = match self {
            Self::Absent => return Ok(None),
            Self::Once(value) => value.to_str().ok(),
            Self::Several(_) => None,
        };
        text.map(Some).ok_or_else(|| Refused::bad(format!("the header {name} is unreadable")))
    }
}

impl<'a> HeadFields<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let absent = Field::Absent;
        let mut fields = Self {
            headers,
            bytes: 0,
            host: absent,
            origin: absent,
            accept: absent,
            content_type: absent,
            content_encoding: absent,
            content_length: absent,
            transfer_encoding: absent,
            traceparent: absent,
            mcp_version: absent,
            mcp_session: absent,
            mcp_method: absent,
            mcp_name: absent,
            acp_connection: absent,
            acp_session: absent,
        };
        for (name, value) in headers {
            let name = name.as_str();
            fields.bytes += name.len() + value.len();
            // The names of `crate::headers`, as a `HeaderName` spells them. A test compares them.
            let field = match name {
                "host" => &mut fields.host,
                "origin" => &mut fields.origin,
                "accept" => &mut fields.accept,
                "content-type" => &mut fields.content_type,
                "content-encoding" => &mut fields.content_encoding,
                "content-length" => &mut fields.content_length,
                "transfer-encoding" => &mut fields.transfer_encoding,
                "traceparent" => &mut fields.traceparent,
                "mcp-protocol-version" => &mut fields.mcp_version,
                "mcp-session-id" => &mut fields.mcp_session,
                "mcp-method" => &mut fields.mcp_method,
                "mcp-name" => &mut fields.mcp_name,
                "acp-connection-id" => &mut fields.acp_connection,
                "acp-session-id" => &mut fields.acp_session,
                _ => continue,
            };
            field.add(value);
        }
        fields
    }

    /// The announced length of the body in bytes, if it is a number.
    pub(crate) fn length(&self) -> Option<u64> {
        self.content_length.first()?.to_str().ok()?.parse().ok()
    }

    pub(crate) fn trace(&self) -> Option<TraceContext> {
        if self.traceparent.is_absent() { None } else { TraceContext::of_headers(self.headers) }
    }
}

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
    /// 400: the body has more in it than one message.
    pub(crate) fn shared_body() -> Self {
        Self::bad(SHARED_BODY)
    }

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

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use http::header::{
        ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, TRANSFER_ENCODING,
    };

    use super::*;
    use crate::envelope::{
        ACP_CONNECTION_ID, ACP_SESSION_ID, MCP_METHOD, MCP_NAME, MCP_PROTOCOL_VERSION, MCP_SESSION_ID,
    };

    fn with(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_body_is_json_in_utf8_or_refused() {
        for (value, passes) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"", true),
            ("application/json; charset=latin1", false),
            ("application/jsonx", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(content_type(&HeadFields::of(&with(CONTENT_TYPE, value))).is_ok(), passes, "{value}");
        }
        let mut two = with(CONTENT_TYPE, JSON);
        two.append(CONTENT_TYPE, HeaderValue::from_static(JSON));
        assert!(content_type(&HeadFields::of(&two)).is_err(), "one is meant");
    }

    #[test]
    fn accept_lists_both_or_is_refused() {
        for (value, both, events) in [
            ("application/json, text/event-stream", true, true),
            ("text/event-stream;q=0.5 , application/json;q=1", true, true),
            ("*/*", true, true),
            ("application/*, text/*", true, true),
            ("application/json", false, false),
            ("text/event-stream", false, true),
            ("application/json, text/event-stream;q=0", false, false),
        ] {
            let headers = with(ACCEPT, value);
            let fields = HeadFields::of(&headers);
            assert_eq!(accepts_both(&fields).is_ok(), both, "{value}");
            assert_eq!(accepts_events(&fields).is_ok(), events, "{value}");
        }
    }

    #[test]
    fn each_field_is_found_by_its_name_and_counted() {
        type Find = for<'a> fn(&HeadFields<'a>) -> Field<'a>;
        let fields: [(HeaderName, Find); 14] = [
            (HOST, |fields| fields.host),
            (ORIGIN, |fields| fields.origin),
            (ACCEPT, |fields| fields.accept),
            (CONTENT_TYPE, |fields| fields.content_type),
            (CONTENT_ENCODING, |fields| fields.content_encoding),
            (CONTENT_LENGTH, |fields| fields.content_length),
            (TRANSFER_ENCODING, |fields| fields.transfer_encoding),
            (HeaderName::from_static("traceparent"), |fields| fields.traceparent),
            (MCP_PROTOCOL_VERSION, |fields| fields.mcp_version),
            (MCP_SESSION_ID, |fields| fields.mcp_session),
            (MCP_METHOD, |fields| fields.mcp_method),
            (MCP_NAME, |fields| fields.mcp_name),
            (ACP_CONNECTION_ID, |fields| fields.acp_connection),
            (ACP_SESSION_ID, |fields| fields.acp_session),
        ];
        for (name, find) in &fields {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static("x-other"), HeaderValue::from_static("other"));
            assert!(find(&HeadFields::of(&headers)).is_absent(), "{name}");
            headers.insert(name, HeaderValue::from_static("first"));
            let once = HeadFields::of(&headers);
            assert_eq!(find(&once).single(name.as_str()).unwrap(), Some("first"));
            assert_eq!(once.bytes, "x-otherother".len() + name.as_str().len() + "first".len());
            headers.append(name, HeaderValue::from_static("second"));
            let twice = HeadFields::of(&headers);
            assert!(find(&twice).single(name.as_str()).is_err(), "{name}");
            assert_eq!(find(&twice).first().unwrap(), "first");
            let others = fields.iter().filter(|(other, find)| other != name && !find(&twice).is_absent());
            assert_eq!(others.count(), 0, "{name}");
        }
    }
}
