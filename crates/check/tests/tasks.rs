//! Servers of tasks in memory, each right or wrong in one way, and what the check says of their tasks.

#![expect(clippy::indexing_slicing, reason = "JSON of a test is read with `[]`")]

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rescind_check::{CheckSettings, PeerSource, Started, Unusable, check};
use rescind_core::{ByteStream, Framing};
use rescind_testkit::runner::LinkSubject;
use rescind_testkit::{Answer, Fact, Profile};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A task of the server.
struct Work {
    id: String,
    status: &'static str,
    is_running: bool,
}

/// A server of one tool that takes its time, as a call or as a task.
struct Server {
    /// In which way it is wrong, or awkward.
    manner: &'static str,
    is_2026: bool,
    ms: u64,
    out: mpsc::UnboundedSender<Value>,
    tasks: Mutex<Vec<Work>>,
    calls: Mutex<HashMap<String, AbortHandle>>,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn tasks(&self) -> MutexGuard<'_, Vec<Work>> {
        self.tasks.lock().unwrap()
    }

    fn status(&self, at: usize) -> &'static str {
        self.tasks().get(at).unwrap().status
    }

    fn answer(&self, id: &Value, mut result: Value) {
        if self.is_2026 && result.get("resultType").is_none() {
            result.as_object_mut().unwrap().insert("resultType".to_owned(), json!("complete"));
        }
        let _closed = self.out.send(json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn refuse(&self, id: &Value, code: i64) {
        let error = json!({ "code": code, "message": "refused" });
        let _closed = self.out.send(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    fn view(&self, at: usize) -> Value {
        let tasks = self.tasks();
        let task = tasks.get(at).unwrap();
        let time = "2026-01-01T00:00:00Z";
        let ttl = if self.is_2026 { "ttlMs" } else { "ttl" };
        let mut view = json!({
            "taskId": task.id, "status": task.status, "createdAt": time, "lastUpdatedAt": time, ttl: null,
        });
        let members = view.as_object_mut().unwrap();
        match self.manner {
            "no times" => members.remove("createdAt"),
            "no ttl" => members.remove(ttl),
            _ => None,
        };
        view
    }

    fn receive(self: &Arc<Self>, message: &Value) {
        self.seen.lock().unwrap().push(message.clone());
        let params = message.get("params").cloned().unwrap_or_default();
        let Some(id) = message.get("id") else {
            if message["method"] == "notifications/cancelled" {
                let call = self.calls.lock().unwrap().remove(&params["requestId"].to_string());
                call.inspect(AbortHandle::abort);
            }
            return;
        };
        let declares =
            params.pointer("/_meta/io.modelcontextprotocol~1clientCapabilities/extensions").is_some();
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => {
                let mut tasks = json!({ "cancel": {}, "requests": { "tools": { "call": {} } } });
                if self.manner == "no cancel" {
                    tasks.as_object_mut().unwrap().remove("cancel");
                }
                self.answer(
                    id,
                    json!({
                        "protocolVersion": "2025-11-25",
                        "capabilities": { "tools": {}, "tasks": tasks },
                        "serverInfo": { "name": "tasks", "version": "1" },
                    }),
                );
            }
            "server/discover" => self.answer(
                id,
                json!({
                    "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                    "capabilities": { "tools": {}, "extensions": { EXTENSION: {} } },
                }),
            ),
            "count" => {
                let tasks = self.tasks().iter().filter(|task| task.is_running).count();
                let calls = self.calls.lock().unwrap().len();
                self.answer(id, json!({ "running": tasks + calls }));
            }
            "tools/call" if params["name"] == "quick" => self.answer(id, json!({ "content": [] })),
            "tools/call"
                if params.get("task").is_some()
                    || declares
                    || params["name"] == "job"
                    || self.manner == "gives all" =>
            {
                self.begin(id, &params);
            }
            "tools/call" => {
                let (server, id, ms) = (Arc::clone(self), id.clone(), self.ms);
                let mut calls = self.calls.lock().unwrap();
                let key = id.to_string();
                let call = tokio::spawn(async move {
                    server.work(ms, &params, || false).await;
                    server.calls.lock().unwrap().remove(&id.to_string());
                    server.answer(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
                });
                calls.insert(key, call.abort_handle());
            }
            method if method.starts_with("tasks/") => {
                if self.is_2026 && !declares && self.manner != "serves all" {
                    return self.refuse(id, -32_021);
                }
                let at = self.tasks().iter().rposition(|task| params["taskId"] == task.id.as_str());
                match at {
                    Some(at) if self.manner != "found late" || self.tasks().get(at).unwrap().is_running => {
                        self.about(id, method, at);
                    }
                    _ => self.refuse(id, -32_602),
                }
            }
            _ => self.refuse(id, -32_601),
        }
    }

    /// Works in ten steps, and reports each of them if there is a token.
    async fn work(&self, ms: u64, params: &Value, is_stopped: impl Fn() -> bool) -> bool {
        for step in 1..=10 {
            let until = Instant::now() + Duration::from_millis(ms) / 10;
            while Instant::now() < until {
                if is_stopped() {
                    return false;
                }
                sleep_until(until.min(Instant::now() + Duration::from_millis(10))).await;
            }
            if let Some(token) = params.pointer("/_meta/progressToken") {
                let params = json!({ "progressToken": token, "progress": step });
                let report =
                    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                let _closed = self.out.send(report);
            }
        }
        true
    }

    fn begin(self: &Arc<Self>, id: &Value, params: &Value) {
        let at = self.tasks().len();
        let random = || RandomState::new().hash_one(at);
        let task_id = match self.manner {
            "counts" => format!("task-{at}"),
            "one id" => "6a1f0d52c9b84e37a5d0913f7be264c8".to_owned(),
            _ => format!("{:016x}{:016x}", random(), random()),
        };
        self.tasks().push(Work { id: task_id, status: "working", is_running: self.manner != "found late" });
        let mut task = self.view(at);
        if self.manner == "begins completed" {
            task["status"] = json!("completed");
        }
        if self.is_2026 {
            task["resultType"] = json!("task");
            self.answer(id, task);
        } else {
            self.answer(id, json!({ "task": task }));
        }
        let (server, params) = (Arc::clone(self), params.clone());
        let goes_on = matches!(self.manner, "works on" | "completed later");
        tokio::spawn(async move {
            if server.manner == "found late" {
                sleep(Duration::from_millis(100)).await;
                server.tasks().get_mut(at).unwrap().is_running = true;
            }
            let stopped = || !goes_on && server.status(at) != "working";
            let is_done = server.work(server.ms, &params, stopped).await;
            let mut tasks = server.tasks();
            let task = tasks.get_mut(at).unwrap();
            task.is_running = server.manner == "found late";
            if is_done && (task.status == "working" || server.manner == "completed later") {
                task.status = "completed";
            }
        });
    }

    fn about(self: &Arc<Self>, id: &Value, method: &str, at: usize) {
        let is_open = self.status(at) == "working";
        match method {
            "tasks/get" => {
                let mut task = self.view(at);
                if self.manner == "get is a task" {
                    task["resultType"] = json!("task");
                }
                self.answer(id, task);
            }
            "tasks/result" if is_open && self.manner == "result early" => self.refuse(id, -32_602),
            "tasks/result" => {
                let (server, id) = (Arc::clone(self), id.clone());
                tokio::spawn(async move {
                    while server.status(at) == "working" {
                        sleep(Duration::from_millis(5)).await;
                    }
                    let task_id = server.tasks().get(at).unwrap().id.clone();
                    let related = json!({ "io.modelcontextprotocol/related-task": { "taskId": task_id } });
                    match server.manner {
                        "unrelated" => server.answer(&id, json!({ "content": [] })),
                        _ => server.answer(&id, json!({ "content": [], "_meta": related })),
                    }
                });
            }
            "tasks/cancel" if is_open && self.manner == "ends at its cancel" => {
                self.tasks().get_mut(at).unwrap().status = "completed";
                self.refuse(id, -32_602);
            }
            "tasks/cancel" if self.manner == "no cancel" => self.refuse(id, -32_601),
            "tasks/cancel" if is_open && self.manner == "refuses" => self.refuse(id, -32_602),
            "tasks/cancel" if is_open || self.is_2026 => {
                if is_open {
                    self.tasks().get_mut(at).unwrap().status = "cancelled";
                }
                if self.manner == "forgets" {
                    "forgotten".clone_into(&mut self.tasks().get_mut(at).unwrap().id);
                }
                let is_empty = self.is_2026 && self.manner != "cancel has a task";
                self.answer(id, if is_empty { json!({}) } else { self.view(at) });
            }
            "tasks/cancel" => self.refuse(id, -32_602),
            _ => self.refuse(id, -32_601),
        }
    }
}

async fn serve(stream: DuplexStream, row: Row, seen: Arc<Mutex<Vec<Value>>>) {
    let (reader, mut writer) = tokio::io::split(stream);
    let (out, mut messages) = mpsc::unbounded_channel::<Value>();
    tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            if writer.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let server = Arc::new(Server {
        manner: row.manner,
        is_2026: row.dialect == "mcp-2026",
        ms: row.ms,
        out,
        tasks: Mutex::default(),
        calls: Mutex::default(),
        seen,
    });
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(message) => server.receive(&message),
            Err(_) => server.refuse(&Value::Null, -32_700),
        }
    }
}

/// A server, how it is asked, and what must be found.
#[derive(Clone, Copy)]
struct Row {
    dialect: &'static str,
    manner: &'static str,
    ms: u64,
    /// The rest of the profile, after its slow and its quick request.
    with: &'static str,
    told: &'static [(&'static str, Answer)],
}

