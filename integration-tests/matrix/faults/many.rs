//! Many connections at once, each counted in a process of its own.

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::agent::{End, ended, limits, open_at};
use crate::wires::{Setting, WIRES, Wire};
use crate::{alone, until};

const CONNECTIONS: usize = 1000;
/// The most descriptors a connection takes here, both ends and every POST on its own: HTTP/1.1.
const DESCRIPTORS: usize = 8;
/// What a connection may hold with its two drivers and a handler that runs, in bytes, both ends.
const BUDGET: usize = 192 * 1024;

pub(crate) fn trials() -> Vec<Trial> {
    let thousand = WIRES.into_iter().map(|wire| {
        let name =
            format!("many::a_thousand_connections_and_half_of_their_requests_cancelled::{}", wire.name);
        alone(name, move || thousand(wire))
    });
    thousand.collect()
}

/// How many connections this process may have, said aloud if they are fewer.
fn connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let most = line.split_whitespace().nth(3).and_then(|most| most.parse().ok()).unwrap_or(usize::MAX);
    let fit = CONNECTIONS.min(most / DESCRIPTORS);
    if fit < CONNECTIONS {
        eprintln!("counted: only {fit} connections, as this process may have {most} descriptors");
    }
    fit
}

/// A number of a line of this process's own report; 0 where there is none.
pub(crate) fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim_start_matches(':').split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

async fn thousand(wire: Wire) {
    let count = connections();
    let limits = limits();
    let before = descriptors();
    {
        let setting = Setting { idle: std::time::Duration::from_secs(300), ..Setting::default() };
        let mut door = wire.listen(setting).await;
        let mut pairs: Vec<(End, End)> = Vec::with_capacity(count);
        let mut calls = Vec::with_capacity(count);
        let mut resident = 0;
        for number in 0..count {
            let (client, server) = open_at(&mut door, &limits).await;
            calls.push(client.peer.call::<_, Value>("wait", &json!({"n": number})).start().unwrap());
            server.seen.until(&format!("wait {number} began")).await;
            pairs.push((client, server));
            // The first ones bring along what the process needs once.
            if number == 20 {
                resident = status("VmRSS");
            }
        }
        let each = status("VmRSS").saturating_sub(resident) * 1024 / count;
        eprintln!("counted: {count} connections over {}, {each} bytes each with both ends", wire.name);
        assert!(each <= BUDGET, "a connection holds {each} bytes");
        let mut rest = Vec::new();
        for (number, call) in calls.into_iter().enumerate() {
            if number % 2 == 0 {
                let _ = call.canceller().cancel("half");
                assert_eq!(ended(call).await, "cancelled by caller, confirmed");
            } else {
                rest.push(call);
            }
        }
        let alive = |pairs: &[(End, End)]| pairs.iter().map(|(_, server)| server.seen.alive()).sum::<usize>();
        assert_eq!(alive(&pairs), rest.len(), "I4: half of them, and no other");
        for (client, _) in &pairs {
            client.valve.cut();
        }
        for call in rest {
            assert_eq!(ended(call).await, "disconnected, may have run");
        }
        until("I3: every handler is gone", || alive(&pairs) == 0).await;
        for (client, server) in &pairs {
            server.valve.cut();
            client.is_clean("the client").await;
            server.is_clean("the server").await;
        }
    }
    until("no descriptor is left", || descriptors() <= before).await;
}
