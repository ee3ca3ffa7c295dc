//! What twenty cancels of the slow request show.
//!
//! One of the requests has the id 0. A program that asks whether there is an id by asking whether it is true does not find
//! it.

use std::time::Duration;

use rescind_testkit::{Answer, RequestKind};

use super::PeerSource;
use super::asking::SESSIONS;
use super::baseline::{Baselines, micros, shown};
use super::facts::Checker;
use super::probe::{Finding, Probe};
use super::session::{Lost, PeerSession};
use super::statements::Question;
use super::tries::{Effect, Tries, cancel_zero};

/// Reads what the tries show.
pub(super) fn read(session: &PeerSession, baselines: &Baselines, tries: &Tries) -> Vec<Finding> {
    let mut findings = vec![cancels_running(baselines, tries), read_id_zero(session, baselines, tries)];
    let count = tries.all.len();
    let owes_silence = session.wire_format.owes_silence();
    if owes_silence {
        let answered =
            tries.all.iter().filter(|one| one.answers > 0 && one.effect != Effect::NormalEnd).count();
        findings.push(match (tries.worked(), answered) {
            (Some(true), 0) => {
                Finding::new(Question::StaysSilent, Answer::Yes, format!("{count} times of {count}"))
            }
            (Some(false), _) => {
                let why = "it ignores the cancel, and the answer is the normal one";
                Finding::new(Question::StaysSilent, Answer::No, why)
            }
            (_, 0) => Finding::new(Question::StaysSilent, Answer::Yes, format!("{count} times of {count}")),
            (_, answered) => Finding::new(
                Question::StaysSilent,
                Answer::No,
                format!("{answered} of {count} were answered"),
            ),
        });
    } else {
        findings.extend(answers(baselines, tries));
    }
    let dead = tries.quick_after.iter().any(Option::is_none) || tries.lost.is_some();
    findings.push(if dead {
        let why = tries.lost.clone().unwrap_or_else(|| "the next request was not answered".to_owned());
        Finding::new(Question::SessionSurvives, Answer::No, why)
    } else {
        let detail = format!("the next request was answered {} times", tries.quick_after.len());
        Finding::new(Question::SessionSurvives, Answer::Yes, detail)
    });
    findings
}

fn cancels_running(baselines: &Baselines, tries: &Tries) -> Finding {
    let question = Question::CancelsRunning;
    let uncancelled = baselines.slow_takes().map_or_else(
        || "it does not end without a cancel".to_owned(),
        |takes| format!("without a cancel it takes {}", shown(takes)),
    );
    let count = tries.all.len();
    let mut finding = match tries.worked() {
        _ if count == 0 && tries.refused > 0 => {
            let detail = "each slow request was refused before its cancel was sent; name one that is served as often as it is asked";
            Finding::new(question, Answer::Unsure, detail)
        }
        _ if count == 0 => Finding::new(question, Answer::Unsure, tries.lost.clone().unwrap_or_default()),
        Some(true) => {
            Finding::new(question, Answer::Yes, format!("{}; {uncancelled}", latency_in_words(tries)))
        }
        Some(false) => {
            let detail = format!("it is answered at its normal end, {count} times of {count}; {uncancelled}");
            Finding::new(question, Answer::No, detail)
        }
        None if tries.differ() => {
            let worked = tries.all.iter().filter(|one| one.effect.worked() == Some(true)).count();
            let detail = format!(
                "the cancel took effect {worked} times of {count}, and the request ended normally in the others; {uncancelled}"
            );
            Finding::new(question, Answer::Unsure, detail)
        }
        None if baselines.slow_takes().is_some() => {
            let detail = format!("no answer came, {count} times of {count}; {uncancelled}");
            Finding { evidence: Vec::new(), ..Finding::new(question, Answer::Unsure, detail) }
        }
        None => {
            let detail = "the slow request does not end by itself, so no answer is no sign of its cancel; name one that ends after \
                          a few seconds, or a witness";
            Finding { evidence: Vec::new(), ..Finding::new(question, Answer::Unsure, detail) }
        }
    };
    if count > 0 && tries.refused > 0 {
        finding.detail =
            format!("{}; {} more were refused before their cancel", finding.detail, tries.refused);
    }
    finding.cancel_us = tries.latencies().into_iter().map(micros).collect();
    finding
}

fn latency_in_words(tries: &Tries) -> String {
    let times = tries.latencies();
    match (times.get(times.len() / 2), times.last()) {
        (Some(median), Some(worst)) => {
            format!("in {} (median of {}, worst {})", shown(*median), times.len(), shown(*worst))
        }
        _ => format!("no answer came, {} times of {}", tries.all.len(), tries.all.len()),
    }
}

/// What a dialect that owes an answer says about the answers.
fn answers(baselines: &Baselines, tries: &Tries) -> Vec<Finding> {
    let count = tries.all.len();
    let unanswered = tries.all.iter().filter(|one| one.answers == 0).count();
    let endless = baselines.slow_takes().is_none();
    let answered = match (unanswered, endless) {
        (0, _) if count > 0 => {
            Finding::new(Question::AnswersCancelled, Answer::Yes, format!("{count} times of {count}"))
        }
        // It may still run.
        (_, true) => Finding::new(
            Question::AnswersCancelled,
            Answer::Unsure,
            "the slow request does not end by itself, so it may still run; name one that ends after a few seconds",
        ),
        (unanswered, false) => Finding::new(
            Question::AnswersCancelled,
            Answer::No,
            format!("{unanswered} of {count} were not answered, and each would have ended without a cancel"),
        ),
    };
    let other_error = tries.other_error();
    let others = tries.all.iter().filter(|one| matches!(one.effect, Effect::OtherError(_))).count();
    let with_result = tries.all.iter().filter(|one| one.effect == Effect::EarlyResult).count();
    let code = match (tries.worked(), &other_error) {
        (_, Some(code)) => {
            let detail = format!("with error {code}, {others} times of {count}");
            Finding::new(Question::CancelledCode, Answer::No, detail)
        }
        (Some(true), None) if with_result > 0 => {
            let detail = format!("with a result, {with_result} times of {count}");
            Finding::new(Question::CancelledCode, Answer::Yes, detail)
        }
        (Some(true), None) => Finding::new(
            Question::CancelledCode,
            Answer::Yes,
            format!("as cancelled, {count} times of {count}"),
        ),
        (_, None) => Finding::not_asked(Question::CancelledCode, "no cancel was seen to take effect"),
    };
    vec![answered, code]
}

const QUESTION: Question = Question::CancelsIdZero;

/// Reads what the cancelled request with the id 0 came to.
pub(super) fn read_id_zero(session: &PeerSession, baselines: &Baselines, tries: &Tries) -> Finding {
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
        None => Ok(read_id_zero(session, baselines, &tries)),
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