const NO: Answer = Answer::No;

#[rustfmt::skip]
const ROWS: [Row; 27] = [
    Row { dialect: "mcp", manner: "right", ms: 400, with: WITNESS, told: &[("task_cancelled", Answer::Yes), ("task_stays_ended", Answer::Yes)] },
    Row { dialect: "mcp", manner: "right", ms: 60, with: "", told: &[] },
    Row { dialect: "mcp", manner: "right", ms: 900, with: WITNESS, told: &[("task_stops_work", Answer::Yes), ("task_ids_secret", Answer::Yes), ("task_ids_unique", Answer::Yes), ("task_has_times", Answer::Yes), ("task_result_at_end", Answer::Yes), ("task_result_related", Answer::Yes)] },
    Row { dialect: "mcp", manner: "right", ms: 900, with: PROGRESS, told: &[("task_stops_work", Answer::Yes)] },
    Row { dialect: "mcp", manner: "right", ms: 8_000, with: WITNESS, told: &[("task_cancelled", Answer::Yes), ("task_stays_ended", Answer::Unsure), ("task_stops_work", Answer::Yes)] },
    Row { dialect: "mcp", manner: "ends at its cancel", ms: 900, with: "", told: &[("task_cancelled", Answer::Unsure)] },
    Row { dialect: "mcp", manner: "refuses", ms: 900, with: "", told: &[("task_cancelled", NO)] },
    Row { dialect: "mcp", manner: "no cancel", ms: 600, with: WITNESS, told: &[("task_goes_on", Answer::Yes), ("task_cancelled", Answer::NotAsked), ("task_stops_work", Answer::NotAsked), ("task_ended_cancel_refused", Answer::NotAsked)] },
    Row { dialect: "mcp", manner: "works on", ms: 600, with: WITNESS, told: &[("task_stops_work", NO)] },
    Row { dialect: "mcp", manner: "works on", ms: 900, with: PROGRESS, told: &[("task_stops_work", NO)] },
    Row { dialect: "mcp", manner: "completed later", ms: 1_300, with: "", told: &[("task_stays_ended", NO)] },
    Row { dialect: "mcp", manner: "counts", ms: 300, with: "", told: &[("task_ids_secret", NO)] },
    Row { dialect: "mcp", manner: "one id", ms: 300, with: "", told: &[("task_ids_secret", NO), ("task_ids_unique", NO)] },
    Row { dialect: "mcp", manner: "begins completed", ms: 300, with: "", told: &[("task_begins_working", NO)] },
    Row { dialect: "mcp", manner: "no times", ms: 300, with: "", told: &[("task_has_times", NO)] },
    Row { dialect: "mcp", manner: "no ttl", ms: 300, with: "", told: &[("task_has_times", NO)] },
    Row { dialect: "mcp", manner: "result early", ms: 600, with: "", told: &[("task_result_at_end", NO)] },
    Row { dialect: "mcp", manner: "unrelated", ms: 300, with: "", told: &[("task_result_related", NO)] },
    Row { dialect: "mcp-2026", manner: "right", ms: 900, with: WITNESS, told: &[("task_cancelled", Answer::Yes), ("task_stops_work", Answer::Yes), ("task_stays_ended", Answer::Yes), ("task_found_at_once", Answer::Yes), ("task_needs_extension", Answer::Yes), ("task_only_declared", Answer::Yes), ("task_result_types", Answer::Yes), ("task_cancel_empty", Answer::Yes)] },
    Row { dialect: "mcp-2026", manner: "ends at its cancel", ms: 900, with: "", told: &[("task_cancelled", Answer::Unsure)] },
    Row { dialect: "mcp-2026", manner: "completed later", ms: 1_300, with: "", told: &[("task_stays_ended", NO)] },
    Row { dialect: "mcp-2026", manner: "forgets", ms: 600, with: "", told: &[("task_cancelled", Answer::Yes), ("task_stays_ended", Answer::Unsure)] },
    Row { dialect: "mcp-2026", manner: "found late", ms: 600, with: "", told: &[("task_found_at_once", NO)] },
    Row { dialect: "mcp-2026", manner: "serves all", ms: 300, with: "", told: &[("task_needs_extension", NO)] },
    Row { dialect: "mcp-2026", manner: "right", ms: 300, with: JOB, told: &[("task_only_declared", NO)] },
    Row { dialect: "mcp-2026", manner: "get is a task", ms: 300, with: "", told: &[("task_result_types", NO)] },
    Row { dialect: "mcp-2026", manner: "cancel has a task", ms: 300, with: "", told: &[("task_cancel_empty", NO)] },
];

