//! Tasks over real connections, in both of their forms.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

use crate::dialect::{Dialect, MCP, MCP_2026, Role, TaskStatus};
use crate::{
    BoxFuture, ByteStream, CallContext, CallError, CauseKind, ErrorCode, Framing, Limits, Peer, Principal,
    Router, TaskHandle, TaskLimits, TaskRecord, TaskStore, Tasks, memory_pair,
};

pub(crate) const SOON: Duration = Duration::from_secs(10);

/// How many handlers run.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<AtomicUsize>);

impl Running {
    pub(crate) fn enter(&self) -> Entered {
        self.0.fetch_add(1, Ordering::SeqCst);
        Entered(Arc::clone(&self.0))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) async fn becomes(&self, count: usize) {
        timeout(SOON, async {
            while self.0.load(Ordering::SeqCst) != count {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{} handlers run, not {count}", self.0.load(Ordering::SeqCst)));
    }
}

pub(crate) struct Entered(Arc<AtomicUsize>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A router whose tool calls become tasks: `wait` until it is cancelled, `ask` the client, `ignore` the cancel, `fail`, or
/// return at once.
pub(crate) fn router(tasks: &Tasks, running: &Running) -> Router {
    let running = running.clone();
    Router::new().tasks(tasks).task("tools/call", move |ctx: CallContext, params: Value| {
        let running = running.clone();
        async move {
            let _entered = running.enter();
            match params.get("name").and_then(Value::as_str) {
                Some("wait") => Err(ctx.cancelled().await.into()),
                Some("ask") => {
                    let answer: Value =
                        ctx.ask_client("elicitation/create", &json!({ "message": "who?" })).await?;
                    Ok(answer)
                }
                Some("ignore") => {
                    ctx.cancelled().await;
                    tokio::task::yield_now().await;
                    Ok(json!({ "ignored": true }))
                }
                Some("fail") => Err(crate::ErrorObject::new(ErrorCode(-5), "it fails").into()),
                Some("tell") => {
                    ctx.try_notify("notifications/progress", &json!({ "progress": 1 }))?;
                    ctx.cancelled().await;
                    Ok(json!({}))
                }
                _ => Ok(json!({ "content": [], "task": ctx.task_id() })),
            }
        }
    })
}

pub(crate) fn connect(dialect: &Dialect, router: Router) -> (Peer, Peer) {
    let (near, far) = memory_pair();
    let server = Peer::builder(dialect.clone()).serve(router).attach(far).unwrap();
    (Peer::builder(dialect.clone()).attach(near).unwrap(), server)
}

/// Params of a tool call, with what the later revision requires of each request.
pub(crate) fn tool(name: &str) -> Value {
    let capabilities = json!({ "elicitation": {} });
    json!({ "name": name, "arguments": {}, "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities} })
}

pub(crate) async fn start(peer: &Peer, name: &str) -> TaskHandle<Value> {
    peer.call("tools/call", &tool(name)).task(Some(Duration::from_secs(60))).await.unwrap()
}

pub(crate) fn code(result: Result<impl std::fmt::Debug, CallError>) -> ErrorCode {
    match result {
        Err(CallError::Failed(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

pub(crate) const BOTH: [Dialect; 2] = [MCP, MCP_2026];

#[tokio::test]
async fn a_task_has_the_result_of_its_handler() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&tasks, &running));
        let task = start(&client, "echo").await;
        let result = timeout(SOON, task.result()).await.unwrap().unwrap();
        assert_eq!(result.get("task").and_then(Value::as_str), task.id(), "{dialect:?}");
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Completed);
        running.becomes(0).await;
    }
}

#[tokio::test]
async fn a_cancelled_task_stops_its_handler_and_stays_cancelled() {
    for dialect in BOTH {
        for name in ["wait", "ignore"] {
            let (tasks, running) = (Tasks::default(), Running::default());
            let (client, _server) = connect(&dialect, router(&tasks, &running));
            let task = start(&client, name).await;
            running.becomes(1).await;
            assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
            task.cancel().await.unwrap();
            let report = task.status().await.unwrap();
            assert_eq!(report.status, TaskStatus::Cancelled, "{dialect:?} {name}");
            assert_eq!(report.message.as_deref(), Some("The task was cancelled by request"));
            running.becomes(0).await;
            assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled, "I16: {dialect:?} {name}");
            match task.result().await {
                Err(CallError::Cancelled(cancelled)) => assert_eq!(cancelled.cause.kind(), CauseKind::Peer),
                other => panic!("{other:?}"),
            }
            // 2025-11-25: -32602 for a task that has ended. 2026-07-28: an empty answer.
            let again = task.cancel().await;
            if dialect.name() == "mcp" {
                assert_eq!(code(again), ErrorCode::INVALID_PARAMS);
            } else {
                again.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_task_outlives_its_connection_and_is_cancelled_from_another() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (first, server) = connect(&dialect, router(&tasks, &running));
        let id = start(&first, "wait").await.id().unwrap().to_owned();
        running.becomes(1).await;
        drop(first);
        timeout(SOON, server.closed()).await.unwrap().unwrap();
        assert_eq!((server.stats().running, server.stats().tasks), (1, 1));
        let (second, _server) = connect(&dialect, router(&tasks, &running));
        let meta = json!({ "io.modelcontextprotocol/clientCapabilities": {
            "extensions": {"io.modelcontextprotocol/tasks": {}} } });
        let task = TaskHandle::<Value>::with_id(&second, &id, Some(&meta)).unwrap();
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
        task.cancel().await.unwrap();
        running.becomes(0).await;
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled);
    }
}

#[tokio::test]
async fn the_cancel_of_the_first_request_is_without_effect() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&tasks, &running));
        let task = start(&client, "wait").await;
        running.becomes(1).await;
        // The first call of a connection has the id 1.
        client.notify("notifications/cancelled", &json!({ "requestId": 1 })).await.unwrap();
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
        running.becomes(1).await;
        task.cancel().await.unwrap();
    }
}

#[tokio::test]
async fn a_task_that_fails_says_with_what() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&tasks, &running));
        let task = start(&client, "fail").await;
        assert_eq!(code(timeout(SOON, task.result()).await.unwrap()), ErrorCode(-5));
        let report = task.status().await.unwrap();
        assert_eq!((report.status, report.message.as_deref()), (TaskStatus::Failed, Some("it fails")));
    }
}

