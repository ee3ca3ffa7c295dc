//! A count of the peer's work that the profile names: a command of the user's, or a request of the peer.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rescind_testkit::runner::Evidence;
use rescind_testkit::{Profile, Witness, follow};
use serde_json::Value;

use super::session::{Lost, PeerSession};
use super::work::Seen;

/// Where the count comes from.
#[derive(Clone, Debug)]
pub(super) enum Counter {
    /// The first number that the command prints: the work that was done so far.
    Command { words: Vec<String>, folder: Option<PathBuf> },
    /// The number of running handlers in the result of a request.
    Request { witness: Witness, running: String },
}

impl Counter {
    /// The counter that the profile names.
    pub(super) fn of(profile: &Profile) -> Option<Self> {
        let witness = profile.witness.clone()?;
        if !witness.command.is_empty() {
            // As the peer: in the copy of the scratch folder, if there is one.
            return Some(Self::Command { words: witness.command, folder: profile.session.scratch.clone() });
        }
        let running = witness.running.clone()?;
        Some(Self::Request { witness, running })
    }

    /// Reads the count. `None`: it could not be read.
    pub(super) async fn read(
        &self,
        session: &mut PeerSession,
        deadline: Duration,
    ) -> Result<Option<i64>, Lost> {
        match self {
            Self::Command { words, folder } => {
                let (words, folder) = (words.clone(), folder.clone());
                let read = tokio::task::spawn_blocking(move || printed_number(&words, folder.as_deref()));
                Ok(read.await.ok().flatten())
            }
            Self::Request { witness, running } => {
                let params = session.bindings.fill(&witness.params);
                let sent = session.request(&witness.method, params).await?;
                let answer = session.answer(&sent.id, sent.at + deadline).await?;
                let value = answer.and_then(|answer| session.wire_format.value(&answer.frame).cloned());
                Ok(value.and_then(|value| follow(&value, running).and_then(Value::as_i64)))
            }
        }
    }

    /// Reads four counts: before the work, while it runs, after its cancel, and later.
    pub(super) fn judge(&self, [first, running, cancelled, later]: [i64; 4]) -> Option<Seen> {
        let detail = format!(
            "the count was {first}, {running} while it ran, {cancelled} after its cancel and {later} later"
        );
        match self {
            // It grows while work runs.
            Self::Command { .. } => (running > first).then_some(Seen {
                evidence: Evidence::Command,
                stopped: later == cancelled,
                detail,
            }),
            // It is the number of running handlers.
            Self::Request { .. } => (running > later || later == running).then_some(Seen {
                evidence: Evidence::Request,
                stopped: later < running,
                detail,
            }),
        }
    }
}

/// Runs a command, in this folder if one is given, and reads the first number that it prints.
fn printed_number(command: &[String], folder: Option<&Path>) -> Option<i64> {
    let (program, arguments) = command.split_first()?;
    let mut command = std::process::Command::new(program);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let output = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split(|character: char| !character.is_ascii_digit()).find_map(|word| word.parse().ok())
}

/// The witness without its command or its request, if these are not asked.
pub(super) fn limited_to(mut witness: Witness, command: bool, request: bool) -> Option<Witness> {
    if !command {
        witness.command.clear();
    }
    if !request {
        witness.method.clear();
        (witness.running, witness.cancelled) = (None, None);
    }
    let is_left = !witness.command.is_empty() || !witness.method.is_empty();
    is_left.then_some(witness)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_witness_can_be_left_out() {
        let text = "name = \"x\"\n[witness]\ncommand = [\"count\"]\nmethod = \"stats\"\nrunning = \"a\"";
        let witness = Profile::from_toml(text).unwrap().witness.unwrap();
        let left = |command, request| -> Option<Witness> { limited_to(witness.clone(), command, request) };
        let both = left(true, true).unwrap();
        assert_eq!((both.command.len(), both.method.as_str()), (1, "stats"));
        let command = left(true, false).unwrap();
        assert_eq!((command.command.len(), command.method.as_str(), command.running), (1, "", None));
        let request = left(false, true).unwrap();
        assert_eq!((request.command.len(), request.method.as_str()), (0, "stats"));
        assert!(left(false, false).is_none());
    }

    #[test]
    fn a_command_that_counts_shows_whether_work_stopped() {
        let counter = Counter::Command { words: Vec::new(), folder: None };
        assert!(counter.judge([0, 5, 6, 6]).unwrap().stopped);
        assert!(!counter.judge([0, 5, 6, 9]).unwrap().stopped);
        assert!(counter.judge([5, 5, 5, 5]).is_none(), "it never counted");
    }

    #[cfg(unix)]
    #[test]
    fn the_first_number_that_a_command_prints_is_its_count() {
        let words = |text: &str| vec!["printf".to_owned(), text.to_owned()];
        assert_eq!(printed_number(&words("done 17 of 20"), None), Some(17));
        assert_eq!(printed_number(&words("nothing"), None), None);
        assert_eq!(printed_number(&["no/such/program".to_owned()], None), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_command_is_run_in_the_copy_of_the_scratch_folder() {
        let folder = std::env::temp_dir().join(format!("rescind-witness-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("counter.txt"), "12\n").unwrap();
        let words = ["cat".to_owned(), "counter.txt".to_owned()];
        assert_eq!(printed_number(&words, Some(&folder)), Some(12));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
