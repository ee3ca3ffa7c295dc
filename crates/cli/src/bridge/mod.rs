//! `rescind bridge`: clients at an endpoint, and for each of them a program or a connection behind the bridge.

mod args;
mod child;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rescind::bridge::{Bridge, Upstream};
use rescind::dialect::Dialect;
use rescind::requests::RequestLog;
use rescind::{LogText, ServerLimits, Share};

pub(crate) use args::BridgeArgs;
#[cfg(target_os = "linux")]
pub(crate) use args::ChildArgs;
use child::Child;
#[cfg(target_os = "linux")]
pub(crate) use child::replace_by_child;

use crate::cluster::Node;
use crate::endpoint::Binding;
use crate::endpoint::{Endpoint, Security, Side, Target, Web};
use crate::open;
use crate::serving::stop_signal;
use crate::token::{Token, TokenFile};
use crate::{Exit, Failure, ends_input, output, serving};

/// How long a connection to the endpoint behind the bridge may take to open.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long the bridge may take to end after its drain: requests that are cancelled have 2 s, programs twice
/// [`CHILD_GRACE`](child::CHILD_GRACE), and writes the rest. `--help` states it with the default of `--drain`.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: BridgeArgs) -> Result<Exit, Failure> {
    let dialect = named(args.dialect)?;
    let to_dialect = named(args.to_dialect.unwrap_or(args.dialect))?;
    let bridge = Bridge::new(dialect.clone()).and_then(|bridge| bridge.to(to_dialect.clone()));
    let bridge = bridge.map_err(|error| error.to_string())?;
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    // The operator of a bridge sees why sessions fail, as their clients do.
    let bridge = bridge.on_loss(move |why| {
        is_lost.store(true, Ordering::Relaxed);
        output::reason(format!("rescind: {}\n", LogText::text(&why)));
    });
    let torn = Arc::new(AtomicBool::new(false));
    let is_torn = Arc::clone(&torn);
    let bridge = bridge.on_deviation(move |name, report| {
        let line = format!("rescind: {}: {report}\n", LogText::text(&name));
        if ends_input(report.deviation) {
            is_torn.store(true, Ordering::Relaxed);
            output::reason(line);
        } else {
            output::note(line);
        }
    });
    let log = RequestLog::new();
    let bridge = if args.page.page.is_some() { bridge.request_log(&log) } else { bridge };
    let draining = Arc::new(AtomicBool::new(false));
    let mut target = listen_target(&args, &dialect)?;
    let node = args.cluster.connect(&mut target).await?;
    let behind = Arc::new(Behind::new(&args, &to_dialect)?);
    let drain = Drain { time: Duration::from_secs(args.drain), begun: Arc::clone(&draining) };
    let title = format!("rescind bridge ({})", args.dialect);
    let has_lost_its_name = Node::has_lost_its_name(node.as_ref());
    let is_unready = move || draining.load(Ordering::Relaxed) || has_lost_its_name();
    let _page = serving::start_page(&args.page, &title, &log, is_unready).await?;
    match target.endpoint {
        Endpoint::Stdio => serve_stdio(&bridge, &target, &behind, &drain, &Ends { lost, torn }).await,
        Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => {
            let served = serve(&bridge, &args, &target, &behind, &drain, node.as_ref()).await;
            if let Some(node) = &node {
                node.leave().await;
            }
            served
        }
    }
}

fn named(name: &str) -> Result<Dialect, Failure> {
    Dialect::by_name(name).ok_or_else(|| format!("there is no dialect {name}"))
}

