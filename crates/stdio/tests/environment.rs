//! The environment variables that a child inherits.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::future::poll_fn;

use rescind_core::{Transport, TransportEvent};
use rescind_stdio::Command;

/// The first line of a child.
async fn says(command: Command) -> String {
    let mut link = Box::new(command).open().await.unwrap();
    match poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await {
        Some(Ok(TransportEvent::Message(inbound))) => String::from_utf8(inbound.body.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_child_gets_only_the_environment_that_it_is_given() {
    let script = r#"echo "[${CARGO_MANIFEST_DIR-}] [${GIVEN-}] [${EARLIER-}]""#;
    let shell = || Command::new("/bin/sh").arg("-c").arg(script);
    let ours = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    assert_eq!(says(shell().env("GIVEN", "1")).await, format!("[{ours}] [1] []"));
    assert_eq!(says(shell().env("EARLIER", "2").env_clear().env("GIVEN", "1")).await, "[] [1] []");
    assert_eq!(says(shell().env_remove("CARGO_MANIFEST_DIR")).await, "[] [] []");
}
