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

/// Whether this system tells a process what it holds.
const IS_TOLD: bool = cfg!(target_os = "linux");

/// Where nothing can be counted it is said, as a count of nothing would hold any limit.
pub(crate) fn say_if_untold(what: &str) {
    if !IS_TOLD {
        eprintln!("counted: NOTHING of {what}: this system does not tell what a process holds");
    }
}

/// This process's resident memory, in bytes; 0 where the system does not tell.
pub(crate) fn resident() -> usize {
    if !IS_TOLD {
        return 0;
    }
    let held = rescind_testkit::resident_memory(None).expect("the system tells");
    usize::try_from(held).expect("no process holds more than it can address")
}

/// The descriptors this process has open; 0 where the system does not tell.
fn descriptors() -> usize {
    if !IS_TOLD {
        return 0;
    }
    let open = rescind_testkit::open_descriptors(None).expect("the system tells");
    usize::try_from(open).expect("no process has so many")
}

async fn thousand(wire: Wire) {
    say_if_untold(wire.name);
    // Fewer would be another test: it fails where it may not have as many.
    rescind_testkit::allow_open_files((CONNECTIONS * DESCRIPTORS) as u64).unwrap();
    let count = CONNECTIONS;
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
                resident = self::resident();
            }
        }
        let each = self::resident().saturating_sub(resident) / count;
        eprintln!("counted: {count} connections over {}, {each} bytes each with both ends", wire.name);
        assert!(each <= BUDGET, "a connection holds {each} bytes");
        let mut rest = Vec::new();
        for (number, call) in calls.into_iter().enumerate() {
            if number % 2 == 0 {
                call.canceller().cancel("half");
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
    until("I3: no descriptor is left", || descriptors() <= before).await;
}
