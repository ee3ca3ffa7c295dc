//! The content of a frame after its envelope was read. It borrows from the frame, and params stay unparsed.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::framing::BadFrame;
use crate::id::{CallNumber, RequestId};
use crate::log_text::LogText;

/// The `error` member of an answer.
///
/// ```
/// use rescind_core::{ErrorCode, ErrorObject};
///
/// let error = ErrorObject::new(ErrorCode::INVALID_PARAMS, "no such file").with_data(&["main.rs"]);
/// assert_eq!(error.to_string(), "no such file (-32602)");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorObject {
    /// The code. Its meaning belongs to the dialect.
    pub code: ErrorCode,
    /// A short sentence for people. Code never compares it.
    pub message: String,
    /// Additional data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

/// An error code. In dialects whose codes are words (ABP) the word is in `data.code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ErrorCode(pub i64);

impl<'de> Deserialize<'de> for ErrorCode {
    /// `-32601.0` is the same number as `-32601`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)?;
        let whole = number.as_i64().or_else(|| RequestId::from_json(&number.to_string()).ok()?.as_number());
        whole.map(Self).ok_or_else(|| D::Error::custom("the code is not a whole number"))
    }
}

impl ErrorCode {
    /// The frame is not JSON.
    pub const PARSE_ERROR: Self = Self(-32700);
    /// The JSON is not a message.
    pub const INVALID_REQUEST: Self = Self(-32600);
    /// The method is not served.
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

    /// `INVALID_PARAMS` with a description of what is wrong.
    pub fn invalid_params(what: impl fmt::Display) -> Self {
        Self::new(ErrorCode::INVALID_PARAMS, format!("Invalid params: {what}"))
    }

    /// `INTERNAL_ERROR` without details of the failure.
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
        write!(f, "{} ({})", LogText::reason(&self.message), self.code.0)
    }
}

impl std::error::Error for ErrorObject {}

/// A frame after its envelope was read. Every frame, valid or not, becomes one of these.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming<'a> {
    /// A request of the peer.
    Request(IncomingRequest<'a>),
    /// A notification of the peer.
    Notification {
        /// The method.
        method: Cow<'a, str>,
        /// The params, unparsed.
        params: Option<&'a RawValue>,
    },
    /// The peer's answer to a call of this side.
    Answer {
        /// The call. `None`: no call of this side can have this id (for example a text where this side writes numbers).
        call: Option<CallNumber>,
        /// The content of the answer.
        body: AnswerBody<'a>,
        /// Its deviation, if it is not exact although its meaning is certain.
        deviation: Option<Deviation>,
    },
    /// The peer cancels one of its requests.
    Cancel(IncomingCancel),
    /// The peer acknowledges a cancel of this side.
    Ack {
        /// The number with which the cancel was sent. `None`: as in `Answer`.
        cancel: Option<CallNumber>,
        /// Whether the peer says that the call is cancelled.
        cancelled: bool,
        /// The reason that the peer gives.
        reason: Option<Cow<'a, str>>,
    },
    /// An error without an id, or with one that no request has (`null`, `-1`, `""`): the peer could not read it. It is never
    /// answered.
    PeerError(ErrorObject),
    /// Several messages in one frame. Only some revisions of some dialects allow that.
    Batch(Vec<&'a RawValue>),
    /// A request of which only the id can be read. It is refused with that id, so that its caller does not wait for
    /// ever.
    BadRequest {
        /// The id of its refusal.
        id: RequestId,
        /// As [`IncomingRequest::tag`].
        tag: u8,
        /// What is wrong with it.
        why: BadMessage,
    },
    /// Not a message. It is answered without an id, in the form of the dialect.
    Bad(BadMessage),
}

/// A request of the peer.
#[derive(Debug)]
pub struct IncomingRequest<'a> {
    /// The id of its answer.
    pub id: RequestId,
    /// The key by which a cancel names it.
    pub cancel_key: CancelKey,
    /// The method (ABP: the capability).
    pub method: Cow<'a, str>,
    /// The params, unparsed.
    pub params: Option<&'a RawValue>,
    /// Whether the params name something that makes the request uncancellable (MCP: `task`).
    pub exempt: CancelExemption,
    /// The progress token of the request, unparsed. A token that is neither a string nor an integer, or that has more
    /// than 256 bytes, is ignored and counted ([`Event::IgnoredToken`](crate::Event::IgnoredToken)).
    pub progress_token: Option<&'a RawValue>,
    /// A mark of the codec. The codec gets it back when it writes the answer.
    pub tag: u8,
}

