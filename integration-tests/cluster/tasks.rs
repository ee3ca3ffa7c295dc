//! Tasks: the id of a task names its node. Without sessions each replica passes questions about it on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use super::client::{Binding, Session, send};
use super::nodes::{Backend, Replicas, ServerOptions, Setup};
use super::trial::poll_until;

/// Longer than the entry of a node lives in the engine.
const ENTRY_LIVES: Duration = Duration::from_secs(11);
/// The interval of the nodes' heartbeats.
const BEAT: Duration = Duration::from_secs(3);

/// A request of that revision, and what it names.
pub(crate) fn request(method: &str, params: &Value) -> (String, String) {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    });
    let name = params["taskId"].as_str().or(params["name"].as_str()).unwrap_or_default().to_owned();
    let mut params = params.clone();
    params["_meta"] = meta;
    (json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string(), name)
}

/// Its headers.
pub(crate) fn headers<'a>(method: &'a str, name: &'a str) -> [(&'static str, &'a str); 3] {
    [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method), ("Mcp-Name", name)]
}

/// Sends a request of that revision, and returns the status and the answer.
async fn ask_stateless(replicas: &Replicas, at: usize, method: &str, params: &Value) -> (u16, Value) {
    let (body, name) = request(method, params);
    let headers = headers(method, &name);
    let response = in_time(method, send(replicas.nodes[at].address, "POST", &headers, &body)).await.unwrap();
    let status = response.status;
    (status, in_time(method, response.answer(1)).await.unwrap().unwrap_or_default())
}

async fn begin_task(replicas: &Replicas, at: usize) -> Value {
    begin_tool(replicas, at, "wait", &json!({ "as_task": true })).await
}

async fn begin_tool(replicas: &Replicas, at: usize, tool: &str, arguments: &Value) -> Value {
    let call = json!({ "name": tool, "arguments": arguments });
    let (status, answer) = ask_stateless(replicas, at, "tools/call", &call).await;
    assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("task")), "{answer}");
    json!({ "taskId": answer["result"]["taskId"] })
}

async fn status_of_task(replicas: &Replicas, at: usize, task: &Value) -> Value {
    let (_, answer) = ask_stateless(replicas, at, "tasks/get", task).await;
    answer["result"]["status"].clone()
}

async fn running_of_all(replicas: &Replicas, at: usize) -> Value {
    let call = json!({ "name": "stats", "arguments": {} });
    let (_, answer) = ask_stateless(replicas, at, "tools/call", &call).await;
    answer["result"]["structuredContent"]["running"].clone()
}

/// Three replicas without sessions that know each other.
async fn start(backend: Backend, server: ServerOptions) -> Replicas {
    let setup = Setup { binding: Binding::Stateless, server, ..Setup::default() };
    let replicas = Replicas::start_with(backend, setup).await;
    know_each_other(&replicas).await;
    replicas
}

/// Waits until each replica reaches each other one.
pub(crate) async fn know_each_other(replicas: &Replicas) {
    let all = 0..replicas.nodes.len();
    for begins in all.clone() {
        let task = begin_task(replicas, begins).await;
        for at in all.clone() {
            poll_until("the replicas know each other", async || {
                status_of_task(replicas, at, &task).await == "working"
            })
            .await;
        }
        is_stopped(replicas, &task, begins).await;
    }
}

/// A cancel at this replica stops the work of the only task that runs, as every replica says.
async fn is_stopped(replicas: &Replicas, task: &Value, at: usize) {
    let (status, answer) = ask_stateless(replicas, at, "tasks/cancel", task).await;
    assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("complete")), "{answer}");
    for at in 0..replicas.nodes.len() {
        assert_eq!(status_of_task(replicas, at, task).await, "cancelled", "I17");
    }
    poll_until("its work has stopped", async || running_of_all(replicas, at).await == 0).await;
}

