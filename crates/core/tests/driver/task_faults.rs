//! Tasks under bad input and faults: times that no client should ask for, cancels at bad moments, handlers that do not end as they
//! should, clients that never ask, many tasks, long results, and a store that is slow.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::dialect::{Dialect, MCP, TaskStatus};
use crate::driver::tasks::{BOTH, Running, SOON, code, connect, router, start, tool};
use crate::{
    BoxFuture, ByteStream, CallContext, CallError, ErrorCode, HandlerError, Limits, Peer, Router, TaskHandle,
    TaskLimits, TaskRecord, TaskStore, Tasks,
};

/// The `_meta` of questions, which the later revision requires.
fn meta() -> Value {
    json!({ "io.modelcontextprotocol/clientCapabilities": {
        "extensions": {"io.modelcontextprotocol/tasks": {}} } })
}

/// The same task, as the client of another connection sees it.
fn same(task: &TaskHandle<Value>, peer: &Peer) -> TaskHandle<Value> {
    TaskHandle::with_id(peer, task.id().unwrap(), Some(&meta())).unwrap()
}

/// A router with this one tool.
fn only<Fut, R>(tasks: &Tasks, tool: impl Fn(CallContext) -> Fut + Send + Sync + 'static) -> Router
where
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: serde::Serialize + Send + 'static,
{
    Router::new().tasks(tasks).task("tools/call", move |ctx: CallContext, _: Value| tool(ctx))
}

#[tokio::test(start_paused = true)]
async fn the_time_for_which_a_task_is_kept_is_bounded_and_told() {
    const DAY: u64 = 86_400_000;
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    for (asked, kept) in [
        ("0", 1000),
        ("-0.0", 1000),
        ("999.9", 1000),
        ("60000", 60_000),
        ("null", 3_600_000),
        ("86400000", DAY),
        // A year, more than 64 bits hold, and more than that.
        ("31536000000", DAY),
        ("18446744073709551616", DAY),
        ("1e300", DAY),
    ] {
        let params: Value =
            serde_json::from_str(&format!(r#"{{"name":"echo","task":{{"ttl":{asked}}}}}"#)).unwrap();
        let answer: Value = client.call("tools/call", &params).await.unwrap();
        assert_eq!(answer.pointer("/task/ttl"), Some(&json!(kept)), "{asked}");
        let told: Value = client
            .call("tasks/get", &json!({ "taskId": answer.pointer("/task/taskId").unwrap() }))
            .await
            .unwrap();
        assert_eq!(told.get("ttl"), Some(&json!(kept)), "{asked}");
    }
    for bad in ["-1", "-1e300", "true", r#""60000""#, "[]", "{}"] {
        let params: Value =
            serde_json::from_str(&format!(r#"{{"name":"echo","task":{{"ttl":{bad}}}}}"#)).unwrap();
        let refused = client.call::<_, Value>("tools/call", &params).await;
        assert_eq!(code(refused), ErrorCode::INVALID_PARAMS, "{bad}");
    }
    assert_eq!(tasks.len(), 9);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(tasks.len(), 6, "those of a second are gone");
    tokio::time::sleep(Duration::from_millis(DAY)).await;
    assert!(tasks.is_empty(), "the longest time is a day");
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_client_never_asks_is_forgotten_with_its_time() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&tasks, &running));
        let begun = tokio::time::Instant::now();
        for name in ["wait", "echo", "fail"] {
            let _: TaskHandle<Value> = client.call("tools/call", &tool(name)).task(None).await.unwrap();
        }
        drop(client);
        tokio::time::sleep_until(begun + Duration::from_secs(3599)).await;
        assert_eq!((tasks.len(), running.count()), (3, 1), "{dialect:?}");
        tokio::time::sleep_until(begun + Duration::from_secs(3601)).await;
        running.becomes(0).await;
        assert!(tasks.is_empty(), "I11: {dialect:?}");
    }
}

/// The function of the handler returns its future only after the cancel is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancel_before_the_handler_has_begun_stops_it() {
    for dialect in BOTH {
        let (tasks, begun) = (Tasks::default(), Arc::new(AtomicUsize::new(0)));
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let (tells, mut ids) = tokio::sync::mpsc::unbounded_channel();
        let (waits, counts) = (std::sync::Mutex::new(waits), Arc::clone(&begun));
        let blocked = only(&tasks, move |ctx| {
            tells.send(ctx.task_id().unwrap().to_owned()).unwrap();
            // Blocks a thread of the runtime.
            waits.lock().unwrap().recv_timeout(SOON).unwrap();
            let counts = Arc::clone(&counts);
            async move {
                // A panic would be the handler's own. One that was not signalled counts as two.
                counts.fetch_add(if ctx.is_cancelled() { 1 } else { 2 }, Ordering::SeqCst);
                Err::<Value, _>(ctx.cancelled().await.into())
            }
        });
        let (client, server) = connect(&dialect, blocked);
        let (other, _other_server) = connect(&dialect, router(&tasks, &Running::default()));
        let asking = client.clone();
        let task = tokio::spawn(async move { start(&asking, "any").await });
        let id = timeout(SOON, ids.recv()).await.unwrap().unwrap();
        let early = TaskHandle::<Value>::with_id(&other, &id, Some(&meta())).unwrap();
        timeout(SOON, early.cancel()).await.unwrap().unwrap();
        assert_eq!(early.status().await.unwrap().status, TaskStatus::Cancelled, "{dialect:?}");
        assert_eq!(begun.load(Ordering::SeqCst), 0);
        go_on.send(()).unwrap();
        let task = timeout(SOON, task).await.unwrap().unwrap();
        assert_eq!(task.id(), Some(&*id));
        none_runs(&server).await;
        assert!(begun.load(Ordering::SeqCst) <= 1, "it was signalled before it began (I17)");
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled, "I16: {dialect:?}");
    }
}

