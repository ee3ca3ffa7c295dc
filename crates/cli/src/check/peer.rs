//! The peer that is checked: a program that is started for each scenario, or a running peer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rescind::Framing;
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link};
use rescind_testkit::runner::LinkSubject;

use crate::Failure;
use crate::endpoint::{Endpoint, Target};
use crate::open;

/// The agent or server of another project.
#[derive(Clone)]
pub(super) enum Foreign {
    /// Started for each scenario.
    Program { command: Vec<String>, framing: Framing },
    /// Connected to for each scenario.
    Running(Target, Counts),
}

/// The scope of a running peer's counters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// All its sessions, as for the fixture.
    Agent,
    /// Unknown, possibly only the session that reads them.
    Unknown,
}

impl Foreign {
    /// Checks whether it can be started or reached at all. If not, the usage is wrong, and no scenario has failed.
    pub(super) async fn try_open(&self, patience: Duration) -> Result<(), Failure> {
        match self {
            Self::Program { command, framing } => {
                let (link, child) = start(command, *framing).map_err(|what| self.out_of_reach(&what))?;
                drop(link);
                let _ended = child.wait().await;
            }
            Self::Running(target, _) => {
                drop(open::connect(target, patience).await.map_err(|what| self.out_of_reach(&what))?);
            }
        }
        Ok(())
    }

    /// The failure for a peer that cannot be reached.
    pub(super) fn out_of_reach(&self, what: &str) -> Failure {
        match self {
            Self::Program { .. } => format!("the peer is not there: {what}"),
            Self::Running(target, _) => {
                format!("the peer at {} could not be reached: {what}", target.endpoint)
            }
        }
    }

    /// The wire's name in reports.
    pub(super) const fn wire(&self) -> &'static str {
        match self {
            Self::Program { .. } => "stdio",
            Self::Running(target, _) => target.wire(),
        }
    }

    /// Its name on the command line, if it is a program.
    pub(super) fn program(&self) -> Option<&str> {
        match self {
            Self::Program { command, .. } => command.first().map(String::as_str),
            Self::Running(..) => None,
        }
    }

    pub(super) fn subject(&self, patience: Duration) -> (LinkSubject, LastChild) {
        let last = LastChild::default();
        let subject = match self.clone() {
            Self::Program { command, framing } => {
                let (started, ended) = (last.clone(), last.clone());
                let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                    let link = start(&command, framing).map(|(link, child)| {
                        started.is(child);
                        link
                    });
                    Box::pin(async move { link })
                };
                LinkSubject::new(Box::new(connect))
                    .with_half_close()
                    .with_exit_report(move || ended.exit_report())
            }
            Self::Running(target, counts) => {
                let half_closes = half_closes(&target.endpoint);
                let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                    let target = target.clone();
                    Box::pin(async move { open::connect(&target, patience).await })
                };
                let mut subject = LinkSubject::new(Box::new(connect));
                if counts == Counts::Agent {
                    subject = subject.with_many_lines();
                }
                if half_closes { subject.with_half_close() } else { subject }
            }
        };
        (subject.with_patience(patience), last)
    }
}

/// Whether our side can be closed alone. A Windows pipe and a WebSocket close both directions.
const fn half_closes(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Stdio => true,
        Endpoint::Pipe(_) => cfg!(unix),
        Endpoint::WebSocket(_) | Endpoint::Http(_) => false,
    }
}

fn start(command: &[String], framing: Framing) -> Result<(Link, ChildHandle), String> {
    let (program, arguments) = command.split_first().ok_or("give the command of the peer after `--`")?;
    Command::new(program)
        .args(arguments)
        .framing(framing)
        .child_kill_grace(Duration::from_millis(500))
        .start()
        .map_err(|error| error.source.to_string())
}

/// The process of the current scenario.
#[derive(Clone, Default)]
pub(super) struct LastChild(Arc<Mutex<Option<ChildHandle>>>);

impl LastChild {
    fn is(&self, child: ChildHandle) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
    }

    /// How it exited and what it last wrote to stderr, as in the transport's errors.
    pub(super) fn exit_report(&self) -> Option<String> {
        let child = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let status = child.exit_status()?;
        let tail = child.stderr_tail();
        Some(match tail.trim_end() {
            "" => format!("{status}; nothing on stderr"),
            tail => format!("{status}; stderr ends: {tail}"),
        })
    }
}
