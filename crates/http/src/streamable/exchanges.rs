//! The exchanges and event streams of one session, behind its lock.

use std::collections::VecDeque;
use std::task::Waker;

use http::StatusCode;
use rescind_core::{ExchangeId, FrameKind, Outbound, RejectReason, TransportError, TransportErrorKind};
use tokio::time::Instant;

use crate::int_map::Numbered;
use crate::server::Settings;
use crate::server::json_or_event_stream::Response;
use crate::server::replay_buffer::ReplayBuffer;
use crate::wake_list::WakeList;

/// The stream that no request of the peer opened.
pub(super) const OWN: u64 = 0;
/// So many streams that have ended are kept for a client that lost their end.
const ENDED: usize = 16;

pub(super) struct State {
    /// Boxed: the map keeps its room for a few when they have gone.
    pub(super) exchanges: Numbered<Box<Exchange>>,
    pub(super) own: ReplayBuffer,
    pub(super) ended: VecDeque<(u64, ReplayBuffer)>,
    pub(super) next: u64,
    /// Waiting bytes of the streams that are read.
    pub(super) held: usize,
    /// The driver waits for room, or for the end.
    pub(super) driver: Option<Waker>,
    pub(super) closed: bool,
    pub(super) used: Instant,
}

pub(super) struct Exchange {
    pub(super) response: Response,
    pub(super) mailbox: ReplayBuffer,
    pub(super) fault: Option<RejectReason>,
}

impl State {
    pub(super) fn mailbox(&mut self, stream: u64) -> Option<&mut ReplayBuffer> {
        if stream == OWN {
            return Some(&mut self.own);
        }
        if let Some(open) = self.exchanges.get_mut(&stream) {
            return Some(&mut open.mailbox);
        }
        self.ended.iter_mut().find(|(number, _)| *number == stream).map(|(_, mailbox)| mailbox)
    }

    pub(super) fn held_of(&mut self, stream: u64) -> Option<usize> {
        self.mailbox(stream).map(|mailbox| held(mailbox))
    }

    /// Counts what a step has changed: `before` is what was held for the stream.
    pub(super) fn update_held(&mut self, stream: u64, before: usize) {
        let after = self.held_of(stream).unwrap_or(0);
        self.held = self.held.saturating_sub(before).saturating_add(after);
    }

    pub(super) fn attach(&mut self, stream: u64, wakes: &mut WakeList) -> u64 {
        let before = self.held_of(stream).unwrap_or(0);
        let Some(mailbox) = self.mailbox(stream) else { return 0 };
        let (token, displaced) = mailbox.attach();
        wakes.add(displaced);
        self.update_held(stream, before);
        token
    }

    /// The stream a frame goes out on: its exchange. A request, and its cancel, that finds nobody there goes on the own
    /// stream.
    pub(super) fn stream_for(&self, out: &Outbound) -> u64 {
        match out.head.kind {
            FrameKind::Request | FrameKind::Cancel => {
                let open = self.exchanges.get(&out.exchange.0);
                open.filter(|open| !matches!(open.response, Response::Gone)).map_or(OWN, |_| out.exchange.0)
            }
            FrameKind::Answer | FrameKind::Notification => out.exchange.0,
        }
    }

    pub(super) fn put(
        &mut self,
        stream: u64,
        out: Outbound,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> Result<(), TransportError> {
        let (messages, bytes) = settings.mailbox;
        let before = self.held_of(stream).unwrap_or(0);
        let Some(mailbox) = self.mailbox(stream) else { return Ok(()) };
        let droppable = out.head.kind == FrameKind::Notification;
        let over = |mailbox: &ReplayBuffer| {
            let waiting = mailbox.waiting();
            waiting.0 >= messages || waiting.1.saturating_add(out.body.len()) > bytes
        };
        // A stream that is read holds bulk back by itself.
        if !mailbox.has_reader() {
            while over(mailbox) && mailbox.drop_oldest() {
                settings.counts.notification_dropped();
                tracing::debug!(stream, "a notification was given up: nobody reads its stream");
            }
            if over(mailbox) && mailbox.waiting().0 > 0 {
                match out.head.kind {
                    FrameKind::Notification => {
                        settings.counts.notification_dropped();
                        return Ok(());
                    }
                    FrameKind::Request | FrameKind::Cancel => return Err(unread(out.exchange)),
                    FrameKind::Answer => {}
                }
            }
        }
        wakes.add(mailbox.push(out.body, droppable));
        self.update_held(stream, before);
        Ok(())
    }

    /// Nothing more comes on a stream. Without a reader it waits among the ended for one that comes back.
    pub(super) fn end(&mut self, stream: u64, bytes: usize, wakes: &mut WakeList) {
        let Some(open) = self.exchanges.get_mut(&stream) else { return };
        wakes.add(open.mailbox.end());
        if !open.mailbox.has_reader() {
            self.retire(stream, bytes);
        }
    }

    pub(super) fn retire(&mut self, stream: u64, bytes: usize) {
        let Some(open) = self.exchanges.remove(&stream) else { return };
        if !open.mailbox.was_begun() {
            return;
        }
        self.ended.push_back((stream, open.mailbox));
        let size = |ended: &VecDeque<(u64, ReplayBuffer)>| -> usize {
            ended.iter().map(|(_, mailbox)| mailbox.waiting().1 + mailbox.kept_bytes()).sum()
        };
        while self.ended.len() > 1 && (self.ended.len() > ENDED || size(&self.ended) > bytes) {
            self.ended.pop_front();
        }
    }
}

pub(super) fn held(mailbox: &ReplayBuffer) -> usize {
    if mailbox.has_reader() { mailbox.waiting().1 } else { 0 }
}

pub(super) fn unread(exchange: ExchangeId) -> TransportError {
    let text = "the client reads no event stream, and what waits for it is at its bound";
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::TooLarge, text) }
}

impl Exchange {
    /// The status of a refusal; an answer with an id is always a 200.
    pub(super) fn status(&self) -> StatusCode {
        match self.fault {
            Some(RejectReason::BadMessage) => StatusCode::BAD_REQUEST,
            Some(RejectReason::DuplicateId) => StatusCode::CONFLICT,
            Some(_) | None => StatusCode::OK,
        }
    }
}
