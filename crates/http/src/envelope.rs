//! The parts of a body that the bindings read: the envelope, and single members of its params or result. Everything is
//! borrowed, and reading a member never fails. The data of the protocol
//! ([`SessionBodies`](rescind_core::SessionBodies), [`MirroredBodies`](rescind_core::MirroredBodies)) defines which
//! methods and members are read.
//!
//! # Whole bodies
//!
//! A body is read into memory as a whole, with a limit of bytes. A body whose length was announced gets memory of that
//! size.
//!
//! # Names of headers and media types
//!
//! They are spelled as in the specifications of the bindings.

use std::borrow::Cow;
use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderName, StatusCode};
use http_body::{Body, SizeHint};
use http_body_util::BodyExt;
use rescind_core::members::{self, PickedMembers, Shape, may_name, present, shape, string};
use rescind_core::{
    ByteBudget, Deviation, MemoryFull, Newline, Outbound, PartialFrame, RequestId, TransportError,
    TransportErrorKind, TransportEvent,
};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::inbound_queue::InboundQueue;

/// The members of a message. A member that is `null` is absent, except for `id` and `result`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Envelope<'a> {
    pub(crate) jsonrpc: Option<&'a RawValue>,
    pub(crate) id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    kind: Option<&'a RawValue>,
    pub(crate) params: Option<&'a RawValue>,
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<&'a RawValue>,
}

/// The names of its members.
const MEMBERS: [&str; 7] = ["jsonrpc", "id", "method", "type", "params", "result", "error"];

/// Why a body is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnvelopeError {
    Empty,
    NotUtf8,
    NotJson,
    /// JSON, but neither an object nor an array of messages. An empty array is not a batch: it holds no message.
    NotAnObject,
    Batch,
}

impl<'a> Envelope<'a> {
    /// Reads a body. An object with a duplicate member, or whose method is not a string, is read as one without
    /// members: the driver refuses it.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, EnvelopeError> {
        let text = members::text(body).map_err(|_| EnvelopeError::NotUtf8)?;
        let is_json = || serde_json::from_str::<IgnoredAny>(text).is_ok();
        match shape(text) {
            Shape::Object => {
                let read = PickedMembers::read(text, MEMBERS).map_err(|_| EnvelopeError::NotJson)?;
                let [jsonrpc, id, method, kind, params, result, error] = read.values;
                let [jsonrpc, method, kind, params, error] =
                    [jsonrpc, method, kind, params, error].map(present);
                let is_readable = !read.twice && method.is_none_or(|method| string(method).is_some());
                let envelope = Self { jsonrpc, id, method, kind, params, result, error };
                Ok(if is_readable { envelope } else { Self::default() })
            }
            Shape::Array => match serde_json::from_str::<Vec<IgnoredAny>>(text) {
                Ok(messages) if messages.is_empty() => Err(EnvelopeError::NotAnObject),
                Ok(_) => Err(EnvelopeError::Batch),
                Err(_) => Err(EnvelopeError::NotJson),
            },
            Shape::Other if text.trim_ascii_start().is_empty() => Err(EnvelopeError::Empty),
            Shape::Other if is_json() => Err(EnvelopeError::NotAnObject),
            Shape::Other => Err(EnvelopeError::NotJson),
        }
    }

    /// The same for a body that may not be a message: then the envelope has no members.
    pub(crate) fn of(body: &'a [u8]) -> Self {
        Self::read(body).unwrap_or_default()
    }

    /// The id, if it is valid.
    pub(crate) fn id(&self) -> Option<RequestId> {
        RequestId::from_json(self.id?.get()).ok()
    }

    pub(crate) fn method(&self) -> Option<Cow<'a, str>> {
        self.method.and_then(string)
    }

    /// The `type` of an envelope that is not JSON-RPC (ABP).
    fn kind(&self) -> Option<Cow<'a, str>> {
        self.kind.filter(|_| self.jsonrpc.is_none()).and_then(string)
    }

    pub(crate) fn has_id(&self) -> bool {
        present(self.id).is_some()
    }

    /// Whether it is a request.
    pub(crate) fn is_request(&self) -> bool {
        self.has_id() && (self.method.is_some() || self.kind().is_some())
    }

    /// Whether it is a request with one of these methods, or of one of these `type`s.
    pub(crate) fn is_request_of<M: AsRef<str>>(&self, methods: &[M]) -> bool {
        let name = self.method().or_else(|| self.kind());
        self.has_id() && name.is_some_and(|name| methods.iter().any(|method| method.as_ref() == name))
    }

    /// Whether it is an answer. `null` is a result too.
    pub(crate) fn is_answer(&self) -> bool {
        match self.kind() {
            Some(kind) => kind.ends_with("-result"),
            None => self.method.is_none() && (self.result.is_some() || self.error.is_some()),
        }
    }

    /// Whether its error is one of JSON-RPC, and not that of a framework.
    fn has_error_code(&self) -> bool {
        let [code] = once(self.error, ["code"]);
        code.is_some_and(|code| code.get().parse::<i64>().is_ok())
    }

    /// A string in the result.
    pub(crate) fn result_text(&self, name: &str) -> Option<Cow<'a, str>> {
        text(self.result, name)
    }
}

