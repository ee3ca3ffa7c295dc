//! `rescind bridge`: clients at an endpoint, and for each of them a program or a connection behind the bridge.

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use rescind::bridge::{Bridge, Upstream};
use rescind::requests::RequestLog;
use rescind::stdio::{ChildHandle, Command};
use rescind::{Framing, LogText, ServerLimits, Share};

use crate::cluster::{ClusterArgs, Node};
use rescind_testkit::dialects::{DialectFacts, HttpBinding};

use crate::endpoint::{Endpoint, Flags, Security, Side, Target, Web, WireOptions, bindings, dialect};
use crate::login::{self, Login, LoginArgs};
use crate::serving::{self, PageArgs, stop_signal};
use crate::token::{Token, TokenFile};
use crate::{Exit, Failure, ends_input, open, output};

/// How long a connection to the endpoint behind the bridge may take to open.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long the bridge may take to end after its drain: requests that are cancelled have 2 s, programs twice
/// [`CHILD_GRACE`], and writes the rest. `--help` states it with the default of `--drain`.
const AFTER_DRAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: BridgeArgs) -> Result<Exit, Failure> {
    let to_dialect = args.to_dialect.unwrap_or(args.dialect);
    if args.login.login || args.login.logout {
        return change_login(&args, to_dialect).await;
    }
    let bridge = Bridge::new(args.dialect.dialect.clone());
    let bridge = bridge.and_then(|bridge| bridge.to(to_dialect.dialect.clone()));
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
        } else if !(report.is_repeated && report.deviation.is_understood()) {
            output::note(line);
        }
    });
    let log = RequestLog::new();
    let bridge = if args.page.page.is_some() { bridge.request_log(&log) } else { bridge };
    let draining = Arc::new(AtomicBool::new(false));
    let mut target = listen_target(&args)?;
    let node = args.cluster.connect(&mut target).await?;
    let behind = Arc::new(Behind::new(&args, to_dialect, Arc::clone(&lost))?);
    let drain = Drain { time: Duration::from_secs(args.drain), begun: Arc::clone(&draining) };
    let title = format!("rescind bridge ({})", args.dialect.name());
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

/// Logs in at the endpoint behind the bridge, or forgets the login.
async fn change_login(args: &BridgeArgs, dialect: &'static DialectFacts) -> Result<Exit, Failure> {
    let Behind::Endpoint(target) = Behind::new(args, dialect, Arc::default())? else {
        return Err("a login is for an ENDPOINT, and not for a COMMAND".to_owned());
    };
    let done = match &target.settings.login {
        Some(login) if args.login.login => login.log_in().await?,
        _ => {
            let client = open::http_options(&target, CONNECT_TIME)?;
            login::log_out(&target.endpoint.to_string(), &client, &args.login).await?
        }
    };
    output::message(&format!("rescind: {done}\n"));
    Ok(Exit::Held)
}

