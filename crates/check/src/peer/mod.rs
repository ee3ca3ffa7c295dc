//! Judges a peer that nobody here wrote: what each of its requests does without a cancel (the baseline), what it does
//! when it is cancelled (the facts), and which scenarios hold.
//!
//! A verdict against a peer is given only for what a document demands, and only if it came out the same three times,
//! in fresh sessions. Everything else that differs is a fact or `unsure`.

mod adapt;
mod asking;
mod baseline;
mod cancel_findings;
mod facts;
mod probe;
mod scenarios;
mod session;
mod statements;
mod task_course;
mod tasks;
mod tries;
mod turn;
mod undisturbed;
mod work;

use std::time::Duration;

use rescind_testkit::runner::LinkSubject;
use rescind_testkit::wire_format::WireFormat;
use rescind_testkit::{Part, Profile, Report, RequestKind, Scenario, scenarios_of};

use self::facts::Checker;
use self::session::Lost;
pub(crate) use self::statements::said;
pub use self::statements::{CONTRADICTS, contradictions};

/// Opens sessions with the peer that is checked.
pub trait PeerSource: Send {
    /// Starts the program again, or makes ready to connect to the running peer again.
    fn start(&mut self) -> Started;

    /// The leader of the process group of the program that was started last. `None`: the peer is not a program.
    fn process_group(&self) -> Option<u32>;

    /// The transport, by its name in the matrix.
    fn wire(&self) -> &'static str;
}

/// A peer that is ready for its sessions.
#[derive(Debug)]
pub struct Started {
    /// Opens the connections.
    pub subject: LinkSubject,
    /// The profile with the values of this start, such as the path of its scratch folder.
    pub profile: Profile,
}

/// How a peer is checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each named where it is set")]
pub struct CheckSettings {
    /// How long a step may take beyond the baseline. Default: 5 s.
    pub deadline: Duration,
    /// How long the handshake and the first quick request may take, and never less than a step: programs load what they
    /// need first. Default: 30 s.
    pub start: Duration,
    /// How long the slow request may take without a cancel. One that takes longer, and is ended by its cancel, counts as
    /// endless. Default: 10 s.
    pub longest: Duration,
    /// How often the slow request is cancelled for the median. Default: 20.
    pub tries: usize,
    /// Whether the processor time of the peer's process group is used as a witness. Linux only. Default: true.
    pub processor_time: bool,
    /// Whether progress notifications are used as a witness. Default: true.
    pub progress: bool,
    /// Whether a peer that serves one request at a time is used as a witness of itself. Default: true.
    pub serial: bool,
    /// Whether the command of the profile is used as a witness. Default: true.
    pub command: bool,
    /// Whether the request of the profile that counts the peer's work is used as a witness. Default: true.
    pub request: bool,
    /// Whether a peer that says it is the fixture of this kit is asked the fixture's own methods, whatever its profile.
    /// Default: false.
    pub recognise_fixture: bool,
}

impl Default for CheckSettings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(5),
            start: Duration::from_secs(30),
            longest: Duration::from_secs(10),
            tries: 20,
            processor_time: true,
            progress: true,
            serial: true,
            command: true,
            request: true,
            recognise_fixture: false,
        }
    }
}

impl CheckSettings {
    /// How long what a peer does first may take.
    fn starting(&self) -> Duration {
        self.start.max(self.deadline)
    }
}

/// The fixture's slow request never ends without a cancel.
const FIXTURE_WAITS: Duration = Duration::from_millis(500);

/// No verdict can be given, with one sentence that says why and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// Judges a peer. `on_progress` is called with the name of each step before it begins.
///
/// # Errors
/// If no session can be opened, or if a request of the profile cannot be used for its purpose.
///
/// # Cancel safety
/// Dropping the future ends the check. A program that was started ends when its subject is dropped.
pub async fn check(
    dialect: &'static str,
    source: &mut impl PeerSource,
    settings: &CheckSettings,
    on_progress: impl FnMut(&str) + Send,
) -> Result<Report, Unusable> {
    let wire_format =
        WireFormat::of(dialect).ok_or_else(|| Unusable(format!("no messages of `{dialect}` are known")))?;
    check_with(wire_format, scenarios_of(dialect), source, settings, on_progress).await
}

/// Judges a peer in a dialect that need not be built in, by these scenarios, as [`check`] does.
///
/// # Errors
/// As of [`check`].
///
/// # Cancel safety
/// As of [`check`].
#[doc(hidden)]
pub async fn check_with(
    wire_format: WireFormat,
    scenarios: impl Iterator<Item = &Scenario>,
    source: &mut impl PeerSource,
    settings: &CheckSettings,
    mut on_progress: impl FnMut(&str) + Send,
) -> Result<Report, Unusable> {
    let scenarios = scenarios.filter(|scenario| scenario.vector.role == Part::Serve).collect();
    let mut checker = Checker::new(scenarios, wire_format, source, settings, &mut on_progress);
    (checker.on_progress)("the handshake");
    let mut session =
        checker.open().await.map_err(|Lost(why)| Unusable(format!("no session could be opened: {why}")))?;
    if settings.recognise_fixture && checker.is_our_fixture(&mut session).await {
        checker.close(session).await;
        checker.is_fixture = true;
        session = checker
            .open()
            .await
            .map_err(|Lost(why)| Unusable(format!("no session could be opened: {why}")))?;
    }
    checker.runs_tasks = checker.declares_tasks(&mut session).await;
    checker.takes_no_cancels =
        session.opening.as_ref().is_some_and(|answer| wire_format.declares_no_cancels(answer));
    if checker.takes_no_cancels {
        // A slow request could not be ended.
        session.profile.requests.retain(|kind, _| *kind == RequestKind::Quick);
    }
    (checker.on_progress)("the baseline");
    let longest = if checker.is_fixture { FIXTURE_WAITS } else { settings.longest };
    let leader = checker.source.process_group();
    let baselines = baseline::measure(&mut session, leader, settings, longest).await?;
    let session = Box::pin(checker.ask(session, &baselines)).await?;
    let mut facts = checker.facts(&baselines);
    let cells = Box::pin(checker.play_all(session, &baselines, &facts)).await;
    checker.add_what_came_later(&mut facts);
    Ok(Report::of_a_peer(baselines.rows(), facts, cells))
}
