//! What other nodes know of tasks: any node reports and cancels the tasks of all.
//!
//! A task has a record of its begin and one of its end in the engine. Its own node forgets both with the task. Another node that finds
//! no end asks the task's node. If that is not a member any more, it records the task as lost. If it lives all the same, because it
//! was suspended or could not reach the engine, it stops the work and gives the recorded end too. A list of nodes keeps no
//! records. The ids of a principal's tasks are in a list of the engine, so that `tasks/list` has those of dead nodes too.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use rescind_core::{
    BoxFuture, Cause, CauseKind, ListedTask, LogText, OwnTasks, Principal, TaskPosition, TaskRecord,
    TaskStore,
};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::engine::EngineError;
use crate::hop::TaskMessage;
use crate::keys::CancelBus;
use crate::membership::{Located, Member};
use crate::names::{Incarnation, NodeName, SignedName, task_records};
use crate::process::{Process, Told, lock};
use crate::secret::Purpose;

/// The longest record, in bytes. A NATS server takes messages of 1 MiB. A longer one is written without the result.
const MAX_RECORD: usize = 512 * 1024;
/// The most records that are written at a time.
const WRITERS: usize = 16;
/// When enough recorded tasks are listed: a page of `tasks/list`, and one more.
const LISTED: usize = 101;
/// The most records that are read at a time for a list.
const READERS: usize = 16;
/// The time between two attempts while the engine is away. They end with the time of the task.
const RETRY: Duration = Duration::from_millis(500);

/// Records the tasks of this node. It does not keep the cluster alive.
pub(crate) struct TaskRecords {
    cluster: Weak<Process>,
    writers: Arc<Semaphore>,
}

impl TaskRecords {
    pub(crate) fn new(cluster: &Arc<Process>) -> Self {
        Self { cluster: Arc::downgrade(cluster), writers: Arc::new(Semaphore::new(WRITERS)) }
    }

    /// The cluster, if its engine keeps records.
    fn records(&self) -> Option<Arc<Process>> {
        self.cluster.upgrade().filter(|cluster| !cluster.engine.is_list())
    }
}

impl TaskStore for TaskRecords {
    fn record(&self, record: TaskRecord) -> BoxFuture<'static, Option<TaskRecord>> {
        let (cluster, writers) = (self.records(), Arc::clone(&self.writers));
        Box::pin(async move {
            let cluster = cluster?;
            let _turn = writers.acquire().await;
            write(&cluster, record).await
        })
    }

    fn forget(&self, task: TaskRecord) -> BoxFuture<'static, ()> {
        let cluster = self.records();
        Box::pin(async move {
            let Some(cluster) = cluster else { return };
            if let Err(error) = forget(&cluster, &task).await {
                tracing::debug!(error = %LogText::text(&error), "the records of a task stay until its time is over");
            }
        })
    }

    fn attach(&self, own: OwnTasks) {
        if let Some(cluster) = self.cluster.upgrade() {
            lock(&cluster.own_tasks).push(own);
        }
    }

    fn find(&self, id: &str) -> BoxFuture<'static, Result<Option<TaskRecord>, String>> {
        let named = self.of_another(id);
        Box::pin(async move {
            match named {
                Some((cluster, named)) => find(cluster, &named, Hearing::Ask).await,
                None => Ok(None),
            }
        })
    }

    fn list(
        &self,
        principal: &Principal,
        after: Option<TaskPosition>,
    ) -> BoxFuture<'static, Vec<ListedTask>> {
        let (cluster, principal) = (self.cluster.upgrade(), principal.clone());
        Box::pin(async move {
            let Some(cluster) = cluster else { return Vec::new() };
            list(&cluster, &principal, after).await
        })
    }

    fn cancel(&self, id: &str, cause: Cause) -> BoxFuture<'static, Result<(), String>> {
        let (named, id) = (self.of_another(id), id.to_owned());
        Box::pin(async move {
            let Some((cluster, named)) = named else {
                return Err("this node has left its cluster".to_owned());
            };
            // The bus has no peer: a request that is no task would not be answered then.
            let by_client = cause.kind() == CauseKind::Peer;
            if by_client && matches!(ask(&cluster, &named, true).await, Asked::Told(Some(_))) {
                return Ok(());
            }
            // Its node does not answer. The cancel waits for it in the engine.
            let cause = if by_client { Cause::new(CauseKind::Caller) } else { cause };
            let asked = CancelBus(cluster).cancel(&id, &cause).await;
            asked.map(drop).map_err(|error| format!("the task cannot be cancelled now: {error}"))
        })
    }
}

