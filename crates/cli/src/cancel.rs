//! `rescind cancel`: cancels a request of a cluster by its key.

use std::path::PathBuf;

use clap::Args;
use rescind::{Cause, CauseKind};
use rescind_cluster::{Cluster, ClusterAddress};

use crate::{Exit, Failure, cluster, output};

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

pub(crate) async fn run(args: CancelArgs) -> Result<Exit, Failure> {
    let secret = cluster::secret(args.secret_file.as_deref())?;
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
