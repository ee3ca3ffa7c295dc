//! The behaviour of the model's handlers: what they do when they start, when they are signalled, and when a timer is
//! due.

use std::time::{Duration, Instant};

use rescind_core::{CallSpec, Cause, HandlerResult, InboundKey, OutboundKey, Stats, Work};
use serde_json::{Value, json};

use super::connection::Connection;
use super::handler::{Handler, Task};
use crate::action::Action;
use crate::step::CallStep;

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
        let (method, params) = match (self.dialect.name(), token) {
            ("mcp" | "mcp-2026", Some(token)) => {
                ("notifications/progress", json!({"progressToken": token, "progress": ticks}))
            }
            ("lsp", Some(token)) => {
                let value = json!({"kind": "report", "message": ticks.to_string()});
                ("$/progress", json!({"token": token, "value": value}))
            }
            ("abp", Some(token)) => ("progress", json!({"progressToken": token, "progress": ticks})),
            ("mcp" | "mcp-2026", None) => return,
            _ => ("test/tick", json!({"n": ticks})),
        };
        self.notify(method, &params);
    }

    /// Signals its cancel to a handler.
    pub(super) fn signal(&mut self, now: Instant, key: InboundKey) {
        let partial =
            if self.dialect.name() == "acp-v2" { HandlerResult::Stopped } else { HandlerResult::Value };
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
            Work::Task => self.gone(now, key),
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
