//! Plain pages in headless Chromium, which speak with ours without any library: `interop/page.html` over WebSocket, and
//! `interop/other-origin.html` over HTTP, from another origin than the server's.
//!
//! They need Node, so `cargo test` says that they are ignored, and `interop/run` runs them.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the test is made of is part of it")]

mod abp;
mod other_origin;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// Chromium is unpacked first; what hangs fails.
const LIMIT: Duration = Duration::from_secs(120);

/// Chromium with this page open, until the child's input ends. These host names are loopback to it.
fn browse(url: &str, hosts: &[&str]) -> Child {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    assert!(folder.join("node_modules").is_dir(), "run `npm ci` in {}", folder.display());
    let mut node = Command::new("node");
    node.arg(folder.join("browser.mjs")).arg(url).args(hosts).stdin(Stdio::piped()).kill_on_drop(true);
    node.spawn().expect("node starts")
}