const WITNESS: &str = "[witness]\nmethod = \"count\"\nrunning = \"running\"\n";
/// A tool whose calls are always tasks.
const JOB: &str = "[requests.task]\nmethod = \"tools/call\"\nparams = { name = \"job\" }\n";
const PROGRESS: &str = "[requests.progress]\nmethod = \"tools/call\"\nnotification = \"notifications/progress\"\n\
                        params = { name = \"long\", _meta = { progressToken = \"check\" } }\n";

struct InMemory {
    row: Row,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl PeerSource for InMemory {
    fn start(&mut self) -> Started {
        let (row, seen) = (self.row, Arc::clone(&self.seen));
        let subject = LinkSubject::new(Box::new(move || {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(serve(theirs, row, Arc::clone(&seen)));
            Box::pin(async move { Ok(ByteStream::whole(ours).framing(Framing::Newline).into_link()) })
        }));
        let text = format!(
            "name = \"tasks\"\n[requests.slow]\nmethod = \"tools/call\"\nparams = {{ name = \"long\" }}\n\
             [requests.quick]\nmethod = \"tools/call\"\nparams = {{ name = \"quick\" }}\n{}",
            self.row.with
        );
        Started { subject, profile: Profile::from_toml(&text).unwrap() }
    }

    /// As of a program that the check has started.
    fn process_group(&self) -> Option<u32> {
        Some(std::process::id())
    }

    fn wire(&self) -> &'static str {
        "stdio"
    }
}

