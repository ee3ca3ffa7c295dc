//! The headers that repeat a part of a body (N2): a client creates them from a message, a server compares them with it.

use std::borrow::Cow;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use memchr::memmem::Finder;
use rescind_core::members::{PickedMembers, Shape, shape, string};
use rescind_core::{BadMessage, MirroredBodies, RequestId};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::mirror::Mirrors;
use crate::envelope::{
    Envelope, EnvelopeError, MCP_METHOD, MCP_NAME, MCP_PROTOCOL_VERSION, SHARED_BODY, has_messages, once,
};
use crate::server::checks::{Field, HeadFields};
use crate::server::{ResponseBody, body};
use crate::stateless::mirror::{self, Members, Params};

pub(super) const META: &str = "_meta";
const ARGUMENTS: &str = "arguments";

/// Error codes: not JSON; not a message; wrong params; headers and body differ; a capability or version is missing.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;
const HEADER_MISMATCH: i32 = -32020;
const MISSING_CAPABILITY: i32 = -32021;
const UNSUPPORTED_VERSION: i32 = -32022;
const METHOD_NOT_FOUND: i32 = -32601;

/// Whether a message expects an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Notification,
}

/// A refusal that the binding itself creates, with the id of the request.
#[derive(Debug, Serialize)]
pub(super) struct InvalidHeader<'a> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    error: ErrorMember<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorMember<'a> {
    code: i32,
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Versions<'a>>,
}

#[derive(Debug, Serialize)]
struct Versions<'a> {
    supported: &'a [String],
    requested: &'a str,
}

impl InvalidHeader<'_> {
    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        body::json(StatusCode::BAD_REQUEST, Bytes::from(body))
    }
}

/// The largest body that is read in one pass, in bytes. The readers of members look at each byte more than once, but they
/// skip long values faster.
const MAX_ONE_PASS: usize = 4 * 1024;

/// A message, and the members that its headers repeat.
#[derive(Debug)]
pub(super) struct Message<'a> {
    body: &'a [u8],
    bodies: &'static MirroredBodies,
    id: Option<&'a RawValue>,
    /// Its version or its params, if JSON-RPC 2.0 does not allow them.
    fault: Option<BadMessage>,
    method: Option<Cow<'a, str>>,
    /// The name in the message, if its method is one whose messages have a name.
    name: Option<&'a RawValue>,
    /// The revision that the message names.
    revision: Option<Cow<'a, str>>,
    has_capabilities: bool,
}

/// The member of params with the name in a message of this method. `None`: it has none.
pub(super) fn name_member(method: &str, bodies: &MirroredBodies) -> Option<&'static str> {
    let is_of = |of: &str| method == of || (of.ends_with('/') && method.starts_with(of));
    bodies.names.iter().find(|(of, _)| is_of(of)).map(|(_, member)| *member)
}