/// The role of a message in the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Its answer.
    Own,
    /// An answer, but only the codec can tell whose: its id is spelled differently or missing, it is one of several, or
    /// it cannot be read. The driver ends the call if it is meant.
    Unclear,
    /// An error that names no request. The driver ends the only call of its exchange with it.
    UnnamedError,
    /// A request or a notification.
    Other,
    /// The answer to another request.
    OtherAnswer,
    /// Nothing for the driver.
    Nothing,
}

impl Reply {
    /// The role in a response with this status. Most statuses of a refusal say more than an error that names no request:
    /// that credentials are missing, or whether the request may have run. Then the call ends with an error that shows
    /// the status and the body.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        // 409 says that an id is in use, as the error does.
        let says_nothing = status.is_success()
            || matches!(status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::NOT_IMPLEMENTED);
        match self {
            Self::UnnamedError if !says_nothing => Self::Nothing,
            reply => reply,
        }
    }

    /// Whether only the driver can tell whose answer it is.
    pub(crate) const fn is_unclear(self) -> bool {
        matches!(self, Self::Unclear | Self::UnnamedError)
    }

    /// The role of this body in the response to the request with this id.
    pub(crate) fn of(body: &[u8], own: Option<&RequestId>) -> Self {
        if own.is_some_and(|own| is_usual_answer(body, own)) {
            return Self::Own;
        }
        let envelope = match Envelope::read(body) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Batch) => return Self::Unclear,
            Err(EnvelopeError::NotJson | EnvelopeError::NotUtf8) if may_name_an_id(body) => {
                return Self::Unclear;
            }
            Err(_) => return Self::Nothing,
        };
        if envelope.method.is_some() || (envelope.kind().is_some() && !envelope.is_answer()) {
            return Self::Other;
        }
        match (envelope.is_answer(), envelope.has_id()) {
            (true, true) => match (envelope.id(), own) {
                (Some(id), Some(own)) if id == *own || is_text_of(&envelope, &id, own) => Self::Own,
                (Some(id), Some(own)) if id.as_number() >= Some(0) || own.as_number().is_none() => {
                    Self::OtherAnswer
                }
                (_, _) => Self::Unclear,
            },
            (true, false) if envelope.has_error_code() => Self::UnnamedError,
            (true, false) | (false, true) if envelope.jsonrpc.is_some() => Self::Unclear,
            (_, _) => Self::Nothing,
        }
    }
}

/// Whether the id of an envelope that is not JSON-RPC is this number as a text, as ABP writes it.
fn is_text_of(envelope: &Envelope<'_>, id: &RequestId, number: &RequestId) -> bool {
    envelope.kind.is_some()
        && number.as_number().is_some_and(|number| id.as_text() == Some(&number.to_string()))
}

