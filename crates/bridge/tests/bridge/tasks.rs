//! Tasks of the server: whose they are, how they keep a session open, and how a log shows them.

use std::time::Duration;

use rescind_bridge::{Bridge, Upstream};
use rescind_core::dialect::{Dialect, MCP, MCP_2026, TaskStatus};
use rescind_core::{
    CallContext, CallError, CauseKind, EndedRequest, ErrorCode, ErrorObject, Peer, Principal, RequestEvent,
    RequestInfo, RequestLog, RequestOutcome, RequestStatus, Router, ServerLimits, TaskHandle, Tasks,
    Transport as _, TransportEvent, memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{End, Ends};

const BOTH: [Dialect; 2] = [MCP, MCP_2026];

/// A client of this bridge, whose server takes all clients for one, as behind one token.
async fn client_of_tasks(bridge: &Bridge, tasks: &Tasks, principal: Option<&str>) -> Peer {
    client_in(MCP, bridge, tasks, principal).await
}

async fn client_in(dialect: Dialect, bridge: &Bridge, tasks: &Tasks, principal: Option<&str>) -> Peer {
    let (client, mut downstream) = memory_pair();
    downstream.meta.principal = principal.map(|name| Principal(name.into()));
    let (upstream, mut server) = memory_pair();
    server.meta.principal = Some(Principal("the bridge".into()));
    let router = Router::new().tasks(tasks).task("tools/call", async |ctx: CallContext, _: Value| {
        ctx.cancelled().await;
        Ok(json!({}))
    });
    Peer::builder(dialect.clone()).serve(router).attach(server).unwrap();
    bridge.between(downstream, Upstream::new("the server", upstream)).await.unwrap();
    Peer::builder(dialect).attach(client).unwrap()
}

/// The extension's "Task Status Notifications", of a server that takes all clients for one.
#[tokio::test]
async fn a_client_listens_to_its_own_tasks_and_not_to_anothers() {
    let (bridge, tasks) = (Bridge::new(MCP_2026).unwrap(), Tasks::default());
    let ada = client_in(MCP_2026, &bridge, &tasks, Some("ada")).await;
    let bob = client_in(MCP_2026, &bridge, &tasks, Some("bob")).await;
    let meta = json!({ "io.modelcontextprotocol/clientCapabilities": {} });
    let call = ada.call::<_, Value>("tools/call", &json!({ "name": "wait", "_meta": meta })).task(None);
    let task: TaskHandle<Value> = call.await.unwrap();
    let declared = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let params = json!({
        "_meta": { "io.modelcontextprotocol/clientCapabilities": declared },
        "notifications": { "taskIds": [task.id()] },
    });
    match bob.call::<_, Value>("subscriptions/listen", &params).await {
        Err(CallError::Failed(error)) => assert_eq!(error.code, ErrorCode::INVALID_PARAMS),
        other => panic!("{other:?}"),
    }
    let listen = ada
        .call::<_, Value>("subscriptions/listen", &params)
        .notifications_where(|told| told.method() == "notifications/tasks")
        .start()
        .unwrap();
    let mut told = listen.notifications();
    let mut status = async || {
        let told: Value = told.next().await.unwrap().params().unwrap();
        told["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(status().await, "working");
    task.cancel().await.unwrap();
    assert_eq!(status().await, "cancelled");
    assert_eq!(listen.await.unwrap()["resultType"], "complete");
}

#[tokio::test]
async fn a_client_sees_its_own_tasks_of_a_server_that_takes_all_clients_for_one() {
    for names in [[None, None], [Some("ada"), Some("bob")]] {
        let (bridge, tasks) = (Bridge::new(MCP).unwrap(), Tasks::default());
        let first = client_of_tasks(&bridge, &tasks, names[0]).await;
        let second = client_of_tasks(&bridge, &tasks, names[1]).await;
        let start = async |client: &Peer| -> TaskHandle<Value> {
            client.call("tools/call", &json!({ "name": "wait" })).task(None).await.unwrap()
        };
        let (own, other) = (start(&first).await, start(&second).await);
        for (client, task) in [(&first, &own), (&second, &other)] {
            let page: Value = client.call("tasks/list", &json!({})).await.unwrap();
            let listed = page.get("tasks").and_then(Value::as_array).unwrap();
            assert_eq!(listed.len(), 1, "{page}");
            assert_eq!(listed[0].get("taskId").and_then(Value::as_str), task.id());
        }
        let question = json!({ "taskId": own.id() });
        if names[0].is_some() {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                match second.call::<_, Value>(method, &question).await {
                    Err(CallError::Failed(error)) => assert_eq!(error.code, ErrorCode::INVALID_PARAMS),
                    other => panic!("{method}: {other:?}"),
                }
            }
            // The same client in another session.
            let again = client_of_tasks(&bridge, &tasks, names[0]).await;
            again.call::<_, Value>("tasks/get", &question).await.unwrap();
        } else {
            // An id is enough: the client may have connected again.
            let told: Value = second.call("tasks/get", &question).await.unwrap();
            assert_eq!(told.get("status"), Some(&json!("working")));
        }
        own.cancel().await.unwrap();
        assert_eq!(other.status().await.unwrap().status, TaskStatus::Working);
    }
}

/// The limit of unused sessions.
const IDLE: Duration = Duration::from_secs(60);

/// A client of a bridge whose sessions end when nobody uses them, and whose server has tasks that end as their argument says.
async fn client_with_idle_limit(bridge: &Bridge, dialect: &Dialect) -> Peer {
    let of_server = dialect.clone();
    let server = bridge.serve(move || {
        let (near, far) = memory_pair();
        let router = Router::new().tasks(&Tasks::default()).task(
            "tools/call",
            async |ctx: CallContext, params: Value| {
                let ms = params.pointer("/arguments/ms").and_then(Value::as_u64).unwrap_or(u64::MAX);
                ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(ms))).await?;
                Ok(json!({ "content": [] }))
            },
        );
        let serving = Peer::builder(of_server.clone()).serve(router).attach(far);
        async move { serving.map(|_| Upstream::new("the server", near)) }
    });
    let (listener, transport) = memory_listener();
    let limits = ServerLimits::default().idle_timeout(Some(IDLE));
    tokio::spawn(server.server_limits(limits).listen(listener).run());
    let link = Box::new(transport).open().await.unwrap();
    Peer::builder(dialect.clone()).call_timeout(None).attach(link).unwrap()
}