impl<'a> Message<'a> {
    /// Reads a message. A body that is not a message is refused here, because its headers could not be compared with
    /// it.
    pub(super) fn read(body: &'a [u8], bodies: &'static MirroredBodies) -> Result<Self, InvalidHeader<'a>> {
        if let Some(message) = Self::read_usual(body, bodies) {
            return Ok(message);
        }
        let envelope = Envelope::read(body).map_err(|why| {
            let (code, message) = match why {
                EnvelopeError::NotJson if has_messages(body) => (INVALID_REQUEST, SHARED_BODY),
                EnvelopeError::Empty | EnvelopeError::NotUtf8 | EnvelopeError::NotJson => {
                    (PARSE_ERROR, "Invalid message: the body is not JSON")
                }
                EnvelopeError::NotAnObject | EnvelopeError::Batch => {
                    (INVALID_REQUEST, "Invalid message: a POST carries one request or one notification")
                }
            };
            unfit(None, code, message)
        })?;
        Ok(Self::of(envelope, body, bodies))
    }

    /// Reads a message of this side.
    pub(super) fn of_own(body: &'a [u8], bodies: &'static MirroredBodies) -> Self {
        Self::read_usual(body, bodies).unwrap_or_else(|| Self::of(Envelope::of(body), body, bodies))
    }

    fn read_usual(body: &'a [u8], bodies: &'static MirroredBodies) -> Option<Self> {
        if body.len() > MAX_ONE_PASS {
            return None;
        }
        let Members { jsonrpc, id, method, params: Params { name, meta } } =
            mirror::read(std::str::from_utf8(body).ok()?, bodies)?;
        Some(Self {
            body,
            bodies,
            id,
            fault: (jsonrpc != Some("2.0")).then_some(BadMessage::WrongVersion),
            method: method.map(Cow::Borrowed),
            name,
            revision: meta.revision.map(Cow::Borrowed),
            has_capabilities: meta.has_capabilities,
        })
    }

    /// Whether the reader of usual messages and the one of all messages read the same, or the former reads nothing.
    #[cfg(any(test, feature = "verify"))]
    pub(super) fn reads_agree(body: &'a [u8], bodies: &'static MirroredBodies) -> bool {
        let Some(usual) = Self::read_usual(body, bodies) else { return true };
        Envelope::read(body).is_ok_and(|envelope| {
            let all = Self::of(envelope, body, bodies);
            let members = |message: &Self| {
                (
                    message.id.map(RawValue::get),
                    message.fault,
                    message.name.map(RawValue::get),
                    message.has_capabilities,
                )
            };
            members(&usual) == members(&all) && usual.method == all.method && usual.revision == all.revision
        })
    }

    /// Reads the members of any message.
    fn of(envelope: Envelope<'a>, body: &'a [u8], bodies: &'static MirroredBodies) -> Self {
        let method = envelope.method();
        let member = method.as_deref().and_then(|method| name_member(method, bodies));
        let [meta, name] = match member {
            Some(member) if member != META => once(envelope.params, [META, member]),
            Some(_) | None => [once(envelope.params, [META])[0], None],
        };
        let [revision, capabilities] = once(meta, [bodies.revision_member, bodies.capabilities_member]);
        let has_version = envelope.jsonrpc.and_then(string).is_some_and(|version| version == "2.0");
        let has_params = envelope.params.is_none_or(|params| shape(params.get()) != Shape::Other);
        let fault = match (has_version, has_params) {
            (false, _) => Some(BadMessage::WrongVersion),
            (true, false) => Some(BadMessage::InvalidParams),
            (true, true) => None,
        };
        Self {
            body,
            bodies,
            id: envelope.id,
            fault,
            method,
            name,
            revision: revision.and_then(string),
            has_capabilities: capabilities.is_some(),
        }
    }

    /// The tool that a message calls and its arguments, if headers mirror any argument of that tool. The arguments are
    /// an error if they are nested too deep, or have a number that is out of range.
    fn mirrored_call(&self, mirrors: &Mirrors) -> Option<(Cow<'a, str>, serde_json::Result<Value>)> {
        self.method.as_deref().filter(|method| *method == self.bodies.tool_call)?;
        let tool = self.name.and_then(string).filter(|tool| mirrors.of(tool))?;
        let [arguments] = once(Envelope::of(self.body).params, [ARGUMENTS]);
        let arguments = arguments.map_or(Ok(Value::Null), |arguments| serde_json::from_str(arguments.get()));
        Some((tool, arguments))
    }

    pub(super) const fn names_a_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// Compares the headers with the message. The checks have the order in which clients must learn of errors: no
    /// version, no metadata, a difference, a version that is not served.
    pub(super) fn check(
        &self,
        fields: &HeadFields<'a>,
        versions: &'a [String],
        mirrors: &Mirrors,
    ) -> Result<Kind, InvalidHeader<'a>> {
        let Some(method) = self.method.as_deref() else {
            return Err(self.without_method());
        };
        let id = self.id;
        let is_id = id.is_none_or(|id| RequestId::from_json(id.get()).is_ok());
        if let Some(fault) = self.fault {
            return Err(refused(id.filter(|_| is_id), fault));
        }
        if !is_id {
            return Err(unfit(None, INVALID_REQUEST, "Invalid message: this is no JSON-RPC 2.0"));
        }
        let kind = if id.is_some() { Kind::Request } else { Kind::Notification };
        let mismatch = |what: String| unfit(id, HEADER_MISMATCH, what);
        let version = single(fields.mcp_version, &MCP_PROTOCOL_VERSION).map_err(mismatch)?;
        let MirroredBodies { revision_member, capabilities_member, .. } = self.bodies;
        let parts =
            [(*revision_member, self.revision.is_some()), (*capabilities_member, self.has_capabilities)];
        if kind == Kind::Request && parts.iter().any(|(_, is_there)| !is_there) {
            let missing: Vec<&str> =
                parts.iter().filter(|(_, is_there)| !is_there).map(|(name, _)| *name).collect();
            let message = format!("Invalid params: _meta lacks {}", missing.join(" and "));
            return Err(unfit(id, INVALID_PARAMS, message));
        }
        if self.revision.as_deref().is_some_and(|reported| reported != version) {
            return Err(mismatch(format!("Header mismatch: {MCP_PROTOCOL_VERSION} differs from _meta")));
        }
        // The specification requires these two headers on requests and leaves notifications open. A header that is
        // present must match.
        let is_asked = |field: Field<'_>| kind == Kind::Request || !field.is_absent();
        if is_asked(fields.mcp_method) && single(fields.mcp_method, &MCP_METHOD).map_err(mismatch)? != method
        {
            return Err(mismatch(format!("Header mismatch: {MCP_METHOD} differs from the body's method")));
        }
        if let Some(name) = self.name.filter(|_| is_asked(fields.mcp_name)) {
            let reported = single(fields.mcp_name, &MCP_NAME).map_err(mismatch)?;
            if string(name).is_none_or(|name| decode(reported).is_none_or(|reported| reported != name)) {
                return Err(mismatch(format!(
                    "Header mismatch: {MCP_NAME} differs from what the body names"
                )));
            }
        }
        if let Some((tool, arguments)) = self.mirrored_call(mirrors) {
            // Arguments that cannot be compared with their headers are refused: an intermediary trusts the headers.
            let arguments = arguments
                .map_err(|_| unfit(id, INVALID_PARAMS, "Invalid params: the arguments cannot be read"))?;
            mirrors.check(&tool, &arguments, fields.headers).map_err(mismatch)?;
        }
        if versions.iter().any(|served| served == version) {
            return Ok(kind);
        }
        let mut refused = unfit(id, UNSUPPORTED_VERSION, "Unsupported protocol version");
        refused.error.data = Some(Versions { supported: versions, requested: version });
        Err(refused)
    }

    /// The refusal of a message whose method is missing or not a string. The id of an answer names a request of this server.
    #[cold]
    fn without_method(&self) -> InvalidHeader<'a> {
        let members = std::str::from_utf8(self.body)
            .ok()
            .and_then(|text| PickedMembers::read(text, ["jsonrpc", "id", "method", "result", "error"]).ok());
        if let Some(PickedMembers { values: [version, Some(id), Some(_), None, None], twice: false }) =
            members
        {
            if RequestId::from_json(id.get()).is_ok() {
                let has_version = version.and_then(string).is_some_and(|version| version == "2.0");
                let fault = if has_version { BadMessage::InvalidMethod } else { BadMessage::WrongVersion };
                return refused(Some(id), fault);
            }
        }
        unfit(None, INVALID_REQUEST, "Invalid message: a client posts requests and notifications")
    }

    /// The headers that mirror this message.
    pub(super) fn headers(&self, headers: &mut HeaderMap, mirrors: &Mirrors) {
        if let Some((tool, Ok(arguments))) = self.mirrored_call(mirrors) {
            let values = mirrors.values(&tool, &arguments).into_iter();
            headers.extend(
                values.filter_map(|(name, value)| Some((name, HeaderValue::from_str(&encode(&value)).ok()?))),
            );
        }
        let version = match self.revision.as_deref() {
            Some(version) if version != self.bodies.revision => HeaderValue::from_str(version).ok(),
            Some(_) | None => Some(HeaderValue::from_static(self.bodies.revision)),
        };
        // A method that a header cannot contain is left out: a notification does not need the header.
        let method = self.method.as_deref().filter(|method| is_plain(method));
        let values = [
            (MCP_PROTOCOL_VERSION, version),
            (MCP_METHOD, method.and_then(|method| HeaderValue::from_str(method).ok())),
            (
                MCP_NAME,
                self.name.and_then(string).and_then(|name| HeaderValue::from_str(&encode(&name)).ok()),
            ),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
    }
}

