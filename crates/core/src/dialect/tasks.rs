//! Tasks, as protocols write them: requests that go on after their first answer.
//!
//! MCP has two forms. In revision 2025-11-25 the client asks for a task with the member `task` of its params; in the
//! extension `io.modelcontextprotocol/tasks` of 2026-07-28 the server decides, and the client says in each request whether
//! it can take one.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::value::RawValue;

use super::json::{self, PickedMembers, Shape, push, push_string};
use super::mcp::{CAPABILITIES, SUBSCRIPTION};
use super::rules::{TaskForm, TaskStatus};
use crate::id::RequestId;
use crate::message::{ErrorCode, ErrorObject};

/// What a request says about a task as its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskOffer {
    /// How long the client wants the task to be kept, in milliseconds. `None`: it does not say.
    pub(crate) ttl: Option<u64>,
    /// What the client declares to answer.
    pub(crate) answers: Answers,
}

/// Which requests of a server a client declares to answer. A server must not send others (MCP 2026-07-28, "Multi Round-Trip
/// Requests").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers([bool; ANSWERED.len()]);

/// The methods of such requests, and the capability that a client declares for each.
const ANSWERED: [(&str, &str); 3] =
    [("elicitation/create", "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")];

impl Answers {
    fn of(params: Option<&RawValue>) -> Self {
        let capabilities = json::member(json::member(params, "_meta"), CAPABILITIES);
        Self(ANSWERED.map(|(_, capability)| {
            json::member(capabilities, capability)
                .is_some_and(|settings| json::shape(settings.get()) == Shape::Object)
        }))
    }

    /// # Errors
    /// The client does not declare that it answers requests of this method.
    pub(crate) fn check(self, method: &str) -> Result<(), ErrorObject> {
        for ((answered, capability), declared) in ANSWERED.into_iter().zip(self.0) {
            if answered == method && !declared {
                return Err(missing_capability(&serde_json::json!({ capability: {} })));
            }
        }
        Ok(())
    }
}

/// A task at one moment, to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskDetails<'a> {
    pub(crate) id: &'a str,
    pub(crate) status: TaskStatus,
    pub(crate) message: Option<&'a str>,
    /// When it was created, as RFC 3339 writes it.
    pub(crate) created: &'a str,
    /// When its status changed last, as RFC 3339 writes it.
    pub(crate) updated: &'a str,
    /// How long it is kept from its creation, in milliseconds.
    pub(crate) ttl: u64,
    /// The suggested time between two questions about it, in milliseconds.
    pub(crate) poll_interval: u64,
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<&'a ErrorObject>,
    /// The requests to the client that wait for their answers, as one JSON object.
    pub(crate) inputs: Option<&'a RawValue>,
}

/// A task as a client reads it.
#[derive(Clone, Debug)]
pub(crate) struct TaskSeen<'a> {
    pub(crate) id: String,
    pub(crate) status: TaskStatus,
    pub(crate) message: Option<String>,
    pub(crate) poll_interval: Option<u64>,
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<ErrorObject>,
}

/// The member of `_meta` that names the task of a message (2025-11-25, "Related Task Metadata").
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// The most tasks of one listen request.
const MAX_LISTENED: usize = 128;
/// The extension's name (2026-07-28).
const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// "Missing Required Client Capability" (2026-07-28).
const MISSING_CAPABILITY: ErrorCode = ErrorCode(-32021);

/// The methods of tasks, in both forms.
pub(crate) const GET: &str = "tasks/get";
pub(crate) const RESULT: &str = "tasks/result";
pub(crate) const LIST: &str = "tasks/list";
pub(crate) const CANCEL: &str = "tasks/cancel";
pub(crate) const UPDATE: &str = "tasks/update";
/// The method by which a client asks for the changes of tasks, and the notifications on its stream.
pub(crate) const LISTEN: &str = "subscriptions/listen";
pub(crate) const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
pub(crate) const CHANGED: &str = "notifications/tasks";

impl TaskForm {
    /// Whether the form has this method.
    pub(crate) fn has_method(self, method: &str) -> bool {
        match self {
            Self::AskedByClient => [GET, RESULT, LIST, CANCEL].contains(&method),
            Self::DecidedByServer => [GET, UPDATE, CANCEL, LISTEN].contains(&method),
        }
    }

    /// Whether requests of this method wait for the end of a task.
    pub(crate) fn waits(self, method: &str) -> bool {
        self == Self::AskedByClient && method == RESULT
    }

    /// Whether requests of this method report the work of a task, cancel it, or bring what it waits for.
    pub(crate) fn controls(self, method: &str) -> bool {
        method == GET || method == CANCEL || (self == Self::DecidedByServer && method == UPDATE)
    }

