//! `rescind check --client`: plays the server to a client of another project.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link, Listener as _, Transport as _};
use rescind::{ByteStream, Framing};
use rescind_check::{ClientEnd, ClientSettings, ClientSource, Instructions, StartedClient, check_client};
use rescind_testkit::{Answer, Demand, Report};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, stdin, stdout};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::{JoinHandle, JoinSet};

use crate::args::{Check, Relay};
use crate::check::shown;
use crate::endpoint::{Endpoint, Side, Target};
use crate::serving::stop_signal;
use crate::{Exit, Failure, open, output, table};

pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    if args.command.is_empty() {
        return Err("there is no client to check; give the COMMAND that starts it after `--`".to_owned());
    }
    let endpoint = args.listen.clone().unwrap_or(Endpoint::Stdio);
    let target = Target::new(endpoint, args.dialect, args.flags(), Side::Server)?;
    let mut source = ProgramSource::new(target, args.command.clone())?;
    let mut settings = ClientSettings::default();
    settings.step = Duration::from_millis(args.step_timeout);
    settings.start = settings.start.max(settings.step);
    let progress = crate::matrix::progress(0);
    let checked = tokio::select! {
        checked = check_client(args.dialect.name(), &mut source, &settings, |name| progress.set_message(name.to_owned())) => checked,
        () = stop_signal() => return Err("the check was interrupted, and the client was stopped".to_owned()),
    };
    progress.finish_and_clear();
    let report = checked.map_err(|unusable| unusable.to_string())?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        output::message(&lines(&report));
        output::result(&format!("{text}\n"))?;
    } else {
        output::result(&lines(&report))?;
    }
    Ok(if report.summary.faults == 0 { Exit::Held } else { Exit::Broke })
}

/// The report as text: each fact, and the frames behind each `no`.
fn lines(report: &Report) -> String {
    let mut text = String::new();
    for fact in &report.facts {
        let answer = match (fact.answer, fact.demand) {
            (Answer::Yes, _) => "yes      ",
            (Answer::No, Demand::Must) => "NO       ",
            (Answer::No, Demand::Should | Demand::Open) => "no       ",
            (Answer::Unsure, _) => "unsure   ",
            (Answer::NotAsked, _) => "not asked",
        };
        let _ = writeln!(text, "{answer}  {} ({})", fact.statement, fact.name);
        let _ = writeln!(text, "           {}", shown(&fact.detail));
        if fact.answer == Answer::No {
            let demand = match fact.demand {
                Demand::Must => "must",
                Demand::Should => "should",
                Demand::Open => "open",
            };
            let _ = writeln!(text, "           {demand}: {}", fact.source);
            for line in &fact.trace {
                let _ = writeln!(text, "             {} {}", table::arrow(line.direction), shown(&line.text));
            }
        }
    }
    let summary = report.summary;
    let yes = report.facts.iter().filter(|fact| fact.answer == Answer::Yes).count();
    let _ = writeln!(text, "{yes} yes, {} faults, {} deviations", summary.faults, summary.deviations);
    text
}

/// The client, as a program that is started for each run, with the address of its server.
struct ProgramSource {
    target: Target,
    command: Vec<String>,
}

impl ProgramSource {
    fn new(target: Target, command: Vec<String>) -> Result<Self, String> {
        match &target.endpoint {
            Endpoint::Stdio if command.iter().any(|word| word.contains("{endpoint}")) => {
                Err("`{endpoint}` needs --listen ENDPOINT; over stdio the client starts `{command}`"
                    .to_owned())
            }
            Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_)
                if command.iter().any(|word| word.contains("{command}")) =>
            {
                Err("`{command}` is for clients that start their server; with --listen use `{endpoint}`"
                    .to_owned())
            }
            Endpoint::Stdio | Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => {
                Ok(Self { target, command })
            }
        }
    }

    /// Opens the way in for one run. Each run has its own, so that a late client of the run before is not served.
    async fn way(&self) -> Result<(Way, mpsc::UnboundedReceiver<Link>, Serving), String> {
        let (sender, links) = mpsc::unbounded_channel();
        if self.target.endpoint == Endpoint::Stdio {
            let listener = RelayListener::bind(self.target.framing).await?;
            let way = Way { endpoint: "stdio".to_owned(), command: listener.command()? };
            return Ok((way, links, Serving(tokio::spawn(listener.serve(sender)))));
        }
        let listener = open::listen(&self.target).await?;
        let way = Way { endpoint: listener.endpoint().to_string(), command: Vec::new() };
        Ok((way, links, Serving(tokio::spawn(accept_all(listener, sender)))))
    }

    async fn start(&self, instructions: &Instructions) -> Result<StartedClient, String> {
        let (way, links, serving) = self.way().await?;
        let (program, arguments) =
            self.command.split_first().ok_or("give the client's command after `--`")?;
        let command = Value::from(way.command.clone()).to_string();
        let mut words = Vec::new();
        for argument in arguments {
            // Alone, it becomes the words of the command.
            if argument == "{command}" {
                words.extend(way.command.iter().cloned());
            } else {
                let filled = argument.replace("{endpoint}", &way.endpoint).replace("{command}", &command);
                words.push(filled.replace("{scenario}", instructions.scenario));
            }
        }
        let started = Command::new(program)
            .args(words)
            .env("RESCIND_ENDPOINT", &way.endpoint)
            .env("RESCIND_COMMAND", &command)
            .env("RESCIND_SCENARIO", instructions.scenario)
            .env("RESCIND_SLOW", instructions.slow.to_string())
            .env("RESCIND_QUICK", instructions.quick.to_string())
            .env("RESCIND_WAIT_MS", instructions.wait.as_millis().to_string())
            .child_kill_grace(Duration::from_millis(500))
            .start();
        let (link, child) =
            started.map_err(|error| format!("the client could not be started: {}", error.source))?;
        let ended = Box::pin(end_of(child));
        Ok(StartedClient {
            links,
            ended,
            guard: Box::new((Serving(tokio::spawn(read_output(link))), serving)),
        })
    }
}

