//! `rescind fixture`: serves the fixture agent until its client disconnects or a signal stops this process.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rescind::requests::RequestLog;
use rescind::transport::{Listener as _, Transport};
use rescind::{Framing, Peer};
use rescind_testkit::Options;
use rescind_testkit::fixture::Fixture;
use tokio::task::JoinSet;

use crate::args::Fixture as Args;
use crate::cluster::Node;
use crate::endpoint::{Endpoint, Side, Target};
use crate::open::{self, AnyListener};
use crate::serving::stop_signal;
use crate::{Exit, Failure, ends_input, output, serving};

pub(crate) async fn run(args: Args) -> Result<Exit, Failure> {
    let mut options = match &args.options {
        Some(file) => read_options(file)?,
        None => Options::default(),
    };
    if args.no_cancel_capability {
        options.declare_cancel = Some(false);
    }
    let fixture = Fixture::of(args.dialect, options);
    let flags = args.flags();
    let mut target = Target::new(args.listen, args.dialect, flags, Side::Server)?;
    if !args.tokens.is_empty() && !matches!(target.endpoint, Endpoint::WebSocket(_) | Endpoint::Http(_)) {
        return Err(format!("--token is for ws:// and http:// endpoints, and not for {}", target.endpoint));
    }
    if !args.hosts.is_empty() && !matches!(target.endpoint, Endpoint::WebSocket(_) | Endpoint::Http(_)) {
        return Err(format!(
            "--allow-host is for ws:// and http:// endpoints, and not for {}",
            target.endpoint
        ));
    }
    target.settings.principals = args.tokens;
    target.settings.hosts = args.hosts;
    target.settings.any_opening = args.any_opening;
    target.settings.sessionless = args.sessionless;
    if args.sessionless && !target.may_be_sessionless() {
        return Err(
            "--sessionless is for the dialect mcp over http:// or https:// with the binding streamable"
                .to_owned(),
        );
    }
    let torn = Arc::new(AtomicBool::new(false));
    let is_torn = Arc::clone(&torn);
    fixture.on_deviation(move |report| {
        let line = format!("rescind: the client: {report}\n");
        if ends_input(report.deviation) {
            is_torn.store(true, Ordering::Relaxed);
            output::reason(line);
        } else if !(report.is_repeated && report.deviation.is_understood()) {
            output::note(line);
        }
    });
    target.set_legacy_sse(args.legacy_sse)?;
    let node = args.cluster.connect(&mut target).await?;
    if let Some(node) = &node {
        node.serve(&fixture);
    }
    let draining = Arc::new(AtomicBool::new(false));
    let log = RequestLog::new();
    if args.page.page.is_some() {
        fixture.record_in(&log);
    }
    let is_draining = Arc::clone(&draining);
    let title = format!("rescind fixture ({})", args.dialect.name());
    let has_lost_its_name = Node::has_lost_its_name(node.as_ref());
    let is_unready = move || is_draining.load(Ordering::Relaxed) || has_lost_its_name();
    let _page = serving::start_page(&args.page, &title, &log, is_unready).await?;
    match target.endpoint {
        Endpoint::Stdio => serve_stdio(&fixture, target.framing, &draining, &torn).await,
        Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => {
            let served = serve(&fixture, open::listen(&target).await?, node.as_ref(), &draining).await;
            if let Some(node) = &node {
                node.leave().await;
            }
            served
        }
    }
}

async fn serve_stdio(
    fixture: &Fixture,
    framing: Framing,
    draining: &AtomicBool,
    torn: &AtomicBool,
) -> Result<Exit, Failure> {
    let stop = stop_signal();
    let transport = rescind::stdio::this_process().framing(framing);
    let link = Box::new(transport).open().await.map_err(|error| error.to_string())?;
    let peer = fixture.serve(link).map_err(|error| error.to_string())?;
    tokio::select! {
        biased;
        closed = peer.closed() => drop(closed),
        () = stop => {
            draining.store(true, Ordering::Relaxed);
            let _still_running = peer.shutdown(fixture.drain_deadline()).await;
        }
    }
    // LSP's `exit` closes the connection and defines the exit status of the process.
    Ok(match peer.exit_code() {
        _ if torn.load(Ordering::Relaxed) => Exit::Usage,
        None | Some(0) => Exit::Held,
        Some(_) => Exit::Broke,
    })
}

/// Serves every connection with the same fixture, so that its counters include all of them.
async fn serve(
    fixture: &Fixture,
    mut listener: AnyListener,
    node: Option<&Node>,
    draining: &AtomicBool,
) -> Result<Exit, Failure> {
    if let Some(node) = node {
        node.join(&listener.endpoint().0).await?;
    }
    // Created before the line is printed, because its reader may send the signal at once.
    let signal = stop_signal();
    let mut stop = pin!(async {
        signal.await;
        draining.store(true, Ordering::Relaxed);
        Node::drain_delay(node).await;
    });
    output::message(&format!("listening on {}\n", listener.endpoint()));
    listener.as_mut().share_among(fixture.clients());
    let mut peers: Vec<Peer> = Vec::new();
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            None => break,
            Some(Ok(link)) => match fixture.serve(link) {
                Ok(peer) => {
                    peers.retain(|peer| !peer.is_closed());
                    peers.push(peer);
                }
                Err(error) => {
                    tracing::debug!(error = %rescind::LogText::text(&error), "a connection did not open");
                }
            },
            Some(Err(error)) => {
                tracing::debug!(error = %rescind::LogText::text(&error), "a connection could not be accepted");
            }
        }
    }
    draining.store(true, Ordering::Relaxed);
    let finished = listener.finished();
    // Over HTTP the answers are sent through the listener, so it is dropped last. Others close their address now.
    let needed = listener.as_mut().stop_accepting().then_some(listener);
    let mut ends = JoinSet::new();
    for peer in peers {
        let deadline = fixture.drain_deadline();
        ends.spawn(async move { peer.shutdown(deadline).await });
    }
    ends.join_all().await;
    if let Some(node) = node {
        node.leave().await;
    }
    // Requests that other nodes have sent here are refused, and not lost.
    drop(needed);
    finished.await;
    Ok(Exit::Held)
}

fn read_options(file: &Path) -> Result<Options, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the options in {} could not be read: {error}", file.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("the options in {} are invalid: {error}", file.display()))
}