/// Waits until no handler is left.
async fn none_runs(server: &Peer) {
    let left = || {
        let stats = server.stats();
        stats.running + stats.tasks + stats.draining
    };
    let none = timeout(SOON, async {
        while left() > 0 {
            tokio::task::yield_now().await;
        }
    });
    none.await.unwrap_or_else(|_| panic!("I3: {:?}", server.stats()));
}

/// The handler ends some turns of the runtime after the cancel is on its way: before it arrives, after it, and in between.
#[tokio::test]
async fn a_cancel_in_the_instant_of_the_end_is_told_as_it_was() {
    for dialect in BOTH {
        let (tasks, end) = (Tasks::default(), Arc::new(Notify::new()));
        let turns = Arc::new(AtomicUsize::new(0));
        let (ends, takes) = (Arc::clone(&end), Arc::clone(&turns));
        let router = only(&tasks, move |_| {
            let (ends, takes) = (Arc::clone(&ends), Arc::clone(&takes));
            async move {
                ends.notified().await;
                for _ in 0..takes.load(Ordering::SeqCst) {
                    tokio::task::yield_now().await;
                }
                Ok(json!({ "done": true }))
            }
        });
        let (client, server) = connect(&dialect, router);
        let mut seen = Vec::new();
        for count in 0..40 {
            turns.store(count, Ordering::SeqCst);
            let task = start(&client, "any").await;
            end.notify_one();
            let told = timeout(SOON, task.cancel()).await.unwrap();
            let status = task.status().await.unwrap().status;
            match (&told, status) {
                (Ok(()), TaskStatus::Cancelled) => {
                    assert!(matches!(task.result().await, Err(CallError::Cancelled(_))), "{count}");
                }
                // The later revision acknowledges a cancel that comes too late.
                (result, TaskStatus::Completed) if result.is_err() || dialect.name() != MCP.name() => {
                    let result = task.result().await.unwrap();
                    assert_eq!(result.get("done"), Some(&json!(true)), "{count}: {result}");
                }
                other => panic!("{dialect:?}, {count} turns: {other:?}"),
            }
            if let Err(error) = told {
                assert_eq!(code(Err::<(), _>(error)), ErrorCode::INVALID_PARAMS, "{count}");
            }
            none_runs(&server).await;
            assert_eq!(task.status().await.unwrap().status, status, "I16: {count}");
            seen.push(status);
        }
        assert!(
            seen.contains(&TaskStatus::Completed) && seen.contains(&TaskStatus::Cancelled),
            "{dialect:?}: {seen:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_cancels_at_once_one_is_the_first() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (one, _server) = connect(&dialect, router(&tasks, &running));
        let (two, _other_server) = connect(&dialect, router(&tasks, &running));
        for _ in 0..50 {
            let task = start(&one, "wait").await;
            let again = same(&task, &two);
            let (first, second) =
                timeout(SOON, async { tokio::join!(task.cancel(), again.cancel()) }).await.unwrap();
            let accepted = usize::from(first.is_ok()) + usize::from(second.is_ok());
            assert_eq!(accepted, if dialect.name() == MCP.name() { 1 } else { 2 }, "{first:?} {second:?}");
            for late in [first, second].into_iter().filter(Result::is_err) {
                assert_eq!(code(late), ErrorCode::INVALID_PARAMS);
            }
            assert_eq!(again.status().await.unwrap().status, TaskStatus::Cancelled);
        }
        running.becomes(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_ends_after_its_cancel_is_aborted_and_its_task_stays_cancelled() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let enters = running.clone();
        let deaf = only(&tasks, move |_| {
            let entered = enters.enter();
            async move {
                std::future::pending::<()>().await;
                drop(entered);
                Ok(json!({}))
            }
        });
        let (client, server) = connect(&dialect, deaf);
        let task = start(&client, "any").await;
        task.cancel().await.unwrap();
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled, "{dialect:?}");
        assert_eq!((running.count(), server.stats().draining), (1, 1));
        tokio::time::sleep(Duration::from_millis(2100)).await;
        running.becomes(0).await;
        none_runs(&server).await;
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Cancelled, "I16: {dialect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_task_and_no_other_and_changes_no_cancelled_one() {
    for dialect in BOTH {
        let tasks = Tasks::default();
        let panics = only(&tasks, async |ctx: CallContext| -> Result<Value, HandlerError> {
            let cause = timeout(Duration::from_secs(1), ctx.cancelled()).await;
            panic!("on purpose: {cause:?}");
        });
        let (client, server) = connect(&dialect, panics);
        let failed = start(&client, "any").await;
        assert_eq!(
            code(timeout(SOON, failed.result()).await.unwrap()),
            ErrorCode::INTERNAL_ERROR,
            "{dialect:?}"
        );
        let report = failed.status().await.unwrap();
        assert_eq!(report.status, TaskStatus::Failed);
        assert!(
            !report.message.unwrap_or_default().contains("on purpose"),
            "a client gets no text of a panic"
        );
        let cancelled = start(&client, "any").await;
        cancelled.cancel().await.unwrap();
        none_runs(&server).await;
        assert_eq!(server.stats().panics, 1, "the work of a cancelled task has no end of its own");
        assert_eq!(cancelled.status().await.unwrap().status, TaskStatus::Cancelled, "I16: {dialect:?}");
        assert_eq!(failed.status().await.unwrap().status, TaskStatus::Failed);
    }
}

#[tokio::test]
async fn the_tasks_of_one_connection_take_no_room_from_another() {
    let tasks = Tasks::new(TaskLimits::default().max_tasks_of_client(1));
    let running = Running::default();
    let (one, _server) = connect(&MCP, router(&tasks, &running));
    let (two, _other_server) = connect(&MCP, router(&tasks, &running));
    let _task = start(&one, "wait").await;
    let refused = one.call::<_, Value>("tools/call", &tool("wait")).task(None).await;
    assert_eq!(code(refused.map(|_| ())), ErrorCode::INTERNAL_ERROR);
    let _task = start(&two, "wait").await;
    running.becomes(2).await;
}

#[tokio::test]
async fn ten_thousand_tasks_are_polled_and_stopped_by_a_client_that_began_none() {
    const CONNECTIONS: usize = 20;
    const EACH: usize = 500;
    let (tasks, running) = (Tasks::default(), Running::default());
    let mut begun = Vec::new();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let (client, server) = connect(&MCP, router(&tasks, &running));
        let started = (0..EACH).map(|_| start(&client, "wait"));
        begun.extend(join_all(started).await.iter().map(|task| task.id().unwrap().to_owned()));
        connections.push((client, server));
    }
    running.becomes(CONNECTIONS * EACH).await;
    assert_eq!(tasks.len(), CONNECTIONS * EACH);
    let (client, _server) = connect(&MCP, router(&tasks, &running));
    for ids in begun.chunks(EACH) {
        let asked = ids.iter().map(async |id| {
            let question = json!({ "taskId": id });
            for (method, status) in [("tasks/get", "working"), ("tasks/cancel", "cancelled")] {
                let told: Value = client.call(method, &question).await.unwrap();
                assert_eq!(told.get("status"), Some(&json!(status)), "I17: {told}");
            }
        });
        timeout(6 * SOON, join_all(asked)).await.unwrap();
    }
    running.becomes(0).await;
    for (_, server) in &connections {
        none_runs(server).await;
    }
    // The ended ones are kept up to the limit, and make room for others.
    let (last, _last_server) = connect(&MCP, router(&tasks, &running));
    let more: Vec<_> = join_all((0..EACH).map(|_| start(&last, "wait"))).await;
    assert_eq!(tasks.len(), 10_240, "I11");
    let oldest = TaskHandle::<Value>::with_id(&client, &begun[0], Some(&meta())).unwrap();
    assert_eq!(code(oldest.status().await), ErrorCode::INVALID_PARAMS);
    assert_eq!(more[0].status().await.unwrap().status, TaskStatus::Working);
}

/// Polls that are sent without waiting for their answers, before a cancel and behind it.
#[tokio::test]
async fn a_thousand_polls_around_a_cancel_never_see_the_task_go_back() {
    for dialect in BOTH {
        let (tasks, running) = (Tasks::default(), Running::default());
        let (client, _server) = connect(&dialect, router(&tasks, &running));
        let task = start(&client, "wait").await;
        let statuses = async |count: usize| {
            join_all((0..count).map(async |_| task.status().await.unwrap().status)).await
        };
        let (before, cancelled, behind) =
            timeout(SOON, async { tokio::join!(biased; statuses(500), task.cancel(), statuses(500)) })
                .await
                .unwrap();
        cancelled.unwrap();
        assert_eq!(before, vec![TaskStatus::Working; 500], "{dialect:?}");
        assert_eq!(behind, vec![TaskStatus::Cancelled; 500], "I17: {dialect:?}");
        running.becomes(0).await;
    }
}

/// They would wait for the end of a day.
#[tokio::test]
async fn nothing_waits_for_the_time_of_tasks_that_no_server_keeps() {
    let (tasks, running) = (Tasks::default(), Running::default());
    let (client, server) = connect(&MCP, router(&tasks, &running));
    for name in ["wait", "echo", "fail"] {
        let _task = start(&client, name).await;
    }
    assert_eq!(tasks.len(), 3);
    client.shutdown(Duration::ZERO).await;
    server.shutdown(Duration::ZERO).await;
    drop((tasks, client, server));
    let runtime = tokio::runtime::Handle::current();
    let none = timeout(SOON, async {
        while runtime.metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    });
    none.await.unwrap_or_else(|_| panic!("I3: {} are left", runtime.metrics().num_alive_tasks()));
}

/// A store that keeps the length of each record and finds nothing, if it may look.
#[derive(Clone, Default)]
struct SlowStore {
    lengths: Arc<std::sync::Mutex<Vec<usize>>>,
    may_look: Option<Arc<Semaphore>>,
    looks: Arc<AtomicUsize>,
}

impl TaskStore for SlowStore {
    fn record(&self, record: TaskRecord) -> BoxFuture<'static, Option<TaskRecord>> {
        self.lengths.lock().unwrap().push(serde_json::to_string(&record).unwrap().len());
        Box::pin(async { None })
    }

    fn forget(&self, _: TaskRecord) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn find(&self, _: &str) -> BoxFuture<'static, Result<Option<TaskRecord>, String>> {
        let (may_look, looks) = (self.may_look.clone(), Arc::clone(&self.looks));
        Box::pin(async move {
            looks.fetch_add(1, Ordering::SeqCst);
            if let Some(may_look) = may_look {
                may_look.acquire().await.unwrap().forget();
            }
            Ok(None)
        })
    }
}