/// A body without the byte order mark before it, which is counted.
pub(crate) fn unmarked(inbound_queue: &InboundQueue, body: Bytes) -> Bytes {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if !body.starts_with(MARK) {
        return body;
    }
    let sent = body.slice(..MARK.len());
    let deviation = Deviation::ByteOrderMark;
    inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
    body.slice(MARK.len()..)
}

/// Whether a body begins as nearly all answers to the request with this id do.
fn is_usual_answer(body: &[u8], own: &RequestId) -> bool {
    let Some(number) = own.as_number().and_then(|number| u64::try_from(number).ok()) else { return false };
    let Some(rest) = body.strip_prefix(br#"{"jsonrpc":"2.0","id":"#) else { return false };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let Some((id, rest)) = rest.split_at_checked(digits) else { return false };
    let value = id.iter().try_fold(0_u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
    });
    !id.is_empty()
        && value == Some(number)
        && (rest.starts_with(br#","result":"#) || rest.starts_with(br#","error":"#))
}

/// The text with which a body is refused that has more in it than one message. The driver uses the same.
pub(crate) const SHARED_BODY: &str = "Invalid message: a body has one message, and nothing else";

/// Whether a body that is not JSON has messages beside other text or messages.
pub(crate) fn has_messages(body: &[u8]) -> bool {
    !Newline::messages_of(body).is_empty()
}

/// Whether a text that is not JSON may be an answer that names its request.
fn may_name_an_id(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'['))
        && memchr::memmem::find(body, b"id").is_some()
}

/// A string in params, in a result or in another object.
pub(crate) fn text<'a>(object: Option<&'a RawValue>, name: &str) -> Option<Cow<'a, str>> {
    let object = object.filter(|object| may_name(object.get(), [name]))?;
    once(Some(object), [name])[0].and_then(string)
}

/// Members of an object, without those that are `null`. If one of these names occurs twice, there are none.
pub(crate) fn once<'a, const N: usize>(
    object: Option<&'a RawValue>,
    names: [&str; N],
) -> [Option<&'a RawValue>; N] {
    let PickedMembers { values, twice } = PickedMembers::of(object, names);
    if twice { [None; N] } else { values.map(present) }
}

/// Names a session of MCP's streamable HTTP.
pub(crate) const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The negotiated revision, on every request after the first.
pub(crate) const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method of the message, on every request of revision 2026-07-28.
pub(crate) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The name in the message: of a tool, a prompt, a resource or a task.
pub(crate) const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The prefix of headers that mirror arguments of tools.
pub(crate) const MCP_PARAM: &str = "mcp-param-";
/// The last event that a client received from a stream that was cut.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The media types that a client of MCP accepts, in the usual spelling.
pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// Names a connection of ACP's streamable HTTP.
pub(crate) const ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
/// Names one session of the connection.
pub(crate) const ACP_SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");

/// One message, or a refusal.
pub(crate) const JSON: &str = "application/json";
/// A stream of messages.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum CollectError<E> {
    /// It is over this limit, in bytes, and begins with these.
    TooLarge(usize, Bytes),
    /// It broke off after these bytes.
    Broken(E, Bytes),
    /// Nothing more came after these bytes.
    Silent(Bytes),
    /// There was no memory for the rest of it in time.
    MemoryFull,
}

/// Reads a body to its end. A body that arrives in one piece, as nearly all do, is not copied. The limit, in bytes,
/// bounds the memory, whatever length was announced.
///
/// # Cancel safety
/// If the future is dropped, the bytes that were read are lost.
#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` has its arguments twice")]
pub(crate) fn whole<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    limit: usize,
) -> impl Future<Output = Result<Bytes, CollectError<B::Error>>> {
    async move { collect(&mut body, limit, None, None::<fn(&[u8]) -> bool>).await.map(|(read, _)| read) }
}

