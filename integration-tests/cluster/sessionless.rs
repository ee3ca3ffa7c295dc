//! Replicas without sessions, and workers.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};

use super::client::{Binding, Response, Session};
use super::nodes::{Backend, Replicas, Setup};
use super::trial::{poll_until, report};

// Replicas without sessions: a cancel is found by its principal and the id of its request, on any replica.

const TOKENS: [&str; 2] = ["a-long-token-of-one", "a-long-token-of-two"];

/// Three replicas that know each other, and a client of each principal.
async fn start(backend: Backend) -> (Replicas, [Session; 2]) {
    let mut arguments = vec!["--sessionless".to_owned()];
    for (name, token) in ["one", "two"].into_iter().zip(TOKENS) {
        arguments.extend(["--token".to_owned(), format!("{name}={token}")]);
    }
    let replicas = Replicas::start_with(backend, Setup { arguments, ..Setup::default() }).await;
    let clients = TOKENS.map(|token| Session::without_id(Binding::Streamable, token));
    if backend == Backend::List {
        // The list was written after they had started, and each reads it now and then.
        let all = replicas.addresses();
        for (id, (from, to)) in (1..).zip([(0, 1), (1, 2), (2, 0)]) {
            let mut ended = false;
            let running = wait(&clients[0], &replicas, to, id).await;
            let mut end = Box::pin(running.answer(id));
            poll_until("the replicas know each other", async || {
                clients[0].cancel(all[from], id).await;
                let soon = Duration::from_millis(20);
                ended |= tokio::time::timeout(soon, &mut end).await.is_ok();
                ended
            })
            .await;
        }
    }
    (replicas, clients)
}

/// Begins a request that ends when it is cancelled. A cancel can come before its handler starts.
async fn begin(client: &Session, replicas: &Replicas, at: usize, id: u64) -> Response {
    let running = client.begin(replicas.nodes[at].address, id, "test/wait", &json!({})).await.unwrap();
    assert_eq!(running.status, 200);
    running
}

/// Begins a request that ends when it is cancelled, and waits until its handler runs.
async fn wait(client: &Session, replicas: &Replicas, at: usize, id: u64) -> Response {
    let before = stats(client, replicas, at).await["started"].as_u64();
    let running = begin(client, replicas, at, id).await;
    poll_until("its handler runs", async || stats(client, replicas, at).await["started"].as_u64() > before)
        .await;
    running
}

/// The stream of a cancelled request ends without an answer.
async fn ends_silently(running: Response, id: u64) {
    let answer = in_time("the end of a cancelled request", running.answer(id)).await.unwrap();
    assert_eq!(answer, None, "MCP owes a cancelled request silence");
}

/// The number of handlers that run, and of those that were cancelled, as a replica tells them.
async fn handlers(client: &Session, replicas: &Replicas, at: usize) -> (u64, u64) {
    let stats = stats(client, replicas, at).await;
    let count = |name: &str| stats[name].as_u64().unwrap();
    (count("running"), count("cancelled"))
}

/// The counts of all replicas, as one of them tells them.
async fn stats(client: &Session, replicas: &Replicas, at: usize) -> Value {
    let mut stats = Value::Null;
    poll_until("all replicas are counted", async || {
        let answer = client.ask(replicas.nodes[at].address, 2_000_000, "test/stats", json!({})).await;
        stats = answer["result"].clone();
        stats["fixtures"] == replicas.nodes.len()
    })
    .await;
    stats
}

/// A cancel at any replica stops the request and its handler.
pub(crate) async fn a_cancel_finds_its_request_without_a_session(backend: Backend) {
    let (replicas, [client, _]) = start(backend).await;
    let all = replicas.addresses();
    for (id, (begins, cancels)) in (10..).zip([(0, 0), (0, 1), (1, 0), (1, 2), (2, 1), (2, 0)]) {
        let (_, before) = handlers(&client, &replicas, begins).await;
        let running = wait(&client, &replicas, begins, id).await;
        client.cancel(all[cancels], id).await;
        ends_silently(running, id).await;
        poll_until("its handler has ended", async || {
            handlers(&client, &replicas, begins).await == (0, before + 1)
        })
        .await;
        // The id is free again.
        let answer = client.ask(all[cancels], id + 100, "test/echo", json!({ "value": id })).await;
        assert_eq!(answer["result"]["value"], id, "{answer}");
    }
}

/// A cancel of another principal has no effect on a request with the same id.
pub(crate) async fn a_cancel_of_another_principal_has_no_effect(backend: Backend) {
    let (replicas, [client, other]) = start(backend).await;
    let all = replicas.addresses();
    let (_, before) = handlers(&client, &replicas, 0).await;
    let running = wait(&client, &replicas, 0, 10).await;
    // The other's own request on the same replica shows when its cancel has arrived.
    let others = wait(&other, &replicas, 0, 10).await;
    other.cancel(all[1], 10).await;
    ends_silently(others, 10).await;
    poll_until("the other handler has ended", async || {
        handlers(&client, &replicas, 0).await == (1, before + 1)
    })
    .await;
    client.cancel(all[2], 10).await;
    ends_silently(running, 10).await;
    poll_until("both have ended", async || handlers(&client, &replicas, 0).await == (0, before + 2)).await;
}