    /// Whether requests of this method may become tasks: "Client Capabilities" and "Server Capabilities" of 2025-11-25,
    /// "Supported Methods" of the extension.
    pub(crate) fn is_supported(self, method: &str) -> bool {
        match self {
            Self::AskedByClient => {
                ["tools/call", "sampling/createMessage", "elicitation/create"].contains(&method)
            }
            Self::DecidedByServer => method == "tools/call",
        }
    }

    /// What the params of a request say about a task as its answer. `None`: the answer must not be one.
    ///
    /// # Errors
    /// The client asks for a task in a way that cannot be read.
    pub(crate) fn offer(self, params: Option<&RawValue>) -> Option<Result<TaskOffer, ErrorObject>> {
        match self {
            Self::AskedByClient => {
                let task = json::member(params, "task")?;
                if json::shape(task.get()) != Shape::Object {
                    return Some(Err(ErrorObject::invalid_params("`task` must be an object")));
                }
                let ttl = json::member(Some(task), "ttl").map(milliseconds).transpose();
                Some(ttl.map(|ttl| TaskOffer { ttl, answers: Answers::default() }))
            }
            Self::DecidedByServer => {
                declares(params).then(|| Ok(TaskOffer { ttl: None, answers: Answers::of(params) }))
            }
        }
    }

