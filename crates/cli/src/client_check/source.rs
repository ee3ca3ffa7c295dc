//! Starts the client, and passes it the address of its server.

use std::future::poll_fn;
use std::time::Duration;

use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link, Listener as _};
use rescind_testkit::client_check::{ClientEnd, ClientSource, Instructions, StartedClient};
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;

use super::relay_listener::RelayListener;
use crate::endpoint::{Endpoint, Target};
use crate::open;

/// The client, as a program that is started for each run.
pub(super) struct ProgramSource {
    target: Target,
    command: Vec<String>,
}

impl ProgramSource {
    pub(super) fn new(target: Target, command: Vec<String>) -> Result<Self, String> {
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
