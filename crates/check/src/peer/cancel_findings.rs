//! What twenty cancels of the slow request show.

use rescind_testkit::Answer;

use super::baseline::{Baselines, micros, shown};
use super::id_zero;
use super::probe::Finding;
use super::session::PeerSession;
use super::statements::Question;
use super::tries::{Effect, Tries};

/// Reads what the tries show.
pub(super) fn read(session: &PeerSession, baselines: &Baselines, tries: &Tries) -> Vec<Finding> {
    let mut findings = vec![cancels_running(baselines, tries), id_zero::read(session, baselines, tries)];
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
