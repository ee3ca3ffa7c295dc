//! The methods of the fixture as data: the actions of each handler, and the time of the next one. And what handlers do
//! when they start, when they are signalled, and when a timer is due.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rescind_core::{
    CallSpec, Cause, CauseKind, ErrorObject, HandlerResult, InboundKey, OutboundKey, Stats, Work,
};
use serde_json::{Value, json};

use super::connection::Connection;
use crate::action;
use crate::action::Action;
use crate::dialects::ProgressForm;
use crate::vector::CallStep;

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
            action::declare_tasks(&mut result, false);
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

impl Connection {
    pub(super) fn start_handler(&mut self, now: Instant, key: InboundKey) {
        let Some(job) = self.waiting.remove(&key) else { return };
        let mut handler = Handler::start(job, now);
        let local = self.local_cancel.as_ref().filter(|local| local.method == handler.job.method);
        handler.local_cancel = local.map(|local| now + Duration::from_millis(local.after_ms));
        let nested = match handler.job.task {
            Task::Act(Action::Nested { depth, width }) => Some((depth, width)),
            _ => None,
        };
        self.handlers.insert(key, handler);
        if let Some((depth, width)) = nested {
            self.call_back(now, key, depth, width);
        }
        if self.handlers.get(&key).is_some_and(|handler| handler.is_due(now)) {
            self.handler_due(now, key);
        }
    }

    /// `test/nested` calls itself on its peer, or `test/wait` at depth 0 and 1.
    fn call_back(&mut self, now: Instant, key: InboundKey, depth: u64, width: u64) {
        let (method, params) = match depth {
            0 | 1 => ("test/wait", json!({})),
            _ => ("test/nested", json!({"depth": depth - 1, "width": width})),
        };
        for _ in 0..width {
            let mut spec = CallSpec::new(method);
            spec.parent = Some(key);
            let call = CallStep::plain("", method, params.clone());
            if let Some(child) = self.stage(now, &spec, &call) {
                if let Some(handler) = self.handlers.get_mut(&key) {
                    handler.children.insert(child);
                }
            }
        }
    }

    pub(super) fn handler_due(&mut self, now: Instant, key: InboundKey) {
        let Some(handler) = self.handlers.get_mut(&key) else { return };
        if handler.local_cancel.is_some_and(|due| due <= now) {
            handler.local_cancel = None;
            let cause = self.local_cancel.as_ref().map(|local| Cause::new(local.cause.into()));
            if let Some(cause) = cause {
                self.session.local_cancel(now, key, cause);
                self.pump(now);
            }
            return;
        }
        if handler.answered {
            // Blocking work whose request is already settled ends now.
            self.gone(now, key);
            return;
        }
        let end = match &handler.job.task {
            Task::Answer(value) => (HandlerResult::Value, value.clone()),
            Task::Refuse(why) => {
                let data = why.data.as_ref().and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
                let error = json!({"code": why.code.0, "message": why.message, "data": data});
                (HandlerResult::Error, error)
            }
            Task::NewSession => {
                let session = self.sessions.add();
                (HandlerResult::Value, json!({"sessionId": session}))
            }
            Task::Act(action) => match action {
                Action::Echo(value) | Action::Sleep { value, .. } => {
                    (HandlerResult::Value, json!({"value": value}))
                }
                Action::Ignore { .. } | Action::Block { .. } => {
                    (HandlerResult::Value, json!({"ignored": true}))
                }
                Action::Panic => (HandlerResult::Panicked, Value::Null),
                Action::Stats => {
                    let stats = self.stats_value();
                    self.stats_served += 1;
                    (HandlerResult::Value, stats)
                }
                Action::Progress { count, .. } if handler.ticks >= *count => {
                    (HandlerResult::Value, json!({"ticks": count}))
                }
                Action::Progress { every, .. } => {
                    handler.next = Some(now + (*every).max(Duration::from_millis(1)));
                    handler.ticks += 1;
                    self.tick(key);
                    return;
                }
                Action::Wait | Action::Partial | Action::FailOnCancel { .. } | Action::Nested { .. } => {
                    return;
                }
            },
        };
        self.end_handler(now, key, end.0, end.1);
    }

    fn tick(&mut self, key: InboundKey) {
        let Some(handler) = self.handlers.get(&key).filter(|_| self.session.may_notify(key)) else { return };
        let (ticks, token) = (handler.ticks, handler.job.token.clone());
        let progress = self.facts.progress;
        let (method, params) = match (progress.form, token) {
            (ProgressForm::MetaToken | ProgressForm::AnyToken, Some(token)) => {
                (progress.method, json!({"progressToken": token, "progress": ticks}))
            }
            (ProgressForm::WorkDone, Some(token)) => {
                let value = json!({"kind": "report", "message": ticks.to_string()});
                (progress.method, json!({"token": token, "value": value}))
            }
            (ProgressForm::MetaToken, None) => return,
            (ProgressForm::Tick, _) | (ProgressForm::WorkDone | ProgressForm::AnyToken, None) => {
                ("test/tick", json!({"n": ticks}))
            }
        };
        self.notify(method, &params);
    }