/// A task is known on every replica, and a cancel at any of them stops its work.
pub(crate) async fn a_task_is_reached_through_every_replica(backend: Backend) {
    let setup = Setup { binding: Binding::Stateless, ..Setup::default() };
    let replicas = Replicas::start_with(backend, setup).await;
    for (begins, cancels) in [(0, 0), (0, 1), (1, 2), (2, 0)] {
        let task = begin_task(&replicas, begins).await;
        for at in 0..replicas.nodes.len() {
            poll_until("the replicas know each other", async || {
                status_of_task(&replicas, at, &task).await == "working"
            })
            .await;
        }
        let listened = json!({ "notifications": { "taskIds": [task["taskId"]] } });
        let (body, name) = request("subscriptions/listen", &listened);
        let headers = headers("subscriptions/listen", &name);
        let mut listening = send(replicas.nodes[cancels].address, "POST", &headers, &body).await.unwrap();
        let acknowledged = in_time("the acknowledgement", listening.event()).await.unwrap().unwrap().message;
        assert_eq!(acknowledged["params"]["notifications"]["taskIds"], json!([task["taskId"]]));
        let (status, answer) = ask_stateless(&replicas, cancels, "tasks/cancel", &task).await;
        assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("complete")), "{answer}");
        for at in 0..replicas.nodes.len() {
            assert_eq!(status_of_task(&replicas, at, &task).await, "cancelled");
        }
        poll_until("its work has stopped", async || running_of_all(&replicas, begins).await == 0).await;
        let mut reports = Vec::new();
        while let Some(event) = in_time("its changes", listening.event()).await.unwrap() {
            reports.extend(event.message["params"]["status"].as_str().map(str::to_owned));
        }
        assert_eq!(reports.last().map(String::as_str), Some("cancelled"), "{reports:?}");
    }
    // Ids that no node of this cluster made are unknown everywhere.
    let forged = json!({ "taskId": "n1.0000000000000000.00000000000000000000000000000000.0000" });
    let (_, answer) = ask_stateless(&replicas, 1, "tasks/get", &forged).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

/// A task whose node is dead has failed on every replica, and one that had ended before keeps its end. Without an engine the
/// questions are answered with an error at once.
pub(crate) async fn a_task_of_a_dead_replica_is_no_hang(backend: Backend) {
    let setup = Setup { binding: Binding::Stateless, ..Setup::default() };
    let mut replicas = Replicas::start_with(backend, setup).await;
    let task = begin_task(&replicas, 0).await;
    let ended = begin_tool(&replicas, 0, "echo", &json!({ "as_task": true, "value": 7 })).await;
    let cancelled = begin_task(&replicas, 0).await;
    ask_stateless(&replicas, 0, "tasks/cancel", &cancelled).await;
    poll_until("the replicas know each other", async || {
        status_of_task(&replicas, 1, &task).await == "working"
    })
    .await;
    poll_until("they end", async || {
        status_of_task(&replicas, 1, &ended).await == "completed"
            && status_of_task(&replicas, 1, &cancelled).await == "cancelled"
    })
    .await;
    replicas.nodes[0].kill().await;
    if backend == Backend::List {
        for method in ["tasks/get", "tasks/cancel"] {
            let (status, answer) = ask_stateless(&replicas, 1, method, &task).await;
            assert!([404, 502, 503].contains(&status) && answer["error"].is_object(), "{status}: {answer}");
        }
        return;
    }
    for at in [1, 2] {
        // A connection to the dead node may still be open.
        poll_until("its death is noticed", async || {
            let (status, answer) = ask_stateless(&replicas, at, "tasks/get", &task).await;
            assert!([200, 500, 502, 503].contains(&status), "{status}: {answer}");
            answer["result"].is_object()
        })
        .await;
    }
    for at in [1, 2, 1] {
        let (status, answer) = ask_stateless(&replicas, at, "tasks/get", &task).await;
        assert_eq!((status, &answer["result"]["status"]), (200, &json!("failed")), "{answer}");
        assert!(answer["result"]["error"]["message"].as_str().unwrap().contains("was lost"), "{answer}");
        let (status, answer) = ask_stateless(&replicas, at, "tasks/cancel", &task).await;
        assert_eq!((status, answer["error"].is_null()), (200, true), "{answer}");
        let (_, answer) = ask_stateless(&replicas, at, "tasks/get", &ended).await;
        assert_eq!(answer["result"]["status"], "completed", "{answer}");
        assert_eq!(answer["result"]["result"]["structuredContent"]["value"], 7, "{answer}");
        assert_eq!(status_of_task(&replicas, at, &cancelled).await, "cancelled");
    }
}

