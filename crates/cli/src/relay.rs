//! `rescind relay`: a real process behind real stdio pipes whose far side the matrix plays itself.

use tokio::io::{AsyncWriteExt, copy, stdin, stdout};
use tokio::net::TcpStream;

use crate::args::Relay;
use crate::{Exit, Failure};

pub(crate) async fn run(args: Relay) -> Result<Exit, Failure> {
    let stream = TcpStream::connect(args.address)
        .await
        .map_err(|error| format!("the relay could not reach {}: {error}", args.address))?;
    // Small frames must not wait for each other.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (mut from, mut to) = stream.into_split();
    to.write_all(args.word.as_bytes()).await.map_err(|error| error.to_string())?;
    let (mut stdin, mut stdout) = (stdin(), stdout());
    let inward = async {
        drop(copy(&mut stdin, &mut to).await);
        drop(to.shutdown().await);
    };
    let outward = async {
        drop(copy(&mut from, &mut stdout).await);
        drop(stdout.shutdown().await);
    };
    // The far side decides when the process ends: it closes its half after ours, or breaks the connection.
    tokio::select! {
        () = outward => {}
        () = async { inward.await; std::future::pending::<()>().await } => {}
    }
    Ok(Exit::Held)
}