    /// Signals its cancel to a handler.
    pub(super) fn signal(&mut self, now: Instant, key: InboundKey) {
        let partial = if self.facts.partial_results { HandlerResult::Value } else { HandlerResult::Stopped };
        let Some(handler) = self.handlers.get_mut(&key) else { return };
        handler.signalled = true;
        let Task::Act(action) = &handler.job.task else { return };
        let end = match action {
            Action::Partial => (partial, json!({"partial": true})),
            Action::FailOnCancel { code, data } => {
                let error = json!({"code": code, "message": "the fixture fails on purpose", "data": data});
                (HandlerResult::Error, error)
            }
            Action::Wait
            | Action::Sleep { .. }
            | Action::Progress { .. }
            | Action::Block { poll: true, .. } => (HandlerResult::Stopped, Value::Null),
            Action::Nested { .. } if handler.children.is_empty() => (HandlerResult::Stopped, Value::Null),
            Action::Nested { .. }
            | Action::Ignore { .. }
            | Action::Block { poll: false, .. }
            | Action::Echo(_)
            | Action::Panic
            | Action::Stats => return,
        };
        self.end_handler(now, key, end.0, end.1);
    }

    /// A call that a handler made has ended.
    pub(super) fn child_ended(&mut self, now: Instant, child: OutboundKey) {
        let parent = self.handlers.iter_mut().find(|(_, handler)| handler.children.contains(&child));
        let Some((&key, handler)) = parent else { return };
        handler.children.remove(&child);
        if handler.children.is_empty() {
            let end = if handler.signalled { HandlerResult::Stopped } else { HandlerResult::Value };
            self.end_handler(now, key, end, json!({}));
        }
    }

    fn end_handler(&mut self, now: Instant, key: InboundKey, end: HandlerResult, value: Value) {
        let Some(handler) = self.handlers.get_mut(&key) else { return };
        let (end, value) = match (&handler.job.prompt, end) {
            // ACP-09: a prompt ends with a result, by whichever message it was cancelled.
            (Some(_), HandlerResult::Stopped | HandlerResult::Error) => {
                (HandlerResult::Value, json!({"stopReason": "cancelled"}))
            }
            (Some(_), HandlerResult::Value) => (HandlerResult::Value, json!({"stopReason": "end_turn"})),
            (None, HandlerResult::Value) if handler.job.tool => {
                let text = value.to_string();
                let content = json!([{"type": "text", "text": text}]);
                (HandlerResult::Value, json!({"structuredContent": value, "content": content}))
            }
            (_, end) => (end, value),
        };
        // An error that the dialect allows after a cancel counts as a value.
        let heard = self.dialect.rules().errors_after_cancel;
        let code = value.get("code").and_then(Value::as_i64).filter(|_| end == HandlerResult::Error);
        let stands = code.is_some_and(|code| heard.iter().any(|heard| heard.0 == code));
        handler.end = Some((end, value));
        self.session.local_answer(now, key, if stands { HandlerResult::Value } else { end });
        self.pump(now);
        self.gone(now, key);
    }

    /// The handler's task or thread has ended.
    pub(super) fn gone(&mut self, now: Instant, key: InboundKey) {
        if self.handlers.remove(&key).is_some() {
            self.session.local_ended(now, key);
            self.pump(now);
        }
    }

    /// The grace has ended: a task is dropped, a thread continues.
    pub(super) fn abort(&mut self, now: Instant, key: InboundKey) {
        let Some(handler) = self.handlers.get_mut(&key) else { return };
        match handler.job.work() {
            Work::Task | Work::Control => self.gone(now, key),
            Work::Blocking => handler.answered = true,
        }
    }

    /// The counters of the whole fixture, without those of `test/stats`.
    fn stats_value(&self) -> Value {
        // The counters are taken before the requesting frame is read, so they do not include it.
        let all = &self.all_stats;
        let sum = |count: fn(&Stats) -> u64| all.iter().map(|(stats, _)| count(stats)).sum::<u64>();
        let served: u64 = all.iter().map(|(_, served)| *served).sum();
        json!({
            "started": sum(|stats| stats.started).saturating_sub(served),
            "finished": sum(|stats| stats.finished).saturating_sub(served),
            "cancelled": sum(|stats| stats.cancelled),
            "running": sum(|stats| stats.running),
            "queued": sum(|stats| stats.queued),
            "draining": sum(|stats| stats.draining),
            "slots": sum(|stats| stats.slots),
            "unknown_cancels": sum(|stats| stats.unknown_cancels),
            "late_answers": sum(|stats| stats.late_answers),
        })
    }
}

impl Connection {
    /// Handles `session/cancel`: application code cancels the prompts of that session.
    pub(super) fn session_cancelled(&mut self, now: Instant, params: &Value) {
        let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_its = |handler: &Handler| handler.job.prompt.as_ref() == Some(&session);
        let prompts: Vec<InboundKey> =
            self.handlers.iter().filter(|(_, handler)| is_its(handler)).map(|(key, _)| *key).collect();
        for key in prompts {
            self.session.local_cancel(now, key, Cause::new(CauseKind::Local));
        }
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