impl TaskRecords {
    /// The name of a task of another process. This one knows all of its own.
    fn of_another(&self, id: &str) -> Option<(Arc<Process>, SignedName)> {
        let cluster = self.cluster.upgrade()?;
        let named = SignedName::parse(Purpose::Key, &cluster.secret, id)?;
        (cluster.incarnation != named.incarnation).then_some((cluster, named))
    }
}

fn text_of(record: &TaskRecord) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

/// Writes the record of a task that has begun or ended. Returns the record of the end that was there before it.
async fn write(cluster: &Process, mut record: TaskRecord) -> Option<TaskRecord> {
    let names = task_records(record.id());
    let [ended, begun] = &names;
    let name = if record.has_ended() { ended } else { begun };
    // In the list first: what `tasks/get` finds is there.
    let list = record.listed_for().filter(|_| !record.has_ended()).map(|of| list_of(cluster, &of));
    let mut text = text_of(&record);
    if text.len() > MAX_RECORD {
        record = record.without_result();
        text = text_of(&record);
    }
    loop {
        // Its time is over: nobody asks about it.
        let keep = record.time_left()?;
        let enlisted = match &list {
            Some(list) => cluster.engine.enlist(list, record.id(), keep).await,
            None => Ok(()),
        };
        let kept = match enlisted {
            Ok(()) => cluster.engine.keep(name, &text, keep).await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(other) => return serde_json::from_str(&other?).ok(),
            Err(EngineError::Away(_)) => sleep(RETRY).await,
            Err(error) => {
                tracing::warn!(error = %LogText::text(&error), "a task was not recorded: only its node knows it");
                // The begin alone would say later that it failed with its node. If it stays, the engine is away.
                let _ = forget(cluster, &record).await;
                return None;
            }
        }
    }
}

/// Removes the records of a task of this process.
async fn forget(cluster: &Process, task: &TaskRecord) -> Result<(), EngineError> {
    cluster.engine.forget(&task_records(task.id())).await?;
    match task.listed_for() {
        Some(principal) => cluster.engine.strike(&list_of(cluster, &principal), task.id()).await,
        None => Ok(()),
    }
}

fn read(text: &str) -> Option<TaskRecord> {
    serde_json::from_str(text).ok()
}

/// The name of the list of a principal's tasks, which nobody learns from it.
fn list_of(cluster: &Process, principal: &Principal) -> String {
    cluster.secret.sign(Purpose::Tasks, &[principal.0.as_bytes()]).to_string()
}

/// A node in one of its lives.
type Life = (NodeName, Incarnation);

/// The tasks of a principal after that place: of the nodes that answer, and the recorded ones of those that do not.
async fn list(cluster: &Arc<Process>, principal: &Principal, after: Option<TaskPosition>) -> Vec<ListedTask> {
    cluster.membership.refresh_if_old().await;
    let message = TaskMessage::List(principal.0.to_string(), after.clone());
    let members = cluster.membership.members().into_iter();
    let others = members.filter(|member| Some(&member.name) != cluster.node.as_ref());
    let asked = others.map(|member| {
        let message = &message;
        async move {
            let told = cluster.ask_about_tasks::<Vec<ListedTask>>(&member, message).await;
            (member.incarnation.map(|life| (member.name, life)), told)
        }
    });
    let (mut listed, mut answered, mut silent) = (Vec::new(), HashSet::new(), HashSet::new());
    for (life, told) in join_all(asked).await {
        match told {
            Told::Answer(tasks) => {
                listed.extend(tasks);
                answered.extend(life);
            }
            Told::Silent => silent.extend(life),
            Told::Dead => {}
        }
    }
    if !cluster.membership.is_current() {
        return listed;
    }
    match list_recorded(cluster, principal, after.as_ref(), &answered, &silent).await {
        Ok(recorded) => listed.extend(recorded),
        Err(error) => {
            tracing::debug!(error = %LogText::text(&error), "the tasks of dead nodes cannot be listed");
        }
    }
    listed
}