/// Finds the name of the member with an error. It is made once: that takes longer than most searches.
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("error"));

/// The status of an answer that comes before any event. Some errors have their own status in the specification.
pub(super) fn status_of(answer: &[u8]) -> StatusCode {
    // Most answers have no error, and are not parsed: an error needs the text `error` or an escape in the body.
    if ERROR.find(answer).is_none() && memchr::memchr(b'\\', answer).is_none() {
        return StatusCode::OK;
    }
    let [code] = once(Envelope::of(answer).error, ["code"]);
    match code.and_then(|code| code.get().parse().ok()) {
        Some(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) => StatusCode::BAD_REQUEST,
        Some(_) | None => StatusCode::OK,
    }
}

/// The refusal of what is not a message, as the driver words it.
#[cold]
fn refused(id: Option<&RawValue>, fault: BadMessage) -> InvalidHeader<'_> {
    unfit(id, INVALID_REQUEST, format!("Invalid message: {fault}"))
}

fn unfit(id: Option<&RawValue>, code: i32, message: impl Into<Cow<'static, str>>) -> InvalidHeader<'_> {
    InvalidHeader { jsonrpc: "2.0", id, error: ErrorMember { code, message: message.into(), data: None } }
}

/// The value of a header that must occur exactly once.
pub(super) fn single<'a>(field: Field<'a>, name: &HeaderName) -> Result<&'a str, String> {
    let text = match field {
        Field::Absent => return Err(format!("Header mismatch: {name} is missing")),
        Field::Once(value) => value.to_str().ok(),
        Field::Several(_) => None,
    };
    text.map(str::trim).ok_or_else(|| format!("Header mismatch: {name} is unreadable"))
}

