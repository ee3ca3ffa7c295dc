//! The readers of the streams: each comes, leaves and may return, and what is kept for it until then.

use std::collections::VecDeque;

use super::{ExchangeList, ExchangeTable, ReplayBuffer, Response, ResponseKind, Settings, WakeList};

/// The most ended streams that are kept for a client that lost their end.
const ENDED: usize = 16;

impl<X> ExchangeTable<X> {
    /// Called when a response, or the future of a response, is dropped. The caller must report the returned exchanges as
    /// closed, under the same lock.
    pub(crate) fn left(
        &mut self,
        stream: u64,
        token: u64,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> ExchangeList {
        let Some(held) = self.held_of(stream) else { return ExchangeList::new() };
        if !self.buffer(stream).is_some_and(|buffer| buffer.detach(token)) {
            return ExchangeList::new();
        }
        self.update_held(stream, held);
        wakes.add(self.driver.take());
        self.lost(stream, settings)
    }

    /// Removes the reader of a stream, as if it had disconnected.
    pub(crate) fn cut(&mut self, stream: u64, settings: &Settings, wakes: &mut WakeList) -> ExchangeList {
        let Some(held) = self.held_of(stream) else { return ExchangeList::new() };
        wakes.add(self.buffer(stream).and_then(ReplayBuffer::cut));
        self.update_held(stream, held);
        self.lost(stream, settings)
    }

    /// Called when a stream has lost its reader.
    fn lost(&mut self, stream: u64, settings: &Settings) -> ExchangeList {
        let Some(open) = self.open.get_mut(&stream) else { return ExchangeList::new() };
        match open.response {
            Response::Undecided(_) | Response::Decided(ResponseKind::EventStream) => {
                open.response = Response::Gone;
            }
            // It is answered, but no client takes the answer. The driver has already finished with it.
            Response::Decided(ref kind) => {
                if let ResponseKind::Json(_, body) = kind {
                    self.held -= self.rules.counted(body);
                }
                self.open.remove(&stream);
                return ExchangeList::new();
            }
            Response::Sent if !self.rules.resumable => open.response = Response::Gone,
            Response::Sent | Response::Gone => {}
        }
        if open.buffer.is_ended() {
            self.retire(stream, settings);
            return ExchangeList::new();
        }
        if !self.rules.resumable {
            open.buffer.discard();
        }
        self.exchanges_of(stream)
    }

    /// Attaches a reader to a stream. The reader before it, if any, ends.
    pub(crate) fn attach(&mut self, stream: u64, wakes: &mut WakeList) -> u64 {
        let before = self.held_of(stream).unwrap_or(0);
        let Some(buffer) = self.buffer(stream) else { return 0 };
        let (token, displaced) = buffer.attach();
        wakes.add(displaced);
        self.update_held(stream, before);
        token
    }

    /// Moves a stream that has no reader to the ended ones.
    pub(super) fn retire(&mut self, stream: u64, settings: &Settings) {
        let Some(mut open) = self.open.remove(&stream) else { return };
        if !open.buffer.was_begun() {
            return;
        }
        open.buffer.shrink();
        self.ended.push_back((stream, open.buffer));
        let size = |ended: &VecDeque<(u64, ReplayBuffer)>| -> usize {
            ended.iter().map(|(_, buffer)| buffer.waiting().1 + buffer.kept().1).sum()
        };
        while self.ended.len() > 1
            && (self.ended.len() > ENDED || size(&self.ended) > settings.unread_limit.1)
        {
            self.ended.pop_front();
        }
    }
}
