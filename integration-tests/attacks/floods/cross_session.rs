//! Cancels between sessions that have the same ids.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::{Alive, kept_open, router};
use crate::agent::limits;
use crate::flood_sizes::million_over;
use crate::raw_client::{Hears, RawClient};
use crate::wires::Wire;
use crate::{in_time, until};

/// Sessions with the same ids.
const SESSIONS: usize = 64;
/// The number of requests of each session.
const SAME_IDS: usize = 2;
/// How many cancels one session sends before it waits until they have arrived.
const ON_THE_WAY: usize = 16;

/// Half of the sessions have running requests. The others have had requests with the same ids, and send cancels.
pub(super) async fn cross(wire: Wire) {
    let mut door = wire.listen(kept_open()).await;
    let limits = limits();
    let (mut victims, mut attackers) = (Vec::new(), Vec::new());
    for at in 0..SESSIONS {
        let alive = Alive::default();
        let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
        let runs = at % 2 == 0;
        for id in 0..SAME_IDS {
            stranger.request(&json!(id), if runs { "wait" } else { "echo" }, &json!({})).await;
        }
        stranger.flush().await;
        if runs {
            until("they run", || alive.now.load(Ordering::SeqCst) == SAME_IDS).await;
            victims.push((stranger, server, alive));
        } else {
            for _ in 0..SAME_IDS {
                assert_eq!(stranger.hear().await["result"], json!({}));
            }
            attackers.push((stranger, server));
        }
    }
    let each = million_over(&wire) / attackers.len();
    let attacks = attackers.into_iter().map(|(mut stranger, server)| {
        tokio::spawn(async move {
            for n in 0..each {
                let id = n / 2 % SAME_IDS;
                stranger.cancel(&if n % 2 == 0 { json!(id) } else { json!(id.to_string()) }).await;
                // Over HTTP/1.1 each cancel on its way has a connection.
                if n % ON_THE_WAY == 0 {
                    stranger.flush().await;
                }
            }
            stranger.flush().await;
            (stranger, server)
        })
    });
    let mut gone = Vec::new();
    for attack in attacks.collect::<Vec<_>>() {
        let (stranger, server) = attack.await.expect("an attack");
        let taken = || {
            let stats = server.stats();
            stats.unknown_cancels + stats.parked_cancels + stats.refused
        };
        until("every cancel is counted", || taken() >= each as u64).await;
        assert_eq!(server.stats().cancelled, 0);
        gone.push((stranger, server));
    }
    for (_, server, alive) in &victims {
        let stats = server.stats();
        let untouched = (alive.now.load(Ordering::SeqCst), stats.running, stats.cancelled);
        assert_eq!(untouched, (SAME_IDS, SAME_IDS as u64, 0), "I4: {stats:?}");
    }
    // Their own cancels have an effect.
    for (stranger, _, alive) in &mut victims {
        stranger.cancel(&json!(0)).await;
        stranger.flush().await;
        assert_eq!(stranger.hear().await["error"]["code"], -32_800);
        assert_eq!(alive.now.load(Ordering::SeqCst), SAME_IDS - 1);
    }
    for (stranger, server) in gone.into_iter().chain(victims.into_iter().map(|(s, p, _)| (s, p))) {
        stranger.leave();
        in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
    }
}
