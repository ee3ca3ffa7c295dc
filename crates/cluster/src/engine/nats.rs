//! NATS with `JetStream`, 2.9 or later.
//!
//! With the prefix `rescind`:
//!
//! | what | where |
//! |---|---|
//! | the record of a signal | the key `<name>` of the key-value bucket `rescind-signals`, which keeps it for an hour |
//! | the record of a signal that belongs to no node (servers without sessions) | the key `<name>` of the bucket `rescind-shared`, which keeps it for 2 s |
//! | the doorbell of a signal | the subject `rescind.signal.<name>`; the message is the value |
//! | the records of tasks | the keys `task.<id>` and `task-ended.<id>` of the bucket `rescind-tasks`, which keeps them for 24 h |
//! | the ids of a principal's tasks | the keys `task-list.<signature>.<id>` of the same bucket, without a value |
//! | the entry of a node | the key `<name>` of the bucket `rescind-nodes`, which keeps it for 10 s |
//! | jobs | the subject `rescind.jobs` of the work queue `rescind-jobs`, read by its consumer `workers` |
//!
//! 1. The server rings: the bucket of the signals republishes each record to its doorbell after it is stored. A plain
//!    subscription to the bucket's own subject may get a message before the record can be read, and also gets those
//!    that the server then refuses.
//! 2. One subscription to all doorbells, and a set of names here. A subscription for each name would need an answer of
//!    the server, which NATS gives to no subscription.
//! 3. A put succeeds when the server has acknowledged it. A put without a connection fails with `Away`, although the client
//!    may still deliver it later.
//! 4. Each command has a time limit.
//! 5. Records are read from the leader of their stream, never from a replica that may be behind.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{self, RetentionPolicy};
use async_nats::{Event, Message, Subscriber};
use futures_util::future::Fuse;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream as futures};
use rescind_core::LogText;
use rescind_http::SHARED_CANCEL_KEPT;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::nats_server::{Bucket, COMMAND_LIMIT, Changes, OPERATION, Put, Server};
use super::{Answer, Beat, Engine, EngineError, EngineEvents, JOB_WAIT, Takes};
use crate::names::{is_shared, is_task_record};

/// The most reads under way for one caller.
const READS: usize = 64;
/// Attempts to change an entry that others change at the same time.
const ATTEMPTS: usize = 5;

/// NATS as the engine.
pub(crate) struct NatsEngine {
    server: Server,
    signals: Bucket,
    shared: Bucket,
    tasks: Bucket,
    nodes: Bucket,
    jobs: PullConsumer,
    jobs_subject: String,
    takes: Takes,
    doorbells: Arc<Doorbells>,
    reader: JoinHandle<()>,
}

impl NatsEngine {
    /// Connects. `url`: `nats://[[user:password|token]@]host[:port]`.
    pub(crate) async fn connect(
        url: &str,
        prefix: &str,
        events: Arc<dyn EngineEvents>,
    ) -> Result<Self, EngineError> {
        Self::connect_with(url, prefix, events, Lifetimes::default()).await
    }

    /// Connects, and creates the buckets with these times unless they exist.
    pub(super) async fn connect_with(
        url: &str,
        prefix: &str,
        events: Arc<dyn EngineEvents>,
        lifetimes: Lifetimes,
    ) -> Result<Self, EngineError> {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if prefix.is_empty() || !prefix.bytes().all(is_usual) {
            let text = "the prefix of names in NATS has letters, digits, - and _ only";
            return Err(EngineError::Refused(text.into()));
        }
        let (server, changes) = Server::connect(url).await?;
        let doorbell = doorbell_prefix(prefix);
        let rings = server.client.subscribe(format!("{doorbell}>")).await;
        let rings = rings.map_err(|error| server.refused(error))?;
        let layout = Layout { prefix: prefix.into(), lifetimes };
        // Its answer also shows that the server has the subscription.
        let Open { signals, shared, tasks, nodes, jobs } = layout.open(&server).await?;
        let jobs_subject = jobs_subject(prefix);
        let doorbells = Arc::new(Doorbells::new(server.clone(), doorbell, layout, events));
        let reader = tokio::spawn(Arc::clone(&doorbells).run(rings, changes));
        Ok(Self {
            server,
            signals,
            shared,
            tasks,
            nodes,
            jobs,
            jobs_subject,
            takes: Takes::default(),
            doorbells,
            reader,
        })
    }
}

