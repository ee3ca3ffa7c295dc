//! The options that a vector gives the fixture before it starts, and how they change a dialect. They are also the format
//! of the file for `rescind fixture --options`.

use std::time::Duration;

use rescind_core::dialect::{AnswerAfterCancel, CancelFrom, Dialect};
use rescind_core::{CauseKind, Limits};
use serde::{Deserialize, Serialize};

/// Settings of the fixture. An omitted setting has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Options {
    /// Which side may cancel.
    pub cancel_from: Option<CancelFromOption>,
    /// Whether a value that is ready after the cancel is sent.
    pub answer_after_cancel: Option<AnswerAfterCancelOption>,
    /// Whether the subject declares that it handles cancels, where its dialect has a declaration. Default: it does.
    pub declare_cancel: Option<bool>,
    /// Whether a tool call can become a task, if the dialect has tasks (MCP), and whether the fixture declares that. Default:
    /// yes.
    pub declare_tasks: Option<bool>,
    /// Whether the fixture registers its handlers with `Router::quick`. Outcomes are the same. Default: it does not.
    pub quick_handlers: Option<bool>,
    /// Limits and times.
    pub limits: LimitOptions,
    /// Makes the fixture cancel its own handlers.
    pub local_cancel: Option<LocalCancel>,
}

impl Options {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a tool call can become a task.
    pub(crate) fn has_tasks(&self) -> bool {
        self.declare_tasks.unwrap_or(true)
    }

    /// Whether the fixture registers its handlers as quick.
    pub(crate) fn registers_quick(&self) -> bool {
        self.quick_handlers.unwrap_or(false)
    }

    /// Whether the subject declares that it handles cancels.
    #[must_use]
    pub fn declares_cancel(&self) -> bool {
        self.declare_cancel.unwrap_or(true)
    }
}

/// See [`Options::cancel_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelFromOption {
    /// Both sides.
    Both,
    /// The client only.
    Client,
}

/// See [`Options::answer_after_cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerAfterCancelOption {
    /// As the dialect defines.
    Dialect,
    /// It is sent.
    ResultIfFinished,
}

/// The limits that a vector can change, times in milliseconds. The names are those of [`Limits`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LimitOptions {
    /// The most handlers that run at once.
    pub running: Option<usize>,
    /// The most requests that wait for a permit.
    pub queued: Option<usize>,
    /// How long requests wait for a permit.
    pub queue_time_ms: Option<u64>,
    /// The time from the signal to the abort.
    pub cancel_grace_ms: Option<u64>,
    /// The time from the end of input to the cancel of running handlers.
    pub half_close_grace_ms: Option<u64>,
    /// How long a shutdown waits for handlers.
    pub drain_deadline_ms: Option<u64>,
    /// How long a cancelled call waits for its answer.
    pub peer_wait_ms: Option<u64>,
    /// How many settled ids are remembered.
    pub remembered: Option<usize>,
    /// How long settled ids are remembered.
    pub remembered_time_ms: Option<u64>,
    /// How many early cancels are kept.
    pub parked: Option<usize>,
    /// How long early cancels are kept.
    pub parked_time_ms: Option<u64>,
}

impl LimitOptions {
    /// These limits, with the defaults for those that are not set.
    #[must_use]
    pub fn over_defaults(&self) -> Limits {
        fn set<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        let time = |millis: Option<u64>| millis.map(Duration::from_millis);
        let mut limits = Limits::default();
        set(&mut limits.max_running_handlers, self.running);
        set(&mut limits.max_queued_requests, self.queued);
        set(&mut limits.queue_timeout, time(self.queue_time_ms));
        set(&mut limits.cancel_grace, time(self.cancel_grace_ms));
        set(&mut limits.half_close_grace, time(self.half_close_grace_ms));
        set(&mut limits.drain_timeout, time(self.drain_deadline_ms));
        set(&mut limits.cancel_response_timeout, time(self.peer_wait_ms));
        set(&mut limits.max_settled_ids, self.remembered);
        set(&mut limits.settled_id_lifetime, time(self.remembered_time_ms));
        set(&mut limits.max_early_cancels, self.parked);
        set(&mut limits.early_cancel_timeout, time(self.parked_time_ms));
        limits
    }
}

/// Makes the fixture cancel its own handlers of one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalCancel {
    /// The method.
    pub method: String,
    /// The time from the handler's start to the cancel; 0: immediately.
    #[serde(default)]
    pub after_ms: u64,
    /// The cause of the cancel.
    pub cause: LocalCause,
}

/// Why the fixture cancels its own handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalCause {
    /// A limit was reached.
    Limit,
    /// The side shuts down.
    Shutdown,
    /// A deadline passed.
    Deadline,
    /// Application code cancelled it.
    Local,
}

impl From<LocalCause> for CauseKind {
    fn from(cause: LocalCause) -> Self {
        match cause {
            LocalCause::Limit => Self::Limit,
            LocalCause::Shutdown => Self::Shutdown,
            LocalCause::Deadline => Self::Deadline,
            LocalCause::Local => Self::Local,
        }
    }
}

impl Options {
    /// Returns the dialect with the rules that these options change, or the same dialect if they change none.
    #[must_use]
    pub fn apply_to(&self, dialect: &Dialect) -> Dialect {
        if self.cancel_from.is_none() && self.answer_after_cancel.is_none() {
            return dialect.clone();
        }
        let mut builder = dialect.to_builder();
        if let Some(from) = self.cancel_from {
            builder = builder.cancel_from(match from {
                CancelFromOption::Both => CancelFrom::Both,
                CancelFromOption::Client => CancelFrom::Client,
            });
        }
        if let Some(answer) = self.answer_after_cancel {
            builder = builder.answer_after_cancel(match answer {
                AnswerAfterCancelOption::Dialect => AnswerAfterCancel::Dialect,
                AnswerAfterCancelOption::ResultIfFinished => AnswerAfterCancel::ResultIfFinished,
            });
        }
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_left_out_keep_their_defaults() {
        let options: Options =
            serde_json::from_str(r#"{"limits":{"running":1,"cancel_grace_ms":40}}"#).unwrap();
        let limits = options.limits.over_defaults();
        assert_eq!(limits.max_running_handlers, 1);
        assert_eq!(limits.cancel_grace, Duration::from_millis(40));
        assert_eq!(limits.max_queued_requests, Limits::default().max_queued_requests);
        assert!(options.declares_cancel());
    }
}
