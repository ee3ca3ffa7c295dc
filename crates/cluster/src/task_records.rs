//! The records of tasks, with which any node reports and cancels the tasks of others.
//!
//! A task has a record of its begin and one of its end. Its own node forgets both with the task. Another node that finds a begin
//! without an end, and whose node is not a member any more, records the task as lost. If that node lives all the same, because it
//! was suspended or could not reach the engine, it stops the work and gives the recorded end too.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rescind_core::{BoxFuture, Cause, CauseKind, LogText, TaskRecord, TaskStore};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::engine::EngineError;
use crate::keys::CancelBus;
use crate::membership::Located;
use crate::names::{SignedName, task_records};
use crate::process::Process;
use crate::secret::Purpose;

/// The longest record, in bytes. A NATS server takes messages of 1 MiB. A longer one is written without the result.
const MAX_RECORD: usize = 512 * 1024;
/// The most records that are written at a time.
const WRITERS: usize = 16;
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

    fn cluster(&self) -> Option<Arc<Process>> {
        // A list of nodes keeps nothing.
        self.cluster.upgrade().filter(|cluster| !cluster.engine.is_list())
    }
}

impl TaskStore for TaskRecords {
    fn record(&self, record: TaskRecord) -> BoxFuture<'static, Option<TaskRecord>> {
        let (cluster, writers) = (self.cluster(), Arc::clone(&self.writers));
        Box::pin(async move {
            let cluster = cluster?;
            let _turn = writers.acquire().await;
            write(&cluster, record).await
        })
    }

    fn forget(&self, id: &str) -> BoxFuture<'static, ()> {
        let (cluster, names) = (self.cluster(), task_records(id));
        Box::pin(async move {
            let Some(cluster) = cluster else { return };
            if let Err(error) = cluster.engine.forget(&names).await {
                tracing::debug!(error = %LogText::text(&error), "the records of a task stay until its time is over");
            }
        })
    }

    fn find(&self, id: &str) -> BoxFuture<'static, Result<Option<TaskRecord>, String>> {
        let cluster = self.cluster();
        let named = cluster
            .as_ref()
            .and_then(|cluster| SignedName::parse(Purpose::Key, &cluster.secret, id))
            // This process knows all of its own.
            .filter(|named| cluster.as_ref().is_some_and(|cluster| cluster.incarnation != named.incarnation));
        Box::pin(async move {
            match cluster.zip(named) {
                Some((cluster, named)) => find(cluster, &named).await,
                None => Ok(None),
            }
        })
    }

    fn cancel(&self, id: &str, cause: Cause) -> BoxFuture<'static, Result<(), String>> {
        let (cluster, id) = (self.cluster(), id.to_owned());
        Box::pin(async move {
            let cluster = cluster.ok_or_else(|| "this node has left its cluster".to_owned())?;
            // The bus has no peer: a request that is no task would not be answered then.
            let by_client = cause.kind() == CauseKind::Peer;
            let cause = if by_client { Cause::new(CauseKind::Caller) } else { cause };
            let asked = CancelBus(cluster).cancel(&id, &cause).await;
            asked.map(drop).map_err(|error| format!("the task cannot be cancelled now: {error}"))
        })
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
    let mut text = text_of(&record);
    if text.len() > MAX_RECORD {
        record = record.without_result();
        text = text_of(&record);
    }
    loop {
        // Its time is over: nobody asks about it.
        let keep = record.time_left()?;
        match cluster.engine.keep(name, &text, keep).await {
            Ok(other) => return serde_json::from_str(&other?).ok(),
            Err(EngineError::Away(_)) => sleep(RETRY).await,
            Err(error) => {
                tracing::warn!(error = %LogText::text(&error), "a task was not recorded: only its node knows it");
                // The begin alone would say later that it failed with its node. If it stays, the engine is away.
                let _ = cluster.engine.forget(&names).await;
                return None;
            }
        }
    }
}

/// The record of a task of another node. If that node is dead, a task that had not ended is recorded as lost, so that every node says
/// the same.
async fn find(cluster: Arc<Process>, key: &SignedName) -> Result<Option<TaskRecord>, String> {
    let names = task_records(key.text());
    let away = |error: EngineError| format!("the record of the task cannot be read now: {error}");
    let found = cluster.engine.look(&names).await.map_err(away)?;
    let read = |text: &str| serde_json::from_str::<TaskRecord>(text).ok();
    let mut records = found.iter().map(|text| read(text.as_deref()?));
    let (ended, begun) = (records.next().flatten(), records.next().flatten());
    if ended.is_some() {
        return Ok(ended);
    }
    let Some(begun) = begun else { return Ok(None) };
    match cluster.membership.locate_again(&key.node).await {
        Located::Unknown => return Err("whether the node of the task lives is not known now".to_owned()),
        Located::At(member) if member.incarnation.is_none_or(|life| life == key.incarnation) => {
            // The engine shows a dead node for some seconds.
            match cluster.lives(&member).await {
                Some(true) => return Ok(Some(begun)),
                Some(false) => {}
                None => return Err("the node of the task does not answer now".to_owned()),
            }
        }
        Located::At(_) | Located::Gone => {}
    }
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
