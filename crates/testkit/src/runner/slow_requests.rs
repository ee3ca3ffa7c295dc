//! The slow requests of a foreign peer, which may end while a scenario needs them to run.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::play::{Play, Stop};
use super::steps::says_cancelled;
use super::subject::Subject;
use super::verdict::Verdict;
use crate::wire_format::Shape;

/// A slow request of a foreign peer.
#[derive(Debug)]
pub(super) struct SlowRequest {
    pub(super) id: Value,
    pub(super) sent: Instant,
    pub(super) cancelled: bool,
    /// It came to its normal end, after this time.
    pub(super) ended_normally: Option<Duration>,
    /// It failed, with this error, when no cancel of any request had been sent yet.
    pub(super) refused: Option<String>,
}

impl<S: Subject> Play<'_, S> {
    /// Notes that a slow request came to its end at about the time at which it ends without a cancel.
    pub(super) fn note_a_normal_end(&mut self, frame: &Value) -> Result<(), Stop> {
        let Shape::Answer { id } = self.wire_format()?.shape(frame) else { return Ok(()) };
        let takes = self.settings.calibration.as_ref().and_then(|known| known.slow_takes);
        let Some(takes) = takes else { return Ok(()) };
        let now = self.subject.now();
        let nothing_was_cancelled = !self.has_sent_a_cancel;
        let is_cancelled = says_cancelled(frame);
        for one in self.slow.iter_mut().filter(|one| one.id == id) {
            let took = now.saturating_duration_since(one.sent);
            let refused = frame.get("error").filter(|_| nothing_was_cancelled);
            if let Some(error) = refused {
                one.refused = Some(error.to_string());
            } else if took >= takes.mul_f64(0.7) && !is_cancelled {
                one.ended_normally = Some(took);
            }
        }
        Ok(())
    }

    /// A slow request that came to its normal end shows nothing about cancels.
    pub(super) fn in_the_light_of_normal_ends(&self, verdict: Verdict) -> Verdict {
        if let (Verdict::Broke { why, .. }, Some(error)) =
            (&verdict, self.slow.iter().find_map(|one| one.refused.as_ref()))
        {
            let why = format!(
                "a slow request failed before any cancel was sent, with {error}: its answer shows nothing about cancels ({why})"
            );
            return Verdict::Unsure { why };
        }
        let ended = |one: &&SlowRequest| one.ended_normally.is_some();
        let Some(one) = self.slow.iter().find(ended) else { return verdict };
        let after = one.ended_normally.unwrap_or_default();
        match verdict {
            Verdict::Held if one.cancelled => Verdict::Unsure {
                why: format!(
                    "the slow request came to its normal end after {after:?} although it was cancelled, so its cancel showed nothing"
                ),
            },
            Verdict::Broke { why, .. } => Verdict::Unsure {
                why: format!(
                    "the slow request ended by itself after {after:?}, in the middle of the scenario; name one that takes longer ({why})"
                ),
            },
            verdict => verdict,
        }
    }
}
