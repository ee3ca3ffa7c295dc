//! The peer that is checked: a program that is started for each session, or a running peer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use rescind::Framing;
use rescind::stdio::{ChildHandle, Command};
use rescind::transport::{BoxFuture, Link};
use rescind_check::{PeerSource, Started};
use rescind_testkit::Profile;
use rescind_testkit::runner::LinkSubject;

use super::report::shown;
use crate::endpoint::{Endpoint, Target};
use crate::{Failure, open};

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

/// The copy of a scratch folder: the files of one session, removed when it ends.
#[derive(Debug)]
struct ScratchCopy(PathBuf);

impl ScratchCopy {
    /// Copies a folder. Links are copied as links.
    ///
    /// # Errors
    /// One sentence, if the folder cannot be read or its copy cannot be written.
    fn of(folder: &Path) -> Result<Self, String> {
        let failed =
            |error: io::Error| format!("the scratch folder {} cannot be copied: {error}", folder.display());
        if !folder.is_dir() {
            return Err(format!("the scratch folder {} is missing", folder.display()));
        }
        let copy = Self(create_folder().map_err(failed)?);
        copy_into(folder, &copy.0).map_err(failed)?;
        Ok(copy)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchCopy {
    fn drop(&mut self) {
        // A program that is being killed may write a last file meanwhile.
        for _ in 0..20 {
            match fs::remove_dir_all(&self.0) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Creates a folder with a new name. Its path has no links, because programs compare paths.
fn create_folder() -> io::Result<PathBuf> {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).map_err(|error| io::Error::other(error.to_string()))?;
    let name = format!("rescind-check-{:016x}", u64::from_ne_bytes(bits));
    let path = std::env::temp_dir().join(name);
    fs::create_dir(&path)?;
    fs::canonicalize(path)
}

fn copy_into(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy_into(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            link(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(fs::read_link(from)?, to)
}

/// Links need a permission there, so their targets are copied.
#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir(to)?;
        return copy_into(from, to);
    }
    fs::copy(from, to).map(drop)
}

/// The reason why a peer cannot be checked, and after it what to do, where that is known. One sentence.
fn with_advice(why: &str) -> String {
    match advice(why) {
        Some(advice) => format!("{why}; {advice}"),
        None => why.to_owned(),
    }
}

fn advice(why: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let is_noise = says(&["is no message", "not a message", "not a frame", "broke the framing"]);
    if is_noise && why.to_ascii_lowercase().contains("content-length") {
        return Some("it speaks another framing: add --framing content-length");
    }
    if is_noise {
        return Some(
            "messages alone belong on stdout, and logs on stderr; or it speaks another framing: see --framing",
        );
    }
    if says(&["`initialize` was refused"]) && says(&["-32601"]) {
        return Some("it speaks another protocol: see --dialect");
    }
    if says(&["`initialize` was refused", "`session/new` was refused"]) {
        return Some(
            "say under [handshake] of a profile what this peer needs, such as a login or a workspace",
        );
    }
    if says(&["-32601"]) {
        return Some("name a method that the peer serves: --init lists what it offers");
    }
    if says(&["-32602"]) {
        return Some("give the params that the peer wants: --init makes some");
    }
    if says(&["exit status", "signal:", "stops reading"]) {
        return Some("run the command by hand to see why it ends, or see --framing if it reads another one");
    }
    if says(&["was not answered within", "the connection was closed"]) {
        return Some(
            "see whether the program needs an argument such as --stdio, a workspace, or another --dialect or --framing",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_all_files_and_is_removed_with_its_session() {
        let folder = create_folder().unwrap();
        fs::create_dir(folder.join("sub")).unwrap();
        fs::write(folder.join("sub/a.txt"), "a").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("sub/a.txt", folder.join("link")).unwrap();
        let copy = ScratchCopy::of(&folder).unwrap();
        let path = copy.path().to_owned();
        assert!(path != folder && path.is_absolute());
        assert_eq!(fs::read_to_string(path.join("sub/a.txt")).unwrap(), "a");
        #[cfg(unix)]
        assert_eq!(fs::read_link(path.join("link")).unwrap(), Path::new("sub/a.txt"));
        fs::write(path.join("new.txt"), "b").unwrap();
        drop(copy);
        assert!(!path.exists() && !folder.join("new.txt").exists());
        fs::remove_dir_all(&folder).unwrap();
        assert!(ScratchCopy::of(&folder).unwrap_err().contains("is missing"));
    }

    #[test]
    fn each_reason_gets_the_advice_that_fits_it() {
        for (why, word) in [
            (
                "`initialize` was not answered within 30s; the peer wrote this, which is not a message: Content-Length: 2",
                "add --framing content-length",
            ),
            (
                "`initialize` was not answered within 30s; the peer wrote this, which is not a message: Starting",
                "logs on stderr",
            ),
            ("the peer broke the framing: `sh`: it wrote something that is not a frame", "see --framing"),
            ("`initialize` was refused: {}", "[handshake]"),
            ("`initialize` was refused: {\"error\":{\"code\":-32601}}", "--dialect"),
            ("no session could be opened: the connection was closed", "--stdio"),
            (
                "the peer sent more than 50000 messages in one session; the peer wrote this, which is not a message: x",
                "logs on stderr",
            ),
            ("the request `m` is refused with -32601, so it cannot be used", "--init lists"),
            ("the request `m` is refused with -32602, so it cannot be used", "params"),
            ("`sh`: it exited; exit status: 3; stderr ends: no licence", "by hand"),
            ("`initialize` was not answered within 30s", "--stdio"),
        ] {
            let told = with_advice(why);
            assert!(told.starts_with(why) && told.contains(word) && told.lines().count() == 1, "{told}");
        }
        assert_eq!(with_advice("the scratch folder x is missing"), "the scratch folder x is missing");
    }
}