#[tokio::test]
async fn what_a_task_sends_has_its_name_or_is_not_sent() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (near, far) = memory_pair();
    let _server = Peer::builder(MCP).serve(router(&tasks, &running)).attach(far).unwrap();
    let (sender, mut sent) = tokio::sync::mpsc::unbounded_channel();
    let hears = Router::new().notification("notifications/progress", move |_, params: Value| {
        sender.send(params).unwrap();
        async {}
    });
    let client = Peer::builder(MCP).role(Role::Client).serve(hears).attach(near).unwrap();
    let task = start(&client, "tell").await;
    let told = timeout(SOON, sent.recv()).await.unwrap().unwrap();
    let related = told.pointer("/_meta/io.modelcontextprotocol~1related-task/taskId");
    assert_eq!(related.and_then(Value::as_str), task.id());
    let (client, _server) = connect(&MCP_2026, router(&tasks, &running));
    let task = start(&client, "tell").await;
    running.becomes(2).await;
    assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
}

#[tokio::test]
async fn a_question_of_a_task_is_answered_by_an_update() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP_2026, router(&tasks, &running));
    let task = start(&client, "ask").await;
    running.becomes(1).await;
    timeout(SOON, async {
        while task.status().await.unwrap().status != TaskStatus::InputRequired {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let meta = json!({ "io.modelcontextprotocol/clientCapabilities": {
        "extensions": {"io.modelcontextprotocol/tasks": {}} } });
    for bad in [json!(null), json!(5), json!([]), json!("x")] {
        let params = json!({ "taskId": task.id(), "inputResponses": bad, "_meta": meta });
        let answer = client.call::<_, Value>("tasks/update", &params).await;
        assert_eq!(code(answer), ErrorCode::INVALID_PARAMS, "{params}");
    }
    // Keys that are not asked are ignored.
    task.update(&json!({ "9": {"name": "no"} })).await.unwrap();
    assert_eq!(task.status().await.unwrap().status, TaskStatus::InputRequired);
    task.update(&json!({ "1": {"name": "Ada"} })).await.unwrap();
    assert_eq!(timeout(SOON, task.result()).await.unwrap().unwrap(), json!({ "name": "Ada" }));
}

/// MCP 2026-07-28, "Multi Round-Trip Requests": a server must not ask for what the client does not declare.
#[tokio::test]
async fn a_question_that_the_client_does_not_declare_to_answer_is_an_error_of_its_task() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP_2026, router(&tasks, &running));
    let mut params = tool("ask");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({ "sampling": {}, "elicitation": null });
    let task = client.call::<_, Value>("tools/call", &params).task(None).await.unwrap();
    assert_eq!(code(timeout(SOON, task.result()).await.unwrap()), ErrorCode(-32021));
}

/// A listen request for the changes of these tasks.
fn listen_params(ids: &Value) -> Value {
    let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    json!({
        "_meta": { "io.modelcontextprotocol/clientCapabilities": capabilities },
        "notifications": { "taskIds": ids },
    })
}

/// "Task Status Notifications" of the extension, and "Acknowledgment", "Receiving Notifications" and "Graceful Closure" of
/// subscriptions.
#[tokio::test]
async fn a_client_that_listens_is_sent_each_change_of_its_tasks() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (near, far) = memory_pair();
    let _server = Peer::builder(MCP_2026.clone()).serve(router(&tasks, &running)).attach(far).unwrap();
    let (told, mut came) = tokio::sync::mpsc::unbounded_channel();
    let listener = Router::new().notification_fallback(move |_, method, params: Value| {
        told.send((method.to_string(), params)).unwrap();
        async {}
    });
    let client = Peer::builder(MCP_2026.clone()).serve(listener).attach(near).unwrap();
    let mut next = async || timeout(SOON, came.recv()).await.unwrap().unwrap();

    let (asks, waits, over) =
        (start(&client, "ask").await, start(&client, "wait").await, start(&client, "echo").await);
    over.result().await.unwrap();
    let ids = json!([asks.id(), waits.id(), over.id(), "of nobody"]);
    let listen = client.call::<_, Value>("subscriptions/listen", &listen_params(&ids)).start().unwrap();
    let of = |params: &Value| params["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
    let (method, params) = next().await;
    assert_eq!(method, "notifications/subscriptions/acknowledged");
    let (subscription, agreed) = (of(&params), params["notifications"]["taskIds"].as_array().unwrap());
    assert!(subscription.is_number(), "{params}");
    assert_eq!(agreed.len(), 3, "{params}");
    assert!(!agreed.contains(&json!("of nobody")), "{params}");

    let mut seen = std::collections::HashMap::<String, Vec<String>>::new();
    let mut see = |(method, params): (String, Value)| {
        assert_eq!((method.as_str(), of(&params)), ("notifications/tasks", subscription.clone()), "{params}");
        let status = params["status"].as_str().unwrap().to_owned();
        let statuses = seen.entry(params["taskId"].as_str().unwrap().to_owned()).or_default();
        statuses.push(status);
        (params, statuses.clone())
    };
    // The state of each at the beginning.
    for _ in 0..3 {
        see(next().await);
    }
    // Each change after it: one ends with an answer of the client, the other by a cancel.
    let update = json!({
        "_meta": { "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } } },
        "taskId": asks.id(),
        "inputResponses": { "1": { "name": "Ada" } },
    });
    let _: Value = client.call("tasks/update", &update).await.unwrap();
    waits.cancel().await.unwrap();
    let ended: Value = timeout(SOON, async {
        let mut listen = std::pin::pin!(listen);
        loop {
            tokio::select! {
                biased;
                notification = came.recv() => { see(notification.unwrap()); }
                ended = &mut listen => return ended.unwrap(),
            }
        }
    })
    .await
    .unwrap();
    while let Ok(notification) = came.try_recv() {
        see(notification);
    }
    assert_eq!((&ended["resultType"], of(&ended)), (&json!("complete"), subscription.clone()), "{ended}");
    assert_eq!(seen[over.id().unwrap()], ["completed"]);
    assert_eq!(seen[waits.id().unwrap()].last().unwrap(), "cancelled", "{seen:?}");
    assert_eq!(
        seen[waits.id().unwrap()].iter().filter(|status| *status == "cancelled").count(),
        1,
        "{seen:?}"
    );
    assert_eq!(seen[asks.id().unwrap()].first().unwrap(), "input_required", "{seen:?}");
    assert_eq!(seen[asks.id().unwrap()].last().unwrap(), "completed", "{seen:?}");
}

#[tokio::test]
async fn a_client_that_does_not_declare_the_extension_cannot_listen_and_bad_ids_are_errors() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP_2026, router(&tasks, &running));
    let ask = async |params: Value| client.call::<_, Value>("subscriptions/listen", &params).await;
    let plain = json!({ "_meta": { "io.modelcontextprotocol/clientCapabilities": {} } });
    let with = |notifications: Value| {
        let mut params = plain.clone();
        params["notifications"] = notifications;
        params
    };
    assert_eq!(code(ask(with(json!({ "taskIds": ["1"] }))).await), ErrorCode(-32021));
    // A server of tasks has no notifications of this.
    assert_eq!(code(ask(with(json!({ "toolsListChanged": true }))).await), ErrorCode::METHOD_NOT_FOUND);
    assert_eq!(code(ask(plain.clone()).await), ErrorCode::METHOD_NOT_FOUND);
    let many: Vec<String> = (0..129).map(|number| number.to_string()).collect();
    for bad in [json!("1"), json!([1]), json!({ "1": 1 }), json!(many)] {
        assert_eq!(code(ask(listen_params(&bad)).await), ErrorCode::INVALID_PARAMS, "{bad}");
    }
    // Nothing to report: it ends at once.
    assert_eq!(ask(listen_params(&json!(["of nobody"]))).await.unwrap()["resultType"], "complete");
    // A handler of the application has precedence.
    let own = Router::new()
        .method("subscriptions/listen", async |_: CallContext, _: Value| Ok(json!({ "own": 1 })));
    let (client, _server) = connect(&MCP_2026, own.tasks(&tasks));
    let answer: Value = client.call("subscriptions/listen", &plain).await.unwrap();
    assert_eq!(answer["own"], 1);
    // 2025-11-25 has no such method.
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    let refused = client.call::<_, Value>("subscriptions/listen", &listen_params(&json!(["1"]))).await;
    assert_eq!(code(refused), ErrorCode::METHOD_NOT_FOUND);
}