    /// The error for a request whose answer must be a task, and cannot.
    pub(crate) fn task_required(self) -> ErrorObject {
        match self {
            // "Tool-Level Negotiation": a client that does not ask for a required task gets this code.
            Self::AskedByClient => {
                ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, "This request must ask for a task")
            }
            Self::DecidedByServer => missing_extension(),
        }
    }

    /// Checks what a question about a task must declare.
    ///
    /// # Errors
    /// "Protocol Errors" of the extension: the client does not declare it.
    pub(crate) fn check_declared(self, params: Option<&RawValue>) -> Result<(), ErrorObject> {
        match self {
            Self::AskedByClient => Ok(()),
            Self::DecidedByServer if declares(params) => Ok(()),
            Self::DecidedByServer => Err(missing_extension()),
        }
    }

    /// Whether a task may send messages of its own. The extension: progress and log messages "are not supported on tasks".
    pub(crate) const fn has_messages(self) -> bool {
        matches!(self, Self::AskedByClient)
    }

    /// Whether a tool's result that says `isError` makes its task `failed`. "Task Status" of 2025-11-25: it does. The
    /// extension: `failed` is for errors of JSON-RPC.
    pub(crate) fn is_failure(self, result: &RawValue) -> bool {
        match self {
            Self::AskedByClient => {
                json::member(Some(result), "isError").is_some_and(|value| value.get() == "true")
            }
            Self::DecidedByServer => false,
        }
    }

    /// The first answer to a request that became a task.
    pub(crate) fn handle(self, task: &TaskDetails<'_>) -> Option<Box<RawValue>> {
        match self {
            Self::AskedByClient => {
                #[derive(Serialize)]
                struct Handle<'a> {
                    task: Written<'a>,
                }
                serde_json::value::to_raw_value(&Handle { task: self.written(task) }).ok()
            }
            Self::DecidedByServer => {
                let written = Written { result_type: Some("task"), ..self.written(task) };
                serde_json::value::to_raw_value(&written).ok()
            }
        }
    }

    /// A task, as `tasks/get` answers it.
    pub(crate) fn status(self, task: &TaskDetails<'_>) -> Option<Box<RawValue>> {
        let written = self.written(task);
        let written = match self {
            Self::AskedByClient => written,
            Self::DecidedByServer => {
                Written { result: task.result, error: task.error, input_requests: task.inputs, ..written }
            }
        };
        serde_json::value::to_raw_value(&written).ok()
    }

    fn written<'a>(self, task: &TaskDetails<'a>) -> Written<'a> {
        let (ttl, poll) = (Some(task.ttl), Some(task.poll_interval));
        let written = Written {
            task_id: task.id,
            status: task.status.name(),
            status_message: task.message,
            created_at: task.created,
            last_updated_at: task.updated,
            ..Written::default()
        };
        match self {
            Self::AskedByClient => Written { ttl, poll_interval: poll, ..written },
            Self::DecidedByServer => Written { ttl_ms: ttl, poll_interval_ms: poll, ..written },
        }
    }

    /// Params or a result with the name of the task to which it belongs, which replaces one that is there. Unchanged, if the
    /// form has no such name, or if it is not an object.
    pub(crate) fn related(self, value: Box<RawValue>, id: &str) -> Box<RawValue> {
        if self == Self::DecidedByServer || json::shape(value.get()) != Shape::Object {
            return value;
        }
        let name = |out: &mut Vec<u8>| {
            push_string(out, RELATED);
            push(out, r#":{"taskId":"#);
            push_string(out, id);
            out.push(b'}');
        };
        let PickedMembers { values: [meta], .. } = PickedMembers::of(Some(&value), ["_meta"]);
        let mut out = Vec::with_capacity(value.get().len() + id.len() + RELATED.len() + 32);
        match meta {
            None => json::push_with_member(&mut out, value.get(), |out| {
                push(out, r#""_meta":{"#);
                name(out);
                out.push(b'}');
            }),
            Some(meta) => json::push_replacing(&mut out, &value, meta, |out| {
                let PickedMembers { values: [named], .. } = PickedMembers::of(Some(meta), [RELATED]);
                match named {
                    None if json::shape(meta.get()) == Shape::Object => {
                        json::push_with_member(out, meta.get(), name);
                    }
                    None => {
                        out.push(b'{');
                        name(out);
                        out.push(b'}');
                    }
                    Some(named) => json::push_replacing(out, meta, named, |out| {
                        push(out, r#"{"taskId":"#);
                        push_string(out, id);
                        out.push(b'}');
                    }),
                }
            }),
        }
        json::into_raw(out).unwrap_or(value)
    }

    /// Adds the name of the task to which a written message belongs to its params.
    pub(crate) fn name_in(self, frame: &mut Vec<u8>, id: &str) {
        let named = std::str::from_utf8(frame).ok().and_then(json::raw).and_then(|whole| {
            let params = json::member(Some(whole), "params")?;
            let related = self.related(params.to_owned(), id);
            let mut out = Vec::with_capacity(frame.len() + related.get().len());
            json::push_replacing(&mut out, whole, params, |out| json::push_json(out, related.get()));
            Some(out)
        });
        *frame = named.unwrap_or_else(|| std::mem::take(frame));
    }

    /// Params of a request that asks for a task, or says that its client can take one.
    pub(crate) fn ask(self, params: Option<&RawValue>, ttl: Option<u64>) -> Option<Box<RawValue>> {
        let params = json::present(params).or_else(|| json::raw("{}"))?;
        if json::shape(params.get()) != Shape::Object {
            return None;
        }
        let mut out = Vec::new();
        match self {
            Self::AskedByClient => json::push_with_member(&mut out, params.get(), |out| {
                push(out, r#""task":{"#);
                if let Some(ttl) = ttl {
                    push(out, r#""ttl":"#);
                    json::push_number(out, ttl);
                }
                out.push(b'}');
            }),
            Self::DecidedByServer => return declared(params),
        }
        json::into_raw(out)
    }

    /// The `_meta` of questions about a task, from the params of its request. `None`: they need none.
    pub(crate) fn meta_of_questions(self, params: &RawValue) -> Option<Box<RawValue>> {
        if self == Self::AskedByClient {
            return None;
        }
        let meta = json::member(Some(params), "_meta")?;
        let mut meta: serde_json::Value = serde_json::from_str(meta.get()).ok()?;
        // It is the token of that request.
        meta.as_object_mut()?.remove("progressToken");
        serde_json::value::to_raw_value(&meta).ok()
    }

    /// Reads the first answer to a request that asked for a task. `None`: it is the result itself, or cannot be read.
    pub(crate) fn read_handle(self, result: &RawValue) -> Option<TaskSeen<'_>> {
        match self {
            Self::AskedByClient => self.read_status(json::member(Some(result), "task")?),
            Self::DecidedByServer => {
                let is_task = json::member(Some(result), "resultType")
                    .and_then(json::string)
                    .is_some_and(|named| named == "task");
                is_task.then(|| self.read_status(result)).flatten()
            }
        }
    }

    /// Reads the answer to `tasks/get`.
    pub(crate) fn read_status(self, result: &RawValue) -> Option<TaskSeen<'_>> {
        let poll = match self {
            Self::AskedByClient => "pollInterval",
            Self::DecidedByServer => "pollIntervalMs",
        };
        let whole = Some(result);
        let PickedMembers { values: [id, status, message], .. } =
            PickedMembers::of(whole, ["taskId", "status", "statusMessage"]);
        let PickedMembers { values: [poll, result, error], .. } =
            PickedMembers::of(whole, [poll, "result", "error"]);
        Some(TaskSeen {
            id: json::string(id?)?.into_owned(),
            status: TaskStatus::by_name(&json::string(status?)?)?,
            message: message.and_then(json::string).map(std::borrow::Cow::into_owned),
            poll_interval: poll.and_then(|value| milliseconds(value).ok()),
            result,
            error: error.and_then(|error| serde_json::from_str(error.get()).ok()),
        })
    }
}

/// A task with the members of both forms. Those that a form does not have are left out.
#[derive(Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    task_id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<&'a str>,
    created_at: &'a str,
    last_updated_at: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_interval: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_interval_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ErrorObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<&'a RawValue>,
}

/// The id in the params of a question about a task.
///
/// # Errors
/// There is none.
pub(crate) fn task_id(params: Option<&RawValue>) -> Result<String, ErrorObject> {
    let id = json::member(params, "taskId").and_then(json::string);
    id.map(std::borrow::Cow::into_owned)
        .ok_or_else(|| ErrorObject::invalid_params("`taskId` must be the id of a task"))
}

/// The ids of the tasks whose changes a listen request asks for. `None`: it asks for none.
///
/// # Errors
/// They cannot be read.
pub(crate) fn listened(params: &RawValue) -> Result<Option<BTreeSet<String>>, ErrorObject> {
    let Some(ids) = json::member(json::member(Some(params), "notifications"), "taskIds") else {
        return Ok(None);
    };
    let ids: BTreeSet<String> = serde_json::from_str(ids.get())
        .map_err(|_| ErrorObject::invalid_params("`taskIds` must be the ids of tasks"))?;
    if ids.len() > MAX_LISTENED {
        return Err(ErrorObject::invalid_params(format_args!("`taskIds` has more than {MAX_LISTENED} ids")));
    }
    Ok(Some(ids))
}

/// The first message of a subscription: the tasks whose changes it will have.
pub(crate) fn acknowledged(subscription: &RequestId, ids: &[&str]) -> Option<Box<RawValue>> {
    let notifications = serde_json::json!({ "notifications": { "taskIds": ids } });
    of_subscription(subscription, &serde_json::value::to_raw_value(&notifications).ok()?)
}

/// An object with the subscription to which it belongs ("Receiving Notifications").
pub(crate) fn of_subscription(subscription: &RequestId, value: &RawValue) -> Option<Box<RawValue>> {
    let mut out = Vec::with_capacity(value.get().len() + 128);
    json::push_with_member(&mut out, value.get(), |out| {
        push(out, r#""_meta":{"#);
        push_string(out, SUBSCRIPTION);
        out.push(b':');
        subscription.write_json(out);
        out.push(b'}');
    });
    json::into_raw(out)
}

/// One member of params.
pub(crate) fn member<'a>(params: Option<&'a RawValue>, name: &str) -> Option<&'a RawValue> {
    json::member(params, name)
}

