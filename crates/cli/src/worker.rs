//! `rescind worker`: does the jobs of `test/remote`, and stops those whose request is cancelled.

use std::io::Write as _;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use rescind_cluster::{Cluster, ClusterAddress, Job};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::signals::stop_signal;
use crate::{Exit, Failure, cluster, output};

/// The wait after the engine failed.
const RETRY: Duration = Duration::from_millis(500);

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

pub(crate) async fn run(args: WorkerArgs) -> Result<Exit, Failure> {
    if matches!(args.cluster, ClusterAddress::Static(_)) {
        return Err("a list of nodes has no queue of jobs: give redis:// or nats://".to_owned());
    }
    let secret = cluster::secret(args.secret_file.as_deref())?;
    let cluster = Cluster::connect(args.cluster, None, secret).await.map_err(|error| error.to_string())?;
    let jobs = cluster.jobs();
    let mut stop = pin!(stop_signal());
    output::message("working\n");
    let mut running = JoinSet::new();
    loop {
        let taken = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = running.join_next() => continue,
            taken = jobs.take() => taken,
        };
        match taken {
            Ok(Some(job)) => drop(running.spawn(work(job))),
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
    running.shutdown().await;
    Ok(Exit::Held)
}

/// Does one job: it takes as long as its params say.
async fn work(job: Job) {
    let ms = job.params().get("ms").and_then(Value::as_u64).unwrap_or_default();
    let watch = job.watch();
    let begun = tokio::time::Instant::now();
    let report = |event: &str, job: &Job| {
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        line(&json!({ "event": event, "key": job.key(), "ms": ms }));
    };
    report("started", &job);
    tokio::select! {
        biased;
        _ = watch.cancelled() => report("cancelled", &job),
        () = tokio::time::sleep(Duration::from_millis(ms)) => {
            report("finished", &job);
            if let Err(error) = job.finish(&json!({ "worked_ms": ms })).await {
                output::message(&format!("rescind: {error}\n"));
            }
        }
    }
}

/// Prints one event. A reader that has gone does not stop the work.
fn line(event: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}