/// How the client reaches its server.
struct Way {
    endpoint: String,
    command: Vec<String>,
}

/// Aborts the task when it is dropped.
struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ClientSource for ProgramSource {
    fn start<'a>(
        &'a mut self,
        instructions: &'a Instructions,
    ) -> BoxFuture<'a, Result<StartedClient, String>> {
        Box::pin(Self::start(self, instructions))
    }

    fn way_in(&self) -> String {
        match self.target.endpoint {
            Endpoint::Stdio => {
                "it must start the command in RESCIND_COMMAND (a JSON array, or `{command}` in its arguments) as its server"
                    .to_owned()
            }
            Endpoint::Pipe(_) | Endpoint::WebSocket(_) | Endpoint::Http(_) => format!(
                "it must connect to the URL in RESCIND_ENDPOINT (or `{{endpoint}}` in its arguments), here {}",
                self.target.endpoint
            ),
        }
    }
}

/// Reads what the client prints, so that it is not blocked. Dropping the future ends the client and its process group.
async fn read_output(mut link: Link) {
    while let Some(Ok(_)) = poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await {}
    std::future::pending::<()>().await;
}

/// The most characters of its stderr that are shown.
const MAX_STDERR_CHARS: usize = 1_000;

async fn end_of(child: ChildHandle) -> ClientEnd {
    let status = child.wait().await;
    // One line, because the report of a program that cannot be checked is one sentence.
    let said = child.stderr_tail();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said: String = lines.join(" | ").chars().take(MAX_STDERR_CHARS).collect();
    let text = if said.is_empty() { status.to_string() } else { format!("{status}; stderr: {said}") };
    ClientEnd { code: status.code(), text }
}

async fn accept_all(mut listener: open::AnyListener, links: UnboundedSender<Link>) {
    while let Some(accepted) = listener.accept().await {
        if let Ok(link) = accepted {
            drop(links.send(link));
        }
    }
}

/// The far side of `rescind relay`: the client starts that command as its server, and it connects back to here. Accepts the
/// relays of one run.
struct RelayListener {
    listener: TcpListener,
    address: SocketAddr,
    word: String,
    framing: Framing,
}

impl RelayListener {
    async fn bind(framing: Framing) -> Result<Self, String> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(|error| format!("the system gave no random bits: {error}"))?;
        let word = format!("{:032x}", u128::from_ne_bytes(bits));
        let bound = async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            let address = listener.local_addr()?;
            Ok::<_, io::Error>((listener, address))
        };
        let (listener, address) =
            bound.await.map_err(|error| format!("no address of this machine could be used: {error}"))?;
        Ok(Self { listener, address, word, framing })
    }

    /// The command that the client starts as its server.
    fn command(&self) -> Result<Vec<String>, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("the path of this program is unknown: {error}"))?
            .into_os_string()
            .into_string()
            .map_err(|_| "the path of this program is not UTF-8, and the client could not be given it")?;
        Ok(vec![program, "relay".to_owned(), self.address.to_string(), self.word.clone()])
    }

    /// Passes on each connection that begins with the word. Other programs may connect to this port too.
    async fn serve(self, links: UnboundedSender<Link>) {
        let mut callers = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let Ok((stream, _)) = accepted else { return };
                    callers.spawn(heard(stream, self.word.len()));
                }
                Some(Ok(Some((stream, word)))) = callers.join_next() => {
                    if word != self.word.as_bytes() || stream.set_nodelay(true).is_err() {
                        continue;
                    }
                    let (from, to) = stream.into_split();
                    let opened = Box::new(ByteStream::new(from, to).framing(self.framing)).open().await;
                    if let Ok(link) = opened {
                        drop(links.send(link));
                    }
                }
            }
        }
    }
}

async fn heard(mut stream: TcpStream, length: usize) -> Option<(TcpStream, Vec<u8>)> {
    let mut word = vec![0; length];
    stream.read_exact(&mut word).await.ok()?;
    Some((stream, word))
}

/// `rescind relay`: a real process with real stdio pipes. The matrix and `RelayListener` act as the far side.
pub(crate) async fn run_relay(args: Relay) -> Result<Exit, Failure> {
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