const START: &str = "=?base64?";
const END: &str = "?=";

fn wrapped(value: &str) -> Option<&str> {
    value.strip_prefix(START)?.strip_suffix(END)
}

/// The decoded value of a header. `None`: the value is marked as base64 but is not valid base64, or is not UTF-8.
pub(super) fn decode(value: &str) -> Option<Cow<'_, str>> {
    let Some(coded) = wrapped(value) else { return Some(Cow::Borrowed(value)) };
    String::from_utf8(STANDARD.decode(coded).ok()?).ok().map(Cow::Owned)
}

/// Whether a header can contain the value without encoding.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b' '..=b'~')) && value.trim() == value
}

/// The value, encoded if a header cannot contain it as it is.
pub(super) fn encode(value: &str) -> String {
    if is_plain(value) && wrapped(value).is_none() {
        value.to_owned()
    } else {
        format!("{START}{}{END}", STANDARD.encode(value))
    }
}

/// The parts of this binding that [`crate::verify`] exports.
#[cfg(feature = "verify")]
pub(crate) mod verify {
    use http::HeaderMap;
    use rescind_core::MCP_2026_BODIES;

    use super::{HeadFields, Message, Mirrors};

    pub(crate) fn fits(headers: &HeaderMap, body: &[u8]) -> bool {
        let versions = [MCP_2026_BODIES.revision.to_owned()];
        Message::read(body, &MCP_2026_BODIES).is_ok_and(|message| {
            message.check(&HeadFields::of(headers), &versions, &Mirrors::default()).is_ok()
        })
    }

    pub(crate) fn reads_agree(body: &[u8]) -> bool {
        Message::reads_agree(body, &MCP_2026_BODIES)
    }