/// Opens a session of 2025-11-25.
async fn open(at: SocketAddr) -> Session {
    Session::open(at, Binding::Streamable).await
}

/// Begins a tool call as a task in a session of 2025-11-25, and returns the params that name the task.
pub(crate) async fn begin_in_session(
    session: &Session,
    at: SocketAddr,
    tool: &str,
    arguments: &Value,
) -> Value {
    let call = json!({ "name": tool, "arguments": arguments, "task": { "ttl": 60_000 } });
    let answer = session.ask(at, 1, "tools/call", call).await;
    let task = json!({ "taskId": answer["result"]["task"]["taskId"] });
    assert!(task["taskId"].is_string(), "{answer}");
    task
}

/// Waits until a task is known in a session at another node with this status.
async fn is_known(session: &Session, at: SocketAddr, task: &Value, status: &str) {
    poll_until("the replicas know each other", async || {
        let answer = session.ask(at, 2, "tasks/get", task.clone()).await;
        answer["result"]["status"] == status
    })
    .await;
}

/// A task of a session at one node is reported, awaited and cancelled in a session at another, as MCP 2025-11-25 has it.
pub(crate) async fn a_task_is_cancelled_from_a_session_at_another_node(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (own, other) = (open(all[0]).await, open(all[1]).await);
    let task = begin_in_session(&own, all[0], "wait", &json!({})).await;
    is_known(&other, all[1], &task, "working").await;
    let result = other.begin(all[1], 3, "tasks/result", &task).await.unwrap();
    let answer = other.ask(all[1], 4, "tasks/cancel", task.clone()).await;
    assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
    assert_eq!(answer["result"]["statusMessage"], "The task was cancelled by request", "{answer}");
    // The work was signalled before the answer: it drains, or its handler has counted the cancel.
    let stats = own.ask(all[0], 5, "tools/call", json!({ "name": "stats", "arguments": {} })).await;
    let stats = &stats["result"]["structuredContent"];
    assert!(stats["draining"] == 1 || stats["cancelled"] == 1, "{stats}");
    let answer = in_time("tasks/result", result.answer(3)).await.unwrap().unwrap();
    assert!(answer["error"].is_object(), "{answer}");
    for (session, at) in [(&own, all[0]), (&other, all[1]), (&other, all[2])] {
        let answer = session.ask(at, 6, "tasks/get", task.clone()).await;
        assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
        let answer = session.ask(at, 7, "tasks/cancel", task.clone()).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

/// A result that is too long to be recorded is given by the node that has it, through any other.
pub(crate) async fn a_long_result_of_a_task_is_given_at_another_node(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (own, other) = (open(all[0]).await, open(all[1]).await);
    let value = "x".repeat(600_000);
    let task = begin_in_session(&own, all[0], "echo", &json!({ "value": value })).await;
    is_known(&other, all[1], &task, "completed").await;
    let answer = other.ask(all[1], 3, "tasks/result", task.clone()).await;
    assert!(answer["result"]["structuredContent"]["value"] == value, "{} bytes", answer.to_string().len());
    let answer = other.ask(all[1], 4, "tasks/cancel", task).await;
    assert_eq!(answer["error"]["code"], -32602, "it has ended: {answer}");
}

/// "Task Listing" of 2025-11-25: what `tasks/get` finds is in `tasks/list`, page by page, and nothing of another principal.
pub(crate) async fn the_tasks_of_all_nodes_are_listed_at_each(backend: Backend) {
    let (one, two) = ("one=a-long-token-of-one", "two=a-long-token-of-two");
    let arguments = ["--token", one, "--token", two].map(str::to_owned).to_vec();
    let replicas = Replicas::start_with(backend, Setup { arguments, ..Setup::default() }).await;
    let all = replicas.addresses();
    let open = async |at, token| Session::open_as(at, Binding::Streamable, Some(token)).await;
    let mut begun = Vec::new();
    for at in all.iter().copied() {
        let session = open(at, "a-long-token-of-one").await;
        for _ in 0..50 {
            let task = begin_in_session(&session, at, "echo", &json!({ "value": 7 })).await;
            begun.push(task["taskId"].clone());
        }
    }
    for at in all.iter().copied() {
        let session = open(at, "a-long-token-of-one").await;
        for other in [&begun[0], &begun[50], &begun[100]] {
            is_known(&session, at, &json!({ "taskId": other }), "completed").await;
        }
        let first = session.ask(at, 3, "tasks/list", json!({})).await;
        let cursor = &first["result"]["nextCursor"];
        let rest = session.ask(at, 4, "tasks/list", json!({ "cursor": cursor })).await;
        assert!(rest["result"]["nextCursor"].is_null(), "{rest}");
        let pages = [&first, &rest].map(|page| page["result"]["tasks"].as_array().unwrap());
        assert_eq!(pages.map(Vec::len), [100, 50]);
        let listed: Vec<_> = pages.into_iter().flatten().map(|task| task["taskId"].clone()).collect();
        assert_eq!(listed, begun, "in the order of their creation");
        let other = open(at, "a-long-token-of-two").await;
        let none = other.ask(at, 3, "tasks/list", json!({})).await;
        assert_eq!(none["result"]["tasks"], json!([]), "{none}");
        let foreign = other.ask(at, 4, "tasks/list", json!({ "cursor": cursor })).await;
        assert_eq!(foreign["error"]["code"], -32602, "{foreign}");
    }
}

/// All tasks in `tasks/list`, page by page, with their states.
async fn listed(session: &Session, at: SocketAddr) -> Vec<(Value, Value)> {
    let (mut tasks, mut params) = (Vec::new(), json!({}));
    loop {
        let mut page = session.ask(at, 20, "tasks/list", params).await;
        let cursor = page["result"]["nextCursor"].take();
        let listed = page["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{page}"));
        tasks.extend(listed.iter().map(|task| (task["taskId"].clone(), task["status"].clone())));
        if cursor.is_null() {
            return tasks;
        }
        assert_eq!(listed.len(), 100);
        params = json!({ "cursor": cursor });
    }
}

/// "Task Listing" of 2025-11-25, of nodes that are dead or suspended: each task that `tasks/get` finds is listed with the same state, in
/// the order of their creation.
pub(crate) async fn the_tasks_of_a_dead_node_are_listed(backend: Backend) {
    let (one, two) = ("one=a-long-token-of-one", "two=a-long-token-of-two");
    let arguments = ["--token", one, "--token", two].map(str::to_owned).to_vec();
    let mut replicas = Replicas::start_with(backend, Setup { arguments, ..Setup::default() }).await;
    let all = replicas.addresses();
    let open = async |at: usize, token| Session::open_as(all[at], Binding::Streamable, Some(token)).await;
    let mut sessions = Vec::new();
    for at in 0..3 {
        sessions.push(open(at, "a-long-token-of-one").await);
    }
    let mut expected = Vec::new();
    for round in 0..70 {
        for (at, session) in sessions.iter().enumerate().take(2) {
            let tool = if round % 35 == 0 { "wait" } else { "echo" };
            let task = begin_in_session(session, all[at], tool, &json!({})).await;
            let status = if tool == "echo" {
                "completed"
            } else if at == 0 {
                "failed"
            } else {
                "working"
            };
            is_known(&sessions[2], all[2], &task, if at == 0 && tool == "wait" { "working" } else { status })
                .await;
            expected.push((task["taskId"].clone(), json!(status)));
        }
    }
    replicas.nodes[0].kill().await;
    for at in [1, 2] {
        let lists = async || listed(&sessions[at], all[at]).await == expected;
        poll_until("its death is noticed", lists).await;
        for (id, status) in &expected {
            is_known(&sessions[at], all[at], &json!({ "taskId": id }), status.as_str().unwrap()).await;
        }
        let other = open(at, "a-long-token-of-two").await;
        assert_eq!(listed(&other, all[at]).await, []);
    }
    replicas.nodes[1].stop();
    let known: Vec<_> = expected.iter().filter(|(_, status)| status != "working").cloned().collect();
    assert_eq!(listed(&sessions[2], all[2]).await, known, "how far the others are is not known");
    replicas.nodes[1].go_on();
    let lists = async || listed(&sessions[2], all[2]).await == expected;
    poll_until("it goes on", lists).await;
}

/// The cancel of a task whose node is suspended waits for it: the work stops when the node goes on.
pub(crate) async fn a_cancel_of_a_task_waits_for_its_stopped_node(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (own, other) = (open(all[0]).await, open(all[1]).await);
    let task = begin_in_session(&own, all[0], "wait", &json!({})).await;
    is_known(&other, all[1], &task, "working").await;
    loop {
        replicas.nodes[0].stop();
        let answer = other.ask(all[1], 3, "tasks/get", task.clone()).await;
        assert_eq!(answer["error"]["data"]["reason"], "store_away", "how far it is is not known: {answer}");
        if !answer["error"]["message"].as_str().unwrap().contains("whether there is such a task") {
            break;
        }
        // It was suspended before it had recorded the task's begin.
        replicas.nodes[0].go_on();
        is_known(&other, all[1], &task, "working").await;
    }
    let answer = other.ask(all[1], 4, "tasks/cancel", task.clone()).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("was asked to cancel it"), "{answer}");
    replicas.nodes[0].go_on();
    poll_until("its work stops", async || {
        let stats = own.ask(all[0], 5, "tools/call", json!({ "name": "stats", "arguments": {} })).await;
        stats["result"]["structuredContent"]["cancelled"] == 1
    })
    .await;
    for (session, at) in [(&own, all[0]), (&other, all[2])] {
        let answer = session.ask(at, 6, "tasks/get", task.clone()).await;
        assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
    }
}

