//! The methods of the fixture as data: the actions of each handler, and the time of the next one.

use std::collections::BTreeSet;
use std::time::Instant;

use rescind_core::{ErrorObject, HandlerResult, OutboundKey, Work};
use serde_json::{Value, json};

use crate::action::{self, Action};
use crate::meta;

/// A request of one of the fixture's methods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) method: String,
    pub(super) task: Task,
    /// Set if the request is a prompt, whose cancelled answer is a result. Holds the session's id.
    pub(super) prompt: Option<String>,
    /// Whether it arrived as a tool call, whose results are wrapped.
    pub(super) tool: bool,
    pub(super) token: Option<Value>,
}

/// What a method does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    /// One of the actions that the fixture has in every protocol.
    Act(Action),
    /// The params do not fit the action or do not meet the dialect's rules.
    Refuse(ErrorObject),
    Answer(Value),
    NewSession,
}

impl Job {
    /// Returns the fixture's answer to the handshake.
    pub(super) fn handshake(params: &Value, declares_tasks: bool) -> Self {
        let version = params.get("protocolVersion").cloned().unwrap_or(json!(1));
        let mut result = json!({"protocolVersion": version, "capabilities": {}, "sessionId": "session-1",
            "serverInfo": {"name": "rescind-fixture", "version": env!("CARGO_PKG_VERSION")}});
        if declares_tasks {
            meta::declare_tasks(&mut result);
        }
        Self::plain("initialize", Task::Answer(result))
    }

    pub(super) fn plain(method: &str, task: Task) -> Self {
        Self { method: method.to_owned(), task, prompt: None, tool: false, token: None }
    }

    /// Returns `None` if the fixture has no such method.
    pub(super) fn read(method: &str, params: &Value, token: Option<Value>) -> Option<Self> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let job = match method {
            "session/new" => Self::plain(method, Task::NewSession),
            "session/prompt" => {
                let task = Task::Act(Action::of_prompt(params));
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

    /// Returns the same request as one that is refused before it does anything. The refusal has no prompt or tool
    /// wrapper.
    pub(super) fn refused(self, why: ErrorObject) -> Self {
        Self { task: Task::Refuse(why), prompt: None, tool: false, ..self }
    }

    pub(super) fn work(&self) -> Work {
        match self.task {
            Task::Act(Action::Block { .. }) => Work::Blocking,
            Task::Act(_) | Task::Refuse(_) | Task::Answer(_) | Task::NewSession => Work::Task,
        }
    }
}

impl Task {
    /// Returns `None` if there is no action with this name.
    fn read(name: &str, params: &Value) -> Option<Self> {
        action::ALL.contains(&name).then(|| {
            let refuse = |why| Self::Refuse(ErrorObject::invalid_params(why));
            Action::parse(name, params).map_or_else(refuse, Self::Act)
        })
    }
}

fn tools() -> Value {
    let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
    json!({"tools": action::ALL.map(tool)})
}

/// A handler that is running.
#[derive(Debug)]
pub(super) struct Handler {
    pub(super) job: Job,
    /// Whether its cancel was signalled.
    pub(super) signalled: bool,
    /// Whether it has answered. Blocking work may still run.
    pub(super) answered: bool,
    /// When its next action is due.
    pub(super) next: Option<Instant>,
    /// When the fixture cancels it.
    pub(super) local_cancel: Option<Instant>,
    /// How many notifications it has sent.
    pub(super) ticks: u64,
    /// Its open calls.
    pub(super) children: BTreeSet<OutboundKey>,
    /// Its result, until the session asks for it.
    pub(super) end: Option<(HandlerResult, Value)>,
}

impl Handler {
    pub(super) fn start(job: Job, now: Instant) -> Self {
        let next = match &job.task {
            Task::Answer(_) | Task::NewSession | Task::Refuse(_) => Some(now),
            Task::Act(action) => match action {
                Action::Echo(_) | Action::Panic | Action::Stats | Action::Progress { .. } => Some(now),
                Action::Sleep { time, .. } | Action::Ignore { time } | Action::Block { time, .. } => {
                    Some(now + *time)
                }
                Action::Wait | Action::Partial | Action::FailOnCancel { .. } | Action::Nested { .. } => None,
            },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_and_the_fixture_read_the_same_params() {
        let read = |method: &str, params| Job::read(method, &params, None).map(|job| job.task);
        let one = Task::Act(Action::Nested { depth: 0, width: 1 });
        assert_eq!(read("test/nested", json!({})), Some(one), "the defaults are the fixture's");
        assert!(matches!(read("test/sleep", json!({"ms": "soon"})), Some(Task::Refuse(_))));
        let prompt = json!({"sessionId": "s", "prompt": [{"type": "text", "text": "hello"}]});
        assert_eq!(read("session/prompt", prompt), Some(Task::Act(Action::Echo("hello".into()))));
        assert_eq!(read("test/dance", json!({})), None);
    }
}
