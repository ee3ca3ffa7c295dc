//! The limits of a connection, with their defaults. Everything that grows has a limit (I11).

use std::time::Duration;

/// Limits of one connection. When a limit is reached, the event is counted and the refusal names the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most handlers that run at once, handlers that drain included. Default: 1024.
    pub running: usize,
    /// The most blocking handlers that run at once. Default: 128.
    pub blocking: usize,
    /// The most bytes held for the connection: requests that wait or run, frames that wait to be written, notifications
    /// that wait for their handler. New requests are refused at this limit. Default: 32 MiB. The limit is never less
    /// than one frame.
    pub memory: usize,
    /// The most requests that wait for a permit. Default: 1024.
    pub queued: usize,
    /// How long a request waits for a permit. Default: 30 s.
    pub queue_time: Duration,
    /// The most bytes of a frame, in both directions. Default: 16 MiB.
    pub frame: usize,
    /// The most frames that wait to be written. Default: 4096.
    pub outbox_frames: usize,
    /// The most bytes that wait to be written. Default: 16 MiB.
    pub outbox_bytes: usize,
    /// The most refusals and acknowledgements that wait to be written. They do not count for `outbox_frames`. Default:
    /// 4096.
    pub reserve_frames: usize,
    /// The most bytes of refusals and acknowledgements that wait to be written. Default: 1 MiB.
    pub reserve_bytes: usize,
    /// The most notifications of the peer that wait for their handler. Default: 8192.
    pub notifications: usize,
    /// The most bytes of notifications that wait for their handler. Default: 16 MiB.
    pub notification_bytes: usize,
    /// The most calls of this side in flight. Default: 65,536.
    pub calls: usize,
    /// The most early cancels that wait for their request. Default: 256. The same number of acknowledgements may wait
    /// for the end of a shield; above it a repeated cancel is refused. The first cancel of each request is always
    /// accepted.
    pub parked: usize,
    /// How long an early cancel waits for its request. Default: 30 s.
    pub parked_time: Duration,
    /// The most settled ids that are remembered. Default: 1024. An early cancel with an integer id waits only if the id
    /// is above every integer id that was forgotten. An early cancel with a string id waits only if no string id was
    /// forgotten.
    pub remembered: usize,
    /// How long a settled id is remembered. Default: 60 s.
    pub remembered_time: Duration,
    /// The time between a handler's cancel signal and its abort, also in a shutdown. Default: 2 s.
    pub cancel_grace: Duration,
    /// The time between the end of input and the cancel of the requests that still run. Default: 30 s.
    /// A dialect may allow less ([`Rules::half_close_at_most`](crate::dialect::Rules::half_close_at_most)).
    pub half_close_grace: Duration,
    /// The time between the loss of a request's stream and its cancel, in dialects where a lost stream cancels its
    /// request after a grace (ACP and LSP over HTTP). Default: 30 s.
    pub detach_grace: Duration,
    /// The time between the loss of a request's stream and its cancel, in dialects where a lost stream does not cancel
    /// its request (MCP 2025 over HTTP). Default: `None`: the request runs until it ends or its session ends.
    pub lost_stream_grace: Option<Duration>,
    /// How long a shutdown waits for handlers before it cancels them. Default: 10 s.
    pub drain_deadline: Duration,
    /// How long a cancelled call waits for the peer's answer. Default: 5 s.
    pub peer_wait: Duration,
    /// The longest time for which a shield delays a cancel. Default: 30 s.
    pub shield: Duration,
    /// How long a connection that closes may flush. Default: 1 s.
    pub flush: Duration,
    /// The most descendants that are cancelled in one step. Default: 256.
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
