//! `rescind relay`: a real process with real stdio pipes. The matrix acts as the far side.

use tokio::io::{AsyncWriteExt, copy, stdin, stdout};
use tokio::net::TcpStream;

use crate::args::Relay;
use crate::{Exit, Failure};

pub(crate) async fn run(args: Relay) -> Result<Exit, Failure> {
    let stream = TcpStream::connect(args.address)
        .await
        .map_err(|error| format!("the relay could not reach {}: {error}", args.address))?;
    // Small frames must not be delayed.
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
    // The far side decides when the process ends: it closes its half after this one, or drops the connection.
    tokio::select! {
        () = outward => {}
        () = async { inward.await; std::future::pending::<()>().await } => {}
    }
    Ok(Exit::Held)
}
