//! What the dialects are told apart by, as far as the machine cares.

use rescind_core::dialect::{self, Dialect};

/// A class of dialects: one search each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A cancelled request is answered.
    AnswerOwed,
    /// A peer that cancelled is owed silence.
    Silence,
    /// Cancels are acknowledged.
    Acknowledged,
    /// Nothing is cancelled before both sides have said what they can.
    Gated,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AnswerOwed, Self::Silence, Self::Acknowledged, Self::Gated];

    /// A dialect of this class.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::AnswerOwed => dialect::ACP,
            Self::Silence => dialect::MCP,
            Self::Acknowledged => dialect::ABP,
            Self::Gated => dialect::ACP_DRAFT,
        }
    }
}
