//! The buckets and the queue of a cluster.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{self, RetentionPolicy};

use rescind_http::SHARED_CANCEL_KEPT;

use super::EngineError;
use super::server::Server;
use super::store::Bucket;

/// A job that was taken and not acknowledged in this time is given to another worker.
const JOB_ACK_LIMIT: Duration = Duration::from_secs(10);

/// How long the buckets keep their records.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Lifetimes {
    pub(in crate::engine) signals: Duration,
    pub(in crate::engine) shared: Duration,
    pub(in crate::engine) nodes: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            signals: Duration::from_secs(3600),
            shared: SHARED_CANCEL_KEPT,
            nodes: Duration::from_secs(10),
        }
    }
}

/// The buckets and the queue that an engine needs.
pub(super) struct Layout {
    pub(super) prefix: String,
    pub(super) lifetimes: Lifetimes,
}

/// The same, opened.
pub(super) struct Open {
    pub(super) signals: Bucket,
    /// The signals that belong to no node.
    pub(super) shared: Bucket,
    pub(super) nodes: Bucket,
    pub(super) jobs: PullConsumer,
}

/// What comes before the name of a signal in the subject of its doorbell.
pub(super) fn doorbell_prefix(prefix: &str) -> String {
    format!("{prefix}.signal.")
}

pub(super) fn jobs_subject(prefix: &str) -> String {
    format!("{prefix}.jobs")
}

impl Layout {
    /// Opens all of it, and creates what does not exist: at the start, and after a restart of a server that kept nothing.
    pub(super) async fn open(&self, server: &Server) -> Result<Open, EngineError> {
        let Self { prefix, lifetimes } = self;
        let doorbell = doorbell_prefix(prefix);
        let signals =
            Bucket::open(server, format!("{prefix}-signals"), lifetimes.signals, Some(&doorbell)).await?;
        let shared =
            Bucket::open(server, format!("{prefix}-shared"), lifetimes.shared, Some(&doorbell)).await?;
        let nodes = Bucket::open(server, format!("{prefix}-nodes"), lifetimes.nodes, None).await?;
        let jobs = open_jobs(server, format!("{prefix}-jobs"), jobs_subject(prefix)).await?;
        Ok(Open { signals, shared, nodes, jobs })
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