#[tokio::test]
async fn a_client_that_stops_to_listen_leaves_nothing_and_its_task_runs_on() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, server) = connect(&MCP_2026, router(&tasks, &running));
    let task = start(&client, "wait").await;
    for _ in 0..3 {
        let listen = client
            .call::<_, Value>("subscriptions/listen", &listen_params(&json!([task.id()])))
            .start()
            .unwrap();
        timeout(SOON, async {
            while server.requests().len() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        drop(listen);
        timeout(SOON, async {
            while server.requests().len() > 1 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
    assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
    running.becomes(1).await;
    task.cancel().await.unwrap();
    running.becomes(0).await;
}

#[tokio::test]
async fn a_task_that_asks_its_client_needs_input_where_servers_send_requests() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (near, far) = memory_pair();
    let _server = Peer::builder(MCP).serve(router(&tasks, &running)).attach(far).unwrap();
    let (asked, told) = tokio::sync::oneshot::channel();
    let (asked, go_on) = (std::sync::Mutex::new(Some(asked)), Arc::new(tokio::sync::Notify::new()));
    let answers = Arc::clone(&go_on);
    let elicits = Router::new().method("elicitation/create", move |_: CallContext, params: Value| {
        if let Some(asked) = asked.lock().unwrap().take() {
            asked.send(params).unwrap();
        }
        let answers = Arc::clone(&answers);
        async move {
            answers.notified().await;
            Ok(json!({ "name": "Ada" }))
        }
    });
    let client = Peer::builder(MCP).role(Role::Client).serve(elicits).attach(near).unwrap();
    let task = start(&client, "ask").await;
    let params = timeout(SOON, told).await.unwrap().unwrap();
    let related = params.pointer("/_meta/io.modelcontextprotocol~1related-task/taskId");
    assert_eq!(related.and_then(Value::as_str), task.id());
    // It counts as updated when it begins to wait, and not at the first `tasks/get`.
    let asked_at = SystemTime::now();
    while SystemTime::now() < asked_at + Duration::from_millis(2) {
        tokio::task::yield_now().await;
    }
    let seen: Value = client.call("tasks/get", &json!({ "taskId": task.id() })).await.unwrap();
    assert_eq!(seen["status"], "input_required");
    let updated = humantime::parse_rfc3339(seen["lastUpdatedAt"].as_str().unwrap()).unwrap();
    assert!(updated <= asked_at, "{seen}");
    go_on.notify_one();
    assert_eq!(timeout(SOON, task.result()).await.unwrap().unwrap().get("name"), Some(&json!("Ada")));
}

/// A server that says this of its one task, one after another and the last again and again, and has this result of it.
fn scripted<const N: usize>(handle: Value, told: [Value; N], result: Result<Value, ErrorCode>) -> Router {
    let questions = Arc::new(AtomicUsize::new(0));
    Router::new()
        .method("tools/call", move |_: CallContext, _: Value| {
            let handle = handle.clone();
            async move { Ok(handle) }
        })
        .method("tasks/get", move |_: CallContext, _: Value| {
            let at = questions.fetch_add(1, Ordering::SeqCst).min(N - 1);
            let told = told.get(at).cloned().unwrap_or_default();
            async move { Ok(told) }
        })
        .method("tasks/result", move |_: CallContext, _: Value| {
            let result = result.clone();
            async move { result.map_err(|code| crate::ErrorObject::new(code, "no result").into()) }
        })
}

#[tokio::test]
async fn the_result_of_a_task_that_needs_input_is_awaited_where_its_requests_come() {
    let handle = json!({ "task": {"taskId": "t", "status": "working", "pollInterval": 20} });
    let told = |status: &str| json!({ "taskId": "t", "status": status, "pollInterval": 20 });
    let result = json!({ "content": [] });
    let server = scripted(handle.clone(), [told("input_required")], Ok(result.clone()));
    let (client, _server) = connect(&MCP, server);
    assert_eq!(timeout(SOON, start(&client, "any").await.result()).await.unwrap().unwrap(), result);

    // It was cancelled meanwhile.
    let server = scripted(handle, [told("input_required"), told("cancelled")], Err(ErrorCode(-5)));
    let (client, _server) = connect(&MCP, server);
    let ended = timeout(SOON, start(&client, "any").await.result()).await.unwrap();
    assert!(matches!(ended, Err(CallError::Cancelled(_))), "{ended:?}");
}

#[tokio::test]
async fn a_completed_task_without_a_result_is_an_unreadable_answer_where_there_is_no_other_method() {
    let handle = json!({ "resultType": "task", "taskId": "t", "status": "working", "pollIntervalMs": 20 });
    let told = json!({ "resultType": "complete", "taskId": "t", "status": "completed" });
    let (client, _server) = connect(&MCP_2026, scripted(handle, [told], Ok(json!({}))));
    let ended = timeout(SOON, start(&client, "any").await.result()).await.unwrap();
    assert!(matches!(ended, Err(CallError::Answer { .. })), "{ended:?}");
}

#[tokio::test]
async fn the_cancel_of_what_a_task_asks_has_the_tasks_name() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let served = ByteStream::whole(ours).framing(Framing::Newline).into_link();
    let _server = Peer::builder(MCP).serve(router(&tasks, &running)).attach(served).unwrap();
    let (reads, mut writes) = tokio::io::split(theirs);
    let mut lines = BufReader::new(reads).lines();
    let mut receive = async || -> Value {
        let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let mut send = async |frame: Value| writes.write_all(format!("{frame}\n").as_bytes()).await.unwrap();
    let params = json!({ "name": "ask", "task": {} });
    send(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })).await;
    let id = receive().await.pointer("/result/task/taskId").unwrap().clone();
    let asked = receive().await;
    assert_eq!(asked.get("method"), Some(&json!("elicitation/create")));
    send(json!({ "jsonrpc": "2.0", "id": 2, "method": "tasks/cancel", "params": {"taskId": id} })).await;
    let told = [receive().await, receive().await];
    let is_cancel = |frame: &&Value| frame.get("method") == Some(&json!("notifications/cancelled"));
    let cancel = told.iter().find(is_cancel).unwrap();
    assert_eq!(cancel.pointer("/params/requestId"), asked.get("id"));
    assert_eq!(cancel.pointer("/params/_meta/io.modelcontextprotocol~1related-task/taskId"), Some(&id));
}

#[tokio::test]
async fn a_side_that_declares_no_tasks_ignores_the_wish_for_one() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let plain = router(&tasks, &running)
        .method("initialize", async |_: CallContext, _: Value| Ok(json!({ "capabilities": {"tools": {}} })));
    let (client, _server) = connect(&MCP, plain);
    let _: Value = client.call("initialize", &json!({})).await.unwrap();
    let answer: Value = client.call("tools/call", &json!({ "name": "echo", "task": {} })).await.unwrap();
    assert_eq!(answer.get("task"), Some(&Value::Null));
    assert!(tasks.is_empty());
}