impl<'a> IncomingRequest<'a> {
    /// The progress token, if it may be kept and repeated to the peer: a string or an integer of at most 256 bytes.
    #[must_use]
    pub fn usable_token(&self) -> Option<&'a RawValue> {
        self.progress_token.filter(|token| is_usable_token(token.get()))
    }
}

/// In bytes of the frame. Of a string, without its quotes.
const MAX_TOKEN_BYTES: usize = 256;

/// MCP and LSP (`ProgressToken`) allow a string or an integer, ABP a string. An integer may be larger than every
/// integer type, because it is only repeated.
pub(crate) fn is_usable_token(token: &str) -> bool {
    let inner = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let digits = token.strip_prefix('-').unwrap_or(token);
    match inner {
        Some(inner) => inner.len() <= MAX_TOKEN_BYTES,
        None => token.len() <= MAX_TOKEN_BYTES && digits.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// The key by which a request of the peer can be cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelKey {
    /// Its id.
    SameAsId,
    /// Another key (ABP: `callId`).
    Named(RequestId),
    /// There is none: no cancel can name the request.
    None,
}

/// Whether a cancel message can cancel a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelExemption {
    /// A cancel message can cancel it.
    No,
    /// A cancel message for it is ignored, and this side sends none for it.
    FromCancelMessages,
}

/// A cancel of the peer.
#[derive(Debug)]
pub struct IncomingCancel {
    /// The request that it names, or why it names no request.
    pub key: Result<RequestId, crate::id::InvalidId>,
    /// The reason. The peer wrote the text.
    pub reason: Option<String>,
    /// The id of the acknowledgement, in dialects that acknowledge cancels.
    pub ack: Option<RequestId>,
}

/// The content of an answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnswerBody<'a> {
    /// A value.
    Value(&'a RawValue),
    /// The dialect's form of "it was cancelled".
    Cancelled,
    /// Any other error.
    Error(ErrorObject),
    /// It is not an answer: it has both members, neither member, or an invalid error, or it cannot be read.
    Malformed(AnswerFault),
}

const CUT_OFF: &str = "it is cut off";
#[cfg(feature = "tokio")]
const CUT_OFF_BY_LENGTH: &str = "it is cut off (a Content-Length counts bytes and not characters)";
#[cfg(feature = "tokio")]
const STALLED: &str = "it stopped in its middle, and nothing more of it came within 5 s";

/// Why an answer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerFault {
    what: &'static str,
    /// Where, in bytes from the start of the frame.
    at: Option<usize>,
    /// What the peer wrote in the place of an error object, in a form that is safe in a log.
    wrote: Option<Box<str>>,
}