/// A number of milliseconds. A part of one is dropped.
fn milliseconds(value: &RawValue) -> Result<u64, ErrorObject> {
    if let Ok(whole) = value.get().parse::<u64>() {
        return Ok(whole);
    }
    match value.get().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 =>
        {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is not negative, and a number above the largest becomes the largest"
            )]
            Ok(number as u64)
        }
        Ok(_) | Err(_) => {
            Err(ErrorObject::invalid_params("`ttl` must be a number of milliseconds, 0 or more"))
        }
    }
}

/// Whether the params declare the extension.
fn declares(params: Option<&RawValue>) -> bool {
    let capabilities = json::member(json::member(params, "_meta"), CAPABILITIES);
    let extension = json::member(json::member(capabilities, "extensions"), EXTENSION);
    extension.is_some_and(|settings| json::shape(settings.get()) == Shape::Object)
}

fn missing_extension() -> ErrorObject {
    missing_capability(&serde_json::json!({ "extensions": { EXTENSION: {} } }))
}

fn missing_capability(required: &serde_json::Value) -> ErrorObject {
    let required = serde_json::json!({ "requiredCapabilities": required });
    ErrorObject::new(MISSING_CAPABILITY, "Missing required client capability").with_data(&required)
}

/// Params that declare the extension, beside what they declare already.
fn declared(params: &RawValue) -> Option<Box<RawValue>> {
    let mut value: serde_json::Value = serde_json::from_str(params.get()).ok()?;
    let mut place = &mut value;
    for name in ["_meta", CAPABILITIES, "extensions"] {
        place = place.as_object_mut()?.entry(name).or_insert_with(|| serde_json::json!({}));
    }
    place.as_object_mut()?.entry(EXTENSION).or_insert_with(|| serde_json::json!({}));
    serde_json::value::to_raw_value(&value).ok()
}
