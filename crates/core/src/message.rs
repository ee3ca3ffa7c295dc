//! What a frame says once its envelope is read: borrowed, with params left as they stand.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::id::{CallNumber, RequestId};

/// The `error` member of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorObject {
    /// The code. Its meaning belongs to the dialect.
    pub code: ErrorCode,
    /// A short sentence for people. Never matched on.
    pub message: String,
    /// Anything more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

/// An error code. In dialects whose codes are words (ABP) the word stands in `data.code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ErrorCode(pub i64);

impl ErrorCode {
    /// The frame is not JSON.
    pub const PARSE_ERROR: Self = Self(-32700);
    /// The JSON is not a message.
    pub const INVALID_REQUEST: Self = Self(-32600);
    /// Nobody serves the method.
    pub const METHOD_NOT_FOUND: Self = Self(-32601);
    /// The params do not fit the method.
    pub const INVALID_PARAMS: Self = Self(-32602);
    /// The serving side failed.
    pub const INTERNAL_ERROR: Self = Self(-32603);
    /// The request was cancelled.
    pub const REQUEST_CANCELLED: Self = Self(-32800);
    /// LSP: the content that the request refers to changed while it was served.
    pub const CONTENT_MODIFIED: Self = Self(-32801);
    /// LSP: the server cancelled a request that allows it.
    pub const SERVER_CANCELLED: Self = Self(-32802);
    /// LSP: the request failed although it was well formed.
    pub const REQUEST_FAILED: Self = Self(-32803);
}

impl ErrorObject {
    /// An error without data.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same error with data. Data that cannot be written as JSON is left out.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }

    /// `INVALID_PARAMS` with what is wrong.
    pub fn invalid_params(what: impl fmt::Display) -> Self {
        Self::new(ErrorCode::INVALID_PARAMS, format!("Invalid params: {what}"))
    }

    /// `INTERNAL_ERROR`, which says nothing of what went wrong inside.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(ErrorCode::INTERNAL_ERROR, "Internal error")
    }
}

impl PartialEq for ErrorObject {
    fn eq(&self, other: &Self) -> bool {
        let text = |error: &Self| error.data.as_ref().map(|data| data.get().to_owned());
        self.code == other.code && self.message == other.message && text(self) == text(other)
    }
}

impl fmt::Display for ErrorObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", crate::cause::Escaped(&self.message), self.code.0)
    }
}

impl std::error::Error for ErrorObject {}

/// A frame after its envelope was read. Every shape a frame can have is one of these, good or bad.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming<'a> {
    /// The peer asks something of us.
    Request(IncomingRequest<'a>),
    /// The peer tells us something.
    Notification {
        /// The method.
        method: Cow<'a, str>,
        /// The params as they stand.
        params: Option<&'a RawValue>,
    },
    /// The peer answers a call of ours.
    Answer {
        /// The call; `None` if the id is none of ours in any case (a text where we write numbers, say).
        call: Option<CallNumber>,
        /// What the answer says.
        body: AnswerBody<'a>,
    },
    /// The peer wants one of its requests to stop.
    Cancel(IncomingCancel),
    /// The peer acknowledges a cancel of ours.
    Ack {
        /// The number the cancel was sent under; `None` as for an answer.
        cancel: Option<CallNumber>,
        /// The peer says the call is cancelled.
        cancelled: bool,
        /// What the peer says about it.
        reason: Option<Cow<'a, str>>,
    },
    /// An error about a frame of ours whose id the peer could not read. Never answered.
    PeerError(ErrorObject),
    /// Several messages in one frame. Only some revisions of some dialects allow it.
    Batch(Vec<&'a RawValue>),
    /// A request that cannot be read but for its id: refused under it, so that its caller does not wait for ever.
    BadRequest {
        /// The id its refusal carries.
        id: RequestId,
        /// As [`IncomingRequest::tag`].
        tag: u8,
        /// What is wrong with it.
        why: BadMessage,
    },
    /// Not a message. Answered without an id, as the dialect writes that.
    Bad(BadMessage),
}

/// A request of the peer.
#[derive(Debug)]
pub struct IncomingRequest<'a> {
    /// The id its answer carries.
    pub id: RequestId,
    /// What a cancel will name it by.
    pub cancel_key: CancelKey,
    /// The method (ABP: the capability).
    pub method: Cow<'a, str>,
    /// The params as they stand.
    pub params: Option<&'a RawValue>,
    /// The params name something that makes the request uncancellable (MCP: `task`).
    pub exempt: CancelExemption,
    /// The progress token the request carries, as it stands. One that is neither a string nor an integer, or that has more than
    /// 256 bytes, is ignored and counted ([`Event::IgnoredToken`](crate::Event::IgnoredToken)).
    pub progress_token: Option<&'a RawValue>,
    /// The codec's own mark, handed back to it when the answer is written.
    pub tag: u8,
}