/// The tasks of living nodes are known after their engine has lost all records of them.
pub(crate) async fn an_engine_that_forgot_loses_no_task(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (own, other) = (open(all[0]).await, open(all[1]).await);
    let task = begin_in_session(&own, all[0], "wait", &json!({})).await;
    is_known(&other, all[1], &task, "working").await;
    let engine = replicas.engine.as_mut().unwrap();
    engine.end();
    engine.start_again();
    is_known(&other, all[1], &task, "working").await;
    let answer = other.ask(all[1], 3, "tasks/cancel", task).await;
    assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
}

/// Without their engine the replicas ask each other: a task begins, is found, and is stopped through each of them.
pub(crate) async fn a_task_needs_no_engine_while_its_replica_lives(backend: Backend) {
    let mut replicas = start(backend, ServerOptions::Usual).await;
    let before = begin_task(&replicas, 0).await;
    replicas.engine.as_mut().unwrap().end();
    is_stopped(&replicas, &before, 2).await;
    for (begins, cancels) in [(0, 1), (1, 1)] {
        let task = begin_task(&replicas, begins).await;
        for at in 0..replicas.nodes.len() {
            assert_eq!(status_of_task(&replicas, at, &task).await, "working");
        }
        is_stopped(&replicas, &task, cancels).await;
    }
    replicas.engine.as_mut().unwrap().start_again();
    let task = begin_task(&replicas, 2).await;
    is_stopped(&replicas, &task, 0).await;
    assert_eq!(status_of_task(&replicas, 1, &before).await, "cancelled", "I16");
}

