//! The event streams of a connection, and the bound of the events that they keep for a client that resumes one.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::connection::OWN;
use crate::int_map::IntMap;
use crate::server::replay_buffer::{Forgotten, ReplayBuffer, Retention};

/// The most bytes that all streams of a connection keep for `Last-Event-ID`.
const KEPT: usize = 8 * 1024 * 1024;
/// The part of the connection's memory limit that they may keep: 1 / `PART`.
const PART: usize = 4;
/// The size that is counted for a kept event in addition to its bytes.
const EVENT: usize = 256;

/// The streams, by their numbers. Each keeps its own newest events. If all together keep too much, the one that keeps
/// most drops its oldest event, so that a stream with many events does not take the room of the others.
#[derive(Debug)]
pub(super) struct Lanes {
    buffers: IntMap<ReplayBuffer>,
    retention: Retention,
    /// The size of the kept events of all streams.
    kept: usize,
}

/// The most that the streams of a connection with this memory limit keep.
pub(super) fn most_kept(memory: usize) -> usize {
    KEPT.min(memory / PART)
}

/// The size of the kept events of a stream.
fn kept(buffer: &ReplayBuffer) -> usize {
    let (events, bytes) = buffer.kept();
    bytes + events * EVENT
}

impl Lanes {
    /// The connection's own stream. `retention` is the limit of each stream.
    pub(super) fn new(retention: Retention) -> Self {
        let mut lanes = Self { buffers: IntMap::default(), retention, kept: 0 };
        lanes.add(OWN);
        lanes
    }

    pub(super) fn add(&mut self, lane: u64) {
        self.buffers.insert(lane, ReplayBuffer::new(lane, self.retention));
    }

    pub(super) fn remove(&mut self, lane: u64) {
        if let Some(buffer) = self.buffers.remove(&lane) {
            self.kept -= kept(&buffer);
        }
    }

    pub(super) fn get(&self, lane: u64) -> Option<&ReplayBuffer> {
        self.buffers.get(&lane)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ReplayBuffer> {
        self.buffers.values()
    }

    /// The numbers of the streams of which this is true.
    pub(super) fn which(&self, is_so: impl Fn(&ReplayBuffer) -> bool) -> Vec<u64> {
        self.buffers.iter().filter(|(_, buffer)| is_so(buffer)).map(|(lane, _)| *lane).collect()
    }

    /// Runs a step on a stream.
    pub(super) fn step<T>(&mut self, lane: u64, step: impl FnOnce(&mut ReplayBuffer) -> T) -> Option<T> {
        let buffer = self.buffers.get_mut(&lane)?;
        let before = kept(buffer);
        let result = step(buffer);
        self.kept = self.kept - before + kept(buffer);
        Some(result)
    }

    /// The next event of a stream for this reader. Afterwards the streams keep at most `most`.
    pub(super) fn poll_next(
        &mut self,
        lane: u64,
        token: u64,
        most: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        let event = self.step(lane, |buffer| buffer.poll_next(token, cx)).unwrap_or(Poll::Ready(None));
        self.limit_kept(most);
        event
    }

    /// Moves the events that were read after event `last` back in front of those that wait.
    pub(super) fn rewind(&mut self, lane: u64, last: u64) -> Result<(), Forgotten> {
        self.step(lane, |buffer| buffer.rewind(last)).unwrap_or(Err(Forgotten))
    }

    /// Drops kept events until there are at most `most` bytes of them.
    pub(super) fn limit_kept(&mut self, most: usize) {
        while self.kept > most {
            let Some((lane, _)) = self.buffers.iter().max_by_key(|(_, buffer)| kept(buffer)) else { return };
            let lane = *lane;
            self.step(lane, ReplayBuffer::forget_oldest);
        }
    }

    /// Drops all kept events.
    pub(super) fn forget_kept(&mut self) {
        self.buffers.values_mut().for_each(ReplayBuffer::forget_all);
        self.kept = 0;
    }

    /// The size of the kept events of all streams.
    #[cfg(test)]
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Puts events of this size on a stream, and reads them.
    fn read(lanes: &mut Lanes, lane: u64, sizes: &[usize], most: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        let (token, _) = lanes.step(lane, ReplayBuffer::attach).unwrap();
        for size in sizes {
            lanes.step(lane, |buffer| buffer.push(Bytes::from("x".repeat(*size)), true));
            assert!(matches!(lanes.poll_next(lane, token, most, &mut cx), Poll::Ready(Some(_))));
        }
    }

    #[test]
    fn the_stream_that_keeps_most_drops_its_oldest_event_first() {
        let mut lanes = Lanes::new(Retention { events: 8, bytes: 4096 });
        lanes.add(1);
        let most = 1000 + 4 * EVENT;
        read(&mut lanes, OWN, &[100, 100], most);
        read(&mut lanes, 1, &[400, 400], most);
        assert_eq!(lanes.kept(), 1000 + 4 * EVENT);
        read(&mut lanes, OWN, &[10], most);
        assert_eq!(lanes.rewind(1, 0), Err(Forgotten), "the first event of the larger stream");
        assert_eq!(lanes.rewind(1, 1), Ok(()));
        assert_eq!(lanes.rewind(OWN, 0), Ok(()), "the smaller stream has kept all");
        assert_eq!(lanes.kept(), 0, "what waits is not kept");
    }

    #[test]
    fn a_thousand_streams_keep_no_more_than_the_limit_of_the_connection() {
        let mut lanes = Lanes::new(Retention { events: 256, bytes: 64 * 1024 });
        for lane in 1..=1024 {
            lanes.add(lane);
            read(&mut lanes, lane, &[30_000, 30_000], most_kept(usize::MAX));
            assert!(lanes.kept() <= KEPT, "{}", lanes.kept());
        }
        let counted: usize = lanes.all().map(kept).sum();
        assert_eq!(lanes.kept(), counted);
        assert!(counted > KEPT - 64 * 1024, "the room is used: {counted}");
        read(&mut lanes, 7, &[KEPT], most_kept(usize::MAX));
        assert_eq!(
            lanes.rewind(7, 3),
            Ok(()),
            "the event is counted with {EVENT} bytes more, so it is not kept"
        );
        for lane in 0..=1024 {
            lanes.remove(lane);
        }
        assert_eq!(lanes.kept(), 0);
    }

    #[test]
    fn small_events_are_bounded_too() {
        let mut lanes = Lanes::new(Retention { events: 256, bytes: 64 * 1024 });
        for lane in 1..=200 {
            lanes.add(lane);
            read(&mut lanes, lane, &[1; 256], most_kept(32 << 20));
        }
        let events: usize = lanes.all().map(|buffer| buffer.kept().0).sum();
        assert_eq!(events, KEPT / (EVENT + 1), "an event of one byte counts as {} bytes", EVENT + 1);
    }

    #[test]
    fn a_connection_with_little_memory_keeps_less() {
        assert_eq!((most_kept(usize::MAX), most_kept(32 << 20), most_kept(1 << 20)), (KEPT, KEPT, 1 << 18));
    }
}
