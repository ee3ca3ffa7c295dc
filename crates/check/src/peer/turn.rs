//! ACP's `session/cancel`: it ends the turn that runs in one session, by an ordinary answer to its prompt.

use std::time::{Duration, Instant};

use rescind_testkit::{Answer, RequestKind};
use serde_json::{Value, json};

use super::adapt::PROMPT;
use super::baseline::{Baselines, error_of, shown};
use super::probe::Finding;
use super::session::{Lost, PeerSession, Received, Sent};
use super::statements::Question;
use super::tries::{NORMAL_END, cancel_delay};

/// A busy machine may end one turn late.
const TRIES: usize = 3;

/// How long a turn that does not end without a cancel is watched beside another.
const WATCH: Duration = Duration::from_millis(300);

/// Whether the slow request of the profile is a turn of a session.
pub(super) fn is_a_turn(session: &PeerSession) -> bool {
    let slow = session.profile.requests.get(&RequestKind::Slow);
    slow.is_some_and(|slow| slow.method == PROMPT && slow.params.get("sessionId").is_some())
}

/// How a turn ended after `session/cancel`.
struct Turn {
    sent: Sent,
    cancelled: Instant,
    answer: Option<Received>,
}

impl Turn {
    /// Whether it was answered before its cancel was sent.
    fn was_refused(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.at <= self.cancelled)
    }

    /// Whether it lasted about as long as without a cancel.
    fn ran_to_its_end(&self, baselines: &Baselines) -> bool {
        let took = self.answer.as_ref().map(|answer| answer.at.saturating_duration_since(self.sent.at));
        match (took, baselines.slow_takes()) {
            (Some(took), Some(takes)) => took >= takes.mul_f64(NORMAL_END),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    fn is_cancelled(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| is_cancelled(&answer.frame))
    }

    fn after(&self) -> String {
        let answer = self.answer.as_ref();
        answer.map_or_else(String::new, |answer| shown(answer.at.saturating_duration_since(self.cancelled)))
    }
}

fn is_cancelled(answer: &Value) -> bool {
    answer.pointer("/result/stopReason").and_then(Value::as_str) == Some("cancelled")
}

