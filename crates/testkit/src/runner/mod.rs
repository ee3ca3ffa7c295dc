//! Plays vectors against subjects and reports the results.
//!
//! Every step has a deadline, so a subject that hangs, crashes, closes or sends invalid frames is reported. The
//! absence of a frame is proved by a barrier, an echo of the runner, and not by sleeping.

mod calibration;
mod calling;
mod counters;
mod deviations;
mod exchange;
mod frames;
mod lines;
mod link;
mod opening;
mod outcomes;
mod peer;
mod peer_noise;
mod play;
mod requirements;
mod slow_requests;
mod steps;
mod subject;
mod translate;
mod verdict;
mod work;

use std::time::Duration;

pub use calibration::Calibration;
// For checks of foreign peers. Not part of the stable API.
#[doc(hidden)]
pub use calibration::OpenSession;
pub use calling::{Caller, CallingSubject};
pub use deviations::DeviationSeen;
#[doc(hidden)]
pub use deviations::{AsMeant, as_meant};
#[doc(hidden)]
pub use link::refused;
pub use link::{Connect, LinkSubject};
pub use outcomes::{Outcomes, differences};
pub use peer::PeerCaller;
pub use requirements::Requirements;
pub use subject::{Ended, Line, Seen, Subject, SubjectError};
#[doc(hidden)]
pub use verdict::shorten;
pub use verdict::{Direction, Evidence, Failure, Played, TraceLine, Verdict};

pub use crate::vector::Abilities;

use crate::profile::Profile;
use crate::vector::Scenario;

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
