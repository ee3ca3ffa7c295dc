//! Nodes whose time of day is wrong, and changes while requests run: what the library `libfaketime` shows them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use rescind_testkit::support::in_time;
use serde_json::json;

use crate::backend::Backend;
use crate::nodes::{NODES, Node, Replicas, Setup};
use crate::trial::{poll_until, report};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "RESCIND_FAKETIME";
const HOUR: i64 = 3600;
/// Longer than a node without its heartbeat is known, which is 10 s and what the engine adds.
const LIFE: Duration = Duration::from_secs(14);

/// The time of day that a node sees: it differs from ours by what is written into a file.
struct Clock {
    file: PathBuf,
}

impl Clock {
    /// Starts a node whose clock differs from ours by so many seconds.
    async fn start(replicas: &mut Replicas, name: &str, offset: i64) -> Self {
        let clock = Self { file: replicas.file(name, "").into() };
        clock.set(offset);
        let command = clock.shown_to(replicas.command(name, &[]));
        let node = Node::start(name, command).await.unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", node.process_id())).unwrap();
        assert!(maps.contains("libfaketime"), "the node has loaded the library");
        replicas.nodes.push(node);
        clock
    }

    fn shown_to(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", env::var_os(VARIABLE).unwrap());
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file).env("FAKETIME_NO_CACHE", "1");
        // Waits are measured by the other clock, which nobody sets.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }

    /// Sets it. A program that asks for the time of day sees the change.
    fn set(&self, offset: i64) {
        fs::write(&self.file, format!("{offset:+}")).unwrap();
        let mut date = Command::new("date");
        date.arg("+%s");
        let output = self.shown_to(date).output().unwrap();
        let shown: i64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        assert!((shown - ours - offset).abs() < 10, "it shows {shown}, ours {ours}, wanted {offset:+}");
    }
}

/// Requests and cancels for each node through each other one, and cancels of an operator.
async fn works(replicas: &Replicas, first_id: u64) {
    let all = replicas.addresses();
    let mut id = first_id;
    for owner in 0..all.len() {
        let session = replicas.session(owner).await;
        for through in &all {
            let running = session.begin(*through, id, "test/wait", &json!({})).await.unwrap();
            session.cancel(*through, id).await;
            assert_eq!(in_time("its end", running.answer(id)).await.unwrap(), None);
            id += 1;
        }
        let running = session.begin(all[owner], id, "test/wait", &json!({})).await.unwrap();
        let key = session.key(all[owner], id).await;
        let said = replicas.cancel(&key, &[]).await;
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        let answer = in_time("the answer", running.answer(id)).await.unwrap().expect("it was not answered");
        assert!(answer["error"]["message"].as_str().unwrap().contains("operator"), "{answer}");
        id += 1;
    }
}

/// A node is an hour early and one an hour late. Then the clock of one jumps by two hours, back and forth.
pub(crate) async fn a_wrong_clock_has_no_effect(backend: Backend) {
    let mut replicas = Replicas::without_nodes(backend, Setup::default());
    let early = Clock::start(&mut replicas, NODES[0], HOUR).await;
    let _late = Clock::start(&mut replicas, NODES[1], -HOUR).await;
    let right = Node::start(NODES[2], replicas.command(NODES[2], &[])).await.unwrap();
    replicas.nodes.push(right);
    replicas.write_list();
    let all = replicas.addresses();
    let sessions = [replicas.session(0).await, replicas.session(1).await, replicas.session(2).await];
    for session in &sessions {
        for through in &all {
            poll_until("the nodes know each other", async || session.status(*through).await == 200).await;
        }
    }
    works(&replicas, 100).await;
    let running = sessions[0].begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let since = Instant::now();
    let mut asked = 0;
    // Its entry in the engine lives for less, so it must be written again by a clock that is wrong.
    while since.elapsed() < LIFE {
        early.set(if asked % 2 == 0 { -HOUR } else { HOUR });
        for (owner, session) in sessions.iter().enumerate() {
            for through in &all {
                assert_eq!(
                    session.status(*through).await,
                    200,
                    "the session of {} at {through}",
                    NODES[owner]
                );
                asked += 1;
            }
        }
        // Times to live are kept by the engine, another process, in real time: it has to pass.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    early.set(-HOUR);
    works(&replicas, 200).await;
    sessions[0].cancel(all[2], 10).await;
    assert_eq!(in_time("its end", running.answer(10)).await.unwrap(), None, "it ran meanwhile");
    report(backend, &format!("a clock that jumps: {asked} requests, none refused, in"), since.elapsed());
}