impl NatsEngine {
    /// Where a value is recorded. Each bucket keeps all its records for the same time.
    fn bucket_of(&self, name: &str) -> &Bucket {
        if is_task_record(name) {
            &self.tasks
        } else if is_shared(name) {
            &self.shared
        } else {
            &self.signals
        }
    }
}

impl Drop for NatsEngine {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Engine for NatsEngine {
    fn signal<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let bucket = self.bucket_of(name);
            bucket.check_keep(keep)?;
            let mut revision = 0;
            for _ in 0..ATTEMPTS {
                match bucket.put(name, value, revision).await? {
                    Put::Stored => return Ok(()),
                    Put::Conflict => {}
                }
                match bucket.read(name).await? {
                    // It was recorded before. Its doorbell rang then, and rings again.
                    Some(record) if record.value.is_some() => return self.doorbells.ring(name, value).await,
                    // An operator deleted it.
                    Some(deleted) => revision = deleted.revision,
                    // Its time ended meanwhile.
                    None => revision = 0,
                }
            }
            Err(bucket.too_busy())
        })
    }

    fn subscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async move { self.doorbells.subscribe(names) })
    }

    fn unsubscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async move {
            self.doorbells.unsubscribe(names);
            Ok(())
        })
    }

    fn look<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, Vec<Option<String>>> {
        let read = move |name: Arc<str>| async move {
            Ok(self.bucket_of(&name).read(&name).await?.and_then(|record| record.value))
        };
        Box::pin(futures::iter(names.iter().cloned()).map(read).buffered(READS).try_collect())
    }

    fn keep<'a>(&'a self, name: &'a str, value: &'a str, _keep: Duration) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            // The bucket may keep it for less.
            let bucket = self.bucket_of(name);
            let mut revision = 0;
            for _ in 0..ATTEMPTS {
                match bucket.put(name, value, revision).await? {
                    Put::Stored => return Ok(None),
                    Put::Conflict => {}
                }
                let Some(record) = bucket.read(name).await? else {
                    // Its time ended meanwhile.
                    revision = 0;
                    continue;
                };
                if let Some(other) = record.value {
                    return Ok(Some(other).filter(|other| other != value));
                }
                revision = record.revision;
            }
            Err(bucket.too_busy())
        })
    }

    fn forget<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async move {
            for name in names {
                let bucket = self.bucket_of(name);
                let Some(record) = bucket.read(name).await? else { continue };
                if record.value.is_some() {
                    bucket.delete(name, record.revision).await?;
                }
            }
            Ok(())
        })
    }

    fn enlist<'a>(&'a self, list: &'a str, item: &'a str, _keep: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            match self.tasks.put(&format!("{}{item}", list_prefix(list)), "", 0).await? {
                // It is there already.
                Put::Stored | Put::Conflict => Ok(()),
            }
        })
    }

    fn strike<'a>(&'a self, list: &'a str, item: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { self.tasks.purge(&format!("{}{item}", list_prefix(list))).await })
    }

    fn enlisted<'a>(&'a self, list: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async move { self.tasks.names(&list_prefix(list)).await })
    }

    fn beat<'a>(&'a self, node: &'a str, entry: &'a str, keep: Duration) -> Answer<'a, Beat> {
        Box::pin(async move {
            self.nodes.check_keep(keep)?;
            for _ in 0..ATTEMPTS {
                let record = self.nodes.read(node).await?;
                let revision = record.as_ref().map_or(0, |record| record.revision);
                match record.and_then(|record| record.value) {
                    Some(holder) if holder != entry => return Ok(Beat::Taken(holder)),
                    Some(_) | None => {}
                }
                match self.nodes.put(node, entry, revision).await? {
                    Put::Stored => return Ok(Beat::Held),
                    Put::Conflict => {}
                }
            }
            Err(self.nodes.too_busy())
        })
    }

    fn leave<'a>(&'a self, node: &'a str, entry: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            for _ in 0..ATTEMPTS {
                let Some(record) = self.nodes.read(node).await? else { return Ok(()) };
                if record.value.as_deref() != Some(entry) {
                    return Ok(());
                }
                match self.nodes.delete(node, record.revision).await? {
                    Put::Stored => return Ok(()),
                    Put::Conflict => {}
                }
            }
            Err(self.nodes.too_busy())
        })
    }

    fn members(&self) -> Answer<'_, Vec<(String, String)>> {
        Box::pin(async move {
            let read = |name: String| async move {
                let record = self.nodes.read(&name).await?;
                Ok(record.and_then(|record| record.value).map(|entry| (name, entry)))
            };
            let names = self.nodes.names("").await?;
            let members = futures::iter(names).map(read).buffered(READS);
            members.try_filter_map(async |member| Ok(member)).try_collect().await
        })
    }

    fn push_job<'a>(&'a self, job: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let none = async_nats::HeaderMap::new();
            match self.server.put(self.jobs_subject.clone(), none, job.to_owned().into()).await? {
                Put::Stored => Ok(()),
                Put::Conflict => Err(self.server.refused("the job conflicts with another one")),
            }
        })
    }

    /// # Cancel safety
    ///
    /// A job that the server gave away while no caller waited is for the next caller. Two callers take turns. A job is
    /// lost if its process dies after this returns it and before the end of the work.
    fn take_job(&self) -> Answer<'_, Option<String>> {
        let begin = || take(self.server.clone(), self.jobs.clone()).boxed();
        Box::pin(self.takes.next(begin))
    }
}

