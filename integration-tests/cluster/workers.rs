//! `rescind worker`: work that a request hands to another process stops with its request.

use std::process::Stdio;

use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};

use crate::backend::Backend;
use crate::nodes::Replicas;

/// A running worker. It is killed on drop.
struct Worker {
    process: Child,
    events: Lines<BufReader<ChildStdout>>,
    _stderr: Lines<BufReader<ChildStderr>>,
}

impl Worker {
    async fn start(replicas: &Replicas) -> Self {
        let mut command = replicas.worker();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let events = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut stderr = BufReader::new(process.stderr.take().unwrap()).lines();
        let line = in_time("a worker starts", stderr.next_line()).await.unwrap();
        assert_eq!(line.as_deref(), Some("working"));
        Self { process, events, _stderr: stderr }
    }

    /// The next event, which must be this one of the request with this key.
    async fn event(&mut self, event: &str, key: &str) {
        assert_eq!(self.key_of(event).await, key);
    }

    /// The key of the request that the next event is about. The event must be this one.
    async fn key_of(&mut self, event: &str) -> String {
        let line = in_time(event, self.events.next_line()).await.unwrap().expect("the worker ended");
        let said: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(said["event"], event, "{line}");
        assert!(said["ms"].is_u64(), "{line}");
        said["key"].as_str().unwrap().to_owned()
    }
}

/// A worker stops when the client cancels its request or an operator does, and otherwise its result is the answer.
pub(crate) async fn a_worker_stops_with_its_request(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let mut worker = Worker::start(&replicas).await;
    let session = replicas.session(0).await;
    let begin = async |number: u64, ms: u64| {
        let running = session.begin(all[1], number, "test/remote", &json!({ "ms": ms })).await.unwrap();
        (running, session.key(all[2], number).await)
    };
    let (running, key) = begin(10, 600).await;
    worker.event("started", &key).await;
    worker.event("finished", &key).await;
    let answer = in_time("its answer", running.answer(10)).await.unwrap().unwrap();
    assert_eq!(answer["result"]["worked_ms"], 600, "{answer}");

    let (running, key) = begin(11, 60_000).await;
    worker.event("started", &key).await;
    session.cancel(all[1], 11).await;
    worker.event("cancelled", &key).await;
    assert_eq!(in_time("its end", running.answer(11)).await.unwrap(), None);

    let (running, key) = begin(12, 60_000).await;
    worker.event("started", &key).await;
    let said = replicas.cancel(&key, &["--reason", "too dear"]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    worker.event("cancelled", &key).await;
    let answer = in_time("its answer", running.answer(12)).await.unwrap().unwrap();
    assert!(answer["error"]["message"].as_str().unwrap().contains("operator"), "{answer}");
}

/// A worker that takes the job after the cancel stops at once.
pub(crate) async fn a_worker_that_begins_late_stops_at_once(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let params = json!({ "ms": 60_000, "_meta": { "progressToken": "job" } });
    let mut running = session.begin(all[1], 10, "test/remote", &params).await.unwrap();
    let queued = in_time("its job is queued", running.event()).await.unwrap().unwrap();
    assert_eq!(queued.message["params"]["progressToken"], "job", "{queued:?}");
    let key = session.key(all[2], 10).await;
    let said = replicas.cancel(&key, &[]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(in_time("its answer", running.answer(10)).await.unwrap().is_some());
    let mut worker = Worker::start(&replicas).await;
    worker.event("started", &key).await;
    worker.event("cancelled", &key).await;
}

/// The job of a worker that is killed is lost: no other worker gets it. Its request waits until it is cancelled.
pub(crate) async fn a_killed_worker_loses_its_job_and_hangs_nobody(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let mut killed = Worker::start(&replicas).await;
    let session = replicas.session(0).await;
    let lost = session.begin(all[1], 10, "test/remote", &json!({ "ms": 60_000 })).await.unwrap();
    let key = session.key(all[2], 10).await;
    killed.event("started", &key).await;
    in_time("it is killed", killed.process.kill()).await.unwrap();
    let mut other = Worker::start(&replicas).await;
    let next = session.begin(all[1], 11, "test/remote", &json!({ "ms": 10 })).await.unwrap();
    // It may have ended before the session could be asked for its key. That of the lost job is another.
    let lost_key = key;
    let key = other.key_of("started").await;
    assert_ne!(key, lost_key);
    other.event("finished", &key).await;
    let answer = in_time("its answer", next.answer(11)).await.unwrap().unwrap();
    assert_eq!(answer["result"]["worked_ms"], 10, "{answer}");
    session.cancel(all[2], 10).await;
    assert_eq!(in_time("its end", lost.answer(10)).await.unwrap(), None);
}
