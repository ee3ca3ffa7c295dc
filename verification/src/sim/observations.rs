//! The observations of a run: of each call, of each handler, and of the frames on the transport.

use std::collections::BTreeMap;

use bytes::Bytes;
use rescind_core::{CallContext, CancelResult, CauseKind, ExchangeId};

use super::plan::{Caller, Work};
use super::sides::Side;

/// A call, from the view of its caller.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a call")]
pub(super) struct CallSeen {
    pub(super) side: Side,
    pub(super) caller: Caller,
    /// The request whose handler made it.
    pub(super) parent: Option<u64>,
    pub(super) begun: u64,
    /// The time at which its caller cancelled it.
    pub(super) asked: Option<u64>,
    pub(super) result: Option<CancelResult>,
    /// Whether no caller waits for it.
    pub(super) left: bool,
    pub(super) returned: bool,
    /// Whether its caller learned that it cannot have run.
    pub(super) not_run: bool,
    /// Since when its cancel is on its way, as far as its caller can know.
    pub(super) cancelled_at: Option<u64>,
    /// Whether it was made for a request that was already cancelled.
    pub(super) stillborn: bool,
}

/// How a handler's code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkEnd {
    Value,
    Stopped,
    Failed,
    Panicked,
    /// It was aborted, or its connection's driver has ended.
    Dropped,
}

/// A handler.
#[derive(Debug)]
pub(super) struct WorkSeen {
    pub(super) side: Side,
    pub(super) work: Work,
    pub(super) end: Option<WorkEnd>,
    pub(super) ended_at: Option<u64>,
    /// Its cause when it ended.
    pub(super) cause: Option<CauseKind>,
    pub(super) context: CallContext,
}

/// A request on the transport.
#[derive(Debug)]
pub(super) struct RequestSeen {
    pub(super) nonce: Option<u64>,
    /// How often it arrived, and when it arrived first.
    pub(super) received: u32,
    pub(super) received_at: Option<u64>,
    pub(super) cancels: u32,
    /// Its exchange.
    pub(super) exchange: ExchangeId,
    /// When its cancel arrived before it.
    pub(super) overtaken_at: Option<u64>,
    /// When it was cancelled: its cancel arrived after it, its exchange was closed if that cancels it, or it arrived
    /// after an early cancel that waited for it.
    pub(super) cancelled_at: Option<u64>,
    /// Whether its handler then ran without a cause, in a protocol that forbids an answer.
    pub(super) owed_silence: bool,
    /// How often it was answered.
    pub(super) answers: u32,
    /// How many of these answers refused it for now, on a wire on which it is then sent again.
    pub(super) refusals: u32,
    /// When the caller's side received the answer.
    pub(super) answer_received_at: Option<u64>,
}

/// The output of one side.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) frames: Vec<Frame>,
    /// The frames that have not arrived at the other side yet, by content.
    pub(super) under_way: BTreeMap<Bytes, Vec<usize>>,
    pub(super) received: usize,
    /// By id, as written in JSON.
    pub(super) requests: BTreeMap<String, RequestSeen>,
    /// By the name that a cancel uses, if it differs from the id.
    pub(super) names: BTreeMap<String, String>,
    pub(super) by_nonce: BTreeMap<u64, String>,
    /// The calls whose cancels this side acknowledged, and whether as cancelled.
    pub(super) acked: BTreeMap<String, bool>,
}

/// A frame and its kind.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) body: Bytes,
    pub(super) kind: Kind,
    /// When it was written.
    pub(super) at: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Request {
        id: String,
    },
    Cancel {
        id: String,
    },
    Answer {
        id: String,
    },
    /// The handler that sent it, if there is one.
    Notification {
        of: Option<u64>,
    },
    Other,
}

impl Kind {
    /// Whether a second copy means the same.
    pub(super) const fn may_be_said_twice(&self) -> bool {
        match self {
            Self::Cancel { .. } | Self::Answer { .. } | Self::Other => true,
            Self::Request { .. } | Self::Notification { .. } => false,
        }
    }
}
