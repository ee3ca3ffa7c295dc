//! The cause of a cancel, and how a call ended.

use std::fmt;
use std::sync::Arc;

use crate::log_text::LogText;
use crate::message::ErrorObject;

/// The most bytes of a reason that are kept.
pub const MAX_REASON_BYTES: usize = 256;

/// Why a request was cancelled. The first cause of a request is kept; later ones are ignored.
///
/// ```
/// use rescind_core::{Cause, CauseKind};
///
/// let cause = Cause::new(CauseKind::Local).with_reason("the user typed on");
/// assert_eq!((cause.kind(), cause.reason()), (CauseKind::Local, Some("the user typed on")));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Cause {
    kind: CauseKind,
    reason: Option<Arc<str>>,
}

/// The kinds of [`Cause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CauseKind {
    /// The caller cancelled it, with a canceller or a token.
    Caller,
    /// The peer cancelled it, or answered that it was cancelled there, for example by an operator.
    Peer,
    /// The caller's future was dropped.
    Dropped,
    /// A deadline passed.
    Deadline,
    /// The parent request was cancelled, or ended while this child was open.
    Parent,
    /// The connection was lost.
    Disconnected,
    /// This side is shutting down.
    Shutdown,
    /// A limit was reached.
    Limit,
    /// Code of this side cancelled it.
    Local,
    /// An operator of this side stopped it.
    Operator,
}

impl Cause {
    /// A cause without a reason.
    #[must_use]
    pub const fn new(kind: CauseKind) -> Self {
        Self { kind, reason: None }
    }

    /// The same cause with a reason, of which the first [`MAX_REASON_BYTES`] bytes are kept.
    #[must_use]
    pub fn with_reason(mut self, reason: &str) -> Self {
        let mut end = reason.len().min(MAX_REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.reason = reason.get(..end).map(Arc::from);
        self
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> CauseKind {
        self.kind
    }

    /// The reason, if one was given. The peer may have written it: escape it before it is shown.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl From<CauseKind> for Cause {
    fn from(kind: CauseKind) -> Self {
        Self::new(kind)
    }
}

impl CauseKind {
    /// The kind as one lower-case word, as `data.reason` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Peer => "peer",
            Self::Dropped => "dropped",
            Self::Deadline => "deadline",
            Self::Parent => "parent",
            Self::Disconnected => "disconnected",
            Self::Shutdown => "shutdown",
            Self::Limit => "limit",
            Self::Local => "local",
            Self::Operator => "operator",
        }
    }

    /// The kind with this [`name`](Self::name).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let all = [
            Self::Caller,
            Self::Peer,
            Self::Dropped,
            Self::Deadline,
            Self::Parent,
            Self::Disconnected,
            Self::Shutdown,
            Self::Limit,
            Self::Local,
            Self::Operator,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for CauseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "the caller asked",
            Self::Peer => "the peer asked",
            Self::Dropped => "the caller's future was dropped",
            Self::Deadline => "its deadline passed",
            Self::Parent => "its parent ended",
            Self::Disconnected => "the connection was lost",
            Self::Shutdown => "this side shuts down",
            Self::Limit => "a limit was reached",
            Self::Local => "this side's code asked",
            Self::Operator => "an operator stopped it",
        })
    }
}

impl fmt::Display for Cause {
    /// One line: control characters and direction marks of the reason are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match &self.reason {
            Some(reason) => write!(f, " ({})", LogText::reason(reason)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{:?}({})", self.kind, LogText::reason(reason)),
            None => write!(f, "{:?}", self.kind),
        }
    }
}

/// How a call ended. It tells apart a cancel that was requested from a cancel that took effect.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use]
pub enum Outcome<T> {
    /// The peer answered with a value, and no cancel was requested.
    Completed(T),
    /// A cancel was requested, and the peer answered with a value nevertheless, complete or partial.
    CompletedAfterCancel(T),
    /// The call was cancelled.
    Cancelled(Cancelled),
    /// The peer answered with an error that does not say "cancelled".
    Failed(ErrorObject),
    /// The peer answered, and this side cannot read the answer: it does not have the requested type, or the shape that
    /// the dialect requires.
    Unreadable {
        /// What is wrong with it.
        what: String,
    },
    /// The connection was lost before an answer came.
    Disconnected {
        /// The request had been handed to the transport, so the peer may have run it.
        may_have_run: bool,
    },
}

/// What is known of a cancelled call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cancelled {
    /// Why it was cancelled.
    pub cause: Cause,
    /// The peer confirmed the cancel, or the request never reached the transport. `false`: the peer may still be
    /// running it.
    pub confirmed: bool,
}

impl Cancelled {
    /// What is known of a cancelled call.
    #[must_use]
    pub const fn new(cause: Cause, confirmed: bool) -> Self {
        Self { cause, confirmed }
    }
}

impl<T> Outcome<T> {
    /// The same outcome with its value changed.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Completed(value) => Outcome::Completed(change(value)),
            Self::CompletedAfterCancel(value) => Outcome::CompletedAfterCancel(change(value)),
            Self::Cancelled(cancelled) => Outcome::Cancelled(cancelled),
            Self::Failed(error) => Outcome::Failed(error),
            Self::Unreadable { what } => Outcome::Unreadable { what },
            Self::Disconnected { may_have_run } => Outcome::Disconnected { may_have_run },
        }
    }

    /// The call ended as cancelled.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_at_a_character_and_shown_on_one_line() {
        let cause = Cause::new(CauseKind::Peer).with_reason(&"é".repeat(200));
        assert_eq!(cause.reason().map(str::len), Some(256));
        let hostile = Cause::new(CauseKind::Peer).with_reason("a\nb\u{1b}[31m\u{202e}c");
        let shown = hostile.to_string();
        assert!(!shown.contains(['\n', '\u{1b}', '\u{202e}']), "{shown}");
        let long = Cause::new(CauseKind::Peer).with_reason(&"\u{202e}".repeat(1_000_000));
        assert!(long.to_string().len() < 1024);
    }

    #[test]
    fn a_reason_of_escapes_is_shown_in_less_than_a_kilobyte() {
        // Each of these bytes is shown as six.
        for evil in ["\u{1b}", "\n", "\0"] {
            let cause = Cause::new(CauseKind::Peer).with_reason(&evil.repeat(1 << 20));
            assert_eq!(cause.reason().map(str::len), Some(MAX_REASON_BYTES), "it is kept as it came");
            for shown in [cause.to_string(), format!("{cause:?}")] {
                assert!(shown.len() < 1024 && shown.ends_with("...)"), "{} bytes: {shown}", shown.len());
            }
        }
        let short = Cause::new(CauseKind::Peer).with_reason("stop");
        assert_eq!(short.to_string(), "the peer asked (stop)");
    }

    #[test]
    fn a_reason_is_cut_before_a_character_that_does_not_fit() {
        let cause = Cause::new(CauseKind::Peer).with_reason(&format!("x{}", "é".repeat(200)));
        assert_eq!(cause.reason().map(str::len), Some(MAX_REASON_BYTES - 1));
    }

    #[test]
    fn only_a_cancelled_outcome_is_cancelled() {
        let cancelled = Cancelled::new(Cause::new(CauseKind::Caller), true);
        assert!(Outcome::<()>::Cancelled(cancelled).is_cancelled());
        assert!(!Outcome::CompletedAfterCancel(()).is_cancelled());
        assert!(!Outcome::<()>::Disconnected { may_have_run: true }.is_cancelled());
    }
}
