//! The peer that is checked: a program that is started for each session, or a running peer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rescind::Framing;
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link};
use rescind_testkit::Profile;
use rescind_testkit::check::{PeerSource, Started};
use rescind_testkit::runner::LinkSubject;

use super::advice::with_advice;
use super::report::shown;
use super::scratch::ScratchCopy;
use crate::Failure;
use crate::endpoint::{Endpoint, Target};
use crate::open;

/// The agent or server of another project.
#[derive(Clone)]
pub(super) enum Foreign {
    /// Started for each session.
    Program { command: Vec<String>, framing: Framing },
    /// Connected to for each session. It is never ended.
    Running(Target),
}

/// The scope of a running peer's counters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// All its sessions, as for the fixture.
    Agent,
    /// Unknown, possibly only the session that reads them.
    Unknown,
}

/// A peer with its profile.
pub(super) struct Source {
    pub(super) peer: Foreign,
    pub(super) profile: Profile,
    /// The folder of the profile.
    pub(super) base: PathBuf,
    pub(super) counts: Counts,
    pub(super) patience: Duration,
    last: LastChild,
}

impl Source {
    pub(super) fn new(peer: Foreign, profile: Profile, base: PathBuf, patience: Duration) -> Self {
        Self { peer, profile, base, counts: Counts::Unknown, patience, last: LastChild::default() }
    }

    /// The failure of a peer, with the name of the program or endpoint.
    pub(super) fn failure(&self, why: &str) -> Failure {
        let why = with_advice(&shown(why));
        match &self.peer {
            Foreign::Program { .. } => format!("the peer `{}` cannot be checked: {why}", self.peer.program()),
            Foreign::Running(target) => format!("the peer at {} cannot be checked: {why}", target.endpoint),
        }
    }

    /// A copy of the scratch folder, and the profile with its values.
    fn prepare(&self) -> Result<(Option<ScratchCopy>, Profile), String> {
        let copy = match &self.profile.session.scratch {
            Some(folder) => Some(ScratchCopy::of(&self.base.join(folder))?),
            None => None,
        };
        let scratch = copy.as_ref().map(ScratchCopy::path);
        let profile = self.profile.resolve(&self.base, scratch).map_err(|error| error.to_string())?;
        Ok((copy, profile))
    }

    fn program(
        &self,
        command: &[String],
        framing: Framing,
        copy: Option<ScratchCopy>,
        profile: &Profile,
    ) -> LinkSubject {
        let (command, env) = (command.to_vec(), profile.session.env.clone());
        let (started, ended) = (self.last.clone(), self.last.clone());
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let folder = copy.as_ref().map(ScratchCopy::path);
            let link = start(&command, framing).and_then(|mut program| {
                for (name, value) in &env {
                    program = program.env(name, value);
                }
                if let Some(folder) = folder {
                    program = program.current_dir(folder);
                }
                let (link, child) = program.start().map_err(|error| error.source.to_string())?;
                started.is(child);
                Ok(link)
            });
            Box::pin(async move { link })
        };
        LinkSubject::new(Box::new(connect)).with_half_close().with_exit_report(move || ended.exit_report())
    }

    fn running(&self, target: &Target) -> LinkSubject {
        let half_closes = half_closes(&target.endpoint);
        let (target, patience) = (target.clone(), self.patience);
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let target = target.clone();
            Box::pin(async move {
                let link = open::connect(&target, patience).await;
                link.map_err(|why| format!("it could not be reached: {why}"))
            })
        };
        let mut subject = LinkSubject::new(Box::new(connect));
        if self.counts == Counts::Agent {
            subject = subject.with_many_lines();
        }
        if half_closes { subject.with_half_close() } else { subject }
    }
}

impl PeerSource for Source {
    fn start(&mut self) -> Started {
        self.last.clear();
        let (copy, profile) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(why) => {
                let failed = move || -> BoxFuture<'static, Result<Link, String>> {
                    let why = why.clone();
                    Box::pin(async move { Err(why) })
                };
                return Started {
                    subject: LinkSubject::new(Box::new(failed)),
                    profile: self.profile.clone(),
                };
            }
        };
        let subject = match &self.peer {
            Foreign::Program { command, framing } => self.program(command, *framing, copy, &profile),
            Foreign::Running(target) => self.running(target),
        };
        Started { subject: subject.with_patience(self.patience), profile }
    }

    fn process_group(&self) -> Option<u32> {
        self.last.child().map(|child| child.pid())
    }

    fn wire(&self) -> &'static str {
        match &self.peer {
            Foreign::Program { .. } => "stdio",
            Foreign::Running(target) => target.wire(),
        }
    }
}

impl Foreign {
    /// Its name on the command line.
    pub(super) fn program(&self) -> String {
        match self {
            Self::Program { command, .. } => command.first().cloned().unwrap_or_default(),
            Self::Running(target) => target.endpoint.to_string(),
        }
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

fn start(command: &[String], framing: Framing) -> Result<Command, String> {
    let (program, arguments) = command.split_first().ok_or("give the command of the peer after `--`")?;
    Ok(Command::new(program).args(arguments).framing(framing).child_kill_grace(Duration::from_millis(500)))
}

/// The process of the current session.
#[derive(Clone, Default)]
struct LastChild(Arc<Mutex<Option<ChildHandle>>>);

impl LastChild {
    fn is(&self, child: ChildHandle) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
    }

    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn child(&self) -> Option<ChildHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How it exited and what it last wrote to stderr, as in the transport's errors.
    fn exit_report(&self) -> Option<String> {
        let child = self.child()?;
        let status = child.exit_status()?;
        let tail = child.stderr_tail();
        Some(match tail.trim_end() {
            "" => format!("{status}; nothing on stderr"),
            tail => format!("{status}; stderr ends: {tail}"),
        })
    }
}