/// The facts, and what the server received.
fn checked(row: Row) -> Result<(Vec<Fact>, Vec<Value>), Unusable> {
    let mut settings = CheckSettings::default();
    settings.tries = 1;
    settings.processor_time = false;
    settings.longest = if row.ms > 5_000 { Duration::from_secs(1) } else { Duration::from_secs(6) };
    let mut source = InMemory { row, seen: Arc::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(check(row.dialect, &mut source, &settings, |_| {}))?;
    let seen = source.seen.lock().unwrap().clone();
    Ok((report.facts, seen))
}

/// What is wrong with the verdict on a server, in words.
fn trouble(row: Row) -> Vec<String> {
    let (facts, seen) = checked(row).unwrap();
    let mut trouble = Vec::new();
    for fact in facts.iter().filter(|fact| fact.name.starts_with("task_")) {
        let told = row.told.iter().find(|(name, _)| *name == fact.name);
        let is_right = told.map_or(fact.answer != NO, |(_, answer)| fact.answer == *answer);
        if !is_right {
            trouble.push(format!("{}: {:?}, {}", fact.name, fact.answer, fact.detail));
        }
    }
    for (name, _) in row.told {
        if !facts.iter().any(|fact| fact.name == *name) {
            trouble.push(format!("{name} is not asked"));
        }
    }
    // Only the request that becomes a task asks for it.
    let is_task = |frame: &&Value| frame.pointer("/params/task").is_some();
    if let Some(frame) = seen.iter().filter(is_task).find(|frame| frame["method"] != "tools/call") {
        trouble.push(format!("the check sends {frame}"));
    }
    if seen.iter().any(|frame| is_task(&frame)) != (row.dialect == "mcp") {
        trouble.push("the request for a task is not as its revision has it".to_owned());
    }
    trouble
}

#[test]
fn a_server_of_tasks_is_told_what_it_does_and_is_not_accused_of_more() {
    let rows = ROWS.map(|row| (row, std::thread::spawn(move || trouble(row))));
    let mut all = Vec::new();
    for (row, trouble) in rows {
        let trouble = trouble.join().unwrap();
        if !trouble.is_empty() {
            all.push(format!("{} {} {} ms: {}", row.dialect, row.manner, row.ms, trouble.join("; ")));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn a_slow_request_that_is_answered_with_a_task_is_told_as_such() {
    let row = Row { dialect: "mcp-2026", manner: "gives all", ms: 300, with: "", told: &[] };
    let why = checked(row).unwrap_err().to_string();
    assert!(why.contains("is answered with a task, though it declares no tasks"), "{why}");
}