/// A cancel that overtakes its request on the way through the balancer stops it, on whichever replica it begins.
pub(crate) async fn an_early_cancel_finds_its_request_without_a_session(backend: Backend) {
    let (replicas, [client, _]) = start(backend).await;
    let all = replicas.addresses();
    for (id, (cancels, begins)) in (10..).zip([(0, 1), (1, 2), (2, 2)]) {
        client.cancel(all[cancels], id).await;
        ends_silently(begin(&client, &replicas, begins, id).await, id).await;
        poll_until("no handler runs", async || handlers(&client, &replicas, begins).await.0 == 0).await;
    }
}

/// A cancel that comes after its answer ends the next request with this id only if that begins within 2 s, on any replica.
pub(crate) async fn a_late_cancel_is_forgotten_without_a_session(backend: Backend) {
    let (replicas, [client, _]) = start(backend).await;
    let all = replicas.addresses();
    // It takes so long that the record of a cancel is found while it runs.
    let work = async |at: usize| {
        let running = client.begin(all[at], 10, "test/sleep", &json!({ "ms": 100 })).await.unwrap();
        assert_eq!(running.status, 200);
        in_time("its end", running.answer(10)).await.unwrap()
    };
    assert!(work(0).await.is_some());
    // The id again, without a cancel.
    assert!(work(1).await.is_some());
    client.cancel(all[2], 10).await;
    let cancelled = Instant::now();
    let mut at = 0;
    let forgotten = poll_until("the cancel is forgotten", async || {
        at += 1;
        work(at % all.len()).await.is_some()
    })
    .await;
    let expected = Duration::from_secs(1)..Duration::from_secs(4);
    assert!(expected.contains(&forgotten), "{forgotten:?}");
    report(backend, "without sessions: a late cancel is forgotten", cancelled.elapsed());
    // Afterwards the id is as any other.
    for (begins, cancels) in [(0, 1), (1, 1), (2, 0)] {
        poll_until("it is answered", async || work(begins).await.is_some()).await;
        let running = wait(&client, &replicas, begins, 10).await;
        client.cancel(all[cancels], 10).await;
        ends_silently(running, 10).await;
        poll_until("no handler runs", async || handlers(&client, &replicas, begins).await.0 == 0).await;
    }
}

/// A cancel that the engine did not confirm is answered with an error.
pub(crate) async fn a_cancel_without_the_engine_is_no_silent_success(backend: Backend) {
    let (mut replicas, [client, _]) = start(backend).await;
    let all = replicas.addresses();
    let running = wait(&client, &replicas, 0, 10).await;
    replicas.engine.as_mut().unwrap().end();
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10}}"#;
    let refused = in_time("an error", client.post(all[1], cancel)).await.unwrap();
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
    assert_eq!(handlers(&client, &replicas, 0).await.0, 1, "it goes on");
    // Where it runs, the cancel needs no engine.
    client.cancel(all[0], 10).await;
    ends_silently(running, 10).await;
}

// `rescind worker`: work that a request hands to another process stops with its request.

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
        let (said, key) = self.next(event).await;
        assert_eq!(said, event, "{key}");
        key
    }

    /// The next event, and the key of its request.
    async fn next(&mut self, what: &str) -> (String, String) {
        let line = in_time(what, self.events.next_line()).await.unwrap().expect("the worker ended");
        let said: Value = serde_json::from_str(&line).unwrap();
        assert!(said["ms"].is_u64(), "{line}");
        (said["event"].as_str().unwrap().to_owned(), said["key"].as_str().unwrap().to_owned())
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

/// At SIGTERM a worker's job goes to another worker, and so does a job that the engine hands out meanwhile.
pub(crate) async fn a_worker_gives_its_jobs_back_at_sigterm(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let mut first = Worker::start(&replicas).await;
    let session = replicas.session(0).await;
    let running = session.begin(all[1], 10, "test/remote", &json!({ "ms": 1_000 })).await.unwrap();
    let key = session.key(all[2], 10).await;
    first.event("started", &key).await;
    let id = rustix::process::Pid::from_raw(first.process.id().unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    first.event("given back", &key).await;
    // Its take is still open at the engine.
    let next = session.begin(all[1], 11, "test/remote", &json!({ "ms": 10 })).await.unwrap();
    assert_eq!(in_time("it ends", first.process.wait()).await.unwrap().code(), Some(0));
    let mut other = Worker::start(&replicas).await;
    let mut started = Vec::new();
    while started.len() < 2 {
        let (event, key) = other.next("started").await;
        // The short one may end before the long one starts.
        assert!(event == "started" || event == "finished" && started.contains(&key), "{event} {key}");
        if event == "started" {
            started.push(key);
        }
    }
    assert!(started.contains(&key) && started[0] != started[1], "{started:?}");
    let answer = in_time("its answer", running.answer(10)).await.unwrap().unwrap();
    assert_eq!(answer["result"]["worked_ms"], 1_000, "{answer}");
    let answer = in_time("its answer", next.answer(11)).await.unwrap().unwrap();
    assert_eq!(answer["result"]["worked_ms"], 10, "{answer}");
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