/// Where clients connect, and what they must show.
fn listen_target(args: &BridgeArgs, dialect: &Dialect) -> Result<Target, Failure> {
    let mut target = Target::new(args.listen.clone(), dialect, args.listen_flags(), Side::Server)?;
    let web = match &target.endpoint {
        Endpoint::WebSocket(web) | Endpoint::Http(web) => Some(web),
        Endpoint::Stdio | Endpoint::Pipe(_) => None,
    };
    match web {
        Some(web) => check_exposure(args, web)?,
        None if args.token_file.is_some() || !args.origins.is_empty() || !args.hosts.is_empty() => {
            let listen = &args.listen;
            return Err(format!(
                "--token-file, --allow-origin and --allow-host are for ws:// and http://, and not for {listen}"
            ));
        }
        None => {}
    }
    if matches!(target.endpoint, Endpoint::Http(_)) && target.binding == Binding::Stateless {
        return Err("clients of mcp-2026 over HTTP have no sessions, so a bridge could not give each of them a program \
                    of its own; listen on ws://, pipe: or stdio"
            .to_owned());
    }
    target.settings.token = args.token_file.as_deref().map(Token::read).transpose()?;
    target.set_legacy_sse(args.legacy_sse)?;
    target.settings.sessions = usize::try_from(args.max_sessions).ok();
    target.settings.idle = args.idle.map(Duration::from_secs);
    target.settings.origins.clone_from(&args.origins);
    target.settings.hosts.clone_from(&args.hosts);
    Ok(target)
}

/// Refuses to listen beyond this machine without TLS and without a way to tell clients from strangers.
fn check_exposure(args: &BridgeArgs, web: &Web) -> Result<(), Failure> {
    if web.is_loopback() {
        return Ok(());
    }
    let listen = &args.listen;
    if args.token_file.is_none() && args.client_ca.is_none() {
        return Err(format!(
            "{listen} can be reached from other machines: give --token-file FILE or --client-ca FILE, or listen on \
             127.0.0.1"
        ));
    }
    if web.security == Security::Plain && !args.insecure {
        return Err(format!(
            "{listen} can be reached from other machines without TLS: listen on https:// or wss:// with --tls-cert and \
             --tls-key, or give --insecure if a proxy adds TLS"
        ));
    }
    Ok(())
}

/// What is behind the bridge.
enum Behind {
    Program(Child),
    Endpoint(Box<Target>),
}

impl Behind {
    fn new(args: &BridgeArgs, dialect: &Dialect) -> Result<Self, Failure> {
        let Some(endpoint) = &args.endpoint else {
            if args.to_binding.is_some() || args.to_token_file.is_some() || args.tls_ca.is_some() {
                return Err(
                    "--to-binding, --to-token-file and --tls-ca are for an ENDPOINT, and not for a COMMAND"
                        .to_owned(),
                );
            }
            // As the framing of `stdio`.
            let pipe = Target::new(Endpoint::Stdio, dialect, args.upstream_flags(), Side::Client)?;
            let command = args.command.clone();
            return Ok(Self::Program(Child::new(command, pipe.framing, &args.variables, args.inherit_env)?));
        };
        if *endpoint == Endpoint::Stdio {
            return Err(
                "stdio is the side of the clients; give a COMMAND after `--`, or another endpoint".to_owned()
            );
        }
        if args.inherit_env || !args.variables.is_empty() {
            return Err(format!("--env and --inherit-env are for a COMMAND, and not for {endpoint}"));
        }
        let is_web = matches!(endpoint, Endpoint::WebSocket(_) | Endpoint::Http(_));
        if args.to_token_file.is_some() && !is_web {
            return Err(format!("--to-token-file is for ws:// and http://, and not for {endpoint}"));
        }
        let mut target = Target::new(endpoint.clone(), dialect, args.upstream_flags(), Side::Client)?;
        target.settings.token_file = args.to_token_file.as_deref().map(TokenFile::open).transpose()?;
        Ok(Self::Endpoint(Box::new(target)))
    }

    /// Opens the upstream of one session.
    async fn open(self: Arc<Self>) -> Result<Upstream, String> {
        match &*self {
            Self::Program(child) => child.start(),
            Self::Endpoint(target) => {
                let name = target.endpoint.to_string();
                match open::connect(target, CONNECT_TIME).await {
                    Ok(link) => Ok(Upstream::new(name, link)),
                    Err(why) => Err(format!("{name} could not be reached: {why}")),
                }
            }
        }
    }
}

/// How long running requests have to end after a signal.
struct Drain {
    time: Duration,
    /// Whether it has begun, for `/readyz`.
    begun: Arc<AtomicBool>,
}

impl Drain {
    fn begin(&self) -> Duration {
        self.begun.store(true, Ordering::Relaxed);
        self.time
    }

