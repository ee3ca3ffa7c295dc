//! A thousand idle connections, in a separate process, so that its memory is theirs.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod common;

use common::{accept, body, listen, send};
use rescind_core::{Link, Listener, Transport};
use rescind_websocket::{UpgradeOptions, connect};

const CONNECTIONS: usize = 1000;
/// The limit in bytes for one end of an idle connection.
const BUDGET: usize = 48 * 1024;

/// Resident memory, in bytes.
fn resident() -> usize {
    usize::try_from(rescind_testkit::resident_memory(None).unwrap()).unwrap()
}

async fn exchange(client: &mut Link, server: &mut Link, number: usize) {
    send(client, format!("{{\"id\":{number}}}")).await.unwrap();
    assert_eq!(body(server).await, format!("{{\"id\":{number}}}"));
    send(server, format!("{{\"id\":{number},\"result\":{{}}}}")).await.unwrap();
    assert_eq!(body(client).await, format!("{{\"id\":{number},\"result\":{{}}}}"));
}

#[tokio::test]
async fn a_thousand_idle_connections_stay_within_their_memory_budget() {
    // Both ends of each connection are in this process.
    rescind_testkit::allow_open_files(2 * CONNECTIONS as u64 + 100).unwrap();
    let mut listener = listen(UpgradeOptions::new()).await;
    let url = listener.endpoint().0;
    let mut links: Vec<(Link, Link)> = Vec::with_capacity(CONNECTIONS);
    let mut before = 0;
    for number in 0..CONNECTIONS + 10 {
        let (client, server) = tokio::join!(Box::new(connect(&url)).open(), accept(&mut listener));
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        exchange(&mut client, &mut server, number).await;
        links.push((client, server));
        // The first connections also allocate what the process needs once.
        if number == 9 {
            before = resident();
        }
    }
    let grown = resident().saturating_sub(before);
    let end = grown / CONNECTIONS / 2;
    println!("{CONNECTIONS} idle connections, both ends here: {} KiB more, {end} bytes an end", grown / 1024);
    assert!(end <= BUDGET, "an end of an idle connection holds {end} bytes");
    for (number, (client, server)) in links.iter_mut().enumerate() {
        exchange(client, server, number).await;
    }
}