impl AnswerFault {
    /// What is wrong with the answer as a whole.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self { what, at: None, wrote: None }
    }

    const fn at(what: &'static str, at: Option<usize>) -> Self {
        Self { what, at, wrote: None }
    }

    /// What is wrong with its error, of which the text is kept: it may tell a user more.
    pub(crate) fn of_error(what: &'static str, error: &RawValue) -> Self {
        Self { what, at: None, wrote: Some(LogText::text(error.get()).to_string().into()) }
    }

    /// Why a frame that names an open call is not a message.
    pub(crate) fn of(frame: &[u8], why: BadMessage) -> Self {
        match why {
            BadMessage::NotUtf8 => {
                let at = std::str::from_utf8(frame).err().map(|error| error.valid_up_to());
                Self::at("it is not UTF-8", at)
            }
            BadMessage::NotJson => match serde_json::from_slice::<serde::de::IgnoredAny>(frame) {
                Ok(_) => Self::new("it is not JSON"),
                Err(error) if error.is_eof() => Self::at(CUT_OFF, Some(frame.len())),
                Err(error) => Self::at("it is not JSON", Some(offset(frame, &error))),
            },
            BadMessage::TooDeep => Self::new("it is nested too deep"),
            BadMessage::DuplicateMember => Self::new("it has a duplicate member"),
            BadMessage::NoKind => Self::new("it has neither a result nor an error"),
            BadMessage::NoId => Self::new("it has no id"),
            BadMessage::Frame(BadFrame::TooLarge { .. }) => {
                Self::new("it is larger than the limit of a frame")
            }
            BadMessage::Frame(BadFrame::MemoryFull) => Self::new("the limit `memory` is reached"),
            BadMessage::Frame(BadFrame::BadCharset) => Self::new("its charset is not UTF-8"),
            BadMessage::Frame(BadFrame::BadLength | BadFrame::BadHeader) => {
                Self::new("its Content-Length header is missing or invalid")
            }
            BadMessage::Frame(
                BadFrame::Truncated
                | BadFrame::Binary
                | BadFrame::NotUtf8
                | BadFrame::Broken
                | BadFrame::NotJson,
            )
            | BadMessage::NotAnObject
            | BadMessage::WrongVersion
            | BadMessage::InvalidId(_)
            | BadMessage::InvalidMethod
            | BadMessage::InvalidParams
            | BadMessage::BatchNotAllowed
            | BadMessage::SharedBody
            | BadMessage::UnknownDialect => Self::new("it is not a message"),
        }
    }

    /// The same, in `Content-Length` framing: programs that count characters cut their answers off.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_length(self) -> Self {
        let what = if self.what == CUT_OFF { CUT_OFF_BY_LENGTH } else { self.what };
        Self { what, ..self }
    }

    /// The same, of an answer whose rest has not come.
    #[cfg(feature = "tokio")]
    pub(crate) fn stalled(self) -> Self {
        Self { what: STALLED, at: None, ..self }
    }

    /// The place of the fault. Everything before it is JSON.
    pub(crate) const fn place(&self) -> Option<usize> {
        self.at
    }
}

/// The place of an error of `serde_json`, in bytes. It counts lines and the bytes in a line, from 1.
fn offset(frame: &[u8], error: &serde_json::Error) -> usize {
    let before: usize = frame
        .split_inclusive(|byte| *byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    before + error.column().saturating_sub(1)
}

impl fmt::Display for AnswerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if let Some(at) = self.at {
            write!(f, " at byte {at}")?;
        }
        self.wrote.as_ref().map_or(Ok(()), |text| write!(f, ": {text}"))
    }
}

/// Why a frame is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMessage {
    /// The transport could not read a frame from its input.
    #[error("{0}")]
    Frame(BadFrame),
    /// Not UTF-8.
    #[error("the frame is not UTF-8")]
    NotUtf8,
    /// Not JSON.
    #[error("the frame is not JSON")]
    NotJson,
    /// Nested deeper than the limit.
    #[error("the frame is nested too deep")]
    TooDeep,
    /// JSON that is not an object, or an empty batch.
    #[error("a message must be a JSON object")]
    NotAnObject,
    /// A member occurs twice.
    #[error("the message has a duplicate member")]
    DuplicateMember,
    /// `jsonrpc` is missing or is not `"2.0"` (ABP: no `type`).
    #[error("the message does not name its protocol version")]
    WrongVersion,
    /// The id violates a rule of [`RequestId`].
    #[error("the message's id is invalid: {0}")]
    InvalidId(crate::id::InvalidId),
    /// It has a result, and no id.
    #[error("the answer has no id")]
    NoId,
    /// Neither a request nor a notification nor an answer.
    #[error("the message is not a request, a notification or an answer")]
    NoKind,
    /// `method` is not a string.
    #[error("the method is not a string")]
    InvalidMethod,
    /// `params` is neither an object nor an array.
    #[error("params must be an object or an array")]
    InvalidParams,
    /// A batch where batches are not allowed.
    #[error("batches are not allowed here")]
    BatchNotAllowed,
    /// A body with more than one message, or with other text, on a transport where each message has its own body.
    #[error("a body has one message, and nothing else")]
    SharedBody,
    /// No offered dialect recognises the first message.
    #[error("no offered dialect recognises the message")]
    UnknownDialect,
}

impl BadMessage {
    /// Whether the end of input has cut it off.
    pub(crate) fn is_cut_off(self) -> bool {
        self == Self::Frame(BadFrame::Truncated)
    }

