//! Reads the counters of a subject, or of a foreign peer's witness, while a scenario runs.

use std::time::Duration;

use serde_json::json;

use super::play::{Play, Stop};
use super::subject::Subject;
use super::verdict::Failure;
use super::work;
use crate::profile::Profile;
use crate::step::Work;

/// How long work that earlier scenarios left is waited for, if a slow request has no end of its own.
const ENDLESS_WORK_WAIT: Duration = Duration::from_secs(1);

impl<S: Subject> Play<'_, S> {
    /// Whether there are counters to read. The frames of a foreign peer are checked without them too.
    pub(super) fn has_witness(&self) -> bool {
        let witness =
            |profile: &Profile| profile.witness.as_ref().is_some_and(|witness| !witness.method.is_empty());
        self.settings.profile.as_ref().is_none_or(witness)
    }

    /// The counters now. `None`: the subject refused the request.
    async fn stats(&mut self) -> Result<Option<Work>, Stop> {
        let witness = self.settings.profile.as_ref().and_then(|profile| profile.witness.as_ref());
        let (method, params) = match witness {
            Some(witness) => (witness.method.as_str(), self.bindings.fill(&witness.params)),
            None => ("test/stats", json!({})),
        };
        let answer = self.request(method, params).await?;
        Ok(self.wire_format()?.value(&answer).map(|result| work::read(result, witness)))
    }

    /// The counters before the first step. In a check, requests that earlier scenarios left at the peer are counted when
    /// they end. They are waited for, at most as long as a slow request takes.
    pub(super) async fn counters_before(&mut self) -> Result<Work, Stop> {
        let Some(known) = &self.settings.calibration else {
            return Ok(self.stats().await?.unwrap_or_default());
        };
        let wait = known.slow_takes.unwrap_or(ENDLESS_WORK_WAIT).min(self.settings.deadline);
        let until = self.subject.now() + wait;
        loop {
            let before = self.trace.len();
            let counters = self.stats().await?.unwrap_or_default();
            let nothing_runs = counters.running.is_none_or(|running| running == 0);
            if nothing_runs || self.subject.now() >= until {
                return Ok(counters);
            }
            // Only the last look is kept, as in `counters_become`.
            if self.trace.len() == before + 2 {
                self.trace.truncate(before);
            }
            self.subject.pause().await;
        }
    }

    pub(crate) async fn counters_become(&mut self, wanted: Work) -> Result<(), Stop> {
        if !self.has_witness() {
            return Ok(());
        }
        let until = self.subject.now() + self.settings.deadline;
        let shown = if self.is_foreign() { work::Shown::Some } else { work::Shown::All };
        let mut looks: u32 = 0;
        loop {
            let before = self.trace.len();
            let difference = match self.stats().await? {
                Some(now) => {
                    let counted = work::since(now, self.baseline, self.echoes, shown);
                    work::difference(wanted, counted, shown)
                }
                None => Some("the counters were refused".to_owned()),
            };
            let Some(difference) = difference else {
                // If no answer is allowed, the witness shows that the cancel worked.
                if wanted.cancelled.is_some_and(|count| count > 0) {
                    self.cancel_showed();
                }
                return Ok(());
            };
            if self.subject.now() >= until {
                return Err(Stop::Broke(
                    Failure::Counters,
                    format!("after {:?} {difference}", self.settings.deadline),
                ));
            }
            // Of the requests for counters between the first and the last, those with the same result are removed
            // from the trace.
            looks += 1;
            if looks > 1 && self.trace.len() == before + 2 {
                self.trace.truncate(before);
            }
            self.subject.pause().await;
        }
    }
}