async fn start(client: &Peer, ms: u64, ttl: Option<Duration>) -> TaskHandle<Value> {
    let params = json!({ "name": "sleep", "arguments": {"ms": ms} });
    client.call("tools/call", &params).task(ttl).await.unwrap()
}

/// Whether a time is about this many seconds ago.
fn is_about(since: Instant, seconds: u64) -> bool {
    (seconds..seconds + 5).contains(&since.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_session_is_in_use_while_a_task_of_it_runs() {
    for dialect in &BOTH {
        let bridge = Bridge::new(dialect.clone()).unwrap();
        let client = client_with_idle_limit(&bridge, dialect).await;
        let (first, second) = (start(&client, 600_000, None).await, start(&client, 900_000, None).await);
        tokio::time::sleep(Duration::from_secs(599)).await;
        assert!(!client.is_closed(), "{dialect:?}: nothing has passed for ten minutes");
        first.result().await.unwrap();
        tokio::time::sleep(Duration::from_secs(299)).await;
        assert!(!client.is_closed(), "{dialect:?}: the other runs");
        second.cancel().await.unwrap();
        // In 2026-07-28 the answer to a cancel does not say that the task has ended.
        assert_eq!(second.status().await.unwrap().status, TaskStatus::Cancelled);
        let ended = Instant::now();
        drop(client.closed().await);
        assert!(is_about(ended, 60), "{dialect:?}: {:?}", ended.elapsed());
        bridge.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_nobody_asks_about_keeps_its_session_until_its_time_is_over() {
    let bridge = Bridge::new(MCP).unwrap();
    let client = client_with_idle_limit(&bridge, &MCP).await;
    // It ends early, and the bridge does not see that.
    let _task = start(&client, 1, Some(Duration::from_secs(600))).await;
    let created = Instant::now();
    drop(client.closed().await);
    assert!(is_about(created, 660), "{:?}", created.elapsed());
}

/// A client of a server that a test plays, with an idle limit.
async fn played(dialect: &Dialect) -> (End, End) {
    let bridge = Bridge::new(dialect.clone()).unwrap();
    let (sender, mut opened) = tokio::sync::mpsc::unbounded_channel();
    let server = bridge.serve(move || {
        let (near, far) = memory_pair();
        sender.send(far).unwrap();
        std::future::ready(Ok::<_, String>(Upstream::new("the server", near)))
    });
    let (listener, transport) = memory_listener();
    let limits = ServerLimits::default().idle_timeout(Some(IDLE));
    tokio::spawn(server.server_limits(limits).listen(listener).run());
    let client = End(Box::new(transport).open().await.unwrap());
    (client, End(opened.recv().await.unwrap()))
}

/// Waits until the other side closes, however long that takes.
async fn closed(end: &mut End) {
    match rescind_testkit::support::frames::event(&mut end.0).await {
        None | Some(Err(_) | Ok(TransportEvent::HalfClosed)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_without_a_time_counts_for_a_day_and_a_notification_ends_it() {
    let handle = r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t","status":"working","ttl":null}}}"#;
    for (status, day) in
        [("working", true), ("input_required", true), ("failed", false), ("completed", false)]
    {
        let (mut client, mut server) = played(&MCP).await;
        client
            .send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}"#)
            .await;
        server.frame().await;
        server.send(handle).await;
        client.expect(handle).await;
        let told = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{{"taskId":"t","status":"{status}"}}}}"#
        );
        server.send(&told).await;
        client.expect(&told).await;
        let begun = Instant::now();
        closed(&mut client).await;
        let seconds = if day { 24 * 3600 + 60 } else { 60 };
        assert!(is_about(begun, seconds), "{status}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_say_that_a_task_is_gone_end_its_use() {
    let unknown = r#""error":{"code":-32602,"message":"no such task"}"#;
    for (dialect, method, answer, kept) in [
        (&MCP, "tasks/get", unknown, false),
        (&MCP, "tasks/cancel", unknown, false),
        (&MCP, "tasks/result", r#""result":{"content":[]}"#, false),
        (&MCP, "tasks/result", r#""error":{"code":-1,"message":"it failed"}"#, false),
        (&MCP, "tasks/get", r#""error":{"code":-32603,"message":"try again"}"#, true),
        (&MCP, "tasks/get", r#""result":{"taskId":"t","status":"working"}"#, true),
        (&MCP, "tasks/list", r#""result":{"tasks":[{"taskId":"t","status":"completed"}]}"#, false),
        (&MCP_2026, "tasks/get", r#""result":{"taskId":"t","status":"failed","error":{"code":-1}}"#, false),
        // "Clients MAY delete all state associated with the task as soon as they send a cancellation": nobody may ask again.
        (&MCP_2026, "tasks/cancel", r#""result":{"resultType":"complete"}"#, false),
    ] {
        let (mut client, mut server) = played(dialect).await;
        let handle = match dialect.name() {
            "mcp" => r#"{"task":{"taskId":"t","status":"working","ttl":3600000}}"#,
            _ => r#"{"resultType":"task","taskId":"t","status":"working","ttlMs":3600000}"#,
        };
        let handle = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{handle}}}"#);
        client
            .send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}"#)
            .await;
        server.frame().await;
        server.send(&handle).await;
        client.expect(&handle).await;
        let ask = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"{method}","params":{{"taskId":"t"}}}}"#);
        client.send(&ask).await;
        server.expect(&ask).await;
        let answer = format!(r#"{{"jsonrpc":"2.0","id":2,{answer}}}"#);
        server.send(&answer).await;
        client.expect(&answer).await;
        let begun = Instant::now();
        closed(&mut client).await;
        let seconds = if kept { 3660 } else { 60 };
        assert!(is_about(begun, seconds), "{method} {answer}: {:?}", begun.elapsed());
    }
}

/// The first change that fits.
async fn change<T>(watch: &mut rescind_core::RequestWatch, fits: impl Fn(RequestEvent) -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = fits(watch.next().await) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), found).await.expect("the change does not come")
}

fn becomes_task(event: RequestEvent) -> Option<RequestInfo> {
    match event {
        RequestEvent::Changed(request) if request.status == RequestStatus::Task => Some(request),
        _ => None,
    }
}

/// The end of a received `tools/call`.
fn call_ends(event: RequestEvent) -> Option<EndedRequest> {
    match event {
        RequestEvent::Ended(ended) => {
            let is_received = ended.request.key.direction() == rescind_core::Direction::Received;
            (is_received && ended.request.method.as_deref() == Some("tools/call")).then_some(ended)
        }
        _ => None,
    }
}

#[tokio::test]
async fn a_task_is_shown_until_it_ends_and_an_operator_stops_it_at_the_server() {
    for dialect in &BOTH {
        let log = RequestLog::new();
        let bridge = Bridge::new(dialect.clone()).unwrap().request_log(&log);
        let client = client_with_idle_limit(&bridge, dialect).await;
        let mut watch = log.watch();

        // A handle holds the client.
        let task = start(&client, u64::MAX, None).await;
        let shown = change(&mut watch, becomes_task).await;
        assert_eq!((shown.method.as_deref(), shown.about.as_deref()), (Some("tools/call"), Some("sleep")));
        assert!(log.stop(shown.key, "it takes too long"));
        let ended = change(&mut watch, call_ends).await;
        assert_eq!((ended.request.key, ended.outcome), (shown.key, RequestOutcome::Cancelled));
        assert_eq!(ended.request.cancel.unwrap().cause.kind(), CauseKind::Operator);
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled, "{dialect:?}");
        drop(task);

        let task = start(&client, u64::MAX, None).await;
        change(&mut watch, becomes_task).await;
        task.cancel().await.unwrap();
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled);
        let ended = change(&mut watch, call_ends).await;
        assert_eq!(ended.request.cancel.unwrap().cause.kind(), CauseKind::Peer, "{dialect:?}");
        drop(task);

        let task = start(&client, 1, None).await;
        change(&mut watch, becomes_task).await;
        task.result().await.unwrap();
        assert_eq!(change(&mut watch, call_ends).await.outcome, RequestOutcome::Completed);
        drop(task);

        drop(start(&client, u64::MAX, None).await);
        change(&mut watch, becomes_task).await;
        drop(client);
        let ended = change(&mut watch, call_ends).await;
        assert_eq!(ended.request.cancel.unwrap().cause.kind(), CauseKind::Disconnected, "{dialect:?}");
        bridge.ended().await;
    }
}

#[tokio::test]
async fn more_tasks_than_are_shown_pass_unchanged() {
    let log = RequestLog::new();
    let mut ends = Ends::of(Bridge::new(MCP).unwrap().request_log(&log)).await;
    // Large params would count for the connection as long as the task runs.
    let large = json!({ "task": {}, "more": "x".repeat(40_000) });
    let large = json!({ "jsonrpc": "2.0", "id": "large", "method": "tools/call", "params": large });
    ends.client.send(&large.to_string()).await;
    ends.server.frame().await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t","status":"working"}}}"#).await;
    ends.client
        .expect(r#"{"jsonrpc":"2.0","id":"large","result":{"task":{"taskId":"t","status":"working"}}}"#)
        .await;
    assert_eq!(ends.downstream.stats().tasks, 0);
    for number in 2..=600 {
        ends.client
            .send(&format!(
                r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"task":{{}}}}}}"#
            ))
            .await;
        ends.server.frame().await;
        let handle = format!(
            r#"{{"jsonrpc":"2.0","id":{number},"result":{{"task":{{"taskId":"t{number}","status":"working"}}}}}}"#
        );
        ends.server.send(&handle).await;
        ends.client.expect(&handle).await;
    }
    let tasks = log.requests(1000).iter().filter(|request| request.status == RequestStatus::Task).count();
    assert_eq!((tasks, ends.downstream.stats().tasks), (512, 512), "half of the handlers that may run");
    drop(ends.client);
    ends.bridge.ended().await;
    assert_eq!(ends.downstream.stats().tasks, 0, "they end with their session");
}

#[tokio::test]
async fn an_operator_who_stops_a_task_that_cannot_be_cancelled_gets_the_end_of_the_row() {
    let log = RequestLog::new();
    let mut ends = Ends::of(Bridge::new(MCP).unwrap().request_log(&log)).await;
    let mut watch = log.watch();
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{}}}"#).await;
    ends.server.frame().await;
    let handle = r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t","status":"working"}}}"#;
    ends.server.send(handle).await;
    ends.client.expect(handle).await;
    let shown = change(&mut watch, becomes_task).await;
    assert!(log.stop(shown.key, ""));
    ends.server.expect(r#"{"jsonrpc":"2.0","id":2,"method":"tasks/cancel","params":{"taskId":"t"}}"#).await;
    let refusal = ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "no");
    let refusal = json!({ "jsonrpc": "2.0", "id": 2, "error": refusal });
    ends.server.send(&refusal.to_string()).await;
    change(&mut watch, call_ends).await;
    ends.client.is_silent().await;
}
