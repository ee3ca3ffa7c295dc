//! Plays vectors against subjects and reports the results.
//!
//! Every step has a deadline, so a subject that hangs, crashes, closes or sends invalid frames is reported. The
//! absence of a frame is proved by a barrier, an echo of the runner, and not by sleeping.

mod deviations;
mod foreign;
mod link;
mod outcomes;
mod play;
mod requirements;
mod steps;
mod subject;

use std::time::Duration;

pub use deviations::DeviationSeen;
pub use link::{Connect, LinkSubject};
pub use outcomes::{Direction, Evidence, Failure, Outcomes, Played, TraceLine, Verdict, differences};
pub use requirements::{Calibration, Requirements};
pub use subject::{Caller, CallingSubject, Ended, Line, PeerCaller, Seen, Subject, SubjectError};

use crate::profile::Profile;
pub use crate::vector::Abilities;
use crate::vector::Scenario;
// For checks of foreign peers. Not part of the stable API.
#[doc(hidden)]
pub use deviations::{AsMeant, as_meant};
#[doc(hidden)]
pub use link::refused;
#[doc(hidden)]
pub use outcomes::shorten;
#[doc(hidden)]
pub use requirements::OpenSession;

/// How vectors are played.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long a step may take. Default: 5 s.
    pub deadline: Duration,
    /// The profile of a foreign peer. `None`: the subject is the fixture.
    pub profile: Option<Profile>,
    /// What is known about a foreign peer. `None`: nothing.
    pub calibration: Option<Calibration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), profile: None, calibration: None }
    }
}

/// Plays one vector against a new subject.
///
/// # Cancel safety
/// Dropping the future ends the play. Its connections are closed when the subject is dropped.
pub async fn play<S: Subject>(scenario: &Scenario, subject: &mut S, settings: &Settings) -> Played {
    play::Play::new(scenario, subject, settings).run().await
}
