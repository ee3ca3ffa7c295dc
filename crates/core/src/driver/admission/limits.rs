//! The bounds of a server over all its connections.

use std::time::Duration;

use crate::clients::{DEFAULT_IPV6_PREFIX, Share};

/// How many handlers may run over all connections of a server, and how much of that one client may have.
///
/// A client is the principal that the transport's auth hook names, else the address its connections come from, else its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Handlers running at once, draining ones included; at it a new request is refused. 4096. A request that waits for a
    /// permit of its connection takes over the place of the one that gives it the permit, so it never comes on top.
    pub running: usize,
    /// Handlers whose request is settled and that still run; over it new requests are refused. 100. Of each client only its share
    /// is counted: one that has more is refused itself, and others are not.
    pub draining: usize,
    /// Connections at once. 1024. At it, and at a client's share of it, the oldest connection on which nothing was ever asked
    /// but the handshake, and nothing is in flight, makes room: it is shut down as an idle one is, and counted
    /// ([`ServerCounts::displaced`](crate::ServerCounts::displaced)). Where there is none the new one is refused.
    pub sessions: usize,
    /// Bytes held over all connections: what [`Limits::memory`](crate::Limits::memory) counts for each, and frames and bodies that are being
    /// read. 256 MiB. At it new requests are refused, and reading of large frames waits.
    pub memory: usize,
    /// A connection on which no frame came or went for so long, and nothing is in flight, is shut down, which counts as
    /// [`Event::LimitReached`](crate::Event::LimitReached) with `idle`. `None` unless set: a connection that is open is in use, and what keeps a
    /// session without one (HTTP) has a limit of its own. Set it where strangers may hold connections for nothing. What a wire sends by
    /// itself, pings, is no frame; a wire whose one link is all of its clients (stateless HTTP) is left alone.
    pub idle: Option<Duration>,
    /// The part of `running`, `draining` and `sessions` that one client may hold, whether others are there or not. Default: one
    /// half. [`Share::ALL`] turns it off: set it where all clients come from one address without principals, as behind a proxy.
    pub client_share: Share,
    /// The leading bits of an IPv6 address that make one client. Default: 64, the network of one subscriber.
    pub ipv6_prefix: u8,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            running: 4096,
            draining: 100,
            sessions: 1024,
            memory: 256 << 20,
            idle: None,
            client_share: Share::HALF,
            ipv6_prefix: DEFAULT_IPV6_PREFIX,
        }
    }
}