/// A connection whose frames have room for this many bytes.
fn connect_with_room(dialect: &Dialect, router: Router, room: usize) -> (Peer, Peer) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let [near, far] = [near, far].map(|end| ByteStream::whole(end).max_frame(room).into_link());
    let limits = Limits::default().max_frame_bytes(room);
    let server = Peer::builder(dialect.clone()).serve(router).limits(limits.clone()).attach(far).unwrap();
    (Peer::builder(dialect.clone()).limits(limits).attach(near).unwrap(), server)
}

#[tokio::test]
async fn results_of_16_mib_arrive_where_frames_have_room_and_few_are_kept() {
    const LONG: usize = 16 << 20;
    let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(LONG));
    let result = RawValue::from_string(text).unwrap();
    for dialect in BOTH {
        let tasks = Tasks::new(TaskLimits::default().max_result_bytes(40 << 20));
        let store = SlowStore::default();
        tasks.set_store(Arc::new(store.clone()));
        let long = || {
            let result = result.clone();
            only(&tasks, move |_| {
                let result = result.clone();
                async move { Ok(result) }
            })
        };
        let (client, _server) = connect_with_room(&dialect, long(), 2 * LONG);
        let mut ended = Vec::new();
        for _ in 0..3 {
            let task: TaskHandle<Box<RawValue>> =
                client.call("tools/call", &tool("any")).task(None).await.unwrap();
            let arrived = timeout(6 * SOON, task.result()).await.unwrap().unwrap();
            assert!(arrived.get().len() >= result.get().len(), "{dialect:?}: {}", arrived.get().len());
            ended.push(task);
        }
        assert_eq!(tasks.len(), 2, "I11: 40 MiB have room for two");
        assert_eq!(code(ended[0].status().await), ErrorCode::INVALID_PARAMS, "it made room");
        let longest = store.lengths.lock().unwrap().iter().copied().max().unwrap();
        assert!(longest < 1024, "a record has {longest} bytes: the result is too long for it");
        // By default a frame has room for 16 MiB, which an answer about the task exceeds.
        let (client, _server) = connect(&dialect, long());
        let task = start(&client, "any").await;
        timeout(6 * SOON, task.result()).await.unwrap().unwrap_err();
        assert_eq!(task.status().await.unwrap().status, TaskStatus::Failed, "{dialect:?}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_delays_only_questions_about_unknown_tasks() {
    for dialect in BOTH {
        let may_look = Arc::new(Semaphore::new(0));
        let store = SlowStore { may_look: Some(Arc::clone(&may_look)), ..SlowStore::default() };
        let (tasks, running) = (Tasks::default(), Running::default());
        tasks.set_store(Arc::new(store.clone()));
        let (client, server) = connect(&dialect, router(&tasks, &running));
        let own = start(&client, "wait").await;
        let unknown = TaskHandle::<Value>::with_id(&client, "unknown", Some(&meta())).unwrap();
        let mut asked = pin!(unknown.status());
        let other = pin!(unknown.cancel());
        timeout(SOON, async {
            tokio::select! {
                biased;
                told = &mut asked => panic!("{told:?} without the store"),
                told = other => panic!("{told:?} without the store"),
                () = async {
                    while store.looks.load(Ordering::SeqCst) < 2 {
                        tokio::task::yield_now().await;
                    }
                } => {}
            }
        })
        .await
        .unwrap();
        // Its client does not wait for the second any more.
        assert_eq!(own.status().await.unwrap().status, TaskStatus::Working, "{dialect:?}");
        own.cancel().await.unwrap();
        running.becomes(0).await;
        may_look.add_permits(1);
        assert_eq!(code(timeout(SOON, asked).await.unwrap()), ErrorCode::INVALID_PARAMS);
        may_look.add_permits(1);
        none_runs(&server).await;
    }
}
