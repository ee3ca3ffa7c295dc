//! Plays vectors against subjects and says what came of it.
//!
//! Every step has a deadline, so a subject that hangs, crashes, closes or talks nonsense is reported, never waited
//! for. That a frame does *not* come is proved by a barrier, an echo of the runner's own, and not by sleeping.

mod calling;
mod exchange;
mod frames;
mod lines;
mod link;
mod opening;
mod outcomes;
mod peer;
mod peer_noise;
mod play;
mod steps;
mod subject;
mod translate;
mod verdict;
mod work;

use std::time::Duration;

pub use calling::{Caller, CallingSubject};
pub use link::{Connect, LinkSubject};
pub use outcomes::{Outcomes, differences};
pub use peer::PeerCaller;
pub use subject::{Abilities, Ended, Line, Seen, Subject, Trouble};
pub use verdict::{Direction, Played, TraceLine, Verdict};

use crate::profile::Profile;
use crate::vector::Scenario;

/// How vectors are played.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long a step may take. 5 s.
    pub deadline: Duration,
    /// How a foreign peer is asked. `None`: the subject is the fixture.
    pub profile: Option<Profile>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), profile: None }
    }
}

/// Plays one vector against a fresh subject.
///
/// # Cancel safety
/// Dropping the future ends the play; what it had opened is closed when the subject is dropped.
pub async fn play<S: Subject>(scenario: &Scenario, subject: &mut S, settings: &Settings) -> Played {
    play::Play::new(scenario, subject, settings).run().await
}
