//! The cluster of `fixture` and `bridge`: its options, and how the process becomes a node. `rescind worker`: does the jobs of
//! `test/remote`, and stops those whose request is cancelled. `rescind cancel`: cancels a request of a cluster by its key.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rescind::transport::BoxFuture;
use rescind::{CallContext, Cause, CauseKind, ErrorObject, HandlerError};
use rescind_cluster::{Cluster, ClusterAddress, Job, NodeName, Secret};
use rescind_testkit::fixture::{ClusterHooks, Fixture, QueuedWork};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::endpoint::{Endpoint, Target};
use crate::serving::stop_signal;
use crate::{Exit, Failure, output};

/// The headings of the help.
const HEADING: &str = "Several processes";

/// The options that make a server one node of a cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Share sessions with the other nodes of this cluster: redis://HOST:PORT, nats://HOST:PORT, static:NAME=URL,... or
    /// static:@FILE. For http:// and https:// endpoints with sessions.
    #[arg(long, value_name = "URL", help_heading = HEADING, requires = "node")]
    pub(crate) cluster: Option<ClusterAddress>,
    /// The name of this node.
    #[arg(long, value_name = "NAME", help_heading = HEADING, requires = "cluster")]
    pub(crate) node: Option<NodeName>,
    /// The URL by which the other nodes reach this one. [default: that of the listener]
    #[arg(long, value_name = "URL", help_heading = HEADING, requires = "cluster")]
    pub(crate) advertise: Option<String>,
    /// The secret that all nodes share, of at least 16 bytes. Without it only addresses of loopback can be advertised or listed.
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires = "cluster")]
    pub(crate) secret_file: Option<PathBuf>,
    /// After a signal, serve as before for this many seconds while `/readyz` of `--page` is 503, so that a balancer has seen it
    /// before the node refuses new sessions.
    #[arg(long, value_name = "S", default_value_t = 0, help_heading = HEADING, requires = "cluster")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=600))]
    pub(crate) drain_delay: u64,
}

/// This process in its cluster, before it is a node.
pub(crate) struct Node {
    pub(crate) cluster: Cluster,
    advertise: Option<String>,
    drain_delay: Duration,
}

/// Reads the secret, or takes that of a cluster of one machine.
pub(crate) fn secret(file: Option<&Path>) -> Result<Secret, Failure> {
    match file {
        None => Ok(Secret::of_loopback()),
        Some(file) => Secret::read(file).map_err(|error| format!("{}: {error}", file.display())),
    }
}

impl ClusterArgs {
    /// Connects to the cluster, if one is given, and sets the router of the endpoint's sessions.
    ///
    /// # Errors
    /// The reason why it cannot, in one sentence.
    pub(crate) async fn connect(&self, target: &mut Target) -> Result<Option<Node>, Failure> {
        let Some(address) = &self.cluster else { return Ok(None) };
        if !matches!(target.endpoint, Endpoint::Http(_)) {
            let endpoint = &target.endpoint;
            return Err(format!("--cluster is for http:// and https:// endpoints, and not for {endpoint}"));
        }
        let secret = secret(self.secret_file.as_deref())?;
        let cluster = Cluster::connect(address.clone(), self.node.clone(), secret).await;
        let cluster = cluster.map_err(|error| error.to_string())?;
        target.settings.router = Some(cluster.router());
        let drain_delay = Duration::from_secs(self.drain_delay);
        Ok(Some(Node { cluster, advertise: self.advertise.clone(), drain_delay }))
    }
}

impl Node {
    /// Becomes a node that the others reach at the listener's URL, or at the one that is advertised.
    ///
    /// # Errors
    /// The reason why it cannot, in one sentence.
    pub(crate) async fn join(&self, listener: &str) -> Result<(), Failure> {
        let url = self.advertise.as_deref().unwrap_or(listener);
        self.cluster.join(url).await.map_err(|error| error.to_string())
    }

    /// Leaves the cluster. If the engine is away, the entry ends after its time to live.
    pub(crate) async fn leave(&self) {
        let leaving = tokio::time::timeout(Duration::from_secs(1), self.cluster.leave()).await;
        if let Ok(Err(error)) = leaving {
            tracing::debug!(error = %rescind::LogText::text(&error), "the cluster was not left");
        }
    }

    /// Makes a fixture part of the cluster.
    pub(crate) fn serve(&self, fixture: &Fixture) {
        let status = fixture.clone();
        self.cluster.tell_status(move || status.status());
        fixture.join(self.hooks());
    }