/// A task whose records the engine refuses is asked and stopped as any other. Once its replica is dead, it is unknown: nobody says
/// how it has ended.
pub(crate) async fn a_full_engine_keeps_no_task_and_stops_none(backend: Backend) {
    let mut replicas = start(backend, ServerOptions::Full).await;
    let bus = replicas.bus().await;
    // Cancels by key fill it, at last with records that are as small as those of tasks.
    for reason in ["x".repeat(1000), String::new()] {
        let cause = rescind::Cause::new(rescind::CauseKind::Operator).with_reason(&reason);
        let mut count = 0;
        loop {
            let task = begin_task(&replicas, 0).await;
            let Err(refused) = bus.cancel(task["taskId"].as_str().unwrap(), &cause).await else {
                count += 1;
                assert!(count < 5000, "it is never full");
                continue;
            };
            assert!(refused.to_string().starts_with("the engine of the cluster refused"), "{refused}");
            is_stopped(&replicas, &task, 1).await;
            break;
        }
    }
    let task = begin_task(&replicas, 0).await;
    for at in 0..replicas.nodes.len() {
        assert_eq!(status_of_task(&replicas, at, &task).await, "working");
    }
    is_stopped(&replicas, &task, 2).await;
    let lost = begin_task(&replicas, 0).await;
    replicas.nodes[0].kill().await;
    for at in [1, 2] {
        poll_until("its death is noticed", async || {
            let (status, answer) = ask_stateless(&replicas, at, "tasks/get", &lost).await;
            assert!(
                answer["result"].is_null() && [200, 404, 502, 503].contains(&status),
                "{status}: {answer}"
            );
            [200, 404].contains(&status)
        })
        .await;
    }
}