/// The most bytes of a body that are read if it cannot be an answer.
pub(crate) const BEGINNING: usize = 1024;
/// How long the end of a body or of an event is waited for whose message is whole.
pub(crate) const PART_TIME: Duration = Duration::from_secs(1);
/// How long a server may be silent in the middle of a body or of an event. A connection that loses packets can need seconds.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// How long a part of a message is waited for, before or after it was looked at.
pub(crate) const fn pause(was_looked_at: bool) -> Duration {
    if was_looked_at { SILENCE.saturating_sub(PART_TIME) } else { PART_TIME }
}

/// Reads a body to its end. If nothing more arrives within 1 s, what is here is enough if it is a whole JSON text, or if it does not
/// begin as a message. Returns the body, and whether it has its end.
///
/// # Errors
/// Also if the body has begun, is not enough, and nothing more arrives within 5 s.
///
/// # Cancel safety
/// If the future is dropped, the bytes that were read are lost.
pub(crate) fn whole_message<B: Body<Data = Bytes> + Unpin>(
    body: &mut B,
    limit: usize,
) -> impl Future<Output = Result<(Bytes, bool), CollectError<B::Error>>> {
    let is_enough = |text: &[u8]| {
        // What does not begin as a message becomes none.
        !matches!(text.trim_ascii_start().first(), Some(b'{' | b'[' | b'\xef'))
            || serde_json::from_slice::<IgnoredAny>(text).is_ok()
    };
    collect(body, limit, None, Some(is_enough))
}

/// The same, with a budget that counts the bytes. If the budget is full, reading waits, except for small bodies.
#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` has its arguments twice")]
pub(crate) fn whole_within<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    limit: usize,
    budget: &ByteBudget,
) -> impl Future<Output = Result<Bytes, CollectError<B::Error>>> {
    async move { collect(&mut body, limit, Some(budget), None::<fn(&[u8]) -> bool>).await.map(|(read, _)| read) }
}

async fn collect<B: Body<Data = Bytes> + Unpin>(
    body: &mut B,
    limit: usize,
    budget: Option<&ByteBudget>,
    is_enough: Option<impl Fn(&[u8]) -> bool>,
) -> Result<(Bytes, bool), CollectError<B::Error>> {
    let announced = announced(&body.size_hint(), limit);
    let mut partial: Option<PartialFrame> = None;
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    let (mut has_begun, mut was_looked_at) = (false, false);
    while !body.is_end_stream() {
        let frame = match is_enough.as_ref().filter(|_| has_begun) {
            None => body.frame().await,
            // Boxed, because otherwise the future of each response would reserve the space of a timer.
            Some(is_enough) => match Box::pin(tokio::time::timeout(pause(was_looked_at), body.frame())).await
            {
                Ok(frame) => frame,
                Err(_) if was_looked_at => {
                    let read = if more.is_empty() { first } else { more.freeze() };
                    return Err(CollectError::Silent(read));
                }
                Err(_) if is_enough(if more.is_empty() { &first } else { &more }) => {
                    return Ok((if more.is_empty() { first } else { more.freeze() }, false));
                }
                Err(_) => {
                    was_looked_at = true;
                    continue;
                }
            },
        };
        let Some(frame) = frame else { break };
        was_looked_at = false;
        let data = match frame {
            Ok(frame) => frame.into_data(),
            Err(error) => {
                let read = if more.is_empty() { first } else { more.freeze() };
                return Err(CollectError::Broken(error, read));
            }
        };
        let Ok(data) = data else { continue };
        // Some servers send blanks while they work.
        has_begun |= !data.trim_ascii_start().is_empty();
        let read = first.len() + more.len();
        if read + data.len() > limit {
            let start: &[u8] = if !more.is_empty() {
                &more
            } else if !first.is_empty() {
                &first
            } else {
                &data
            };
            let start = Bytes::copy_from_slice(start.get(..BEGINNING).unwrap_or(start));
            return Err(CollectError::TooLarge(limit, start));
        }
        if read > 0 {
            let budget = || budget.map_or_else(ByteBudget::default, |budget| budget.child(usize::MAX));
            let partial = partial.get_or_insert_with(|| PartialFrame::new(&budget()));
            let grown = poll_fn(|cx| partial.poll_grow(read, data.len(), cx)).await;
            grown.map_err(|MemoryFull| CollectError::MemoryFull)?;
        }
        if first.is_empty() && more.is_empty() {
            first = data;
            continue;
        }
        make_room(&mut more, read + data.len(), announced);
        if more.is_empty() {
            more.extend_from_slice(&std::mem::take(&mut first));
        }
        more.extend_from_slice(&data);
    }
    Ok((if more.is_empty() { first } else { more.freeze() }, true))
}