/// Cancels turns, with one of another session beside them and one of the same session after them.
pub(super) async fn run(
    session: &mut PeerSession,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<Vec<Finding>, Lost> {
    let params = session.params_of(RequestKind::Slow);
    let own = params.get("sessionId").cloned().unwrap_or_default();
    let mut turn = cancelled_turn(session, &params, &own, baselines, deadline).await?;
    for _ in 1..TRIES {
        if turn.was_refused() || turn.answer.is_none() || !turn.ran_to_its_end(baselines) {
            break;
        }
        turn = cancelled_turn(session, &params, &own, baselines, deadline).await?;
    }
    let mut findings = judge(session, baselines, &turn);
    if turn.was_refused() || turn.answer.is_none() {
        return Ok(findings);
    }
    let other = other_session(session, deadline).await?;
    let Some(other) = other else {
        let why = "no second session could be opened (`session/new`)";
        findings.push(Finding::not_asked(Question::OtherTurnsUntouched, why));
        findings.push(next_turn(session, &params, &own, baselines, deadline).await?);
        return Ok(findings);
    };
    let mut theirs = params.clone();
    if let Some(place) = theirs.get_mut("sessionId") {
        *place = other.clone();
    }
    let beside = session.request(PROMPT, theirs.clone()).await?;
    let again = cancelled_turn(session, &params, &own, baselines, deadline).await?;
    findings.push(other_turn(session, baselines, &beside, &again, &other, deadline).await?);
    let next = next_turn(session, &params, &own, baselines, deadline).await?;
    let fails = next.answer == Answer::No && next.detail.starts_with(REFUSED);
    findings.push(if fails && is_refused(session, &theirs, &other, baselines, deadline).await? {
        let detail = format!("{}; another session refuses prompts too", next.detail);
        Finding { answer: Answer::Unsure, detail, ..next }
    } else {
        next
    });
    Ok(findings)
}

/// The detail of a next turn that was refused begins so.
const REFUSED: &str = "the next prompt was refused: ";

/// Begins a turn, cancels it by its session while it runs, and waits for its answer.
async fn cancelled_turn(
    session: &mut PeerSession,
    params: &Value,
    own: &Value,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<Turn, Lost> {
    let sent = session.request(PROMPT, params.clone()).await?;
    session.listen(sent.at + cancel_delay(baselines)).await?;
    let cancelled = session.cancel_session(own).await?;
    let until = cancelled + baselines.slow_takes().unwrap_or_default() * 3 + deadline;
    let answer = session.answer(&sent.id, until).await?;
    Ok(Turn { sent, cancelled, answer })
}

fn judge(session: &PeerSession, baselines: &Baselines, turn: &Turn) -> Vec<Finding> {
    let (by_reason, soon) = (Question::TurnCancelled, Question::TurnEndsSoon);
    let Some(answer) = &turn.answer else {
        let waited = shown(session.now().saturating_duration_since(turn.cancelled));
        let detail = format!("the prompt was not answered within {waited} of `session/cancel`");
        return vec![
            Finding::new(by_reason, Answer::No, detail.clone()),
            Finding::new(soon, Answer::No, detail),
        ];
    };
    if turn.was_refused() {
        let detail = format!("the prompt ended before `session/cancel` was sent: {}", answer.frame);
        return vec![
            Finding::new(by_reason, Answer::Unsure, detail.clone()),
            Finding::new(soon, Answer::Unsure, detail),
        ];
    }
    let after = turn.after();
    let reason = if turn.is_cancelled() {
        Finding::new(by_reason, Answer::Yes, format!("in {after}"))
    } else {
        let detail = format!("the prompt ended {after} after `session/cancel` with {}", answer.frame);
        Finding::new(by_reason, Answer::No, detail)
    };
    let soon = if turn.ran_to_its_end(baselines) {
        let takes = shown(baselines.slow_takes().unwrap_or_default());
        let detail = format!(
            "it ended {after} after `session/cancel`, {TRIES} times of {TRIES}; without it the turn takes {takes}"
        );
        Finding::new(soon, Answer::No, detail)
    } else {
        Finding::new(soon, Answer::Yes, format!("in {after}"))
    };
    vec![reason, soon]
}

/// Opens another session as the profile opens its own.
async fn other_session(session: &mut PeerSession, deadline: Duration) -> Result<Option<Value>, Lost> {
    let steps = session.profile.handshake.steps.iter().chain(&session.profile.session.setup);
    let opens = steps.rev().find(|step| step.method.as_deref() == Some("session/new"));
    let params = opens.map_or_else(|| json!({ "cwd": "/", "mcpServers": [] }), |step| step.params.clone());
    let params = session.bindings.fill(&params);
    let sent = session.request("session/new", params).await?;
    let answer = session.answer(&sent.id, sent.at + deadline).await?;
    Ok(answer.and_then(|answer| answer.frame.pointer("/result/sessionId").cloned()))
}

/// Whether the turn of another session came to its own end.
async fn other_turn(
    session: &mut PeerSession,
    baselines: &Baselines,
    beside: &Sent,
    turn: &Turn,
    other: &Value,
    deadline: Duration,
) -> Result<Finding, Lost> {
    let question = Question::OtherTurnsUntouched;
    let normal = baselines.slow.as_ref().and_then(|slow| slow.error.clone());
    let is_early = session.answers(&beside.id).first().is_some_and(|answer| answer.at <= turn.cancelled);
    if is_early || turn.was_refused() {
        let detail = "the agent did not run turns of two sessions at once";
        return Ok(Finding::new(question, Answer::Unsure, detail));
    }
    let answer = if let Some(takes) = baselines.slow_takes() {
        // Both may share a processor, or wait for each other.
        session.answer(&beside.id, beside.at + takes * 4 + deadline).await?
    } else {
        session.listen(session.now() + WATCH).await?;
        let ended = session.answers(&beside.id).first().map(|answer| (*answer).clone());
        if ended.is_none() {
            session.cancel_session(other).await?;
            session.answer(&beside.id, session.now() + deadline).await?;
            return Ok(Finding::new(question, Answer::Yes, "the turn of another session ran on"));
        }
        ended
    };
    let Some(answer) = answer else {
        let waited = shown(session.now().saturating_duration_since(beside.at));
        let detail = format!("the turn of another session was not answered within {waited}");
        return Ok(Finding::new(question, Answer::No, detail));
    };
    let is_normal = error_of(session.wire_format, &answer) == normal && !is_cancelled(&answer.frame);
    Ok(if is_normal && baselines.slow_takes().is_some() {
        Finding::new(question, Answer::Yes, "the turn of another session came to its own end")
    } else {
        let detail = format!("the turn of another session ended with {}", answer.frame);
        Finding::new(question, Answer::No, detail)
    })
}

/// Whether the session takes a next prompt.
async fn next_turn(
    session: &mut PeerSession,
    params: &Value,
    own: &Value,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<Finding, Lost> {
    let question = Question::NextTurnServed;
    let sent = session.request(PROMPT, params.clone()).await?;
    let endless = baselines.slow_takes().is_none();
    if endless {
        session.listen(sent.at + WATCH).await?;
        if session.answers(&sent.id).is_empty() {
            session.cancel_session(own).await?;
        }
    }
    let until = session.now() + baselines.slow_takes().unwrap_or_default() * 4 + deadline;
    let Some(answer) = session.answer(&sent.id, until).await? else {
        let waited = shown(session.now().saturating_duration_since(sent.at));
        return Ok(Finding::new(
            question,
            Answer::No,
            format!("the next prompt was not answered within {waited}"),
        ));
    };
    let normal = baselines.slow.as_ref().and_then(|slow| slow.error.clone());
    let error = error_of(session.wire_format, &answer);
    Ok(if error.is_some() && error != normal {
        Finding::new(question, Answer::No, format!("{REFUSED}{}", answer.frame))
    } else if is_cancelled(&answer.frame) && !endless {
        let detail = format!("the next prompt ended as cancelled: {}", answer.frame);
        Finding::new(question, Answer::No, detail)
    } else {
        Finding::new(question, Answer::Yes, "the next prompt was answered")
    })
}

/// Whether another session, in which nothing was cancelled, refuses a prompt too.
async fn is_refused(
    session: &mut PeerSession,
    params: &Value,
    other: &Value,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<bool, Lost> {
    let sent = session.request(PROMPT, params.clone()).await?;
    session.listen(sent.at + cancel_delay(baselines)).await?;
    let refused = session
        .answers(&sent.id)
        .first()
        .is_some_and(|answer| error_of(session.wire_format, answer).is_some());
    session.cancel_session(other).await?;
    let until = session.now() + baselines.slow_takes().unwrap_or_default() * 3 + deadline;
    session.answer(&sent.id, until).await?;
    Ok(refused)
}
