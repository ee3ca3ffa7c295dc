//! The request whose id is 0. A program that asks whether there is an id by asking whether it is true does not find it.

use std::time::Duration;

use rescind_testkit::{Answer, RequestKind};

use super::PeerSource;
use super::asking::SESSIONS;
use super::baseline::{Baselines, shown};
use super::facts::Checker;
use super::probe::{Finding, Probe};
use super::session::{Lost, PeerSession};
use super::statements::Question;
use super::tries::{Effect, Tries, cancel_zero};

const QUESTION: Question = Question::CancelsIdZero;

/// Reads what the cancelled request with the id 0 came to.
pub(super) fn read(session: &PeerSession, baselines: &Baselines, tries: &Tries) -> Finding {
    let Some(one) = &tries.zero else {
        return Finding::not_asked(QUESTION, "no cancel was seen to take effect");
    };
    let after = one.answered.map(shown).unwrap_or_default();
    // A result long after the cancel may be the normal one, of a machine that is less busy than before.
    let is_prompt = match (one.answered, baselines.slow_takes()) {
        (Some(answered), Some(takes)) => answered < takes / 5,
        (Some(_), None) => true,
        (None, _) => false,
    };
    match one.effect {
        Effect::Cancelled | Effect::OtherError(_) => {
            Finding::new(QUESTION, Answer::Yes, format!("in {after}"))
        }
        Effect::EarlyResult if is_prompt => Finding::new(QUESTION, Answer::Yes, format!("in {after}")),
        Effect::EarlyResult => {
            Finding::new(QUESTION, Answer::Unsure, format!("it was answered with a result after {after}"))
        }
        Effect::Refused => {
            Finding::new(QUESTION, Answer::Unsure, "the request was refused before its cancel was sent")
        }
        Effect::Silence => Finding::new(QUESTION, Answer::Yes, "no answer came"),
        Effect::NormalEnd => {
            let detail = "it is answered at its normal end, and requests with other ids are cancelled";
            Finding::new(QUESTION, Answer::No, detail)
        }
        Effect::NoAnswer if session.wire_format.owes_silence() => {
            Finding::new(QUESTION, Answer::Unsure, "no answer came, and it may still run")
        }
        Effect::NoAnswer => {
            let detail = "it is not answered, and cancelled requests with other ids are";
            Finding::new(QUESTION, Answer::No, detail)
        }
    }
}

/// Cancels a slow request with the id 0 in a session of its own.
pub(super) async fn alone(
    session: &mut PeerSession,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<Finding, Lost> {
    let mut tries = Tries::default();
    cancel_zero(session, baselines, deadline, &mut tries).await?;
    tries.await_the_rest(session, baselines, deadline).await;
    match tries.lost.take() {
        Some(why) => Err(Lost(why)),
        None => Ok(read(session, baselines, &tries)),
    }
}

/// Whether a quick request with the id 0 is answered. Silence after a cancel shows nothing of a peer that does not take it
/// for a request.
pub(super) async fn quick(session: &mut PeerSession, deadline: Duration) -> Result<Finding, Lost> {
    let sent = session.send_as_zero(RequestKind::Quick).await?;
    let next = session.send_kind(RequestKind::Quick).await?;
    session.answer(&next.id, next.at + deadline).await?;
    if session.answer(&sent.id, sent.at + deadline).await?.is_some() {
        return Ok(Finding::new(QUESTION, Answer::Yes, "a quick request with the id 0 is answered"));
    }
    let detail = format!("a quick request with the id 0 is not answered within {deadline:?}");
    Ok(Finding::new(QUESTION, Answer::No, detail))
}

impl<P: PeerSource> Checker<'_, P> {
    /// One session that shows the cancel of a request with the id 0 decides, where cancelled requests are answered. Where
    /// they are not, a busy machine can look like a cancel, so silence is seen twice. That a cancel has no effect is seen in
    /// three sessions, or in two of three.
    pub(super) async fn confirm_id_zero(&mut self, baselines: &Baselines) {
        let found = self.findings.iter().position(|finding| finding.question == QUESTION);
        let Some(place) = found else { return };
        let Some(first) = self.findings.get(place).cloned() else { return };
        let silent = self.wire_format.owes_silence();
        let confirmed = match first.answer {
            Answer::NotAsked => return,
            Answer::Yes if !silent => return,
            Answer::Yes => match self.most_of(Probe::QuickIdZero, None, baselines).await {
                Some(quick) if quick.answer == Answer::No => quick,
                Some(_) | None => match self.look_again(baselines).await {
                    Some(finding) => finding,
                    None => return,
                },
            },
            Answer::No | Answer::Unsure => {
                let found = self.most_of(Probe::IdZero, Some(first.clone()), baselines).await;
                found.unwrap_or(first)
            }
        };
        if let Some(finding) = self.findings.get_mut(place) {
            *finding = confirmed;
        }
    }

    /// Looks again after a session without an answer. `None`: there is none in another session either.
    async fn look_again(&mut self, baselines: &Baselines) -> Option<Finding> {
        let second = self.probe_id_zero(Probe::IdZero, baselines).await;
        if second.answer != Answer::No {
            return None;
        }
        let third = self.probe_id_zero(Probe::IdZero, baselines).await;
        if third.answer == Answer::No {
            return Some(third);
        }
        let detail = format!("it came out differently in one of three sessions: {}", second.detail);
        Some(Finding { answer: Answer::Unsure, detail, ..second })
    }

    /// Runs a probe about the id 0 in a fresh session.
    async fn probe_id_zero(&mut self, probe: Probe, baselines: &Baselines) -> Finding {
        let (open, probed) = self.run(probe, None, baselines).await;
        if let Some(session) = open {
            self.close(session).await;
        }
        let found = probed.findings.into_iter().find(|finding| finding.question == QUESTION);
        found.unwrap_or_else(|| Finding::new(QUESTION, Answer::Unsure, "the session ended"))
    }

    /// Runs a probe about the id 0 in fresh sessions, with what the first one found: until it is a yes, or three times.
    async fn most_of(
        &mut self,
        probe: Probe,
        first: Option<Finding>,
        baselines: &Baselines,
    ) -> Option<Finding> {
        let mut found: Option<Finding> = first;
        let begun = usize::from(found.is_some());
        for at in begun..SESSIONS {
            let again = self.probe_id_zero(probe, baselines).await;
            found = Some(match (found, again.answer) {
                (_, Answer::Yes) => return Some(again),
                (None, _) => again,
                // The frames of such a session are about the id 0 alone.
                (Some(before), answer) if answer == before.answer => again,
                (Some(before), _) => {
                    let detail = format!(
                        "it came out differently in session {}: {}; before: {}",
                        at + 1,
                        again.detail,
                        before.detail
                    );
                    Finding { answer: Answer::Unsure, detail, ..before }
                }
            });
        }
        found
    }
}