/// The length that was announced, but no more than can be taken: a longer body is refused.
fn announced(hint: &SizeHint, limit: usize) -> Option<usize> {
    hint.exact().and_then(|length| usize::try_from(length).ok()).map(|length| length.min(limit))
}

/// Makes room for this many bytes. A body whose length was announced gets exact memory, as it arrives. A buffer that
/// doubles would take up to three times as much.
fn make_room(more: &mut BytesMut, needed: usize, announced: Option<usize>) {
    let Some(announced) = announced.filter(|announced| *announced >= needed) else { return };
    if more.capacity() < needed {
        let mut larger = BytesMut::with_capacity(PartialFrame::buffer_size(announced, needed));
        larger.extend_from_slice(more);
        *more = larger;
    }
}

/// Checks that a frame is within the limit, in bytes.
///
/// # Errors
/// The frame is larger. The error names its exchange; nothing was sent.
pub(crate) fn check_size(out: &Outbound, limit: usize) -> Result<(), TransportError> {
    if out.body.len() <= limit {
        return Ok(());
    }
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    let error = TransportError::new(TransportErrorKind::TooLarge, text);
    Err(TransportError { exchange: Some(out.exchange), ..error })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[test]
    fn a_body_that_is_not_an_object_is_not_a_message() {
        let deep = format!("{}{}", "[".repeat(9_999), "]".repeat(9_999));
        for (body, why) in [
            ("", EnvelopeError::Empty),
            (" \r\n", EnvelopeError::Empty),
            ("{", EnvelopeError::NotJson),
            (r#"{"id":1} x"#, EnvelopeError::NotJson),
            (r#"{"method":7,}"#, EnvelopeError::NotJson),
            (r#"{"id":1,"id":2"#, EnvelopeError::NotJson),
            ("text", EnvelopeError::NotJson),
            ("[1,2", EnvelopeError::NotJson),
            ("7", EnvelopeError::NotAnObject),
            ("\"text\"", EnvelopeError::NotAnObject),
            (" []", EnvelopeError::NotAnObject),
            ("[{}]", EnvelopeError::Batch),
            (&deep, EnvelopeError::Batch),
        ] {
            assert_eq!(Envelope::read(body.as_bytes()).err(), Some(why), "{body:.20}");
        }
        assert_eq!(Envelope::read(b"{\"a\":\"\xff\"}").err(), Some(EnvelopeError::NotUtf8));
        for body in ["{}", r#" {"method":7}"#, r#"{"id":1,"id":2}"#] {
            let read = Envelope::read(body.as_bytes()).unwrap();
            assert!(!read.is_request() && read.id.is_none(), "{body}");
        }
    }

    #[test]
    fn answers_and_requests_are_distinguished() {
        for (body, is_request, is_answer) in [
            (r#"{"id":1,"method":"x"}"#, true, false),
            (r#"{"method":"x"}"#, false, false),
            (r#"{"id":null,"method":"x"}"#, false, false),
            (r#"{"id":1,"result":null}"#, false, true),
            (r#"{"id":1,"result":{"method":"x"}}"#, false, true),
            (r#"{"id":1,"error":{}}"#, false, true),
            (r#"{"id":1,"error":null}"#, false, false),
            (r#"{"type":"capabilities/call","id":"a"}"#, true, false),
            (r#"{"type":"capabilities/call-result","id":"a"}"#, true, true),
            (r#"{"jsonrpc":"2.0","type":"note","id":1,"result":{}}"#, false, true),
            ("{", false, false),
            (r#"[1,"x"]"#, false, false),
            ("[1,null,null,0]", false, false),
        ] {
            let read = Envelope::of(body.as_bytes());
            assert_eq!((read.is_request(), read.is_answer()), (is_request, is_answer), "{body}");
        }
        let initialized = br#"{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
        assert_eq!(Envelope::of(initialized).result_text("protocolVersion").as_deref(), Some("2025-11-25"));
        let numbered = br#"{"id":1,"result":{"protocolVersion":1}}"#;
        assert_eq!(Envelope::of(numbered).result_text("protocolVersion"), None);
    }

    #[test]
    fn a_body_is_read_as_the_answer_to_one_request() {
        let own = RequestId::number(12);
        for (body, reply) in [
            (r#"{"jsonrpc":"2.0","id":12,"result":{}}"#, Reply::Own),
            (r#"{"jsonrpc":"2.0","id":12,"error":{"code":1,"message":""}}"#, Reply::Own),
            (r#" {"result":null, "id" : 12}"#, Reply::Own),
            (r#"{"jsonrpc":"2.0","id":12.0,"result":{}}"#, Reply::Own),
            (r#"{"jsonrpc":"2.0","id":"12","result":{}}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":12}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":12,"result":NaN}"#, Reply::Own),
            (r#"{"result":NaN,"id":12}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":""}}"#, Reply::UnnamedError),
            (r#"{"error":{"code":-32600,"message":""}}"#, Reply::UnnamedError),
            (r#"[{"jsonrpc":"2.0","id":12,"result":{}}]"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Reply::OtherAnswer),
            (r#"{"jsonrpc":"2.0","id":123,"result":{}}"#, Reply::OtherAnswer),
            (r#"{"jsonrpc":"2.0","id":99999999999999999999,"result":{}}"#, Reply::Unclear),
            (r#"{"jsonrpc":"2.0","id":12,"method":"ask"}"#, Reply::Other),
            (r#"{"jsonrpc":"2.0","method":"told"}"#, Reply::Other),
            (r#"{"detail":"Not authenticated"}"#, Reply::Nothing),
            (r#"{"error":"invalid_token"}"#, Reply::Nothing),
            (r#"{"error":{"message":"no","code":null}}"#, Reply::Nothing),
            (r#"{"id":12,"name":"a user"}"#, Reply::Nothing),
            (r#"{"result":"ok"}"#, Reply::Nothing),
            ("<html>id</html>", Reply::Nothing),
            ("{", Reply::Nothing),
            ("[]", Reply::Nothing),
            ("null", Reply::Nothing),
            ("", Reply::Nothing),
        ] {
            assert_eq!(Reply::of(body.as_bytes(), Some(&own)), reply, "{body}");
        }
    }

    #[test]
    fn a_member_that_is_there_twice_is_not_read() {
        for (params, name) in [
            (r#"{"name":"a"}"#, Some("a")),
            (r#"{"\u006eame":"a"}"#, Some("a")),
            (r#"{"name":"a","name":"b"}"#, None),
            (r#"{"name":7}"#, None),
            (r#"{"other":"name"}"#, None),
            (r#"["name"]"#, None),
        ] {
            let params: &RawValue = serde_json::from_str(params).unwrap();
            assert_eq!(text(Some(params), "name").as_deref(), name, "{params}");
        }
    }

    async fn of(pieces: &'static [&'static str], limit: usize) -> Result<Bytes, CollectError<Infallible>> {
        let frames = pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        whole(StreamBody::new(stream::iter(frames)), limit).await
    }

    /// A body that announces this length, whatever it has.
    struct Announcing(u64, Vec<Bytes>);

    impl Body for Announcing {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.1.pop().map(|piece| Ok(Frame::data(piece))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    #[tokio::test]
    async fn no_room_is_made_for_more_than_the_limit() {
        const LIMIT: usize = 100_000;
        let pieces = || vec![Bytes::from(vec![b'x'; 40_000]); 2];
        for announced in [80_000, 400_000] {
            let body = whole(Announcing(announced, pieces()), LIMIT).await.unwrap();
            assert_eq!(body.len(), 80_000);
            let room = Vec::from(body).capacity();
            assert!(room <= LIMIT, "{announced} were announced, and {room} reserved");
        }
    }

    #[tokio::test]
    async fn pieces_are_put_together_up_to_the_limit() {
        for (pieces, whole) in [
            (&[][..], Some("")),
            (&["", "", "a"], Some("a")),
            (&["one"], Some("one")),
            (&["one", "", "two"], Some("onetwo")),
            (&["on", "e", "tw", "o"], Some("onetwo")),
            (&["onetwo", "3"], None),
            (&["onetwo3"], None),
        ] {
            let read = of(pieces, 6).await;
            match whole {
                Some(whole) => assert_eq!(read.unwrap(), whole, "{pieces:?}"),
                None => assert!(matches!(read, Err(CollectError::TooLarge(..))), "{pieces:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_body_whose_length_was_announced_gets_exact_memory() {
        /// A body that announces this length.
        struct Announced<B>(B, u64);
        impl<B: Body<Data = Bytes> + Unpin> Body for Announced<B> {
            type Data = Bytes;
            type Error = B::Error;

            fn poll_frame(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<Frame<Bytes>, B::Error>>> {
                std::pin::Pin::new(&mut self.0).poll_frame(cx)
            }

            fn size_hint(&self) -> http_body::SizeHint {
                http_body::SizeHint::with_exact(self.1)
            }
        }
        let text: Vec<u8> = (b'a'..=b'z').cycle().take(1_000_003).collect();
        for (announced, is_exact) in [(text.len(), true), (1, false), (1 << 30, false)] {
            let frames: Vec<_> = text
                .chunks(10_000)
                .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
                .collect();
            let body = Announced(StreamBody::new(stream::iter(frames)), announced as u64);
            let read = whole(body, 1 << 30).await.unwrap();
            assert_eq!(read, text, "{announced}");
            let room = read.try_into_mut().unwrap().capacity();
            assert!(
                if is_exact { room == text.len() } else { room <= 5 * text.len() },
                "{announced}: {room}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_waited_for_briefly() {
        for (pieces, enough) in
            [(&["{\"a\":", "1}"][..], Some(true)), (&["{\"a\":"], None), (&["<html>"], Some(true))]
        {
            let frames = pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
            let frames = stream::iter(frames).chain(stream::pending());
            let since = tokio::time::Instant::now();
            let read = whole_message(&mut StreamBody::new(Box::pin(frames)), 100).await;
            match (read, enough) {
                (Ok::<_, CollectError<Infallible>>((_, false)), Some(true)) => {
                    assert_eq!(since.elapsed(), PART_TIME);
                }
                (Err(CollectError::Silent(read)), None) => {
                    assert_eq!((since.elapsed(), &*read), (SILENCE, pieces.concat().as_bytes()));
                }
                (other, _) => panic!("{pieces:?}: {other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_may_send_blanks_before_a_body_while_it_works() {
        let pieces = stream::iter([" ", "\n", "{}"]).then(async |piece: &str| {
            tokio::time::sleep(2 * SILENCE).await;
            Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece.as_bytes())))
        });
        let (body, is_whole) = whole_message(&mut StreamBody::new(Box::pin(pieces)), 100).await.unwrap();
        assert_eq!((&*body, is_whole), (&b" \n{}"[..], true));
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"one");
        let read = whole(Full::new(piece.clone()), 3).await.unwrap();
        assert_eq!(read.as_ptr(), piece.as_ptr());
    }
}
