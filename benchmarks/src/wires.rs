//! The wires: in memory, and pipes to a child process, which is this program once more.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rescind_core::{Link, Transport, memory_pair};
use rescind_stdio::Descriptors;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};

use crate::Client;
use crate::floor::{self, FloorClient};
use crate::peer::{self, PeerClient};

const SERVE: &str = "RESCIND_BENCHMARK_SERVES";

/// The two subjects on wires of one kind.
#[derive(Debug)]
pub struct Pair {
    /// Through `Peer`.
    pub ours: Client,
    /// Without.
    pub floor: Client,
    children: Vec<Child>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Both in this process; their servers are tasks of this runtime.
#[must_use]
pub fn in_memory() -> Pair {
    let (client, server) = memory_pair();
    let serving = peer::serve(server);
    tokio::spawn(async move { serving.closed().await });
    let ours = Client::Ours(PeerClient::new(client));
    let (client, server) = memory_pair();
    tokio::spawn(floor::serve(server));
    Pair { ours, floor: Client::Floor(FloorClient::new(client)), children: Vec::new() }
}

/// Each with a server in a process of its own, over the pipes of its stdin and stdout.
pub async fn over_pipes() -> Pair {
    let (ours, our_child) = child("ours").await;
    let (floor, floor_child) = child("floor").await;
    Pair {
        ours: Client::Ours(PeerClient::new(ours)),
        floor: Client::Floor(FloorClient::new(floor)),
        children: vec![our_child, floor_child],
    }
}

async fn child(serves: &str) -> (Link, Child) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .env(SERVE, serves)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts once more");
    let input = OwnedFd::from(child.stdout.take().expect("piped"));
    let output = OwnedFd::from(child.stdin.take().expect("piped"));
    (open(input, output).await, child)
}

async fn open(input: OwnedFd, output: OwnedFd) -> Link {
    Box::new(Descriptors::new(input, output)).open().await.expect("pipes open")
}

/// Serves and does not return, if this process was started by [`over_pipes`].
pub fn serve_if_asked() {
    let Ok(serves) = std::env::var(SERVE) else { return };
    let own = |descriptor: &dyn AsFd| descriptor.as_fd().try_clone_to_owned().expect("a descriptor is free");
    let (input, output) = (own(&std::io::stdin()), own(&std::io::stdout()));
    one_thread().block_on(async {
        let link = open(input, output).await;
        if serves == "ours" {
            let _ = peer::serve(link).closed().await;
        } else {
            floor::serve(link).await;
        }
    });
    std::process::exit(0);
}

/// Moves this process to another core than the one its parent pinned it to; where there is none it stays.
pub(crate) fn leave_the_first_core() {
    let pinned = sched_getaffinity(None).expect("the scheduler says");
    for core in (0..64).filter(|core| !pinned.is_set(*core)) {
        let mut other = CpuSet::new();
        other.set(core);
        // The system says which cores there are by what it takes.
        if sched_setaffinity(None, &other).is_ok() {
            return;
        }
    }
}

/// Runs on a thread that is pinned to one core; children it starts are pinned to the same.
///
/// # Panics
/// If the work does.
pub fn pinned<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            let allowed = sched_getaffinity(None).expect("the scheduler says");
            let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("there is a core");
            let mut one = CpuSet::new();
            one.set(core);
            sched_setaffinity(None, &one).expect("a thread may pin itself");
            work()
        });
        pinned.join().expect("the work ends")
    })
}

/// A current-thread runtime.
#[must_use]
pub fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

/// A runtime of two workers.
#[must_use]
pub fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}