async fn take(server: Server, jobs: PullConsumer) -> Result<Option<String>, EngineError> {
    server.check_connected()?;
    let taking = async {
        let batch = jobs.batch().max_messages(1).expires(JOB_WAIT).messages().await;
        let message = batch.map_err(|error| server.away(error))?.next().await;
        message.transpose().map_err(|error| server.away(error))
    };
    let taken = timeout(JOB_WAIT + COMMAND_LIMIT, taking).await.unwrap_or_else(|_| Err(server.silent()))?;
    let Some(message) = taken else {
        // Without a connection the client waits as long.
        server.check_connected()?;
        return Ok(None);
    };
    // The job is this worker's when the server has confirmed the acknowledgement.
    let acknowledged = server.limited(message.double_ack()).await?;
    acknowledged.map_err(|error| server.away(error))?;
    let job = String::from_utf8(message.payload.to_vec()).map_err(|error| server.refused(error))?;
    Ok(Some(job))
}

// The buckets and the queue of a cluster.

/// A job that was taken and not acknowledged in this time is given to another worker.
const JOB_ACK_LIMIT: Duration = Duration::from_secs(10);

/// How long the buckets keep their records.
#[derive(Clone, Copy)]
pub(super) struct Lifetimes {
    pub(super) signals: Duration,
    pub(super) shared: Duration,
    pub(super) tasks: Duration,
    pub(super) nodes: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            signals: Duration::from_secs(3600),
            shared: SHARED_CANCEL_KEPT,
            tasks: Duration::from_secs(24 * 3600),
            nodes: Duration::from_secs(10),
        }
    }
}

/// The buckets and the queue that an engine needs.
struct Layout {
    prefix: String,
    lifetimes: Lifetimes,
}

/// The same, opened.
struct Open {
    signals: Bucket,
    /// The signals that belong to no node.
    shared: Bucket,
    /// The records of tasks, which ring no doorbell.
    tasks: Bucket,
    nodes: Bucket,
    jobs: PullConsumer,
}

/// What comes before the name of a signal in the subject of its doorbell.
fn doorbell_prefix(prefix: &str) -> String {
    format!("{prefix}.signal.")
}

/// What comes before an item in the key of its place in a list.
fn list_prefix(list: &str) -> String {
    format!("task-list.{list}.")
}

fn jobs_subject(prefix: &str) -> String {
    format!("{prefix}.jobs")
}

impl Layout {
    /// Opens all of it, and creates what does not exist: at the start, and after a restart of a server that kept nothing.
    async fn open(&self, server: &Server) -> Result<Open, EngineError> {
        let Self { prefix, lifetimes } = self;
        let doorbell = doorbell_prefix(prefix);
        let signals =
            Bucket::open(server, format!("{prefix}-signals"), lifetimes.signals, Some(&doorbell)).await?;
        let shared =
            Bucket::open(server, format!("{prefix}-shared"), lifetimes.shared, Some(&doorbell)).await?;
        let tasks = Bucket::open(server, format!("{prefix}-tasks"), lifetimes.tasks, None).await?;
        let nodes = Bucket::open(server, format!("{prefix}-nodes"), lifetimes.nodes, None).await?;
        let jobs = open_jobs(server, format!("{prefix}-jobs"), jobs_subject(prefix)).await?;
        Ok(Open { signals, shared, tasks, nodes, jobs })
    }
}

