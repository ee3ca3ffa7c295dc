//! The faults that belong to wires, each on every wire where it makes sense, as a test of its own: `fault::case::wire`.
//!
//! `wires.rs` is the table of wires; a fault is a file. What a crate's own tests prove of a fault on their wire is not
//! repeated here. These do, by name in `covered.rs`, which checks that they are there:
//!
//! | fault | wire | where |
//! |---|---|---|
//! | half-open peer, by pings | WebSocket | `link/tests.rs` |
//! | oversize, malformed, endless head, fragments, byte by byte | WebSocket | `messages.rs`, `refusals.rs` |
//! | slow handshake, slow body | WebSocket, HTTP | `refusals.rs` |
//! | slow event stream, resume after a cut, two connections of one session | HTTP streamable | `streams.rs` |
//! | early cancel before its request over two POSTs, pipelining, a burst over HTTP/2 | HTTP streamable | `streams.rs` |
//! | identity | HTTP | `refusals.rs`, `status.rs`, `streams.rs` |
//! | leaving is the cancel | HTTP stateless | `leaving.rs` |
//! | restart with a stale socket file, two listeners on one path, 1,000 links | named pipe | `ownership.rs` |
//! | 1,000 idle links within their memory | WebSocket | `thousand.rs` |
//! | a child that dies, stops or hangs | stdio | `child.rs` |
//! | bad input at every level, in both framings | bytes | `bad_input.rs` |
//!
//! `cargo test -p rescind-integration-tests --test faults slow_reader` runs those whose name has that.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

mod agent;
mod bad_input;
mod burst;
mod covered;
mod cross_session;
mod disconnect;
mod half_open;
mod many;
mod raw;
mod slow_reader;
#[cfg(unix)]
mod stdio;
mod valve;
mod wires;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

/// After so long a wait counts as a hang.
const HANG: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Ok(state) = std::env::var(stdio::AGENT) {
        return stdio::serve(&state);
    }
    let arguments = Arguments::from_args();
    let faults = [
        bad_input::trials,
        burst::trials,
        covered::trials,
        cross_session::trials,
        disconnect::trials,
        half_open::trials,
        many::trials,
        slow_reader::trials,
        #[cfg(unix)]
        stdio::trials,
    ];
    let trials = faults.into_iter().flat_map(|trials| trials()).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A test on a runtime of its own, of which no task may be left.
fn trial<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let metrics = runtime.metrics();
        runtime.block_on(async {
            test().await;
            until("no task is left behind", || metrics.num_alive_tasks() == 0).await;
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(())
    })
}

/// The same in a process of its own, for what counts memory or descriptors, or takes many.
fn alone<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    const ALONE: &str = "RESCIND_FAULT_ALONE";
    if std::env::var_os(ALONE).is_some_and(|alone| *alone == *name) {
        return trial(name, test);
    }
    Trial::test(name.clone(), move || {
        let program = std::env::current_exe()?;
        let mut alone = std::process::Command::new(program);
        let done = alone.args(["--exact", &name]).env(ALONE, &name).output()?;
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        for line in err.lines().filter(|line| line.starts_with("counted: ")) {
            eprintln!("{name}: {line}");
        }
        if done.status.success() && out.contains("1 passed") {
            return Ok(());
        }
        Err(format!("{out}\n{err}").into())
    })
}

/// Fails a test that hangs.
async fn in_time<T>(what: &str, wait: impl IntoFuture<Output = T>) -> T {
    let waited = tokio::time::timeout(HANG, wait.into_future()).await;
    waited.unwrap_or_else(|_| panic!("hangs: {what}"))
}

/// Waits for what only a counter tells.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    in_time(what, async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