    /// The limit of this side that was reached, if the message itself is valid.
    pub(crate) const fn limit(self) -> Option<&'static str> {
        match self {
            Self::Frame(BadFrame::MemoryFull) => Some(crate::byte_budget::MEMORY),
            _ => None,
        }
    }

    /// `PARSE_ERROR` if it is not JSON, else `INVALID_REQUEST`.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Frame(_) | Self::NotUtf8 | Self::NotJson | Self::TooDeep => ErrorCode::PARSE_ERROR,
            Self::NotAnObject
            | Self::DuplicateMember
            | Self::WrongVersion
            | Self::InvalidId(_)
            | Self::NoId
            | Self::NoKind
            | Self::InvalidMethod
            | Self::InvalidParams
            | Self::BatchNotAllowed
            | Self::SharedBody
            | Self::UnknownDialect => ErrorCode::INVALID_REQUEST,
        }
    }
}

/// The status of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckStatus {
    /// The call is cancelled.
    Cancelled,
    /// No such call is known.
    NotFound,
    /// The call has already ended.
    AlreadyCompleted,
    /// The cancel named nothing.
    InvalidKey,
    /// No session is open yet.
    NotInitialized,
    /// The request cannot be cancelled.
    NotCancellable,
    /// Too many acknowledgements wait already. Whether the call is cancelled is not decided yet.
    Overloaded,
}

/// The most bytes of a frame that a report shows.
const MAX_EXCERPT: usize = 200;

/// What a peer did against its protocol. Where the meaning is certain, the message was taken; otherwise it was dropped,
/// or the call that it names ended with an error. Each is counted in [`Stats::deviations`](crate::Stats::deviations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deviation {
    /// An answer spells the id of its call in another way than the call did: `"2"` or `2.0` for `2`.
    IdSpelling,
    /// An answer does not name its protocol version.
    NoVersion,
    /// An answer has both a result and an error, and one of them is null. The other one was taken.
    NullMember,
    /// Answers came as an array, where the dialect or its revision has no batches.
    BatchOfAnswers,
    /// An answer has no id. It was taken as the answer of the only call that was open.
    NoId,
    /// The id of an answer is none that this side sends. The answer was dropped.
    UnknownId,
    /// An answer names an open call, or may be that of the only open call, and cannot be read. The call ended with an error.
    InvalidAnswer,
    /// A text has an escape of half a character (a lone surrogate). It was read as U+FFFD.
    LoneSurrogate,
    /// A byte order mark was before a message. It was dropped.
    ByteOrderMark,
    /// Output that is not a message was dropped.
    Noise,
    /// A message went on over several lines. The lines were joined.
    SeveralLines,
    /// A message has no end: its line end, or the rest that its `Content-Length` counts, did not come within 1 s, or its response
    /// broke off. It was taken.
    Unended,
    /// A line, or a body, has a message and something else beside it: other output, or further messages. The messages were taken.
    SharedLine,
    /// A frame that is not a message was dropped.
    Dropped(BadMessage),
    /// The HTTP response to a request does not answer it. Its call ended with an error.
    NoAnswer,
    /// An answer came with another HTTP content type, or another event name, than that of a message. It was taken.
    ContentType,
    /// The last event of an HTTP stream has no end. It was taken, because its message is whole.
    UnendedEvent,
    /// A server redirected a request, which was sent again.
    Redirect,
    /// A server did not know the session of its client any more. The session was opened again.
    SessionLost,
    /// A server refused a notification, a cancel or an answer with its HTTP status. Nothing was sent again.
    Refused,
    /// A server responded to a notification, a cancel or an answer with a page. Whether it has taken the message is not known.
    Unaccepted,
    /// The id of an HTTP session is empty or has characters that it must not have. An empty one counts as none, another one is
    /// sent back as it is.
    SessionId,
    /// A server ended the event stream of a call and asked for a long wait before the stream is resumed.
    LongRetry,
}

impl Deviation {
    /// Whether the message was taken as it was meant: nothing was dropped, and no call ended with an error.
    #[must_use]
    pub const fn is_understood(self) -> bool {
        match self {
            Self::IdSpelling
            | Self::NoVersion
            | Self::NullMember
            | Self::BatchOfAnswers
            | Self::NoId
            | Self::LoneSurrogate
            | Self::ByteOrderMark
            | Self::SeveralLines
            | Self::Unended
            | Self::ContentType
            | Self::UnendedEvent
            | Self::Redirect
            | Self::SessionId
            | Self::LongRetry => true,
            Self::UnknownId
            | Self::InvalidAnswer
            | Self::Noise
            | Self::SharedLine
            | Self::Dropped(_)
            | Self::NoAnswer
            | Self::SessionLost
            | Self::Refused
            | Self::Unaccepted => false,
        }
    }

