//! One connection of the bare machine: its session, its handlers, its calls and the frames it wrote.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use rescind_core::dialect::Dialect;
use rescind_core::{DisconnectPolicy, InboundKey, OutboundKey, RequestId, Session, SessionConfig, Stats};

use super::handler::{Handler, Job};
use super::outgoing::OwnCall;
use crate::options::{LocalCancel, Options};
use crate::runner::{Ended, Seen};
use crate::sessions::Sessions;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: Session,
    pub(super) dialect: Dialect,
    pub(super) handles_cancels: bool,
    pub(super) declares_tasks: bool,
    pub(super) drain: std::time::Duration,
    pub(super) local_cancel: Option<LocalCancel>,
    /// Requests that have a slot and are not started yet.
    pub(super) waiting: BTreeMap<InboundKey, Job>,
    pub(super) handlers: BTreeMap<InboundKey, Handler>,
    /// Keys by the id in the frame, for calls that are children.
    pub(super) ids: BTreeMap<RequestId, InboundKey>,
    pub(super) calls: BTreeMap<OutboundKey, OwnCall>,
    /// Calls whose frames are not written yet, in order.
    pub(super) staged: VecDeque<OutboundKey>,
    /// The content of the answer that is being read.
    pub(super) answer: Option<super::inputs::OwnedAnswer>,
    pub(super) outcomes: BTreeMap<String, Ended>,
    pub(super) out: VecDeque<String>,
    pub(super) end: End,
    pub(super) sessions: Sessions,
    pub(super) stats_served: u64,
    pub(super) all_stats: Vec<(Stats, u64)>,
}

/// Whether the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Closed,
}

impl Connection {
    /// Creates the connection with this number. The fixture's first connection is number 1.
    pub(super) fn new(number: usize, config: SessionConfig, options: &Options) -> Self {
        Self {
            dialect: config.dialect.clone(),
            handles_cancels: config.handles_cancels,
            declares_tasks: options.declares_tasks(),
            drain: config.limits.drain_timeout,
            session: Session::new(config),
            local_cancel: options.local_cancel.clone(),
            waiting: BTreeMap::new(),
            handlers: BTreeMap::new(),
            ids: BTreeMap::new(),
            calls: BTreeMap::new(),
            staged: VecDeque::new(),
            answer: None,
            outcomes: BTreeMap::new(),
            out: VecDeque::new(),
            end: End::Open,
            sessions: Sessions::of(number),
            stats_served: 0,
            all_stats: Vec::new(),
        }
    }

    /// Returns the next frame or event of this side, if there is one.
    pub(super) fn pop(&mut self) -> Option<Seen> {
        match (self.out.pop_front(), self.end) {
            (Some(frame), _) => Some(Seen::Frame(frame)),
            (None, End::Closed) => Some(Seen::Closed(None)),
            (None, End::Open) => None,
        }
    }

    /// Returns the counters, and how many of the counted handlers served `test/stats`.
    pub(super) fn own_stats(&self) -> (Stats, u64) {
        (self.session.stats(), self.stats_served)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let handlers = self.handlers.values().filter_map(Handler::due);
        handlers.chain(self.session.next_timeout()).min()
    }

    pub(super) fn time_passed(&mut self, now: Instant) {
        if self.session.next_timeout().is_some_and(|due| due <= now) {
            self.session.handle_timeout(now);
            self.pump(now);
        }
        let due: Vec<_> = self.handlers.iter().filter(|(_, handler)| handler.is_due(now)).collect();
        for key in due.into_iter().map(|(key, _)| *key).collect::<Vec<_>>() {
            self.handler_due(now, key);
        }
    }

    pub(super) fn half_close(&mut self, now: Instant) {
        self.session.recv_half_close(now);
        self.pump(now);
    }

    pub(super) fn lose(&mut self, now: Instant, lost: DisconnectPolicy) {
        self.end = End::Closed;
        self.session.recv_lost(now, lost);
        self.pump(now);
    }

    pub(super) fn shutdown(&mut self, now: Instant) {
        self.session.local_shutdown(now, self.drain);
        self.pump(now);
    }

    pub(super) fn write(&mut self, frame: &[u8]) {
        if self.end == End::Open {
            self.out.push_back(String::from_utf8_lossy(frame).into_owned());
        }
    }
}
