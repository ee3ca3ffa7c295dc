//! The fixture's methods as data: what each is doing and when it does the next thing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rescind_core::{HandlerEnd, OutboundKey, Work};
use serde_json::{Value, json};

use super::prompt;

/// A request of one of the fixture's methods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) method: String,
    pub(super) task: Task,
    /// It is a prompt: its cancelled answer is a result of its own.
    pub(super) prompt: Option<String>,
    /// It came as a tool call, whose results are wrapped.
    pub(super) tool: bool,
    pub(super) token: Option<Value>,
}

/// What a method does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    Answer(Value),
    Sleep { ms: u64, value: Value },
    Wait,
    Partial,
    FailOnCancel,
    Ignore { ms: u64 },
    Block { ms: u64, polls: bool },
    Progress { count: u64, every_ms: u64 },
    Nested { depth: u64, width: u64 },
    Panic,
    Stats,
    NewSession,
}

impl Job {
    /// The fixture's handshake answers.
    pub(super) fn handshake(params: &Value) -> Self {
        let version = params.get("protocolVersion").cloned().unwrap_or(json!(1));
        let result = json!({"protocolVersion": version, "capabilities": {}, "sessionId": "session-1",
            "serverInfo": {"name": "rescind-fixture", "version": env!("CARGO_PKG_VERSION")}});
        Self::plain("initialize", Task::Answer(result))
    }

    fn plain(method: &str, task: Task) -> Self {
        Self { method: method.to_owned(), task, prompt: None, tool: false, token: None }
    }

    /// `None`: the fixture has no such method.
    pub(super) fn read(method: &str, params: &Value, token: Option<Value>) -> Option<Self> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let job = match method {
            "session/new" => Self::plain(method, Task::NewSession),
            "session/prompt" => {
                let task = prompt::task_of(params)?;
                Self { prompt: Some(text("sessionId")), ..Self::plain(method, task) }
            }
            "tools/list" => Self::plain(method, Task::Answer(tools())),
            "tools/call" => {
                let arguments = params.get("arguments").cloned().unwrap_or_else(|| json!({}));
                let task = Task::read(&text("name"), &arguments)?;
                Self { tool: true, ..Self::plain(method, task) }
            }
            "server/discover" => Self::plain(method, Task::Answer(json!({"capabilities": {}}))),
            _ => Self::plain(method, Task::read(method.strip_prefix("test/")?, params)?),
        };
        Some(Self { token, ..job })
    }

    pub(super) fn work(&self) -> Work {
        match self.task {
            Task::Block { .. } => Work::Blocking,
            Task::Answer(_)
            | Task::Sleep { .. }
            | Task::Wait
            | Task::Partial
            | Task::FailOnCancel
            | Task::Ignore { .. }
            | Task::Progress { .. }
            | Task::Nested { .. }
            | Task::Panic
            | Task::Stats
            | Task::NewSession => Work::Task,
        }
    }
}

impl Task {
    pub(super) fn read(name: &str, params: &Value) -> Option<Self> {
        let number = |name: &str| params.get(name).and_then(Value::as_u64).unwrap_or_default();
        let value = || params.get("value").cloned().unwrap_or_default();
        Some(match name {
            "echo" => Self::Answer(json!({"value": value()})),
            "sleep" => Self::Sleep { ms: number("ms"), value: value() },
            "wait" => Self::Wait,
            "partial" => Self::Partial,
            "fail_on_cancel" => Self::FailOnCancel,
            "ignore" => Self::Ignore { ms: number("ms") },
            "block" => {
                let polls = params.get("poll").and_then(Value::as_bool).unwrap_or_default();
                Self::Block { ms: number("ms"), polls }
            }
            "progress" => Self::Progress { count: number("count"), every_ms: number("every_ms") },
            "nested" => Self::Nested { depth: number("depth"), width: number("width") },
            "panic" => Self::Panic,
            "stats" => Self::Stats,
            _ => return None,
        })
    }
}

fn tools() -> Value {
    let names = [
        "echo",
        "sleep",
        "wait",
        "partial",
        "fail_on_cancel",
        "ignore",
        "block",
        "progress",
        "panic",
        "stats",
    ];
    let tool = |name: &&str| json!({"name": name, "inputSchema": {"type": "object"}});
    json!({"tools": names.iter().map(tool).collect::<Vec<_>>()})
}

/// A handler that runs.
#[derive(Debug)]
pub(super) struct Handler {
    pub(super) job: Job,
    /// It was told of its cancel.
    pub(super) signalled: bool,
    /// It has given its answer; blocking work may still run.
    pub(super) answered: bool,
    /// When it does something next.
    pub(super) next: Option<Instant>,
    /// When the fixture cancels it.
    pub(super) local_cancel: Option<Instant>,
    /// What it has notified so far.
    pub(super) ticks: u64,
    /// Its own calls that are open.
    pub(super) children: BTreeSet<OutboundKey>,
    /// What it ended with, until the session asks for it.
    pub(super) end: Option<(HandlerEnd, Value)>,
}

impl Handler {
    pub(super) fn start(job: Job, now: Instant) -> Self {
        let after = |ms: u64| Some(now + Duration::from_millis(ms));
        let next = match &job.task {
            Task::Answer(_) | Task::Panic | Task::Stats | Task::NewSession => Some(now),
            Task::Sleep { ms, .. } | Task::Ignore { ms } | Task::Block { ms, .. } => after(*ms),
            Task::Progress { every_ms, .. } => after(*every_ms),
            Task::Wait | Task::Partial | Task::FailOnCancel | Task::Nested { .. } => None,
        };
        Self {
            job,
            signalled: false,
            answered: false,
            next,
            local_cancel: None,
            ticks: 0,
            children: BTreeSet::new(),
            end: None,
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.next.into_iter().chain(self.local_cancel).min()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }
}