    /// Whether another process has taken the name of this node, for `/readyz`.
    pub(crate) fn has_lost_its_name(node: Option<&Self>) -> impl Fn() -> bool + Send + Sync + 'static {
        let cluster = node.map(|node| node.cluster.clone());
        move || cluster.as_ref().is_some_and(Cluster::has_lost_its_name)
    }

    /// Waits after a signal until the balancer has seen that this node is not ready, or until another signal comes.
    pub(crate) async fn drain_delay(node: Option<&Self>) {
        if let Some(node) = node {
            let again = stop_signal();
            let _ended = tokio::time::timeout(node.drain_delay, again).await;
        }
    }

    /// What the fixture needs of the cluster.
    fn hooks(&self) -> ClusterHooks {
        let asking = self.cluster.clone();
        let others = move || -> BoxFuture<'static, _> {
            let cluster = asking.clone();
            Box::pin(async move { cluster.statuses().await.into_iter().map(|(_, status)| status).collect() })
        };
        let cluster = self.cluster.clone();
        let remote = move |ctx: CallContext, time: Duration| -> BoxFuture<'static, _> {
            let jobs = cluster.jobs();
            Box::pin(async move {
                let key = ctx.cluster_key().ok_or_else(ErrorObject::internal)?;
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                let job = jobs.submit(&key, json!({ "ms": ms })).await;
                let job = job.map_err(|error| {
                    HandlerError::from(ErrorObject::new(
                        rescind::ErrorCode::INTERNAL_ERROR,
                        error.to_string(),
                    ))
                })?;
                Ok(Box::pin(async move { job.finished().await }) as QueuedWork)
            })
        };
        ClusterHooks {
            keys: self.cluster.keys(),
            tasks: self.cluster.task_store(),
            remote: Arc::new(remote),
            others: Arc::new(others),
        }
    }
}

/// The wait after the engine failed.
const RETRY: Duration = Duration::from_millis(500);

/// How long a worker that stops waits for the engine: longer than the engine waits for a job.
const GIVE_BACK: Duration = Duration::from_secs(8);

/// `rescind worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The cluster: redis://HOST:PORT or nats://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub(crate) cluster: ClusterAddress,
    /// The secret of the cluster. [default: that of a cluster of one machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
}

pub(crate) async fn run_worker(args: WorkerArgs) -> Result<Exit, Failure> {
    if matches!(args.cluster, ClusterAddress::Static(_)) {
        return Err("a list of nodes has no queue of jobs: give redis:// or nats://".to_owned());
    }
    let secret = secret(args.secret_file.as_deref())?;
    let cluster = Cluster::connect(args.cluster, None, secret).await.map_err(|error| error.to_string())?;
    let jobs = cluster.jobs();
    let mut stop = pin!(stop_signal());
    output::message("working\n");
    let mut running = JoinSet::new();
    let (stop_all, stopping) = watch::channel(false);
    let mut taking = Box::pin(jobs.take());
    loop {
        let taken = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = running.join_next() => continue,
            taken = &mut taking => taken,
        };
        taking.set(jobs.take());
        match taken {
            Ok(Some(job)) => drop(running.spawn(work(job, stopping.clone()))),
            Ok(None) => {}
            Err(error) => {
                output::message(&format!("rescind: {error}\n"));
                tokio::select! {
                    () = &mut stop => break,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
    // Another worker gets the unfinished jobs, also one that the engine hands out now.
    let _ = stop_all.send(true);
    let late = async {
        if let Ok(Some(job)) = taking.await {
            give_back(job).await;
        }
    };
    let all = async { while running.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(GIVE_BACK, async { tokio::join!(late, all) }).await;
    if in_time.is_err() {
        output::message("rescind: the engine does not take jobs back; those of this worker are lost\n");
    }
    Ok(Exit::Held)
}

async fn give_back(job: Job) {
    if let Err(error) = job.give_back().await {
        output::message(&format!("rescind: a job could not be given back and is lost: {error}\n"));
    }
}

/// Does one job: it takes as long as its params say. A job that has not ended when the worker stops is given back.
async fn work(job: Job, mut stopping: watch::Receiver<bool>) {
    let ms = job.params().get("ms").and_then(Value::as_u64).unwrap_or_default();
    let watch = job.watch();
    let begun = tokio::time::Instant::now();
    let report = |event: &str, job: &Job| {
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        print_event(&json!({ "event": event, "key": job.key(), "ms": ms }));
    };
    report("started", &job);
    tokio::select! {
        biased;
        _ = watch.cancelled() => report("cancelled", &job),
        () = async { drop(stopping.wait_for(|stops| *stops).await) } => {
            report("given back", &job);
            give_back(job).await;
        }
        () = tokio::time::sleep(Duration::from_millis(ms)) => {
            report("finished", &job);
            if let Err(error) = job.finish(&json!({ "worked_ms": ms })).await {
                output::message(&format!("rescind: {error}\n"));
            }
        }
    }
}

/// Prints one event. A reader that has gone does not stop the work.
fn print_event(event: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}

/// `rescind cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The cluster: redis://HOST:PORT, nats://HOST:PORT, static:NAME=URL,... or static:@FILE.
    #[arg(long, value_name = "URL")]
    pub(crate) cluster: ClusterAddress,
    /// The secret of the cluster. [default: that of a cluster of one machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Why, for the handler and its log.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// The key of the request.
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

pub(crate) async fn run_cancel(args: CancelArgs) -> Result<Exit, Failure> {
    let secret = secret(args.secret_file.as_deref())?;
    let cause = Cause::new(CauseKind::Operator);
    let cause = match &args.reason {
        Some(reason) => cause.with_reason(reason),
        None => cause,
    };
    let cancelled = match Cluster::connect(args.cluster, None, secret).await {
        Ok(cluster) => {
            cluster.cancel_bus().cancel(&args.key, &cause).await.map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    // Not recorded is an answer, and not wrong usage.
    Ok(match cancelled {
        Ok(()) => Exit::Held,
        Err(why) => {
            output::message(&format!("rescind: {why}\n"));
            Exit::Broke
        }
    })
}
