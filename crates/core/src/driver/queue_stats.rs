//! What waits on this side of a connection.

/// What waits on this side of a connection, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Frames that wait to be written.
    pub outbox_frames: usize,
    /// About how many bytes wait to be written, calls of ours not counted.
    pub outbox_bytes: usize,
    /// About how many bytes are held for the connection, against [`Limits::memory`](crate::Limits::memory).
    pub memory: usize,
    /// Notifications of the peer that wait for their handler.
    pub notifications_waiting: usize,
    /// A counter: notifications of the peer that were dropped because too many waited.
    pub notifications_dropped: u64,
}
