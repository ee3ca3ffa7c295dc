//! What the dialects are told apart by, as far as the machine cares.
//!
//! Every class is given every input that means something in it. Three mean something in one or two, and are given in those alone, as each
//! widens a search: a handshake of which one half declares no cancels or neither does (`Gated`, which alone asks for declarations), a
//! request that no message reaches because of its params (`Silence` and `Stateless`, whose dialects have such), and a second critical
//! section within the first (`AnswerOwed` and `Acknowledged`: where the handler decides, and where the cancel does and its
//! acknowledgement waits).

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
    /// This side is the client, and the peer may end its calls. Where there is no order, the exchange is the space of ids.
    Ended,
    /// This side serves, each request comes on an exchange of its own, and that is the space of its ids: there is no order.
    Stateless,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AnswerOwed,
        Self::Silence,
        Self::Acknowledged,
        Self::Gated,
        Self::Caller,
        Self::Ended,
        Self::Stateless,
    ];

    /// Its name in a [`Trace`](super::Trace).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnswerOwed => "answer-owed",
            Self::Silence => "silence",
            Self::Acknowledged => "acknowledged",
            Self::Gated => "gated",
            Self::Caller => "caller",
            Self::Ended => "ended",
            Self::Stateless => "stateless",
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
            Self::Ended | Self::Stateless => dialect::MCP_2026,
        }
    }

    /// The side that is looked at.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::AnswerOwed | Self::Silence | Self::Acknowledged | Self::Gated | Self::Stateless => {
                Role::Server
            }
            Self::Caller | Self::Ended => Role::Client,
        }
    }

    /// The kinds of wire it runs on.
    #[must_use]
    pub const fn orders(self) -> &'static [Order] {
        match self {
            Self::Stateless => &[Order::Unordered],
            Self::AnswerOwed
            | Self::Silence
            | Self::Acknowledged
            | Self::Gated
            | Self::Caller
            | Self::Ended => &Order::ALL,
        }
    }

    /// The exchange is the space of ids.
    #[must_use]
    pub(super) const fn is_exchange_scoped(self, order: Order) -> bool {
        match (self, order) {
            (Self::Ended | Self::Stateless, Order::Unordered) => true,
            (
                Self::AnswerOwed
                | Self::Silence
                | Self::Acknowledged
                | Self::Gated
                | Self::Caller
                | Self::Ended
                | Self::Stateless,
                Order::Ordered | Order::Unordered,
            ) => false,
        }
    }

    /// Some requests are out of reach of cancel messages.
    pub(super) const fn has_exempt_requests(self) -> bool {
        matches!(self, Self::Silence | Self::Stateless)
    }

    /// Critical sections nest.
    pub(super) const fn nests_shields(self) -> bool {
        matches!(self, Self::AnswerOwed | Self::Acknowledged)
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

    /// Its name in a [`Trace`](super::Trace).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Unordered => "unordered",
        }
    }
}