#[tokio::test]
async fn a_connection_full_of_tasks_still_answers_and_cancels() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (near, far) = memory_pair();
        let limits = Limits::default().max_running_handlers(8);
        let _server = Peer::builder(dialect.clone())
            .serve(router(&tasks, &running))
            .limits(limits)
            .attach(far)
            .unwrap();
        let client = Peer::builder(dialect.clone()).attach(near).unwrap();
        let mut begun = Vec::new();
        for _ in 0..4 {
            begun.push(start(&client, "wait").await);
        }
        for _ in 0..20 {
            let refused = client.call::<_, Value>("tools/call", &tool("wait")).task(None).await;
            assert_eq!(code(refused.map(|_| ())), ErrorCode::INTERNAL_ERROR, "{dialect:?}");
        }
        assert_eq!(tasks.len(), 4, "what did not begin is not kept");
        for task in begun {
            timeout(SOON, task.cancel()).await.unwrap().unwrap();
        }
        running.becomes(0).await;
        let _ = start(&client, "wait").await;
    }
}

#[tokio::test]
async fn a_connection_full_of_waits_for_tasks_still_reports_and_cancels_them() {
    for (dialect, wait) in [(MCP, "tasks/result"), (MCP_2026, "subscriptions/listen")] {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (near, far) = memory_pair();
        let limits = Limits::default().max_running_handlers(4);
        let builder = Peer::builder(dialect.clone()).serve(router(&tasks, &running)).limits(limits);
        let server = builder.attach(far).unwrap();
        let client = Peer::builder(dialect.clone()).attach(near).unwrap();
        let (first, second) = (start(&client, "wait").await, start(&client, "wait").await);
        let waits = [&first, &second].map(|task| {
            let mut params = listen_params(&json!([task.id()]));
            params["taskId"] = json!(task.id());
            client.call::<_, Value>(wait, &params).start().unwrap()
        });
        // Every other request waits for one of these.
        let queued = client.call::<_, Value>("tools/call", &tool("echo")).start().unwrap();
        timeout(SOON, async {
            while server.stats().queued == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        for task in [first, second] {
            assert_eq!(timeout(SOON, task.status()).await.unwrap().unwrap().status, TaskStatus::Working);
            timeout(SOON, task.cancel()).await.unwrap().unwrap();
        }
        running.becomes(0).await;
        assert!(timeout(SOON, queued).await.unwrap().is_ok());
        for waiting in waits {
            let ended = timeout(SOON, waiting).await.unwrap();
            assert_eq!(ended.is_ok(), wait == "subscriptions/listen", "{ended:?}");
        }
    }
}

#[tokio::test]
async fn a_request_whose_client_takes_no_task_is_answered_as_usual() {
    let (tasks, running) = (Tasks::default(), Running::default());
    for dialect in BOTH {
        let (client, _server) = connect(&dialect, router(&tasks, &running));
        let answer: Value = client.call("tools/call", &tool("echo")).await.unwrap();
        assert_eq!(answer.get("task"), Some(&Value::Null), "{dialect:?}");
        assert!(tasks.is_empty());
    }
}

#[tokio::test]
async fn bad_questions_are_invalid_params() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    for params in [json!({}), json!({ "taskId": 1 }), json!({ "taskId": "x" }), json!({ "taskId": null })] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let answer = client.call::<_, Value>(method, &params).await;
            assert_eq!(code(answer), ErrorCode::INVALID_PARAMS, "{method} {params}");
        }
    }
    for task in [json!(1), json!({ "ttl": -1 }), json!({ "ttl": "x" }), json!([])] {
        let answer = client.call::<_, Value>("tools/call", &json!({ "name": "wait", "task": task })).await;
        assert_eq!(code(answer), ErrorCode::INVALID_PARAMS, "{task}");
    }
    // Without a principal there is no list, and the form of the later revision is not served.
    for method in ["tasks/list", "tasks/update"] {
        assert_eq!(code(client.call::<_, Value>(method, &json!({})).await), ErrorCode::METHOD_NOT_FOUND);
    }
    assert!(tasks.is_empty());
}

