//! The program behind a bridge, started once for each session.

use std::ffi::OsString;
use std::time::Duration;

use rescind::Framing;
use rescind::bridge::Upstream;
use rescind::stdio::{ChildHandle, Command};

/// The time of a child to end after the end of its stdin, and again after SIGTERM.
pub(super) const CHILD_GRACE: Duration = Duration::from_secs(1);

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

/// How a child is started.
pub(super) struct Child {
    command: Vec<String>,
    framing: Framing,
    /// `None`: the child gets the environment of this process, and these variables.
    clean: bool,
    variables: Vec<(OsString, OsString)>,
}

impl Child {
    /// # Errors
    /// A variable that is to be passed is not set here, or has no name.
    pub(super) fn new(
        command: Vec<String>,
        framing: Framing,
        named: &[String],
        inherits: bool,
    ) -> Result<Self, String> {
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
        Ok(Self { command, framing, clean: !inherits, variables })
    }

    /// Starts one.
    pub(super) fn start(&self) -> Result<Upstream, String> {
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
    let tail = child.stderr_tail();
    match tail.trim_end() {
        "" => format!("{status}; nothing on stderr"),
        tail => format!("{status}; stderr ends: {tail}"),
    }
}

/// Becomes the program of a child. Before that it asks for SIGKILL when the thread of the bridge ends that started it:
/// the thread on which the bridge runs, so when the bridge ends, also if it is killed.
#[cfg(target_os = "linux")]
pub(crate) fn replace_by_child(args: &super::ChildArgs) -> std::process::ExitCode {
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