/// The tasks of nodes that have not answered, as [`find`] reports them.
async fn list_recorded(
    cluster: &Arc<Process>,
    principal: &Principal,
    after: Option<&TaskPosition>,
    answered: &HashSet<Life>,
    silent: &HashSet<Life>,
) -> Result<Vec<ListedTask>, EngineError> {
    let life = |task: &SignedName| (task.node.clone(), task.incarnation);
    let list = list_of(cluster, principal);
    let ids = cluster.engine.enlisted(&list).await?;
    let tasks: Vec<SignedName> = ids
        .iter()
        .filter_map(|id| SignedName::parse(Purpose::Key, &cluster.secret, id))
        .filter(|task| task.incarnation != cluster.incarnation && !answered.contains(&life(task)))
        .collect();
    let begun = |task: &SignedName| {
        let [_, begun] = task_records(task.text());
        begun
    };
    let begun = cluster.engine.look(&tasks.iter().map(begun).collect::<Vec<_>>()).await?;
    let (mut found, mut over) = (Vec::new(), Vec::new());
    for (task, text) in tasks.into_iter().zip(begun) {
        let Some(begun) = text.and_then(|text| read(&text)) else {
            over.push(task);
            continue;
        };
        let at = begun.position();
        if begun.listed_for().as_ref() == Some(principal) && after.is_none_or(|after| at > *after) {
            found.push((at, task));
        }
    }
    // Their time is over, and their nodes did not remove them. One that does not answer may be about to write the record.
    over.retain(|task| !silent.contains(&life(task)));
    for task in over.iter().take(LISTED) {
        cluster.engine.strike(&list, task.text()).await?;
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut listed = Vec::new();
    for some in found.chunks(READERS) {
        if listed.len() >= LISTED {
            break;
        }
        let reading = some.iter().map(|(_, task)| {
            let hearing = if silent.contains(&life(task)) { Hearing::Silent } else { Hearing::Ask };
            find(Arc::clone(cluster), task, hearing)
        });
        for record in join_all(reading).await {
            let record = record.ok().flatten().filter(|record| record.time_left().is_some());
            listed.extend(record.and_then(TaskRecord::listed));
        }
    }
    Ok(listed)
}

const NO_ANSWER: &str = "the node of the task does not answer now";
const NOT_KNOWN: &str = "whether the node of the task lives is not known now";

/// What the node of a task says.
enum Asked {
    /// What it knows of the task.
    Told(Option<TaskRecord>),
    /// It is dead.
    Gone,
    /// Whether it lives is not known, for this reason.
    Silent(&'static str),
}

/// Whether the node of a task is asked about it.
#[derive(Clone, Copy)]
enum Hearing {
    Ask,
    /// It was asked just now, and does not answer.
    Silent,
}

/// Asks the node of a task about it, or to cancel it.
async fn ask(cluster: &Process, task: &SignedName, cancel: bool) -> Asked {
    let id = task.text().to_string();
    let message = if cancel { TaskMessage::Cancel(id) } else { TaskMessage::Tell(id) };
    let is_its_life = |member: &Member| member.incarnation.is_none_or(|life| life == task.incarnation);
    let mut asked = None;
    // The second time as the members are now: the engine shows a dead node for some seconds.
    for is_fresh in [false, true] {
        let located = if is_fresh {
            cluster.membership.locate_again(&task.node).await
        } else {
            cluster.membership.locate(&task.node).await
        };
        match located {
            Located::At(member) if is_its_life(&member) => {
                if asked.as_ref() == Some(&member.url) {
                    break;
                }
                match cluster.ask_about_tasks(&member, &message).await {
                    Told::Answer(record) => return Asked::Told(record),
                    Told::Dead if is_fresh => return Asked::Gone,
                    Told::Dead => {}
                    Told::Silent => asked = Some(member.url),
                }
            }
            // Another life has its name.
            Located::At(_) if is_fresh => return Asked::Gone,
            Located::Gone if is_fresh => {
                let former = cluster.membership.former(&task.node);
                return ask_former(cluster, former.filter(is_its_life), &message).await;
            }
            Located::At(_) | Located::Gone | Located::Unknown => {}
        }
    }
    Asked::Silent(if asked.is_some() { NO_ANSWER } else { NOT_KNOWN })
}

/// Asks a node that is no member any more, where it was. It may live without its engine, or write its entry again soon.
async fn ask_former(cluster: &Process, former: Option<Member>, message: &TaskMessage) -> Asked {
    let Some(former) = former else {
        return if cluster.membership.is_settled() { Asked::Gone } else { Asked::Silent(NOT_KNOWN) };
    };
    match cluster.ask_about_tasks(&former, message).await {
        Told::Answer(Some(record)) => Asked::Told(Some(record)),
        // It may be its next life, whose entry is not read yet.
        Told::Answer(None) => Asked::Silent(NOT_KNOWN),
        Told::Dead | Told::Silent => Asked::Gone,
    }
}

/// What is known of a task of another node. If that node is dead, a task that had not ended is recorded as lost, so that every node
/// says the same.
async fn find(
    cluster: Arc<Process>,
    key: &SignedName,
    hearing: Hearing,
) -> Result<Option<TaskRecord>, String> {
    let hear = || async {
        match hearing {
            Hearing::Ask => ask(&cluster, key, false).await,
            Hearing::Silent => Asked::Silent(NO_ANSWER),
        }
    };
    let names = task_records(key.text());
    let away = |error: EngineError| format!("the record of the task cannot be read now: {error}");
    let keeps_records = !cluster.engine.is_list();
    // While the engine is away the word of the task's node counts, which may not know that others took it for lost.
    let is_away = keeps_records && !cluster.membership.is_current();
    if is_away {
        if let Asked::Told(record) = hear().await {
            return Ok(record);
        }
    }
    let (ended, begun) = if keeps_records {
        let found = match cluster.engine.look(&names).await {
            Ok(found) => found,
            Err(error) if is_away => return Err(away(error)),
            Err(error) => {
                let Asked::Told(record) = hear().await else { return Err(away(error)) };
                return Ok(record);
            }
        };
        let mut records = found.iter().map(|text| read(text.as_deref()?));
        (records.next().flatten(), records.next().flatten())
    } else {
        (None, None)
    };
    let has_ended = match ended {
        Some(ended) if !ended.lacks_result() => return Ok(Some(ended)),
        ended => ended.is_some(),
    };
    let begun = match (hear().await, begun) {
        (Asked::Told(Some(record)), _) => return Ok(Some(record)),
        (Asked::Silent(why), Some(begun)) if !has_ended => return Ok(Some(begun.unanswered(why.to_owned()))),
        (Asked::Silent(why), _) if has_ended => return Err(why.to_owned()),
        // Its begin may not be recorded yet.
        (Asked::Silent(why), _) => return Err(format!("whether there is such a task is not known: {why}")),
        (Asked::Gone, Some(begun)) if !has_ended => begun,
        // Its node has forgotten it, or is gone with its result.
        (Asked::Told(None) | Asked::Gone, _) => return Ok(None),
    };
    let Some(keep) = begun.time_left() else { return Ok(None) };
    let (id, lost, [ended, _]) = (begun.id().to_owned(), begun.lost(), &names);
    // Its node may have recorded its end before.
    if let Some(other) = cluster.engine.keep(ended, &text_of(&lost), keep).await.map_err(away)? {
        return Ok(read(&other));
    }
    // If its node lives all the same, the work stops there.
    let cause = Cause::new(CauseKind::Disconnected).with_reason("its node was taken for lost");
    if let Err(error) = CancelBus(cluster).cancel(&id, &cause).await {
        tracing::warn!(error = %LogText::text(&error), "the cancel of a lost task was not recorded");
    }
    Ok(Some(lost))
}
