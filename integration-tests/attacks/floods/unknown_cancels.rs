//! Cancels that name nothing: unknown ids, invalid ids, and cancels whose requests never arrive.

use std::time::Duration;

use serde_json::json;

use super::{Alive, Memory, is_clean, kept_open, router};
use crate::agent::limits;
use crate::flood_sizes::{MIB, million_over};
use crate::raw_client::{Hears, RawClient};
use crate::wires::Wire;
use crate::{in_time, until};

/// The most memory that a flood of them may use.
const MEMORY: usize = MIB;
/// The most early cancels that are kept.
const PARKED: u64 = 256;
/// How many are sent before memory is read.
const WARM_UP: usize = 5000;

pub(super) async fn unknown(wire: Wire) {
    let count = million_over(&wire);
    let alive = Alive::default();
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits(), Hears::Counts).await;
    let named_nothing = || {
        let stats = server.stats();
        usize::try_from(
            stats.unknown_cancels
                + stats.malformed_cancels
                + stats.ignored_cancels
                + stats.parked_cancels
                + stats.refused,
        )
        .unwrap_or(usize::MAX)
    };
    let long = "x".repeat(1024);
    let id = |n: usize| match n % 16 {
        // Too long to be an id.
        0 => json!(format!("{n} {long}")),
        1 => json!(format!("{n}")),
        _ => json!(n),
    };
    // The buffers of both ends, and the few early cancels that are kept, have reached their size.
    for n in 0..WARM_UP {
        stranger.cancel(&id(n)).await;
    }
    stranger.flush().await;
    until("they are counted", || named_nothing() >= WARM_UP).await;
    let mut memory = Memory::begin();
    for n in WARM_UP..WARM_UP + count {
        stranger.cancel(&id(n)).await;
        memory.look(n);
    }
    stranger.flush().await;
    until("every cancel is counted (I8)", || named_nothing() >= WARM_UP + count).await;
    memory.look(0);
    memory.is_within(MEMORY, "cancels for nothing");
    let stats = server.stats();
    assert_eq!((stats.slots, stats.calls), (0, 0), "I8: a table has an entry: {stats:?}");
    assert!(stats.parked_cancels <= PARKED, "I8: {stats:?}");
    assert_eq!(stranger.heard(), 1, "a cancel for nothing is not answered");
    stranger.request(&json!("after"), "echo", &json!({})).await;
    stranger.flush().await;
    until("the connection goes on", || stranger.heard() == 2).await;
    stranger.leave();
    in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
}

pub(super) async fn early(wire: Wire) {
    let count = million_over(&wire);
    let alive = Alive::default();
    let mut limits = limits();
    limits.early_cancel_timeout = Duration::from_secs(3600);
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
    let taken = || {
        let stats = server.stats();
        usize::try_from(stats.parked_cancels + stats.refused + stats.unknown_cancels).unwrap_or(usize::MAX)
    };
    for n in 0..WARM_UP {
        stranger.cancel(&json!(n)).await;
    }
    until("they are counted", || taken() >= WARM_UP).await;
    let mut memory = Memory::begin();
    for n in WARM_UP..WARM_UP + count {
        stranger.cancel(&json!(n)).await;
        memory.look(n);
    }
    stranger.flush().await;
    until("every cancel is counted (I8)", || taken() >= WARM_UP + count).await;
    assert_eq!(server.stats().parked_cancels, PARKED, "I8: {:?}", server.stats());
    memory.is_within(MEMORY, "early cancels");
    let id = json!(WARM_UP + count);
    stranger.request(&id, "echo", &json!({"n": 1})).await;
    let answer = stranger.hear().await;
    assert_eq!((&answer["id"], &answer["result"]), (&id, &json!({"n": 1})), "it runs");
    is_clean(&server, &alive).await;
    stranger.leave();
    in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
}