#[tokio::test]
async fn a_client_that_does_not_declare_the_extension_is_told_so() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP_2026, router(&tasks, &running));
    let task = start(&client, "wait").await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        match client.call::<_, Value>(method, &json!({ "taskId": task.id() })).await {
            Err(CallError::Failed(error)) => {
                let data: Value = serde_json::from_str(error.data.unwrap().get()).unwrap();
                let required =
                    data.pointer("/requiredCapabilities/extensions/io.modelcontextprotocol~1tasks");
                assert_eq!((error.code, required), (ErrorCode(-32021), Some(&json!({}))));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
}

#[tokio::test]
async fn a_principal_sees_its_own_tasks_only() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let connect = |name: &str| {
        let (near, mut far) = memory_pair();
        far.meta.principal = Some(Principal(name.into()));
        let server = Peer::builder(MCP).serve(router(&tasks, &running)).attach(far).unwrap();
        (Peer::builder(MCP).attach(near).unwrap(), server)
    };
    let ((ada, _one), (bob, _two)) = (connect("ada"), connect("bob"));
    let own = start(&ada, "wait").await;
    let question = json!({ "taskId": own.id() });
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        assert_eq!(
            code(bob.call::<_, Value>(method, &question).await),
            ErrorCode::INVALID_PARAMS,
            "{method}"
        );
    }
    let listed = |answer: Value| answer.get("tasks").and_then(Value::as_array).map(Vec::len);
    assert_eq!(listed(bob.call("tasks/list", &json!({})).await.unwrap()), Some(0));
    assert_eq!(listed(ada.call("tasks/list", &json!({})).await.unwrap()), Some(1));
    assert_eq!(own.status().await.unwrap().status, TaskStatus::Working);
    // Pages of 100.
    for _ in 0..100 {
        let _ = start(&ada, "wait").await;
    }
    let page: Value = ada.call("tasks/list", &json!({})).await.unwrap();
    let cursor = page.get("nextCursor").unwrap().clone();
    assert_eq!(listed(page), Some(100));
    let rest: Value = ada.call("tasks/list", &json!({ "cursor": cursor })).await.unwrap();
    assert!(rest.get("nextCursor").is_none());
    assert_eq!(listed(rest), Some(1));
    let text = cursor.as_str().unwrap();
    for bad in ["x", "", "-1", "100", "0-0", &format!("1{text}"), &format!("{text}0")] {
        let answer = ada.call::<_, Value>("tasks/list", &json!({ "cursor": bad })).await;
        assert_eq!(code(answer), ErrorCode::INVALID_PARAMS, "{bad}");
    }
    let foreign = bob.call::<_, Value>("tasks/list", &json!({ "cursor": cursor })).await;
    assert_eq!(code(foreign), ErrorCode::INVALID_PARAMS, "it is ada's");
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_time_is_over_is_cancelled_and_forgotten() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    let call = client.call("tools/call", &tool("wait"));
    let task: TaskHandle<Value> = call.task(Some(Duration::from_secs(5))).await.unwrap();
    running.becomes(1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
    tokio::time::sleep(Duration::from_secs(2)).await;
    running.becomes(0).await;
    assert_eq!(code(task.status().await), ErrorCode::INVALID_PARAMS);
    assert!(tasks.is_empty());
}

#[tokio::test]
async fn the_oldest_ended_task_makes_room_and_running_ones_do_not() {
    let (tasks, running) = (Tasks::new(TaskLimits::default().max_tasks_of_client(2)), Running::default());
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    let first = start(&client, "echo").await;
    timeout(SOON, first.result()).await.unwrap().unwrap();
    let (second, third) = (start(&client, "wait").await, start(&client, "wait").await);
    assert_eq!(code(first.status().await), ErrorCode::INVALID_PARAMS, "it made room");
    let refused = client.call::<_, Value>("tools/call", &tool("wait")).task(None).await;
    assert_eq!(code(refused.map(|_| ())), ErrorCode::INTERNAL_ERROR);
    for task in [second, third] {
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Working);
    }
    running.becomes(2).await;
}

#[tokio::test]
async fn results_above_the_limit_make_the_oldest_ended_tasks_be_forgotten() {
    let (tasks, running) = (Tasks::new(TaskLimits::default().max_result_bytes(400)), Running::default());
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    let mut all = Vec::new();
    for _ in 0..5 {
        let task = start(&client, "echo").await;
        timeout(SOON, task.result()).await.unwrap().unwrap();
        all.push(task);
    }
    assert!(tasks.len() < 5, "I11: {} results are kept", tasks.len());
    assert_eq!(code(all[0].status().await), ErrorCode::INVALID_PARAMS);
    assert_eq!(all[4].status().await.unwrap().status, TaskStatus::Completed);
}

#[tokio::test]
async fn a_list_has_the_tasks_of_its_own_protocol_only() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let connect = |dialect: &Dialect| {
        let (near, mut far) = memory_pair();
        far.meta.principal = Some(Principal("ada".into()));
        let server = Peer::builder(dialect.clone()).serve(router(&tasks, &running)).attach(far).unwrap();
        (Peer::builder(dialect.clone()).attach(near).unwrap(), server)
    };
    let ((old, _one), (new, _two)) = (connect(&MCP), connect(&MCP_2026));
    let own = start(&old, "wait").await;
    let _other = start(&new, "wait").await;
    let page: Value = old.call("tasks/list", &json!({})).await.unwrap();
    let listed = page.get("tasks").and_then(Value::as_array).unwrap();
    assert_eq!(listed.len(), 1, "{page}");
    assert_eq!(listed[0].get("taskId").and_then(Value::as_str), own.id());
}