/// The queue of the jobs, and its one consumer that all workers share.
async fn open_jobs(server: &Server, name: String, subject: String) -> Result<PullConsumer, EngineError> {
    let config = stream::Config {
        name,
        subjects: vec![subject],
        retention: RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    let stream = server.stream(config).await?;
    let config = pull::Config {
        durable_name: Some("workers".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: JOB_ACK_LIMIT,
        ..pull::Config::default()
    };
    let consumer = stream.get_or_create_consumer("workers", config);
    server.limited(consumer).await?.map_err(|error| server.refused(error))
}

// The subscription to the doorbells, and the connection's return.

/// The time between two questions whether the server is ready.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// The names whose doorbells are reported.
struct Doorbells {
    server: Server,
    /// What comes before the name in a subject.
    prefix: String,
    layout: Layout,
    events: Arc<dyn EngineEvents>,
    state: Mutex<NatsState>,
}

struct NatsState {
    names: HashSet<Arc<str>>,
    /// Whether the server has the subscription.
    is_listening: bool,
}

impl Doorbells {
    fn new(server: Server, prefix: String, layout: Layout, events: Arc<dyn EngineEvents>) -> Self {
        let state = Mutex::new(NatsState { names: HashSet::new(), is_listening: true });
        Self { server, prefix, layout, events, state }
    }

    /// After `Away` the names stay in the set, and `restored` is reported when the server has the subscription again.
    fn subscribe(&self, names: &[Arc<str>]) -> Result<(), EngineError> {
        let mut state = self.state();
        state.names.extend(names.iter().cloned());
        if state.is_listening { Ok(()) } else { Err(self.server.disconnected()) }
    }

    fn unsubscribe(&self, names: &[Arc<str>]) {
        let mut state = self.state();
        for name in names {
            state.names.remove(name);
        }
    }

    /// Rings for a record that was there before.
    async fn ring(&self, name: &str, value: &str) -> Result<(), EngineError> {
        let ringing = async {
            let subject = format!("{}{name}", self.prefix);
            let rung = self.server.client.publish(subject, value.to_owned().into()).await;
            rung.map_err(|error| self.server.away(error))?;
            self.server.client.flush().await.map_err(|error| self.server.away(error))
        };
        self.server.limited(ringing).await?
    }

    async fn run(self: Arc<Self>, mut rings: Subscriber, mut changes: Changes) {
        let mut returning = pin!(Fuse::terminated());
        loop {
            tokio::select! {
                message = rings.next() => match message {
                    Some(message) => self.recv(&message),
                    None => return,
                },
                change = changes.recv() => match change {
                    Some(Event::Disconnected) => {
                        self.state().is_listening = false;
                        returning.set(Fuse::terminated());
                        let server = LogText::name(self.server.address());
                        tracing::warn!(%server, "lost the connection to NATS");
                    }
                    Some(Event::Connected) if !self.state().is_listening => {
                        returning.set(self.ready().fuse());
                    }
                    // The client dropped messages because too many came at once.
                    Some(Event::SlowConsumer(_)) => self.events.restored(),
                    Some(_) => {}
                    None => return,
                },
                () = &mut returning => {
                    self.state().is_listening = true;
                    let server = LogText::name(self.server.address());
                    tracing::info!(%server, "connected to NATS again");
                    self.events.restored();
                }
            }
        }
    }

    /// Returns when the server has all buckets and queues. It had the subscription before these questions.
    async fn ready(&self) {
        while let Err(error) = self.layout.open(&self.server).await {
            tracing::debug!(error = %LogText::text(error), "NATS is not ready");
            sleep(READY_INTERVAL).await;
        }
    }

    fn recv(&self, message: &Message) {
        let is_deleted = message.headers.as_ref().is_some_and(|headers| headers.get(OPERATION).is_some());
        let name = message.subject.strip_prefix(&self.prefix);
        let value = std::str::from_utf8(&message.payload);
        let (Some(name), Ok(value), false) = (name, value, is_deleted) else { return };
        let is_subscribed = self.state().names.contains(name);
        if is_subscribed {
            self.events.rung(name, value);
        }
    }

    fn state(&self) -> MutexGuard<'_, NatsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
