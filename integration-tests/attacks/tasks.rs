//! A client that begins tasks, or asks about them, without end, on each wire: how many there are, what is kept, and whether
//! others are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use rescind::dialect::{MCP, Role, TaskStatus};
use rescind::transport::Link;
use rescind::{CallContext, Peer, Router, TaskHandle, TaskLimits, Tasks};
use serde_json::{Value, json};

use crate::agent::limits;
use crate::floods::{Alive, Memory, WARM_UP, counting, echoes, floodable, kept_open, million_over};
use crate::raw_client::{Hears, RawClient};
use crate::wires::{Door, Wire, accept};
use crate::{in_time, until};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in floodable() {
        let name = format!("tasks::a_flood_of_creations::{}", wire.name);
        trials.extend(counting(name, move || creations(wire)));
        let name = format!("tasks::a_flood_of_polls::{}", wire.name);
        trials.extend(counting(name, move || polls(wire)));
    }
    trials
}

/// The most tasks of one client, and of all.
const OF_CLIENT: usize = 32;
const ALL: usize = 64;
/// How many requests are sent before their answers are read.
const TOGETHER: usize = 64;
/// The most memory that a flood may use.
const MEMORY: usize = 8 << 20;

/// Tool calls become tasks that wait for their cancel. `echo` answers.
fn router(tasks: &Tasks, alive: &Alive) -> Router {
    let alive = alive.clone();
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            let declared = json!({ "requests": {"tools": {"call": {}}}, "cancel": {} });
            Ok(json!({ "protocolVersion": "2025-11-25", "capabilities": {"tasks": declared} }))
        })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .tasks(tasks)
        .task("tools/call", move |ctx: CallContext, _: Value| {
            let one = alive.enter();
            async move {
                let cause = ctx.cancelled().await;
                drop(one);
                ctx.stopped::<Value>(cause)
            }
        })
}

/// The server of this wire: each connection is a client of its own.
struct Place {
    door: Door,
    tasks: Tasks,
    alive: Alive,
}

impl Place {
    async fn start(wire: Wire) -> Self {
        let limits = TaskLimits::default().max_tasks(ALL).max_tasks_of_client(OF_CLIENT);
        Self { door: wire.listen(kept_open()).await, tasks: Tasks::new(limits), alive: Alive::default() }
    }

    /// A client that floods, and the peer that serves it.
    async fn stranger(&mut self) -> (RawClient, Peer) {
        let router = router(&self.tasks, &self.alive);
        RawClient::meet_with(&mut self.door, |link| serve(link, router), Hears::Keeps).await
    }

    /// Another client after its handshake, and the peer that serves it.
    async fn other(&mut self) -> (Peer, Peer) {
        let router = router(&self.tasks, &self.alive);
        let Door { listener, transport, .. } = &mut self.door;
        let opening = async {
            let link = in_time("connecting", transport().open()).await.expect("a connection");
            let client = Peer::builder(MCP).role(Role::Client).attach(link).expect("a runtime");
            let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
            in_time("the handshake", client.call::<_, Value>("initialize", &hello)).await.expect("an answer");
            client
        };
        let serving = async { serve(accept(listener).await, router) };
        tokio::join!(opening, serving)
    }
}

fn serve(link: Link, router: Router) -> Peer {
    let builder = Peer::builder(MCP).role(Role::Server).serve(router).limits(limits());
    builder.attach(link).expect("a runtime")
}

/// Sends these requests, and gives their answers to `read`.
async fn ask(
    stranger: &mut RawClient,
    ids: std::ops::Range<usize>,
    method: &'static str,
    params: impl Fn(usize) -> Value,
    mut read: impl FnMut(Value),
) {
    for n in ids.clone() {
        stranger.request(&json!(n), method, &params(n)).await;
    }
    for _ in ids {
        read(stranger.hear().await);
    }
}

/// Echoes of another client until the flood is over.
fn beside(client: &Peer) -> (Arc<AtomicBool>, tokio::task::JoinHandle<Duration>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let (client, over) = (client.clone(), Arc::clone(&is_over));
    (is_over, tokio::spawn(echoes(client, move |_| !over.load(Ordering::SeqCst))))
}

/// Another client begins a task, asks about it, and stops it.
async fn is_served(client: &Peer) {
    let call = client.call::<_, Value>("tools/call", &json!({ "name": "wait" }));
    let task: TaskHandle<Value> = in_time("I1: a task", call.task(None)).await.expect("a task");
    let status = async |status| {
        let report = in_time("I13: a poll", task.status()).await.expect("a status");
        assert_eq!(report.status, status);
    };
    status(TaskStatus::Working).await;
    in_time("I13: a cancel", task.cancel()).await.expect("it is stopped");
    status(TaskStatus::Cancelled).await;
}

