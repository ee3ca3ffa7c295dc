//! The limits of a server over all its connections.

use std::time::Duration;

use crate::clients::{DEFAULT_IPV6_PREFIX, Share};

limits! {
    /// Limits of a server over all its connections, and the share of them that one client may use.
    ///
    /// A client is identified by the principal that the transport's auth hook returns, else by the address of its
    /// connections, else each connection is a client of its own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct ServerLimits {
        /// The most handlers that run at once, handlers that drain included. New requests are refused at this limit.
        /// Default: 4096. A request that waited for a permit of its connection takes the permit of the request that
        /// ended, so the limit holds for it too.
        pub max_running_handlers: usize = 4096,
        /// The most handlers that still run after their request is settled. New requests are refused above this limit.
        /// Default: 100. Each client counts up to its share: a client above its share is refused, and other clients are
        /// not.
        pub max_draining_handlers: usize = 100,
        /// The most connections at once. Default: 1024. At this limit, and at a client's share of it, the oldest unused
        /// connection is shut down to make room, and counted in
        /// [`ServerCounts::displaced`](crate::ServerCounts::displaced). A connection is unused if nothing is in flight
        /// and the peer never requested anything but the handshake. Without an unused connection the new connection is
        /// refused.
        pub max_connections: usize = 1024,
        /// The most bytes held over all connections: what [`Limits::max_memory_bytes`](crate::Limits::max_memory_bytes)
        /// counts for each connection, and frames and bodies that are being read. At this limit new requests are
        /// refused, and large frames wait before they are read. Default: 256 MiB.
        pub max_memory_bytes: usize = 256 << 20,
        /// The longest time without a frame in either direction and with nothing in flight. After it the connection is
        /// shut down, which counts as [`Event::LimitReached`](crate::Event::LimitReached) with `idle`. Default: `None`:
        /// idle connections stay open. Set it where unknown clients could hold connections without using them. Pings of
        /// a transport do not count as frames. The limit does not apply to a transport where one link carries all
        /// clients (stateless HTTP). HTTP sessions have an idle limit of their own.
        pub idle_timeout: Option<Duration> = None,
        /// The share of `max_running_handlers`, `max_draining_handlers` and `max_connections` that one client may use,
        /// also while it is the only client. Default: one half. [`Share::ALL`] disables the share: set it where all
        /// clients have one address and no principals, as behind a proxy.
        pub client_share: Share = Share::HALF,
        /// The number of leading bits of an IPv6 address that identify a client. Default: 64, the network of one
        /// subscriber.
        pub ipv6_prefix: u8 = DEFAULT_IPV6_PREFIX,
    }
}
