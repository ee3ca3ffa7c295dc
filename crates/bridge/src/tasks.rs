//! Which client of a bridge has which task: upstream servers often take all of them for one (MCP 2025-11-25, "Task Isolation
//! and Access Control": "receivers **MUST** ensure the returned task list includes only tasks associated with the requestor's
//! authorization context").

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use rescind_core::dialect::{Dialect, TaskForm};
use rescind_core::{ErrorCode, ErrorObject, Principal};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The most tasks that a bridge knows; above it the oldest is forgotten.
const MAX_TASKS: usize = 10_240;

/// The clients of a bridge by their tasks, as far as they are known.
#[derive(Default)]
pub(crate) struct TaskOwners(Mutex<OwnerTable>);

#[derive(Default)]
struct OwnerTable {
    by_id: HashMap<Arc<str>, TaskClient>,
    ids: VecDeque<Arc<str>>,
}

/// The client of a request, as far as the bridge knows it.
#[derive(Clone, PartialEq)]
pub(crate) struct TaskClient {
    /// Clients with a principal are the same in every session.
    pub(crate) principal: Option<Principal>,
    /// The number of the session.
    pub(crate) session: u64,
}

impl TaskClient {
    fn is_same(&self, other: &Self) -> bool {
        self.principal == other.principal && (self.principal.is_some() || self.session == other.session)
    }
}

#[derive(Deserialize)]
struct Handle<'a> {
    #[serde(borrow)]
    task: TaskId<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskId<'a> {
    #[serde(borrow)]
    task_id: Cow<'a, str>,
}

/// The params of a listen request.
#[derive(Deserialize)]
struct Listen<'a> {
    #[serde(borrow)]
    notifications: Listened<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listened<'a> {
    #[serde(borrow, default)]
    task_ids: Vec<Cow<'a, str>>,
}

/// A result of the extension that is a task.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskResult<'a> {
    #[serde(borrow)]
    result_type: Cow<'a, str>,
    #[serde(borrow)]
    task_id: Cow<'a, str>,
}

impl TaskOwners {
    /// Checks a request about a task.
    ///
    /// # Errors
    /// The task is another principal's. Without a principal whoever knows the id may ask.
    pub(crate) fn check(
        &self,
        dialect: &Dialect,
        client: &TaskClient,
        method: &str,
        params: &RawValue,
    ) -> Result<(), ErrorObject> {
        let named: Vec<Cow<'_, str>> = match dialect.rules().tasks {
            Some(_) if method.starts_with("tasks/") => {
                serde_json::from_str(params.get()).map(|TaskId { task_id }| vec![task_id]).unwrap_or_default()
            }
            Some(TaskForm::DecidedByServer) if method == "subscriptions/listen" => {
                serde_json::from_str(params.get())
                    .map(|Listen { notifications }| notifications.task_ids)
                    .unwrap_or_default()
            }
            Some(_) | None => return Ok(()),
        };
        let owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_others = |id: &Cow<'_, str>| {
            owners.by_id.get(&**id).is_some_and(|owner| owner.principal != client.principal)
        };
        if named.iter().any(is_others) {
            return Err(ErrorObject::new(ErrorCode::INVALID_PARAMS, "there is no such task"));
        }
        Ok(())
    }

    /// Notes the task that the upstream has made of a request, and takes the tasks of others out of a list.
    pub(crate) fn answered(
        &self,
        dialect: &Dialect,
        client: &TaskClient,
        (method, params): (&str, &RawValue),
        answer: Box<RawValue>,
    ) -> Box<RawValue> {
        match dialect.rules().tasks {
            Some(TaskForm::AskedByClient) if method == "tasks/list" => self.own(client, answer),
            Some(TaskForm::AskedByClient) if params.get().contains("\"task\"") => {
                if let Ok(Handle { task }) = serde_json::from_str::<Handle<'_>>(answer.get()) {
                    self.note(client, &task.task_id);
                }
                answer
            }
            // The extension has no list, and a task is its client's who knows the id.
            Some(TaskForm::DecidedByServer) if client.principal.is_some() => {
                if answer.get().contains("\"resultType\"") {
                    // Other answers name tasks too, which others may have created.
                    match serde_json::from_str::<TaskResult<'_>>(answer.get()) {
                        Ok(TaskResult { result_type, task_id }) if result_type == "task" => {
                            self.note(client, &task_id);
                        }
                        Ok(_) | Err(_) => {}
                    }
                }
                answer
            }
            Some(_) | None => answer,
        }
    }

    fn note(&self, client: &TaskClient, id: &str) {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if owners.by_id.contains_key(id) {
            return;
        }
        let id: Arc<str> = id.into();
        owners.by_id.insert(Arc::clone(&id), client.clone());
        owners.ids.push_back(id);
        if owners.ids.len() > MAX_TASKS {
            if let Some(oldest) = owners.ids.pop_front() {
                owners.by_id.remove(&oldest);
            }
        }
    }

    /// A list with this client's tasks only.
    fn own(&self, client: &TaskClient, answer: Box<RawValue>) -> Box<RawValue> {
        let Ok(mut page) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(answer.get()) else {
            return answer;
        };
        let listed = page.get("tasks").map(|tasks| serde_json::from_str::<Vec<Box<RawValue>>>(tasks.get()));
        let Some(Ok(mut tasks)) = listed else { return answer };
        {
            let owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.retain(|task| {
                let id = serde_json::from_str::<TaskId<'_>>(task.get());
                let owner = id.ok().and_then(|task| owners.by_id.get(&*task.task_id));
                owner.is_some_and(|owner| owner.is_same(client))
            });
        }
        let written = serde_json::value::to_raw_value(&tasks).and_then(|tasks| {
            page.insert("tasks".to_owned(), tasks);
            serde_json::value::to_raw_value(&page)
        });
        written.unwrap_or(answer)
    }
}
