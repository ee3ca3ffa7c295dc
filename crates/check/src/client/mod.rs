//! Judges a client that nobody here wrote: the program is started, this side is its server, and the program cancels
//! its own requests by the means of its library.
//!
//! Each run is one process. So a program that hangs or ends in one run does not affect the others, its exit status
//! belongs to one run, and the same program can be written without a loop. The program learns the name of the scenario
//! and two requests, one that is slow and one that is quick. In the scenario `cancel` it does the same in each run, and
//! the server differs.
//!
//! A fact against the program that a document demands or recommends is confirmed: three runs of three.

mod judge;
mod looks;
mod play;
mod record;
mod server_dialect;

use std::fmt;
use std::time::Duration;

use rescind_core::{BoxFuture, Link};
use rescind_testkit::dialects::DialectFacts;
use rescind_testkit::{Answer, Report};
use serde_json::Value;
use tokio::sync::mpsc;

use self::play::play;
use self::record::{Ending, Play, Record};
use self::server_dialect::ServerDialect;
use crate::peer::Unusable;

/// Starts the program that is checked.
pub trait ClientSource: Send {
    /// Starts the program once more, with these instructions.
    ///
    /// # Errors
    /// One sentence that says why it cannot be started.
    fn start<'a>(
        &'a mut self,
        instructions: &'a Instructions,
    ) -> BoxFuture<'a, Result<StartedClient, String>>;

    /// How the program reaches this side, for messages.
    fn way_in(&self) -> String;
}

/// The instructions of the program for one run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Instructions {
    /// The scenario's name: `cancel`, `pair`, `serve`, `timeout`, `close` or `initialize`.
    pub scenario: &'static str,
    /// The request that the program cancels: an object with `method` and `params`.
    pub slow: Value,
    /// The request that it makes afterwards.
    pub quick: Value,
    /// How long it waits before it cancels, and the time limit that it sets.
    pub wait: Duration,
}

/// One run of the program.
pub struct StartedClient {
    /// The connections that it opens.
    pub links: mpsc::UnboundedReceiver<Link>,
    /// Its end.
    pub ended: BoxFuture<'static, ClientEnd>,
    /// Dropped when the run is over. It ends the program and its process group.
    pub guard: Box<dyn Send>,
}

impl fmt::Debug for StartedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedClient").finish_non_exhaustive()
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEnd {
    /// Its exit code. `None`: a signal ended it.
    pub code: Option<i32>,
    /// The same for people, such as `exit status: 3; stderr: no licence`.
    pub text: String,
}

/// How a client is checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientSettings {
    /// How long the program may take for a step, such as its cancel. Default: 5 s.
    pub step: Duration,
    /// How long the program may take to connect. Default: 20 s.
    pub start: Duration,
    /// How long the program waits before it cancels. Default: 200 ms.
    pub wait: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            step: Duration::from_secs(5),
            start: Duration::from_secs(20),
            wait: Duration::from_millis(200),
        }
    }
}

/// The exit code by which a program says that it does not play a scenario.
pub const SKIPPED: i32 = 77;

/// Judges a client. `on_progress` is called with the name of each run before it begins.
///
/// # Errors
/// If the dialect has no such check, or the program cannot be started, does not connect, or does not make the slow
/// request.
///
/// # Cancel safety
/// Dropping the future ends the check and the program.
pub async fn check_client(
    dialect: &'static str,
    source: &mut impl ClientSource,
    settings: &ClientSettings,
    mut on_progress: impl FnMut(&str) + Send,
) -> Result<Report, Unusable> {
    let server = DialectFacts::by_name(dialect).and_then(ServerDialect::of).ok_or_else(|| {
        Unusable(format!(
            "a client of {dialect} cannot be checked; the dialects are {}",
            ServerDialect::names()
        ))
    })?;
    let mut runs = Runs { server, source, settings };
    let mut records = Vec::new();
    for kind in Play::ALL.into_iter().filter(|kind| server.plays(*kind)) {
        on_progress(kind.name());
        let mut record = runs.play(kind).await?;
        // On a loaded machine the answer may arrive after the program's cancel has been sent.
        for _ in 1..judge::TIMES {
            if kind != Play::AnsweredFirst
                || looks::no_cancel_when_answered(server, &record, &[]).answer != Answer::Unsure
            {
                break;
            }
            record = runs.play(kind).await?;
        }
        if kind == Play::Cancelled {
            runs.usable(&record)?;
        }
        records.push(record);
    }
    let mut findings = judge::judge(server, &records);
    for kind in judge::to_confirm(&findings) {
        let mut again = Vec::new();
        for _ in 1..judge::TIMES {
            on_progress(kind.name());
            again.push(runs.play(kind).await?);
        }
        judge::confirm(server, &mut findings, &records, kind, &again);
    }
    Ok(Report::of_a_peer(Vec::new(), judge::facts(findings), Vec::new()))
}

struct Runs<'a, S> {
    server: ServerDialect,
    source: &'a mut S,
    settings: &'a ClientSettings,
}

impl<S: ClientSource> Runs<'_, S> {
    async fn play(&mut self, kind: Play) -> Result<Record, Unusable> {
        let instructions = Instructions {
            scenario: kind.scenario(),
            slow: self.server.slow(),
            quick: self.server.quick(),
            wait: self.settings.wait,
        };
        let started = self.source.start(&instructions).await.map_err(Unusable)?;
        Ok(play(self.server, kind, started, self.settings).await)
    }

    /// Whether the program plays along at all. Otherwise no fact about it is known.
    fn usable(&self, record: &Record) -> Result<(), Unusable> {
        let how = match &record.ending {
            Ending::Exited(end) => format!("it ended with {}", end.text),
            Ending::Deadline(after) => format!("it was still running after {after:?}"),
        };
        if record.is_skipped() {
            return Err(Unusable(format!(
                "the program skips the scenario `cancel` (exit code {SKIPPED}), and without it there is nothing to check"
            )));
        }
        if !record.is_connected() {
            let way_in = self.source.way_in();
            return Err(Unusable(format!("the program did not connect, {way_in}: {how}")));
        }
        let made = record.methods();
        if made.is_empty() {
            return Err(Unusable(format!("the program connected and sent no request: {how}")));
        }
        if record.slow().next().is_none() {
            let slow = self.server.slow();
            return Err(Unusable(format!(
                "the program did not make the slow request {slow} (RESCIND_SLOW); it made: {}; {how}",
                made.join(", ")
            )));
        }
        Ok(())
    }
}
