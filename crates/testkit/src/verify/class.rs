//! What the dialects are told apart by, as far as the machine cares.

use rescind_core::dialect::{self, Dialect, Role};

/// A class of dialects: one search each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// A cancelled request is answered.
    AnswerOwed,
    /// A peer that cancelled is owed silence.
    Silence,
    /// Cancels are acknowledged.
    Acknowledged,
    /// Nothing is cancelled before both sides have said what they can.
    Gated,
    /// This side is the client, and its cancels are acknowledged.
    Caller,
    /// This side is the client, and the peer may end its calls.
    Ended,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::AnswerOwed, Self::Silence, Self::Acknowledged, Self::Gated, Self::Caller, Self::Ended];

    /// Its name in a [`Way`](super::Way).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnswerOwed => "answer-owed",
            Self::Silence => "silence",
            Self::Acknowledged => "acknowledged",
            Self::Gated => "gated",
            Self::Caller => "caller",
            Self::Ended => "ended",
        }
    }

    /// A dialect of this class.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::AnswerOwed => dialect::ACP,
            Self::Silence => dialect::MCP,
            Self::Acknowledged | Self::Caller => dialect::ABP,
            Self::Gated => dialect::ACP_DRAFT,
            Self::Ended => dialect::MCP_2026,
        }
    }

    /// The side that is looked at.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::AnswerOwed | Self::Silence | Self::Acknowledged | Self::Gated => Role::Server,
            Self::Caller | Self::Ended => Role::Client,
        }
    }
}

/// Whether a wire keeps the order of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It does: a byte stream, a WebSocket.
    Ordered,
    /// It does not: each message is an exchange of its own.
    Unordered,
}

impl Order {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ordered, Self::Unordered];

    /// Its name in a [`Way`](super::Way).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Unordered => "unordered",
        }
    }
}