/// So many requests of this method, after some that warm up. Another client is served meanwhile, and the memory is bounded. `what`: what
/// they are called in messages.
async fn flood(
    (stranger, client, server): (&mut RawClient, &Peer, &Peer),
    count: usize,
    (method, what, wire): (&'static str, &str, &str),
    params: impl Fn(usize) -> Value + Copy,
    mut read: impl FnMut(Value),
) {
    for n in (0..WARM_UP).step_by(TOGETHER) {
        ask(stranger, n..n + TOGETHER, method, params, &mut read).await;
    }
    let (is_over, echoing) = beside(client);
    let mut memory = Memory::begin();
    for n in (0..count).step_by(TOGETHER) {
        let first = WARM_UP.next_multiple_of(TOGETHER) + n;
        ask(stranger, first..first + TOGETHER, method, params, &mut read).await;
        memory.look(n);
        if n == 0 {
            is_served(client).await;
        }
    }
    is_served(client).await;
    is_over.store(true, Ordering::SeqCst);
    let slow = echoing.await.expect("others are served");
    eprintln!("counted: {count} {what} over {wire}: others' p99 {slow:?}, {:?}", server.stats());
    memory.is_within(MEMORY, what);
}

async fn creations(wire: Wire) {
    let (count, wire_name) = (million_over(&wire), wire.name);
    let mut place = Place::start(wire).await;
    let (mut stranger, server) = place.stranger().await;
    let (client, other) = place.other().await;
    let params = |_| json!({ "name": "wait", "task": {"ttl": 86_400_000} });
    let mut begun = 0;
    let read = |answer: Value| {
        if answer.pointer("/result/task/taskId").is_some() {
            begun += 1;
        } else {
            assert_eq!(answer.pointer("/error/data/limit"), Some(&json!("tasks")), "{answer}");
        }
    };
    let sides = (&mut stranger, &client, &server);
    flood(sides, count, ("tools/call", "creations", wire_name), params, read).await;
    assert_eq!(begun, OF_CLIENT, "I11: the tasks of the client that floods");
    assert_eq!(server.stats().tasks, OF_CLIENT as u64, "I11: {:?}", server.stats());
    assert!(place.tasks.len() <= ALL, "I11: {:?}", place.tasks);
    // A request that is refused has none. The other client has one.
    let most = place.alive.most.load(Ordering::SeqCst);
    assert!(most <= OF_CLIENT + 1, "I11: {most} handlers");
    end(place, stranger, [server, other], &client).await;
}

async fn polls(wire: Wire) {
    let (count, wire_name) = (million_over(&wire), wire.name);
    let mut place = Place::start(wire).await;
    let (mut stranger, server) = place.stranger().await;
    let (client, other) = place.other().await;
    stranger.request(&json!("task"), "tools/call", &json!({ "name": "wait", "task": {} })).await;
    let answer = stranger.hear().await;
    let id = answer.pointer("/result/task/taskId").expect("a task").clone();
    // Half of them ask about the task, the others about one that does not exist.
    let params =
        |n: usize| if n % 2 == 0 { json!({ "taskId": id }) } else { json!({ "taskId": format!("{n}") }) };
    let mut known = 0;
    let read = |answer: Value| match answer.pointer("/result/status") {
        Some(status) => {
            assert_eq!(status, "working");
            known += 1;
        }
        None => assert_eq!(answer.pointer("/error/code"), Some(&json!(-32602)), "{answer}"),
    };
    let sides = (&mut stranger, &client, &server);
    flood(sides, count, ("tasks/get", "polls", wire_name), params, read).await;
    let asked = WARM_UP.next_multiple_of(TOGETHER) + count;
    assert_eq!(known, asked / 2, "each is answered");
    let stats = server.stats();
    assert_eq!((stats.tasks, stats.slots), (1, 1), "I3: only the task is left: {stats:?}");
    end(place, stranger, [server, other], &client).await;
}

/// The tasks end with their server.
async fn end(place: Place, stranger: RawClient, servers: [Peer; 2], client: &Peer) {
    stranger.leave();
    in_time("the client's end", client.shutdown(Duration::ZERO)).await;
    for server in servers {
        in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
    }
    until("I3: no handler is left", || place.alive.now.load(Ordering::SeqCst) == 0).await;
}