#[tokio::test]
async fn a_result_that_no_answer_about_its_task_has_room_for_fails_the_task() {
    for dialect in BOTH {
        // As a direct answer it has room.
        for (bytes, status) in [(60_000, TaskStatus::Completed), (65_500, TaskStatus::Failed)] {
            let (near, far) = tokio::io::duplex(1 << 20);
            let [near, far] = [near, far].map(|end| ByteStream::whole(end).max_frame(64 * 1024).into_link());
            let text = "x".repeat(bytes);
            let router =
                Router::new().tasks(&Tasks::default()).task("tools/call", move |_: CallContext, _: Value| {
                    let result = json!({ "text": text });
                    async move { Ok(result) }
                });
            let _server = Peer::builder(dialect.clone()).serve(router).attach(far).unwrap();
            let client = Peer::builder(dialect.clone()).attach(near).unwrap();
            let task = start(&client, "long").await;
            assert_eq!(timeout(SOON, task.result()).await.unwrap().is_ok(), status == TaskStatus::Completed);
            assert_eq!(task.status().await.unwrap().status, status, "{dialect:?}, {bytes}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_result_has_no_deadline_of_its_own() {
    let (near, far) = memory_pair();
    let router =
        Router::new().tasks(&Tasks::default()).task("tools/call", async |ctx: CallContext, _: Value| {
            let answer: Value = ctx.ask_client("elicitation/create", &json!({})).await?;
            tokio::time::sleep(Duration::from_secs(3000)).await;
            Ok(answer)
        });
    let _server = Peer::builder(MCP).serve(router).attach(far).unwrap();
    let elicits = Router::new().method("elicitation/create", async |_: CallContext, _: Value| {
        // The client asks about the task meanwhile, and then waits for the result.
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(json!("ada"))
    });
    let client = Peer::builder(MCP).role(Role::Client).serve(elicits).attach(near).unwrap();
    let call = client.call("tools/call", &tool("ask"));
    let task: TaskHandle<Value> = call.task(Some(Duration::from_secs(10_000))).await.unwrap();
    assert_eq!(task.result().await.unwrap(), json!("ada"));
}

#[tokio::test]
async fn a_dialect_without_tasks_has_none() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&crate::dialect::ACP, router(&tasks, &running));
    let call = client.call::<_, Value>("tools/call", &tool("echo")).task(None).await;
    assert!(matches!(call, Err(CallError::Params { .. })));
    let answer: Value = client.call("tools/call", &json!({ "name": "echo", "task": {} })).await.unwrap();
    assert_eq!(answer.get("task"), Some(&Value::Null));
    assert_eq!(code(client.call::<_, Value>("tasks/get", &json!({})).await), ErrorCode::METHOD_NOT_FOUND);
}

/// Records in memory, as JSON, as other processes read them. The end of a task is written when that is allowed.
#[derive(Clone, Default)]
struct Shelf {
    records: Arc<std::sync::Mutex<std::collections::HashMap<(String, bool), String>>>,
    allowed: Option<Arc<tokio::sync::Semaphore>>,
    is_away: Arc<std::sync::atomic::AtomicBool>,
    /// A client of the process that does the tasks, as long as that process lives.
    owner: Arc<std::sync::OnceLock<Peer>>,
    /// The tasks of each process, to ask the one that lives.
    own: Arc<std::sync::Mutex<Vec<crate::OwnTasks>>>,
}

impl TaskStore for Shelf {
    fn record(&self, record: TaskRecord) -> BoxFuture<'static, Option<TaskRecord>> {
        let (records, key) = (Arc::clone(&self.records), (record.id().to_owned(), record.has_ended()));
        let text = serde_json::to_string(&record).unwrap();
        let allowed = self.allowed.clone().filter(|_| record.has_ended());
        Box::pin(async move {
            if let Some(allowed) = allowed {
                allowed.acquire().await.unwrap().forget();
            }
            let mut records = records.lock().unwrap();
            let first = records.entry(key).or_insert_with(|| text.clone());
            (*first != text).then(|| serde_json::from_str(first).unwrap())
        })
    }

    fn attach(&self, own: crate::OwnTasks) {
        self.own.lock().unwrap().push(own);
    }

    fn forget(&self, task: TaskRecord) -> BoxFuture<'static, ()> {
        self.records.lock().unwrap().retain(|(other, _), _| other != task.id());
        Box::pin(async {})
    }

    fn find(&self, id: &str) -> BoxFuture<'static, Result<Option<TaskRecord>, String>> {
        let records = self.records.lock().unwrap();
        let read = |ended| -> Option<TaskRecord> {
            serde_json::from_str(records.get(&(id.to_owned(), ended))?).unwrap()
        };
        let lives = self.owner.get().is_some();
        let found = read(true).or_else(|| Some(if lives { read(false)? } else { read(false)?.lost() }));
        let (own, id) = (self.own.lock().unwrap().clone(), id.to_owned());
        let is_away = self.is_away.load(Ordering::SeqCst);
        Box::pin(async move {
            if is_away {
                return Err("the store is away".to_owned());
            }
            for tasks in own.iter().filter(|_| lives) {
                if let Some(record) = tasks.record(&id).await {
                    let text = serde_json::to_string(&record).unwrap();
                    return Ok(Some(serde_json::from_str(&text).unwrap()));
                }
            }
            Ok(found)
        })
    }

    fn cancel(&self, id: &str, _: crate::Cause) -> BoxFuture<'static, Result<(), String>> {
        let meta = declared();
        let task =
            self.owner.get().map(|owner| TaskHandle::<Value>::with_id(owner, id, Some(&meta)).unwrap());
        Box::pin(async move {
            let task = task.ok_or("its process is gone")?;
            task.cancel().await.map_err(|error| error.to_string())
        })
    }
}

