//! Every bound of a connection, with its default. Nothing grows without one (I11).

use std::time::Duration;

/// The bounds and times of one connection. A bound that fires is counted and named in the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Handlers running at once, draining ones included. 1024.
    pub running: usize,
    /// Blocking handlers running at once. 128.
    pub blocking: usize,
    /// Bytes held for the connection: requests that wait or run, what waits to be written, notifications that wait for their handler. 32 MiB,
    /// and never less than one frame. At it new requests are refused.
    pub memory: usize,
    /// Requests waiting for a permit. 1024.
    pub queued: usize,
    /// How long a request waits for a permit. 30 s.
    pub queue_time: Duration,
    /// Bytes of a frame, either way. 16 MiB.
    pub frame: usize,
    /// Frames waiting to be written. 4096.
    pub outbox_frames: usize,
    /// Bytes waiting to be written. 16 MiB.
    pub outbox_bytes: usize,
    /// Refusals and acks waiting to be written, beside the outbox. 4096.
    pub reserve_frames: usize,
    /// Bytes of refusals and acks waiting to be written. 1 MiB.
    pub reserve_bytes: usize,
    /// Notifications of the peer waiting for their handler. 8192.
    pub notifications: usize,
    /// Bytes of notifications waiting. 16 MiB.
    pub notification_bytes: usize,
    /// Calls of ours in flight. 65,536.
    pub calls: usize,
    /// Early cancels that wait for their request. 256. Also how many acknowledgements may wait for the ends of shields before
    /// a repeated cancel is refused; the first of each request always may.
    pub parked: usize,
    /// How long an early cancel waits. 30 s.
    pub parked_time: Duration,
    /// Settled ids remembered. 1024. An early cancel waits only for an integer id above every forgotten integer id, and for a
    /// string id only while none was forgotten.
    pub remembered: usize,
    /// How long a settled id is remembered. 60 s.
    pub remembered_time: Duration,
    /// From the signal to the abort of a handler. 2 s. Shutdown's grace too.
    pub cancel_grace: Duration,
    /// From the end of input to the cancel of what still runs. 30 s.
    /// A dialect may allow less ([`Rules::half_close_at_most`](crate::dialect::Rules::half_close_at_most)).
    pub half_close_grace: Duration,
    /// From the loss of a request's stream to the cancel, in dialects in which the loss is a cancel after a grace (ACP and LSP over
    /// HTTP). 30 s.
    pub detach_grace: Duration,
    /// From the loss of a request's stream to the cancel, in dialects in which the loss is no cancel (MCP 2025 over HTTP). Default:
    /// `None`, the request runs until it ends or its session does.
    pub lost_stream_grace: Option<Duration>,
    /// How long a shutdown waits for handlers to end by themselves. 10 s.
    pub drain_deadline: Duration,
    /// How long a cancelled call waits for the peer's answer. 5 s.
    pub peer_wait: Duration,
    /// The longest a shield holds a cancel off. 30 s.
    pub shield: Duration,
    /// How long a closing connection may flush. 1 s.
    pub flush: Duration,
    /// Descendants cancelled in one step. 256.
    pub cascade_slice: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running: 1024,
            blocking: 128,
            memory: 32 << 20,
            queued: 1024,
            queue_time: Duration::from_secs(30),
            frame: 16 << 20,
            outbox_frames: 4096,
            outbox_bytes: 16 << 20,
            reserve_frames: 4096,
            reserve_bytes: 1 << 20,
            notifications: 8192,
            notification_bytes: 16 << 20,
            calls: 65_536,
            parked: 256,
            parked_time: Duration::from_secs(30),
            remembered: 1024,
            remembered_time: Duration::from_secs(60),
            cancel_grace: Duration::from_secs(2),
            half_close_grace: Duration::from_secs(30),
            detach_grace: Duration::from_secs(30),
            lost_stream_grace: None,
            drain_deadline: Duration::from_secs(10),
            peer_wait: Duration::from_secs(5),
            shield: Duration::from_secs(30),
            flush: Duration::from_secs(1),
            cascade_slice: 256,
        }
    }
}