impl<'a> IncomingRequest<'a> {
    /// The progress token, if it may be kept and repeated to the peer: a string or an integer, of at most 256 bytes.
    #[must_use]
    pub fn usable_token(&self) -> Option<&'a RawValue> {
        self.progress_token.filter(|token| is_usable_token(token.get()))
    }
}

/// In bytes, as the token stands in the frame; of a string, without its quotes.
const MAX_TOKEN_BYTES: usize = 256;

/// MCP and LSP (`ProgressToken`) have a string or an integer, ABP a string. An integer may be longer than any type of ours: it is
/// only repeated.
pub(crate) fn is_usable_token(token: &str) -> bool {
    let inner = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let digits = token.strip_prefix('-').unwrap_or(token);
    match inner {
        Some(inner) => inner.len() <= MAX_TOKEN_BYTES,
        None => token.len() <= MAX_TOKEN_BYTES && digits.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// What a request of the peer can be cancelled by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelKey {
    /// Its id.
    SameAsId,
    /// Another name (ABP: `callId`).
    Named(RequestId),
    /// Nothing: no cancel can name it.
    None,
}

/// Whether a cancel message can reach a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelExemption {
    /// It can.
    No,
    /// A cancel message for it is ignored, and none is sent for it.
    FromCancelMessages,
}

/// A cancel of the peer.
#[derive(Debug)]
pub struct IncomingCancel {
    /// The request it names, or why it names none.
    pub key: Result<RequestId, crate::id::InvalidId>,
    /// Free text from a stranger.
    pub reason: Option<String>,
    /// The id to acknowledge under, where the dialect acknowledges.
    pub ack: Option<RequestId>,
}

/// What an answer says.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnswerBody<'a> {
    /// A value.
    Value(&'a RawValue),
    /// The dialect's words for "it was cancelled".
    Cancelled,
    /// Any other error.
    Error(ErrorObject),
    /// The id is clear but the rest is not an answer (both members, neither, or an error that is none).
    Malformed(&'static str),
}

/// Why a frame is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMessage {
    /// The wire could not cut a frame out of what came.
    #[error("{0}")]
    Frame(crate::framing::BadFrame),
    /// Not UTF-8.
    #[error("the frame is not UTF-8")]
    NotUtf8,
    /// Not JSON.
    #[error("the frame is not JSON")]
    NotJson,
    /// Nested deeper than the limit.
    #[error("the frame is nested too deep")]
    TooDeep,
    /// JSON, but not an object (or, for a batch, an empty array).
    #[error("a message is a JSON object")]
    NotAnObject,
    /// The same member twice.
    #[error("a member stands twice in the message")]
    DuplicateMember,
    /// `jsonrpc` is missing or is not `"2.0"` (ABP: no `type`).
    #[error("the message does not name its protocol version")]
    WrongVersion,
    /// The id breaks a rule of [`RequestId`].
    #[error("the message's id is not one: {0}")]
    InvalidId(crate::id::InvalidId),
    /// Neither a request nor a notification nor an answer.
    #[error("the message is neither request, notification nor answer")]
    NoKind,
    /// `method` is not a text.
    #[error("the method is not a string")]
    InvalidMethod,
    /// `params` is neither object nor array.
    #[error("params is an object or an array")]
    InvalidParams,
    /// A batch where none is allowed.
    #[error("batches are not allowed here")]
    BatchNotAllowed,
    /// No dialect of those offered recognises the first message.
    #[error("no dialect offered here recognises the message")]
    UnknownDialect,
}

impl BadMessage {
    /// The limit of this side that it met, where it is no fault of the message.
    pub(crate) const fn limit(self) -> Option<&'static str> {
        match self {
            Self::Frame(crate::framing::BadFrame::MemoryFull) => Some(crate::byte_budget::MEMORY),
            _ => None,
        }
    }

    /// `PARSE_ERROR` where it is not JSON, else `INVALID_REQUEST`.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Frame(_) | Self::NotUtf8 | Self::NotJson | Self::TooDeep => ErrorCode::PARSE_ERROR,
            Self::NotAnObject
            | Self::DuplicateMember
            | Self::WrongVersion
            | Self::InvalidId(_)
            | Self::NoKind
            | Self::InvalidMethod
            | Self::InvalidParams
            | Self::BatchNotAllowed
            | Self::UnknownDialect => ErrorCode::INVALID_REQUEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_equal_in_all_their_members_and_shown_with_their_code() {
        let error = ErrorObject::new(ErrorCode::REQUEST_CANCELLED, "stopped\n");
        assert_eq!(error, error.clone());
        for other in [
            ErrorObject::new(ErrorCode::SERVER_CANCELLED, "stopped\n"),
            ErrorObject::new(ErrorCode::REQUEST_CANCELLED, "stopped"),
            error.clone().with_data(&1),
        ] {
            assert_ne!(error, other);
        }
        assert_eq!(error.to_string(), r"stopped\u{a} (-32800)");
    }
}