/// An outage of the engine that is longer than the entries of the nodes live: other nodes ask the node of a task meanwhile, and take
/// it for lost neither then nor before it has written its entry again.
pub(crate) async fn an_outage_of_the_engine_loses_no_task(backend: Backend) {
    let mut replicas = Replicas::with_heartbeats_apart(backend, Setup::default()).await;
    let all = replicas.addresses();
    let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
    for at in &all {
        sessions.push(open(*at).await);
    }
    for (own, session) in sessions.iter().enumerate() {
        for _ in 0..4 {
            tasks.push((own, begin_in_session(session, all[own], "wait", &json!({})).await));
        }
    }
    let ended = begin_in_session(&sessions[0], all[0], "echo", &json!({ "value": 7 })).await;
    for (session, at) in sessions.iter().zip(&all) {
        is_known(session, *at, &ended, "completed").await;
        for (_, task) in &tasks {
            is_known(session, *at, task, "working").await;
        }
    }
    // Each is asked about at the other nodes.
    let all_work = async |tasks: &[(usize, Value)]| {
        for (own, task) in tasks {
            for at in (0..3).filter(|at| at != own) {
                let answer = sessions[at].ask(all[at], 3, "tasks/get", task.clone()).await;
                assert_eq!(answer["result"]["status"], "working", "{answer}");
            }
        }
    };
    replicas.engine.as_mut().unwrap().end();
    let away = Instant::now();
    let (_, cancelled) = tasks.remove(0);
    let answer = sessions[1].ask(all[1], 4, "tasks/cancel", cancelled.clone()).await;
    assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
    for at in [1, 2, 0] {
        let answer = sessions[at].ask(all[at], 5, "tasks/get", cancelled.clone()).await;
        assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
        let answer = sessions[at].ask(all[at], 6, "tasks/result", ended.clone()).await;
        assert_eq!(answer["result"]["structuredContent"]["value"], 7, "{answer}");
    }
    while away.elapsed() < ENTRY_LIVES {
        all_work(&tasks).await;
    }
    replicas.engine.as_mut().unwrap().start_again();
    let back = Instant::now();
    while back.elapsed() < 2 * BEAT {
        all_work(&tasks).await;
    }
    for (own, task) in &tasks {
        let answer = sessions[2].ask(all[2], 8, "tasks/cancel", task.clone()).await;
        assert_eq!(answer["result"]["status"], "cancelled", "of node {own}: {answer}");
    }
}
