//! `rescind fixture`: serve the fixture agent until its client is gone or this process is told to stop.

use std::path::Path;

use rescind::{Framing, Transport};
use rescind_testkit::{Options, fixture::Fixture};

use crate::args::{Endpoint, Fixture as Args};
use crate::{Exit, Failure};

pub(crate) async fn run(args: Args) -> Result<Exit, Failure> {
    let mut options = match &args.options {
        Some(file) => read_options(file)?,
        None => Options::default(),
    };
    if args.no_cancel_capability {
        options.declare_cancel = Some(false);
    }
    let fixture = Fixture::new(args.dialect, options)
        .ok_or_else(|| format!("there is no fixture for the dialect {}", args.dialect))?;
    let framing = match &args.framing {
        Some(name) => framing_named(name),
        None => fixture.dialect().rules().framing,
    };
    match args.listen {
        Endpoint::Stdio => serve_stdio(&fixture, framing).await,
    }
}

async fn serve_stdio(fixture: &Fixture, framing: Framing) -> Result<Exit, Failure> {
    let transport = rescind::stdio::this_process().framing(framing);
    let link = Box::new(transport).open().await.map_err(|error| error.to_string())?;
    let peer = fixture.serve(link).map_err(|error| error.to_string())?;
    tokio::select! {
        closed = peer.closed() => drop(closed),
        () = told_to_stop() => {
            let _still_running = peer.shutdown(fixture.drain_deadline()).await;
        }
    }
    Ok(Exit::Held)
}

/// The framing of this name; the command line lets no other through.
pub(crate) fn framing_named(name: &str) -> Framing {
    match name {
        "content-length" => Framing::ContentLength,
        _ => Framing::Newline,
    }
}

fn read_options(file: &Path) -> Result<Options, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the options in {} could not be read: {error}", file.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("the options in {} are not as they should be: {error}", file.display()))
}

/// SIGINT or SIGTERM; on Windows Ctrl-C.
pub(crate) async fn told_to_stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