fn declared() -> Value {
    json!({"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}})
}

/// The tasks of a process, with the store of its cluster.
fn stored(shelf: &Shelf) -> Tasks {
    let tasks = Tasks::default();
    tasks.set_store(Arc::new(shelf.clone()));
    tasks
}

#[tokio::test]
async fn another_process_tells_from_the_record_how_a_task_has_ended() {
    for dialect in BOTH {
        let (shelf, running) = (Shelf::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&stored(&shelf), &running));
        let ended = start(&client, "echo").await;
        ended.result().await.unwrap();
        let failed = start(&client, "fail").await;
        failed.result().await.unwrap_err();
        let cancelled = start(&client, "wait").await;
        cancelled.cancel().await.unwrap();
        timeout(SOON, cancelled.result()).await.unwrap().unwrap_err();
        let lost = start(&client, "wait").await;
        // Its begin is written in another turn.
        while shelf.records.lock().unwrap().len() < 7 {
            tokio::task::yield_now().await;
        }

        let (other, _other_server) = connect(&dialect, router(&stored(&shelf), &running));
        let meta = declared();
        let of = |task: &TaskHandle<Value>| {
            TaskHandle::<Value>::with_id(&other, task.id().unwrap(), Some(&meta)).unwrap()
        };
        assert_eq!(of(&ended).result().await.unwrap().get("task").and_then(Value::as_str), ended.id());
        assert_eq!(code(of(&failed).result().await), ErrorCode(-5), "{dialect:?}");
        assert!(matches!(of(&cancelled).result().await, Err(CallError::Cancelled(_))));
        let told = of(&lost).status().await.unwrap();
        assert_eq!(told.status, TaskStatus::Failed);
        assert!(told.message.unwrap().contains("was lost"));
        // Its end is final: a cancel is too late.
        match of(&lost).cancel().await {
            Ok(()) => assert_eq!(dialect.name(), MCP_2026.name()),
            late => assert_eq!(code(late), ErrorCode::INVALID_PARAMS),
        }
        let unknown = TaskHandle::<Value>::with_id(&other, "unknown", Some(&meta)).unwrap();
        assert_eq!(code(unknown.status().await), ErrorCode::INVALID_PARAMS);
        shelf.is_away.store(true, Ordering::SeqCst);
        assert_eq!(code(of(&lost).status().await), ErrorCode::INTERNAL_ERROR, "nobody knows");
    }
}

#[tokio::test]
async fn a_task_of_another_process_is_reported_awaited_and_cancelled_there() {
    for dialect in BOTH {
        let (shelf, running) = (Shelf::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&stored(&shelf), &running));
        shelf.owner.set(client.clone()).unwrap();
        let (other, _other_server) = connect(&dialect, router(&stored(&shelf), &running));
        let meta = declared();
        let of = |task: &TaskHandle<Value>| {
            TaskHandle::<Value>::with_id(&other, task.id().unwrap(), Some(&meta)).unwrap()
        };
        let (first, second) = (start(&client, "wait").await, start(&client, "ignore").await);
        while shelf.records.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(of(&first).status().await.unwrap().status, TaskStatus::Working, "{dialect:?}");
        running.becomes(2).await;

        let task = of(&first);
        let result = tokio::spawn(async move { task.result().await });
        of(&first).cancel().await.unwrap();
        // In the later revision the end may follow the answer.
        running.becomes(1).await;
        assert!(matches!(timeout(SOON, result).await.unwrap().unwrap(), Err(CallError::Cancelled(_))));
        assert_eq!(of(&first).status().await.unwrap().status, TaskStatus::Cancelled);
        assert_eq!(first.status().await.unwrap().status, TaskStatus::Cancelled, "the same at its own");
        match of(&first).cancel().await {
            Ok(()) => assert_eq!(dialect.name(), MCP_2026.name()),
            late => assert_eq!(code(late), ErrorCode::INVALID_PARAMS, "it has ended"),
        }
        // Its handler returns a value after the cancel.
        of(&second).cancel().await.unwrap();
        running.becomes(0).await;
        if dialect.name() == MCP.name() {
            assert_eq!(of(&second).status().await.unwrap().status, TaskStatus::Cancelled);
        } else {
            let update =
                json!({ "_meta": meta, "taskId": start(&client, "wait").await.id(), "inputResponses": {} });
            while shelf.records.lock().unwrap().len() < 5 {
                tokio::task::yield_now().await;
            }
            // The answers would be lost.
            assert_eq!(
                code(other.call::<_, Value>("tasks/update", &update).await),
                ErrorCode::INTERNAL_ERROR
            );
        }
        shelf.is_away.store(true, Ordering::SeqCst);
        assert_eq!(code(of(&first).cancel().await), ErrorCode::INTERNAL_ERROR, "nobody knows");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_sent_the_changes_of_a_task_of_another_process() {
    let (shelf, running) = (Shelf::default(), Running::default());
    let (client, _server) = connect(&MCP_2026, router(&stored(&shelf), &running));
    shelf.owner.set(client.clone()).unwrap();
    let (near, far) = memory_pair();
    let _other_server =
        Peer::builder(MCP_2026.clone()).serve(router(&stored(&shelf), &running)).attach(far).unwrap();
    let (told, mut came) = tokio::sync::mpsc::unbounded_channel();
    let listener = Router::new().notification_fallback(move |_, _, params: Value| {
        told.send(params).unwrap();
        async {}
    });
    let other = Peer::builder(MCP_2026.clone()).serve(listener).attach(near).unwrap();
    let task = start(&client, "wait").await;
    while shelf.records.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let ids = json!([task.id(), "of nobody"]);
    let listen = other.call::<_, Value>("subscriptions/listen", &listen_params(&ids)).start().unwrap();
    let mut next = async || timeout(SOON, came.recv()).await.unwrap().unwrap();
    assert_eq!(next().await["notifications"]["taskIds"], json!([task.id()]));
    assert_eq!(next().await["status"], "working");
    // A store that is away for a moment ends nothing.
    shelf.is_away.store(true, Ordering::SeqCst);
    tokio::time::sleep(SOON).await;
    shelf.is_away.store(false, Ordering::SeqCst);
    task.cancel().await.unwrap();
    assert_eq!(next().await["status"], "cancelled");
    assert_eq!(timeout(SOON, listen).await.unwrap().unwrap()["resultType"], "complete");
    // Beside the status `input_required`, a listener gets the request to the client.
    let task = start(&client, "ask").await;
    let listen = other.call::<_, Value>("subscriptions/listen", &listen_params(&json!([task.id()])));
    let listen = listen.start().unwrap();
    assert_eq!(next().await["notifications"]["taskIds"], json!([task.id()]));
    let mut change = next().await;
    if change["status"] == "working" {
        change = next().await;
    }
    assert_eq!(change["status"], "input_required");
    assert_eq!(change["inputRequests"]["1"]["method"], "elicitation/create");
    let mut question = listen_params(&json!([]));
    question["taskId"] = json!(task.id());
    let seen: Value = other.call("tasks/get", &question).await.unwrap();
    assert_eq!((&seen["status"], &seen["inputRequests"]), (&change["status"], &change["inputRequests"]));
    task.update(&json!({ "1": {"name": "Ada"} })).await.unwrap();
    assert_eq!(timeout(SOON, listen).await.unwrap().unwrap()["resultType"], "complete");
    let mut change = next().await;
    if change["status"] == "working" {
        change = next().await;
    }
    assert_eq!(change["status"], "completed");
    assert!(came.try_recv().is_err(), "each change once");
}

/// An engine that is away delays each end by a second, and not each question about it.
#[tokio::test(start_paused = true)]
async fn the_record_of_an_end_is_awaited_for_a_second_from_the_end() {
    let allowed = Arc::new(tokio::sync::Semaphore::new(0));
    let shelf = Shelf { allowed: Some(Arc::clone(&allowed)), ..Shelf::default() };
    let (client, _server) = connect(&MCP, router(&stored(&shelf), &Running::default()));
    let task = start(&client, "wait").await;
    let began = tokio::time::Instant::now();
    task.cancel().await.unwrap();
    for _ in 0..3 {
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled);
    }
    assert_eq!(began.elapsed().as_secs(), 1, "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_record_of_a_task_is_shown_to_its_principal_only() {
    let (shelf, running) = (Shelf::default(), Running::default());
    let connect = |name: &str| {
        let (near, mut far) = memory_pair();
        far.meta.principal = Some(Principal(name.into()));
        let server = Peer::builder(MCP).serve(router(&stored(&shelf), &running)).attach(far).unwrap();
        (Peer::builder(MCP).attach(near).unwrap(), server)
    };
    let ((ada, _one), (bob, _two), (ada_again, _three)) = (connect("ada"), connect("bob"), connect("ada"));
    let task = start(&ada, "echo").await;
    task.result().await.unwrap();
    let question = json!({ "taskId": task.id() });
    assert_eq!(code(bob.call::<_, Value>("tasks/get", &question).await), ErrorCode::INVALID_PARAMS);
    let told: Value = ada_again.call("tasks/get", &question).await.unwrap();
    assert_eq!(told.get("status"), Some(&json!("completed")));
}

// The wait for a record ends after a second, which a paused clock does not reach while anything runs.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_task_is_told_once_it_is_recorded() {
    let allowed = Arc::new(tokio::sync::Semaphore::new(0));
    let shelf = Shelf { allowed: Some(Arc::clone(&allowed)), ..Shelf::default() };
    let running = Running::default();
    let (client, _server) = connect(&MCP, router(&stored(&shelf), &running));
    let task = start(&client, "wait").await;
    let cancelled = task.cancel();
    let mut cancelled = std::pin::pin!(cancelled);
    tokio::select! {
        biased;
        told = &mut cancelled => panic!("{told:?} before the record"),
        () = running.becomes(0) => {}
    }
    allowed.add_permits(1);
    timeout(SOON, cancelled).await.unwrap().unwrap();
    assert_eq!(shelf.records.lock().unwrap().len(), 2, "its begin and its end");
}

#[tokio::test]
async fn the_records_of_a_task_that_is_forgotten_are_removed() {
    let (shelf, running) = (Shelf::default(), Running::default());
    let tasks = Tasks::new(TaskLimits::default().max_tasks_of_client(2));
    tasks.set_store(Arc::new(shelf.clone()));
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    for _ in 0..20 {
        timeout(SOON, start(&client, "echo").await.result()).await.unwrap().unwrap();
    }
    timeout(SOON, async {
        while shelf.records.lock().unwrap().len() > 4 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("I11: {} records of 2 tasks", shelf.records.lock().unwrap().len()));
}

#[tokio::test]
async fn while_the_store_is_away_few_bytes_wait_for_it_and_no_end_is_forgotten() {
    let allowed = Arc::new(tokio::sync::Semaphore::new(0));
    let shelf = Shelf { allowed: Some(Arc::clone(&allowed)), ..Shelf::default() };
    let tasks = stored(&shelf);
    let router = Router::new()
        .tasks(&tasks)
        .task("tools/call", async |_: CallContext, _: Value| Ok(json!({ "text": "x".repeat(400_000) })));
    let (client, _server) = connect(&MCP, router);
    let mut begun = 0;
    let refused = loop {
        match client.call::<_, Value>("tools/call", &tool("long")).task(None).await {
            Ok(_) => begun += 1,
            Err(error) => break error,
        }
        assert!(begun < 100, "I11: the results of {begun} tasks wait for the store");
    };
    assert_eq!(code(Err::<(), _>(refused)), ErrorCode::INTERNAL_ERROR);
    assert!(begun > 30, "{begun}");
    allowed.add_permits(1000);
    let ended = || shelf.records.lock().unwrap().keys().filter(|(_, ended)| *ended).count();
    timeout(SOON, async {
        while ended() < begun {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{} of {begun} ends are recorded", ended()));
    let _ = client.call::<_, Value>("tools/call", &tool("long")).task(None).await.unwrap();
}

#[tokio::test]
async fn a_task_that_was_taken_for_lost_has_the_recorded_end_at_its_own_process_too() {
    let (shelf, running) = (Shelf::default(), Running::default());
    let (client, _server) = connect(&MCP, router(&stored(&shelf), &running));
    let task = start(&client, "wait").await;
    running.becomes(1).await;
    let key = |ended| (task.id().unwrap().to_owned(), ended);
    // Another process finds only the record of the begin, and takes this one for dead.
    let begun = timeout(SOON, async {
        loop {
            if let Some(begun) = shelf.records.lock().unwrap().get(&key(false)).cloned() {
                break begun;
            }
            tokio::task::yield_now().await;
        }
    });
    let lost = serde_json::from_str::<TaskRecord>(&begun.await.unwrap()).unwrap().lost();
    shelf.records.lock().unwrap().insert(key(true), serde_json::to_string(&lost).unwrap());
    let told: Value = client.call("tasks/cancel", &json!({ "taskId": task.id() })).await.unwrap();
    assert_eq!(told.get("status"), Some(&json!("failed")), "{told}");
    running.becomes(0).await;
    let report = task.status().await.unwrap();
    assert_eq!(report.status, TaskStatus::Failed);
    assert!(report.message.unwrap().contains("was lost"));
}

#[tokio::test]
async fn a_record_that_makes_no_sense_is_no_panic() {
    let shelf = Shelf::default();
    let record = |id: &str, created: u64, end: Value| {
        let record = json!({
            "id": id, "asked_by_client": true, "principal": null, "created": created, "updated": u64::MAX,
            "ttl_ms": u64::MAX, "poll_interval_ms": u64::MAX, "end": end,
        });
        shelf.records.lock().unwrap().insert((id.to_owned(), true), record.to_string());
    };
    record("late", u64::MAX, json!({ "Value": "{}" }));
    record("broken", 0, json!({ "Value": "{" }));
    record("odd", 0, json!({ "Cancelled": {"by": "a stranger", "reason": "x"} }));
    let (client, _server) = connect(&MCP, router(&stored(&shelf), &Running::default()));
    for (id, status) in [("late", "completed"), ("broken", "failed"), ("odd", "cancelled")] {
        let told: Value = client.call("tasks/get", &json!({ "taskId": id })).await.unwrap();
        assert_eq!(told.get("status"), Some(&json!(status)), "{told}");
    }
}
