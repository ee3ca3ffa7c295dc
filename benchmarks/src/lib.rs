//! What is measured, for the benches and for the `budget` table. Nothing here is an API.
//!
//! Two subjects take turns, in one process or each against a server in one of its own ([`apart`]): a [`Client`] that goes
//! through `Peer`, and one that writes and reads the same frames on the same wire by itself, the floor. Figures of two
//! runs do not compare; their ratios do.

pub mod apart;
pub mod floor;
pub mod peer;
pub mod raw;
#[cfg(feature = "count")]
pub mod residents;
pub mod samples;
#[cfg(feature = "count")]
pub mod steps;
pub mod table;
pub mod wires;

/// The side that asks.
#[derive(Debug)]
pub enum Client {
    /// Through `Peer`.
    Ours(peer::PeerClient),
    /// The same frames without us.
    Floor(floor::FloorClient),
}

/// How long one cancel took, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct CancelTimes {
    /// From the cancel to the handler's signal.
    pub to_handler: u64,
    /// From the cancel to the caller's return.
    pub to_caller: u64,
}

impl Client {
    /// One round trip, in nanoseconds.
    pub async fn echo(&mut self, params: &serde_json::value::RawValue) -> u64 {
        let begin = clock();
        match self {
            Self::Ours(client) => client.echo(params).await,
            Self::Floor(client) => client.echo(params).await,
        }
        clock() - begin
    }

    /// One cancel of a request whose handler waits for it.
    pub async fn cancel(&mut self) -> CancelTimes {
        match self {
            Self::Ours(client) => client.cancel().await,
            Self::Floor(client) => client.cancel().await,
        }
    }
}

/// A text of so many bytes, as params.
#[must_use]
pub fn params(bytes: usize) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(&["x".repeat(bytes)]).expect("a text is JSON")
}

/// Nanoseconds on a clock that all processes of this machine share.
#[must_use]
pub fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
