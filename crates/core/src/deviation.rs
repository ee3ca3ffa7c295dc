//! What a peer did against its protocol while the connection went on.

use std::fmt;

use crate::log_text::LogText;
use crate::message::BadMessage;

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
    /// Answers came as an array, where the dialect or its revision has no batches.
    BatchOfAnswers,
    /// An answer has no id. It was taken as the answer of the only call that was open.
    NoId,
    /// An answer names an open call and cannot be read. The call ended with an error.
    InvalidAnswer,
    /// A text has an escape of half a character (a lone surrogate). It was read as U+FFFD.
    LoneSurrogate,
    /// A byte order mark was before a message. It was dropped.
    ByteOrderMark,
    /// Output that is not a message was dropped.
    Noise,
    /// A message went on over several lines. The lines were joined.
    SeveralLines,
    /// A frame that is not a message was dropped.
    Dropped(BadMessage),
    /// The HTTP response to a request does not answer it. Its call ended with an error.
    NoAnswer,
    /// An answer came with another HTTP content type than that of a message. It was taken.
    ContentType,
    /// The last event of an HTTP stream has no end. It was taken, because its message is whole.
    UnendedEvent,
    /// A server redirected a request, which was sent again.
    Redirect,
    /// A server did not know the session of its client any more. The session was opened again.
    SessionLost,
}

impl Deviation {
    /// The number of kinds.
    #[cfg(feature = "tokio")]
    pub(crate) const KINDS: usize = 15;

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
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IdSpelling => "an answer spells the id of its request differently",
            Self::NoVersion => "an answer does not name its protocol version",
            Self::BatchOfAnswers => "answers came as a batch, which this protocol does not have",
            Self::NoId => "an answer has no id; it was taken for the only open call",
            Self::InvalidAnswer => "an answer cannot be read; its call ended with an error",
            Self::LoneSurrogate => "a text has half a character; it was read as U+FFFD",
            Self::ByteOrderMark => "a byte order mark before a message was dropped",
            Self::Noise => "output that is not a message was dropped",
            Self::SeveralLines => "a message over several lines was joined",
            Self::NoAnswer => "a response does not answer its request; the call ended with an error",
            Self::ContentType => "an answer has the content type of something else",
            Self::UnendedEvent => "the last event of a stream has no end; its message is whole and was taken",
            Self::Redirect => "a request was redirected",
            Self::SessionLost => "the server did not know the session any more; it was opened again",
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
}

impl fmt::Display for DeviationReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deviation, sent } = self;
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
    fn a_report_is_one_short_line() {
        let report = |sent| DeviationReport { deviation: Deviation::Noise, sent }.to_string();
        assert_eq!(report(b"ready\n"), r"output that is not a message was dropped: ready\u{a}");
        assert_eq!(report(b""), "output that is not a message was dropped");
        assert!(report(&[b'\n'; 1000]).len() < 320);
        let dropped = Deviation::Dropped(BadMessage::NotJson).to_string();
        assert_eq!(dropped, "a frame was dropped: the frame is not JSON");
    }
}
