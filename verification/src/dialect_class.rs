//! The differences between dialects that matter to the machine.
//!
//! Every class gets every input that has an effect in it. Three inputs have an effect in one or two classes and are
//! used only there, because each of them widens a search: a request becomes a task (`Tasks`), a handshake in which one side or neither declares cancels
//! (`Gated`, the only class that requires declarations), a request that no message can cancel because of its params
//! (`Silence` and `Stateless`, whose dialects have such requests), and a second critical section inside the first
//! (`AnswerOwed` and `Acknowledged`: in the first class the handler decides the answer, in the second the cancel
//! decides it and its acknowledgement waits).

use rescind_core::dialect::{self, Dialect, Role};

/// A class of dialects. Each has one search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// A cancelled request is answered.
    AnswerOwed,
    /// A request that the peer cancelled is not answered.
    Silence,
    /// Cancels are acknowledged.
    Acknowledged,
    /// Nothing is cancelled before both sides have declared their capabilities.
    Gated,
    /// This side is the client, and its cancels are acknowledged.
    Caller,
    /// This side is the client, and the peer may end its calls. Without an order, ids belong to an exchange.
    Ended,
    /// This side serves. Each request has a separate exchange, to which its ids belong. There is no order.
    Stateless,
    /// A cancelled request is not answered, and a request may become a task.
    Tasks,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::AnswerOwed,
        Self::Silence,
        Self::Acknowledged,
        Self::Gated,
        Self::Caller,
        Self::Ended,
        Self::Stateless,
        Self::Tasks,
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
            Self::Tasks => "tasks",
        }
    }

    /// A dialect of this class.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::AnswerOwed => dialect::ACP,
            Self::Silence | Self::Tasks => dialect::MCP,
            Self::Acknowledged | Self::Caller => dialect::ABP,
            Self::Gated => dialect::ACP_DRAFT,
            Self::Ended | Self::Stateless => dialect::MCP_2026,
        }
    }

    /// The side that is examined.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::AnswerOwed
            | Self::Silence
            | Self::Acknowledged
            | Self::Gated
            | Self::Stateless
            | Self::Tasks => Role::Server,
            Self::Caller | Self::Ended => Role::Client,
        }
    }

    /// The kinds of transport on which it runs.
    #[must_use]
    pub const fn orders(self) -> &'static [Order] {
        match self {
            Self::Stateless => &[Order::Unordered],
            Self::AnswerOwed
            | Self::Silence
            | Self::Acknowledged
            | Self::Gated
            | Self::Caller
            | Self::Ended
            | Self::Tasks => &Order::ALL,
        }
    }

    /// Whether ids belong to an exchange.
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
                | Self::Stateless
                | Self::Tasks,
                Order::Ordered | Order::Unordered,
            ) => false,
        }
    }

    /// Whether cancel messages cannot reach some requests.
    pub(super) const fn has_exempt_requests(self) -> bool {
        matches!(self, Self::Silence | Self::Stateless)
    }

    /// Whether requests become tasks.
    pub(super) const fn has_tasks(self) -> bool {
        matches!(self, Self::Tasks)
    }

    /// Whether critical sections nest.
    pub(super) const fn nests_shields(self) -> bool {
        matches!(self, Self::AnswerOwed | Self::Acknowledged)
    }
}

/// Whether a transport keeps the order of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It does: a byte stream, a WebSocket.
    Ordered,
    /// It does not: each message is a separate exchange.
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