    /// Waits for the end of everything, for at most the drain and [`AFTER_DRAIN`]. Programs that are left then are killed
    /// with this process.
    async fn limit(&self, ended: impl Future<Output = ()>) {
        if tokio::time::timeout(self.time.saturating_add(AFTER_DRAIN), ended).await.is_err() {
            output::note("rescind: not everything has ended in time\n".to_owned());
        }
    }
}

/// How a session over stdio has ended.
struct Ends {
    /// The upstream was lost.
    lost: Arc<AtomicBool>,
    /// One side sent input after which no message can be found.
    torn: Arc<AtomicBool>,
}

async fn serve_stdio(
    bridge: &Bridge,
    target: &Target,
    behind: &Arc<Behind>,
    drain: &Drain,
    ends: &Ends,
) -> Result<Exit, Failure> {
    let stop = stop_signal();
    let transport = rescind::stdio::this_process().framing(target.framing);
    let opening = Arc::clone(behind).open();
    let client = bridge.join(transport, opening).await.map_err(|error| error.to_string())?;
    tokio::select! {
        biased;
        closed = client.closed() => drop(closed),
        () = stop => {
            let ended = async {
                let _still_running = client.shutdown(drain.begin()).await;
                bridge.ended().await;
            };
            drain.limit(ended).await;
        }
    }
    // After a signal this has happened, or its time is over.
    if !drain.begun.load(Ordering::Relaxed) {
        bridge.ended().await;
    }
    // LSP's `exit` defines the exit status of the process.
    Ok(match client.exit_code() {
        _ if ends.torn.load(Ordering::Relaxed) => Exit::Usage,
        None if ends.lost.load(Ordering::Relaxed) => Exit::Broke,
        None | Some(0) => Exit::Held,
        Some(_) => Exit::Broke,
    })
}

async fn serve(
    bridge: &Bridge,
    args: &BridgeArgs,
    target: &Target,
    behind: &Arc<Behind>,
    drain: &Drain,
    node: Option<&Node>,
) -> Result<Exit, Failure> {
    let signal = stop_signal();
    let mut stop = pin!(async {
        signal.await;
        drain.begin();
        Node::drain_delay(node).await;
    });
    let listener = open::listen(target).await?;
    if let Some(node) = node {
        node.join(&listener.endpoint().0).await?;
    }
    let behind = Arc::clone(behind);
    let server = bridge.serve(move || Arc::clone(&behind).open());
    let server = server.server_limits(limits(args, target)).listen(listener);
    let handle = server.handle();
    output::message(&format!("listening on {}\n", server.endpoint()));
    let mut running = pin!(server.run());
    tokio::select! {
        () = &mut stop => {}
        ended = &mut running => {
            bridge.ended().await;
            return ended.map(|()| Exit::Held).map_err(|error| error.to_string());
        }
    }
    let mut again = pin!(stop_signal());
    let drained = async {
        tokio::select! {
            _ = handle.drain(drain.begin()) => {}
            // A second signal: what runs is cancelled now.
            () = &mut again => {
                handle.drain(Duration::ZERO).await;
            }
        }
        bridge.ended().await;
    };
    let drained = drain.limit(drained);
    // The connections over HTTP belong to the server, which runs until they have ended.
    let (ended, ()) = tokio::join!(running, drained);
    ended.map(|()| Exit::Held).map_err(|error| error.to_string())
}

fn limits(args: &BridgeArgs, target: &Target) -> ServerLimits {
    let sessions = target.settings.sessions.unwrap_or(usize::MAX);
    // Over streamable HTTP the transport knows whether a client uses its session.
    let knows_use = matches!(target.endpoint, Endpoint::Http(_)) && target.binding == Binding::Streamable;
    let idle = target.settings.idle.filter(|_| !knows_use);
    let limits = ServerLimits::default().max_connections(sessions).idle_timeout(idle);
    match &target.endpoint {
        // All clients of this machine have one address, and so have all clients of a proxy.
        Endpoint::WebSocket(web) | Endpoint::Http(web) if !web.is_loopback() && !args.insecure => limits,
        Endpoint::WebSocket(_) | Endpoint::Http(_) | Endpoint::Pipe(_) | Endpoint::Stdio => {
            limits.client_share(Share::ALL)
        }
    }
}