    pub(crate) fn mirrored(body: &[u8]) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        Message::read(body, &MCP_2026_BODIES).ok()?.headers(&mut headers, &Mirrors::default());
        let _ = super::status_of(body);
        Some(headers)
    }

    pub(crate) fn encode_name(name: &str) -> String {
        super::encode(name)
    }

    pub(crate) fn decode_name(value: &str) -> Option<String> {
        super::decode(value).map(std::borrow::Cow::into_owned)
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::MCP_2026_BODIES;

    use super::*;

    #[test]
    fn a_method_with_invalid_header_characters_has_no_header() {
        for (method, reported) in [("notifications/x", true), ("toolsџall", false), (" padded", false)] {
            let message = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
            let envelope = Message::read(message.as_bytes(), &MCP_2026_BODIES).unwrap();
            let mut headers = HeaderMap::new();
            envelope.headers(&mut headers, &Mirrors::default());
            assert_eq!(headers.contains_key(&MCP_METHOD), reported, "{method:?}");
        }
    }

    #[test]
    fn names_that_no_header_may_hold_come_back() {
        for (name, coded) in [
            ("get_weather", "get_weather"),
            ("file:///a b", "file:///a b"),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode(name), coded);
            assert_eq!(decode(coded).as_deref(), Some(name));
        }
        assert_eq!(decode("=?base64?SGVsbG8?="), None, "its padding is missing");
        assert_eq!(decode("=?base64?SGVs!!!bG8=?="), None);
        assert_eq!(decode("=?base64?SGVsbG8="), Some("=?base64?SGVsbG8=".into()), "it has no end");
    }

    #[test]
    fn the_headers_made_for_a_message_are_the_ones_asked_of_it() {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///ä","_meta":{
            "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
        let envelope = Message::read(body.as_bytes(), &MCP_2026_BODIES).unwrap();
        let mut headers = HeaderMap::new();
        envelope.headers(&mut headers, &Mirrors::default());
        let versions = ["2026-07-28".to_owned()];
        assert_eq!(
            envelope.check(&HeadFields::of(&headers), &versions, &Mirrors::default()).ok(),
            Some(Kind::Request)
        );
        headers.insert(MCP_NAME, HeaderValue::from_static("file:///a"));
        assert!(envelope.check(&HeadFields::of(&headers), &versions, &Mirrors::default()).is_err());
    }

    #[test]
    fn a_message_is_read_in_one_pass_as_member_by_member() {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"x":1,"x":2}"#;
        let of = |method: &str, params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#)
        };
        let usual = [
            of("ping", meta),
            of("tools/call", &format!(r#""name":"a","arguments":{{"name":"b"}},{meta}"#)),
            of("resources/read", &format!(r#"{meta},"uri":null,"uri2":7"#)),
            of("tools/call", r#""name":7"#),
            r#"{"jsonrpc":"1.0","method":"notifications/x","x":[1,{"id":2}]}"#.to_owned(),
            r#" {"jsonrpc":"2.0","id":null,"method":"ping","result":{}} "#.to_owned(),
            "{}".to_owned(),
        ];
        let unusual = [
            of("tools/call", r#""name":"a","name":"b""#),
            of("tools/call", r#""\u006eame":"a""#),
            of("ping", &format!("{meta},{meta}")),
            of("ping", r#""_meta":null"#),
            of("ping", r#""_meta":{"io.modelcontextprotocol/protocolVersion":null}"#),
            of(r"pi\u006eg", meta),
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#.to_owned(),
            r#"{"jsonrpc":"2.0","method":"ping","error":1,"error":2}"#.to_owned(),
            r#"{"jsonrpc":"2.0","params":{},"method":"ping"}"#.to_owned(),
            r#"{"jsonrpc":2,"method":7,"params":null}"#.to_owned(),
            r#"{"method":"ping","params":[1]}"#.to_owned(),
            r#"{"method":"ping"} x"#.to_owned(),
            "[{}]".to_owned(),
        ];
        for (body, is_usual) in
            usual.iter().map(|body| (body, true)).chain(unusual.iter().map(|body| (body, false)))
        {
            let usual = Message::read_usual(body.as_bytes(), &MCP_2026_BODIES);
            assert_eq!(usual.is_some(), is_usual, "{body}");
            assert!(Message::reads_agree(body.as_bytes(), &MCP_2026_BODIES), "{body}");
        }
    }

    #[test]
    fn arguments_that_cannot_be_compared_with_their_headers_are_refused() {
        let mut mirrors = Mirrors::default();
        mirrors.add("query", &["region"], "Region").unwrap();
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for (other, refused) in [
            (nested(100), None),
            (nested(200), Some(INVALID_PARAMS)),
            ("1e3".to_owned(), None),
            ("1e999".to_owned(), Some(INVALID_PARAMS)),
        ] {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"query",
                "arguments":{{"region":"x","other":{other}}},"_meta":{{"io.modelcontextprotocol/protocolVersion":
                "2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
            );
            let message = Message::read(body.as_bytes(), &MCP_2026_BODIES).unwrap();
            let mut headers = HeaderMap::new();
            message.headers(&mut headers, &mirrors);
            let versions = ["2026-07-28".to_owned()];
            let checked = message.check(&HeadFields::of(&headers), &versions, &mirrors);
            assert_eq!(checked.map_err(|unfit| unfit.error.code).err(), refused, "{other}");
        }
    }

    #[test]
    fn an_array_is_not_a_message_regardless_of_its_elements() {
        let reported = |body: &str| {
            Message::read(body.as_bytes(), &MCP_2026_BODIES).map_err(|unfit| unfit.error.code).err()
        };
        assert_eq!(reported(r#"["2.0",1,"ping",{}]"#), Some(INVALID_REQUEST));
        assert_eq!(reported(r#"[{"jsonrpc":"2.0"}]"#), Some(INVALID_REQUEST));
        assert_eq!(reported(r#"["2.0",1"#), Some(PARSE_ERROR));
        assert_eq!(reported(r#" {"jsonrpc":"2.0"}"#), None);
        let meta = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":["2026-07-28",{}]}}"#;
        assert!(!Message::read(meta.as_bytes(), &MCP_2026_BODIES).unwrap().names_a_revision());
    }

    #[test]
    fn an_answer_has_the_status_its_error_is_given() {
        for (answer, status) in [
            (r#"{"id":1,"result":{}}"#, 200),
            (r#"{"id":1,"error":{"code":-32602,"message":""}}"#, 200),
            (r#"{"id":1,"error":{"code":-32601,"message":""}}"#, 404),
            (r#"{"id":1,"error":{"code":-32021,"message":""}}"#, 400),
            (r#"{"id":1,"error":{"code":"x"}}"#, 200),
            ("not json", 200),
        ] {
            assert_eq!(status_of(answer.as_bytes()).as_u16(), status, "{answer}");
        }
    }
}