    /// The number of kinds.
    #[cfg(feature = "tokio")]
    pub(crate) const KINDS: usize = 23;

    /// The number of its kind.
    #[cfg(feature = "tokio")]
    pub(crate) const fn kind(self) -> usize {
        match self {
            Self::IdSpelling => 0,
            Self::NoVersion => 1,
            Self::BatchOfAnswers => 2,
            Self::NoId => 3,
            Self::InvalidAnswer => 4,
            Self::LoneSurrogate => 5,
            Self::ByteOrderMark => 6,
            Self::Noise => 7,
            Self::SeveralLines => 8,
            Self::Dropped(_) => 9,
            Self::NoAnswer => 10,
            Self::ContentType => 11,
            Self::UnendedEvent => 12,
            Self::Redirect => 13,
            Self::SessionLost => 14,
            Self::SharedLine => 15,
            Self::UnknownId => 16,
            Self::Unended => 17,
            Self::Refused => 18,
            Self::Unaccepted => 19,
            Self::SessionId => 20,
            Self::LongRetry => 21,
            Self::NullMember => 22,
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IdSpelling => "an answer spells the id of its request differently",
            Self::NoVersion => "an answer does not name its protocol version",
            Self::NullMember => "an answer has a null result or error beside the other; that one was taken",
            Self::BatchOfAnswers => "answers came as a batch, which this protocol does not have",
            Self::NoId => "an answer has no id; it was taken for the only open call",
            Self::UnknownId => "an answer to a request that was never sent was dropped",
            Self::InvalidAnswer => "an answer cannot be read; its call ended with an error",
            Self::LoneSurrogate => "a text has half a character; it was read as U+FFFD",
            Self::ByteOrderMark => "a byte order mark before a message was dropped",
            Self::Noise => "output that is not a message was dropped",
            Self::SeveralLines => "a message over several lines was joined",
            Self::Unended => {
                "a message has no line end, or is shorter than its length; it is whole and was taken"
            }
            Self::SharedLine => "a line or a body has more in it than one message; each message was taken",
            Self::NoAnswer => "a response does not answer its request; the call ended with an error",
            Self::ContentType => "an answer has the content type or the event name of something else",
            Self::UnendedEvent => "the last event of a stream has no end; its message is whole and was taken",
            Self::Redirect => "a request was redirected",
            Self::SessionLost => "the server did not know the session any more; it was opened again",
            Self::Refused => "the server refused a message that is not a request, or did not respond to it",
            Self::Unaccepted => "the server responded to a message that is not a request with a page",
            Self::SessionId => "the id of a session is empty or has characters that it must not have",
            Self::LongRetry => "the event stream of a call has ended, and is resumed after a long wait",
            Self::Dropped(why) => return write!(f, "a frame was dropped: {why}"),
        })
    }
}

/// A [`Deviation`] with the beginning of what the peer sent.
///
/// It is shown on one line: the sentence, and at most 200 bytes of the frame, escaped.
#[derive(Clone, Copy, Debug)]
pub struct DeviationReport<'a> {
    /// What the peer did.
    pub deviation: Deviation,
    /// What it sent.
    pub sent: &'a [u8],
    /// Whether the connection reported a deviation of this kind in the last minute already.
    pub is_repeated: bool,
}

impl fmt::Display for DeviationReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deviation, sent, is_repeated: _ } = self;
        match sent.get(..MAX_EXCERPT).unwrap_or(sent) {
            [] => write!(f, "{deviation}"),
            start => write!(f, "{deviation}: {}", LogText::text(String::from_utf8_lossy(start))),
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

    #[test]
    fn a_report_is_one_short_line() {
        let report =
            |sent| DeviationReport { deviation: Deviation::Noise, sent, is_repeated: false }.to_string();
        assert_eq!(report(b"ready\n"), r"output that is not a message was dropped: ready\u{a}");
        assert_eq!(report(b""), "output that is not a message was dropped");
        assert!(report(&[b'\n'; 1000]).len() < 320);
        let dropped = Deviation::Dropped(BadMessage::NotJson).to_string();
        assert_eq!(dropped, "a frame was dropped: the frame is not JSON");
    }
}
