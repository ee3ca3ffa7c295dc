//! Plain pages in headless Chromium that communicate with our servers without a library: `interop/page.html` over
//! WebSocket, and `interop/other-origin.html` over HTTP, from an origin other than the server's. And the live page of a
//! server.
//!
//! They need Node, so `cargo test` reports them as ignored, and `interop/run` runs them.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the test is made of is part of it")]

mod abp;
mod live_page;
mod other_origin;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// Includes the time to unpack Chromium. A test that hangs fails.
const LIMIT: Duration = Duration::from_secs(120);

/// Chromium with this page open, until the child's input ends. It resolves these host names to loopback.
fn browse(url: &str, hosts: &[&str]) -> Child {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    assert!(folder.join("node_modules").is_dir(), "run `npm ci` in {}", folder.display());
    let mut node = Command::new("node");
    node.arg(folder.join("browser.mjs")).arg(url).args(hosts).stdin(Stdio::piped()).kill_on_drop(true);
    node.spawn().expect("node starts")
}