/// Where clients connect, and what they must show.
fn listen_target(args: &BridgeArgs) -> Result<Target, Failure> {
    let mut target = Target::new(args.listen.clone(), args.dialect, args.listen_flags(), Side::Server)?;
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
    if matches!(target.endpoint, Endpoint::Http(_)) && target.binding == HttpBinding::Stateless {
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
    fn new(
        args: &BridgeArgs,
        dialect: &'static DialectFacts,
        lost: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let Some(endpoint) = &args.endpoint else {
            if args.to_binding.is_some() || args.to_token_file.is_some() || args.tls_ca.is_some() {
                return Err(
                    "--to-binding, --to-token-file and --tls-ca are for an ENDPOINT, and not for a COMMAND"
                        .to_owned(),
                );
            }
            if args.login.is_given() {
                return Err("a login is for an ENDPOINT, and not for a COMMAND".to_owned());
            }
            // As the framing of `stdio`.
            let pipe = Target::new(Endpoint::Stdio, dialect, args.upstream_flags(), Side::Client)?;
            let command = args.command.clone();
            let child = Child::new(command, pipe.framing, &args.variables, args.inherit_env)?;
            return Ok(Self::Program(Child { lost, ..child }));
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
        let is_http = matches!(endpoint, Endpoint::Http(_));
        if args.login.is_given() && (!is_http || args.to_token_file.is_some()) {
            return Err(format!(
                "the options of a login are for http:// and https:// without --to-token-file, and not for {endpoint}"
            ));
        }
        let mut target = Target::new(endpoint.clone(), dialect, args.upstream_flags(), Side::Client)?;
        if is_http && args.to_token_file.is_none() {
            let client = open::http_options(&target, CONNECT_TIME)?;
            // The client of a bridge on stdio is the user. Other clients could log in with an account of their own.
            let is_user = args.listen == Endpoint::Stdio;
            target.settings.login = Some(Login::new(&endpoint.to_string(), client, &args.login, is_user)?);
        }
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
    let knows_use = matches!(target.endpoint, Endpoint::Http(_)) && target.binding == HttpBinding::Streamable;
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

const LISTEN: &str = "Where clients connect";
const BEHIND: &str = "What is behind the bridge";

/// `rescind bridge`.
#[derive(Debug, Args)]
pub(crate) struct BridgeArgs {
    /// The dialect of both sides. All but abp; mcp-2026 not with http:// on the side of the clients.
    #[arg(long, value_name = "D", value_parser = dialect)]
    pub(crate) dialect: &'static DialectFacts,
    /// The dialect of the program behind the bridge, if it spells cancels differently: acp or acp-draft.
    #[arg(long, help_heading = BEHIND, value_name = "D", value_parser = dialect)]
    pub(crate) to_dialect: Option<&'static DialectFacts>,
    /// Where clients connect: stdio, pipe:PATH-OR-NAME, ws://HOST:PORT/PATH, wss://, http:// or https://. Port 0 takes
    /// a free port. Except for stdio, the line `listening on ENDPOINT` on stderr names the endpoint.
    #[arg(long, help_heading = LISTEN, value_name = "ENDPOINT")]
    pub(crate) listen: Endpoint,
    #[command(flatten)]
    pub(crate) wire_options: WireOptions,
    /// Also serve the transport of MCP 2024-11-05: GET /sse and POST /messages, beside the path of --listen.
    #[arg(long, help_heading = LISTEN)]
    pub(crate) legacy_sse: bool,
    /// The most sessions at once.
    #[arg(long, help_heading = LISTEN, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_sessions: u32,
    /// End a session that nobody uses after this many seconds. One whose event stream is read, whose task runs, or for whose
    /// request a client waits, is in use. [default: 1800 over HTTP, else never]
    #[arg(long, help_heading = LISTEN, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) idle: Option<u64>,
    /// How many seconds running requests have to end after SIGTERM or SIGINT, before they are cancelled. They have 2 s more
    /// then, and COMMAND 2 s. The bridge ends after this time and 5 s, so by default after 7 s at most.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) drain: u64,
    /// Accept only clients that send the token in this file: `Authorization: Bearer TOKEN`.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The certificate chain of the bridge, for wss:// and https://.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Require a client certificate issued by this authority, for wss:// and https://.
    #[arg(long, help_heading = LISTEN, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Listen beyond this machine without TLS, for example behind a reverse proxy on another machine.
    #[arg(long, help_heading = LISTEN)]
    pub(crate) insecure: bool,
    /// Serve this host name too, such as `tools.example` or `tools.example:8080`: for containers, clusters and tunnels. May
    /// be repeated. [default: the names of this machine, and the host of `--listen`]
    #[arg(long = "allow-host", help_heading = LISTEN, value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    /// Accept web pages of this origin, such as `https://app.example`. May be repeated. [default: those of this machine]
    #[arg(long = "allow-origin", help_heading = LISTEN, value_name = "ORIGIN")]
    pub(crate) origins: Vec<String>,
    /// Pass this variable of the bridge's environment to COMMAND, or set it. May be repeated.
    /// [default: only a few plain variables such as PATH and HOME are passed]
    #[arg(long = "env", help_heading = BEHIND, value_name = "NAME[=VALUE]")]
    pub(crate) variables: Vec<String>,
    /// Pass the whole environment of the bridge to COMMAND.
    #[arg(long, help_heading = BEHIND)]
    pub(crate) inherit_env: bool,
    /// Framing of COMMAND's stdio or of a pipe: behind the bridge: newline or content-length. [default: the dialect's]
    #[arg(long, help_heading = BEHIND, value_name = "F", value_parser = ["newline", "content-length"])]
    pub(crate) to_framing: Option<String>,
    /// Binding of an http:// or https:// endpoint behind the bridge. [default: the dialect's; for mcp, a server of
    /// 2024-11-05 is found]
    #[arg(long, help_heading = BEHIND, value_name = "B", value_parser = bindings())]
    pub(crate) to_binding: Option<HttpBinding>,
    /// Send the token in this file to the endpoint behind the bridge. The file is read again when it changes, and when the
    /// endpoint refuses the token.
    #[arg(long, help_heading = BEHIND, value_name = "FILE")]
    pub(crate) to_token_file: Option<PathBuf>,
    /// The certificate authority to trust, for a wss:// or https:// endpoint behind the bridge. [default: the system's]
    #[arg(long, help_heading = BEHIND, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The server behind the bridge, connected to once for each session: pipe:, ws://, wss://, http:// or https://.
    #[arg(value_name = "ENDPOINT", required_unless_present = "command")]
    pub(crate) endpoint: Option<Endpoint>,
    /// The program behind the bridge, started once for each session, without a shell.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "endpoint")]
    pub(crate) command: Vec<String>,
}

/// `rescind child`.
#[cfg(target_os = "linux")]
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// The process that started this one.
    pub(crate) parent: i32,
    /// The program to become, and its arguments.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

impl BridgeArgs {
    /// The flags of the side of the clients.
    pub(crate) fn listen_flags(&self) -> Flags {
        let WireOptions { framing, binding } = &self.wire_options;
        Flags {
            framing: framing.clone(),
            binding: *binding,
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_ca: None,
            client_ca: self.client_ca.clone(),
        }
    }

    /// The flags of the side behind the bridge.
    pub(crate) fn upstream_flags(&self) -> Flags {
        Flags {
            framing: self.to_framing.clone(),
            binding: self.to_binding,
            tls_ca: self.tls_ca.clone(),
            ..Flags::default()
        }
    }
}

/// The time of a child to end after the end of its stdin, and again after SIGTERM.
const CHILD_GRACE: Duration = Duration::from_secs(1);

/// The variables that are passed to a child: where programs and the user's files are, and the language.
#[cfg(not(windows))]
const PLAIN: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM"];
#[cfg(windows)]
const PLAIN: &[&str] = &[
    "PATH",
    "PATHEXT",
    "SystemRoot",
    "SystemDrive",
    "ComSpec",
    "USERPROFILE",
    "USERNAME",
    "HOMEDRIVE",
    "HOMEPATH",
    "APPDATA",
    "LOCALAPPDATA",
    "ProgramFiles",
    "TEMP",
    "TMP",
];

/// The program behind a bridge, started once for each session.
struct Child {
    command: Vec<String>,
    framing: Framing,
    /// `None`: the child gets the environment of this process, and these variables.
    clean: bool,
    variables: Vec<(OsString, OsString)>,
    /// One has ended before its session, and none was started since.
    lost: Arc<AtomicBool>,
}

impl Child {
    /// # Errors
    /// A variable that is to be passed is not set here, or has no name.
    fn new(command: Vec<String>, framing: Framing, named: &[String], inherits: bool) -> Result<Self, String> {
        let mut variables = Vec::new();
        if !inherits {
            let set = PLAIN.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
            variables.extend(set);
        }
        for named in named {
            variables.push(match named.split_once('=') {
                Some(("", _)) => return Err(format!("--env {named} has no name before the `=`")),
                Some((name, value)) => (name.into(), value.into()),
                None => {
                    let value = std::env::var_os(named).ok_or_else(|| {
                        format!(
                            "--env {named}: there is no such variable here; set it, or give {named}=VALUE"
                        )
                    })?;
                    (named.into(), value)
                }
            });
        }
        Ok(Self { command, framing, clean: !inherits, variables, lost: Arc::default() })
    }

    /// Starts one.
    fn start(&self) -> Result<Upstream, String> {
        let mut command = self.prepared();
        if self.clean {
            command = command.env_clear();
        }
        for (name, value) in &self.variables {
            command = command.env(name, value);
        }
        let (link, child) = command
            .framing(self.framing)
            .child_kill_grace(CHILD_GRACE)
            .start()
            .map_err(|error| error.source.to_string())?;
        let name = format!("`{}`", self.command.first().map_or("", String::as_str));
        if self.lost.swap(false, Ordering::Relaxed) {
            output::note(format!("rescind: {} was started again, for a new session\n", LogText::text(&name)));
        }
        Ok(Upstream::new(name, link).ends(ended(child)))
    }

    /// Through this program, which asks the system to end the child with this process, and then becomes the child.
    #[cfg(target_os = "linux")]
    fn prepared(&self) -> Command {
        let own = std::process::id().to_string();
        Command::new("/proc/self/exe").args(["child", &own, "--"]).args(&self.command)
    }

    #[cfg(not(target_os = "linux"))]
    fn prepared(&self) -> Command {
        let mut words = self.command.iter();
        Command::new(words.next().map_or("", String::as_str)).args(words)
    }
}

/// How a child ended, once it was waited for.
async fn ended(child: ChildHandle) -> String {
    let status = child.wait().await;
    let how = match (child.has_closed_stdin(), child.has_closed_stdout()) {
        (true, _) => "it closed its stdin and did not exit within 200 ms; ",
        (false, true) => "it closed its stdout and did not exit within 200 ms; ",
        (false, false) => "",
    };
    let tail = child.stderr_tail();
    match tail.trim_end() {
        "" => format!("{how}{status}; nothing on stderr"),
        tail => format!("{how}{status}; stderr ends: {tail}"),
    }
}

/// Becomes the program of a child. Before that it asks for SIGKILL when the thread of the bridge ends that started it:
/// the thread on which the bridge runs, so when the bridge ends, also if it is killed.
#[cfg(target_os = "linux")]
pub(crate) fn replace_by_child(args: &ChildArgs) -> std::process::ExitCode {
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // The bridge may have ended before the signal was set.
    if asked.is_err() || getppid() != Pid::from_raw(args.parent) {
        crate::output::message("rescind: the bridge that started this process has ended\n");
        return std::process::ExitCode::from(127);
    }
    let mut words = args.command.iter();
    let program = words.next().map_or("", String::as_str);
    let error = std::process::Command::new(program).args(words).exec();
    crate::output::message(&format!("`{program}` could not be started: {error}\n"));
    std::process::ExitCode::from(127)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(named: &[&str], inherits: bool) -> Result<Child, String> {
        let named: Vec<_> = named.iter().map(|&name| name.to_owned()).collect();
        Child::new(vec!["program".to_owned()], Framing::Newline, &named, inherits)
    }

    #[test]
    fn only_plain_variables_and_those_named_are_passed() {
        let child = child(&["A=1", "B=", "C=x=y"], false).unwrap_or_else(|why| panic!("{why}"));
        assert!(child.clean);
        let own: Vec<_> = child.variables.iter().rev().take(3).rev().cloned().collect();
        assert_eq!(
            own,
            [("A", "1"), ("B", ""), ("C", "x=y")].map(|(name, value)| (name.into(), value.into()))
        );
        for (name, _) in child.variables.iter().rev().skip(3) {
            assert!(PLAIN.iter().any(|plain| name == plain), "{name:?}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_is_wrong_usage() {
        for (named, word) in [("RESCIND_NOT_SET", "no such variable"), ("=x", "no name")] {
            let why = child(&[named], false).err().unwrap_or_default();
            assert!(why.contains(word), "{named}: {why}");
        }
        assert!(child(&[], true).is_ok_and(|child| !child.clean && child.variables.is_empty()));
    }
}
