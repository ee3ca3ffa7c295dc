//! What a run has seen of each call, of each handler and of what went over the wire.

use std::collections::BTreeMap;

use bytes::Bytes;
use rescind_core::{CallContext, CancelResult, CauseKind, ExchangeId};

use super::both::Side;
use super::plan::{Caller, Work};

/// A call, as its caller knows it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a call")]
pub(super) struct CallSeen {
    pub(super) side: Side,
    pub(super) caller: Caller,
    /// The request its handler made it for.
    pub(super) parent: Option<u64>,
    pub(super) begun: u64,
    /// Since when it is asked to be cancelled, by whoever made it.
    pub(super) asked: Option<u64>,
    pub(super) result: Option<CancelResult>,
    /// Nobody waits for it.
    pub(super) left: bool,
    pub(super) returned: bool,
    /// Its caller was told that it cannot have run.
    pub(super) not_run: bool,
    /// Since when its cancel is on its way, as far as its caller can know.
    pub(super) cancelled_at: Option<u64>,
    /// It was made for a request that was cancelled already.
    pub(super) stillborn: bool,
}

/// How a handler's own code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkEnd {
    Value,
    Stopped,
    Failed,
    Panicked,
    /// It was aborted, or its connection's driver is gone.
    Dropped,
}

/// A handler.
#[derive(Debug)]
pub(super) struct WorkSeen {
    pub(super) side: Side,
    pub(super) work: Work,
    pub(super) end: Option<WorkEnd>,
    pub(super) ended_at: Option<u64>,
    /// The cause it had been given when it ended.
    pub(super) cause: Option<CauseKind>,
    pub(super) context: CallContext,
}

/// A request as the wire carried it.
#[derive(Debug)]
pub(super) struct RequestSeen {
    pub(super) nonce: Option<u64>,
    /// How often it came, and when first.
    pub(super) received: u32,
    pub(super) received_at: Option<u64>,
    pub(super) cancels: u32,
    /// What it came on.
    pub(super) exchange: ExchangeId,
    /// When its cancel came out of the wire ahead of it.
    pub(super) overtaken_at: Option<u64>,
    /// When its cancel came out of the wire behind it, or what it came on was closed, where that cancels it; or when it came behind its
    /// cancel, where one waits for it.
    pub(super) cancelled_at: Option<u64>,
    /// Its handler was at work then and had no cause, and its protocol has silence for it.
    pub(super) owed_silence: bool,
    /// How often it was answered, and when the caller's side had that.
    pub(super) answers: u32,
    pub(super) answer_received_at: Option<u64>,
}

/// What one side wrote.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) frames: Vec<Frame>,
    /// The frames that did not come out at the other side yet, by what they say.
    pub(super) under_way: BTreeMap<Bytes, Vec<usize>>,
    pub(super) received: usize,
    /// By id, as JSON writes it.
    pub(super) requests: BTreeMap<String, RequestSeen>,
    /// By what a cancel names them, where that is not their id.
    pub(super) names: BTreeMap<String, String>,
    pub(super) by_nonce: BTreeMap<u64, String>,
    /// The calls whose cancels this side acknowledged as done.
    pub(super) acked: BTreeMap<String, bool>,
}

/// A frame and what it is.
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
    /// A handler's own, if it belongs to one.
    Notification {
        of: Option<u64>,
    },
    Other,
}

impl Kind {
    /// It means the same when it comes twice.
    pub(super) const fn may_be_said_twice(&self) -> bool {
        match self {
            Self::Cancel { .. } | Self::Answer { .. } | Self::Other => true,
            Self::Request { .. } | Self::Notification { .. } => false,
        }
    }
}
