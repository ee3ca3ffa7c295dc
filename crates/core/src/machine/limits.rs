//! The limits of a connection, with their defaults, and how structs of limits are declared. Everything that grows has a
//! limit (I11).

use std::time::Duration;

/// Declares a struct of limits: its fields with their defaults, and a setter for each field.
macro_rules! limits {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$field_attribute:meta])* pub $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub const fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
pub(crate) use limits;

/// How many handlers may report other work or cancel it, where so many may run.
pub(crate) const fn control_handlers(running: usize) -> usize {
    if running < 8 { 1 } else { running / 8 }
}

// By its path, so that the import is used in every set of features.
self::limits! {
    /// Limits of one connection. When a limit is reached, the event is counted and the refusal names the limit.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rescind_core::Limits;
    ///
    /// let limits = Limits::default().max_running_handlers(64).cancel_grace(Duration::from_secs(1));
    /// assert_eq!(limits.max_running_handlers, 64);
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Limits {
        /// The most handlers that run at once, handlers that drain included. Default: 1024. In addition an eighth of it answers
        /// `tasks/get`, `tasks/cancel` and `tasks/update`, which so do not wait for the work that they are about.
        pub max_running_handlers: usize = 1024,
        /// The most blocking handlers that run at once. Default: 128.
        pub max_blocking_handlers: usize = 128,
        /// The most bytes held for the connection: requests that wait or run, frames that wait to be written,
        /// notifications that wait for their handler. New requests are refused at this limit. Default: 32 MiB. The
        /// limit is never less than one frame.
        pub max_memory_bytes: usize = 32 << 20,
        /// The most requests that wait for a permit. Default: 1024.
        pub max_queued_requests: usize = 1024,
        /// How long a request waits for a permit. Default: 30 s.
        pub queue_timeout: Duration = Duration::from_secs(30),
        /// The most bytes of a frame, in both directions. Default: 16 MiB.
        pub max_frame_bytes: usize = 16 << 20,
        /// The most frames that wait to be written. Default: 4096.
        pub max_outbox_frames: usize = 4096,
        /// The most bytes that wait to be written. Default: 16 MiB.
        pub max_outbox_bytes: usize = 16 << 20,
        /// The most refusals and acknowledgements that wait to be written. They do not count for `max_outbox_frames`.
        /// Default: 4096.
        pub max_reserve_frames: usize = 4096,
        /// The most bytes of refusals and acknowledgements that wait to be written. Default: 1 MiB.
        pub max_reserve_bytes: usize = 1 << 20,
        /// The most notifications of the peer that wait for their handler. Default: 8192.
        pub max_queued_notifications: usize = 8192,
        /// The most bytes of notifications that wait for their handler. Default: 16 MiB.
        pub max_notification_bytes: usize = 16 << 20,
        /// The most calls of this side in flight. Default: 65,536.
        pub max_calls: usize = 65_536,
        /// The most early cancels that wait for their request. Default: 256. The same number of acknowledgements may
        /// wait for the end of a shield; above it a repeated cancel is refused. The first cancel of each request is
        /// always accepted.
        pub max_early_cancels: usize = 256,
        /// How long an early cancel waits for its request. Default: 30 s.
        pub early_cancel_timeout: Duration = Duration::from_secs(30),
        /// The most settled ids that are remembered. Default: 1024. An early cancel with an integer id waits only if
        /// the id is above every integer id that was forgotten. An early cancel with a string id waits only if no
        /// string id was forgotten.
        pub max_settled_ids: usize = 1024,
        /// How long a settled id is remembered. Default: 60 s.
        pub settled_id_lifetime: Duration = Duration::from_secs(60),
        /// The time between a handler's cancel signal and its abort, also in a shutdown. Default: 2 s.
        pub cancel_grace: Duration = Duration::from_secs(2),
        /// The time between the end of input and the cancel of the requests that still run. Default: 30 s.
        /// A dialect may allow less ([`Rules::half_close_at_most`](crate::dialect::Rules::half_close_at_most)).
        pub half_close_grace: Duration = Duration::from_secs(30),
        /// The time between the loss of a request's stream and its cancel, in dialects where a lost stream cancels its
        /// request after a grace (ACP and LSP over HTTP). Default: 30 s.
        pub detach_grace: Duration = Duration::from_secs(30),
        /// The time between the loss of a request's stream and its cancel, in dialects where a lost stream does not
        /// cancel its request (MCP 2025 over HTTP). Default: `None`: the request runs until it ends or its session
        /// ends. It does not apply to `tasks/result`, which is cancelled 5 s after the loss.
        pub lost_stream_grace: Option<Duration> = None,
        /// How long a shutdown waits for handlers to end without a cancel. Default: 10 s.
        pub drain_timeout: Duration = Duration::from_secs(10),
        /// How long a cancelled call waits for the peer's answer. Default: 5 s.
        pub cancel_response_timeout: Duration = Duration::from_secs(5),
        /// The longest time for which a shield delays a cancel. Default: 30 s.
        pub max_shield_time: Duration = Duration::from_secs(30),
        /// How long a connection that closes may flush. Default: 1 s.
        pub flush_timeout: Duration = Duration::from_secs(1),
        /// The most descendants that are cancelled in one step. Default: 256.
        pub max_cancels_per_step: usize = 256,
    }
}
