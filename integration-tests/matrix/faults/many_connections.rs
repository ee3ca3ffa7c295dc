//! Many connections at once, each count in a separate process.

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::agent::{End, ended, limits, open_at};
use crate::held::{IS_REPORTED, descriptors};
use crate::wires::{Setting, WIRES, Wire};
use crate::{alone, until};

const CONNECTIONS: usize = 1000;
/// The most descriptors of a connection here, for both ends and with a separate connection for every POST: HTTP/1.1.
const DESCRIPTORS: usize = 8;
/// The most memory of a connection with its two drivers and a running handler, in bytes, for both ends.
const BUDGET: usize = 192 * 1024;

pub(crate) fn trials() -> Vec<Trial> {
    let thousand = WIRES.into_iter().map(|wire| {
        let name = format!(
            "many_connections::a_thousand_connections_and_half_of_their_requests_cancelled::{}",
            wire.name
        );
        alone(name, move || thousand(wire))
    });
    thousand.collect()
}

/// Prints that nothing can be counted, because a count of zero would satisfy any limit.
pub(crate) fn say_if_untold(what: &str) {
    if !IS_REPORTED {
        eprintln!("counted: NOTHING of {what}: this system does not tell what a process holds");
    }
}

async fn thousand(wire: Wire) {
    say_if_untold(wire.name);
    // Fewer connections would be a different test: it fails if it may not open this many files.
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
            // The first connections also allocate what the process needs once.
            if number == 20 {
                resident = crate::held::resident();
            }
        }
        let each = crate::held::resident().saturating_sub(resident) / count;
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
