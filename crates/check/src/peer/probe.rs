//! The questions, put to the peer in one session each. A probe answers one or more of them.

use std::time::Duration;

use rescind_testkit::runner::{Evidence, TraceLine, shorten};
use rescind_testkit::{Answer, RequestKind};
use serde_json::json;

use super::asking::TOGETHER;
use super::baseline::{Baselines, shown};
use super::session::{Lost, PeerSession};
use super::statements::Question;
use super::tries::{Tries, cancel_again_and_again};
use super::undisturbed::{Disturbance, End};
use super::work::Counter;
use super::{CheckSettings, cancel_findings, tasks, tries, turn, undisturbed, work};

/// The lines of a trace that are kept of a fact.
pub(super) const MAX_TRACE: usize = 60;

/// A method that nobody knows.
const UNKNOWN: &str = "rescind/unknown";

/// One that LSP reserves for its implementations.
const RESERVED: &str = "$/rescind/unknown";

/// What is done in one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// A method and a notification that nobody knows.
    Unknown,
    /// A quick request after each of these cancels. For a peer without a slow request.
    QuickAfter(Disturbance),
    /// The slow request is cancelled again and again.
    Cancels,
    /// The same, where silence is owed, and then a slow request comes to its own end beside other cancels.
    CancelsBeside,
    /// The same, and then one slow request is served to its end.
    CancelsThenOne,
    /// A slow request with the id 0 is cancelled.
    IdZero,
    /// A quick request with the id 0.
    QuickIdZero,
    /// A slow request comes to its own end beside these.
    Beside(&'static [Disturbance]),
    /// Progress to the normal end.
    Progress,
    /// Progress after a cancel.
    ProgressAfterCancel,
    /// The processor time.
    Processor(u32),
    /// The count that the profile names.
    Counter,
    /// Turns are cancelled by their session (ACP).
    Turn,
    /// A task is cancelled (MCP). The processor time of this process group is a witness.
    Tasks(Option<u32>),
}

/// The answer to one question in one session.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) question: Question,
    pub(super) answer: Answer,
    pub(super) detail: String,
    pub(super) evidence: Vec<Evidence>,
    pub(super) cancel_us: Vec<u64>,
    /// A sentence that fits the finding better than that of its question.
    pub(super) source: Option<&'static str>,
    pub(super) trace: Vec<TraceLine>,
}

impl Finding {
    pub(super) fn new(question: Question, answer: Answer, detail: impl Into<String>) -> Self {
        Self {
            question,
            answer,
            detail: detail.into(),
            evidence: vec![Evidence::Wire],
            cancel_us: Vec::new(),
            source: None,
            trace: Vec::new(),
        }
    }

    pub(super) fn not_asked(question: Question, why: impl Into<String>) -> Self {
        Self { evidence: Vec::new(), ..Self::new(question, Answer::NotAsked, why) }
    }
}

/// What a probe brought: the findings, and the tries if it made any.
#[derive(Debug, Default)]
pub(super) struct Probed {
    pub(super) findings: Vec<Finding>,
    pub(super) tries: Option<Tries>,
    /// The session was lost on the way.
    pub(super) is_lost: bool,
}

impl Probe {
    /// Runs the probe. A session that is lost on the way is a finding too.
    pub(super) async fn run(
        self,
        session: &mut PeerSession,
        baselines: &Baselines,
        settings: &CheckSettings,
    ) -> Probed {
        let begun = session.trace.len();
        let mut probed = match self.findings(session, baselines, settings).await {
            Ok(probed) => probed,
            Err(Lost(why)) => Probed {
                findings: vec![Finding::new(
                    self.question_of_a_lost_session(),
                    Answer::No,
                    format!("the session ended {}: {why}", self.in_words()),
                )],
                tries: None,
                is_lost: true,
            },
        };
        probed.findings.extend(once(session));
        let trace = session.trace.get(begun..).unwrap_or_default();
        let trace: Vec<TraceLine> = trace.iter().take(MAX_TRACE).map(TraceLine::shortened).collect();
        for finding in &mut probed.findings {
            if finding.trace.is_empty() {
                finding.trace.clone_from(&trace);
            }
            shorten(&mut finding.detail);
        }
        probed
    }

    /// What is done, for a progress bar.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Unknown => "an unknown method",
            Self::QuickAfter(_) => "cancels for nothing",
            Self::Cancels | Self::CancelsBeside | Self::CancelsThenOne => "cancels of a running request",
            Self::IdZero | Self::QuickIdZero => "the id 0",
            Self::Beside(_) => "a slow request beside cancels",
            Self::Progress | Self::ProgressAfterCancel => "progress",
            Self::Processor(_) => "processor time",
            Self::Counter => "the witness of the profile",
            Self::Turn => "`session/cancel`",
            Self::Tasks(_) => "`tasks/cancel`",
        }
    }

    /// The question that a lost session answers.
    const fn question_of_a_lost_session(self) -> Question {
        match self {
            // The cancel of a running request is that of `Cancels`.
            Self::Beside([Disturbance::CancelledSibling]) => Question::SessionSurvives,
            Self::QuickAfter(disturbance) => disturbance.question(),
            Self::Beside([disturbance]) => disturbance.question(),
            Self::IdZero | Self::QuickIdZero => Question::CancelsIdZero,
            Self::Turn => Question::NextTurnServed,
            Self::Unknown
            | Self::Cancels
            | Self::CancelsBeside
            | Self::CancelsThenOne
            | Self::Beside(_)
            | Self::Progress
            | Self::ProgressAfterCancel
            | Self::Processor(_)
            | Self::Counter
            | Self::Tasks(_) => Question::SessionSurvives,
        }
    }

    /// When the session was lost.
    const fn in_words(self) -> &'static str {
        match self {
            Self::Unknown => "after a method or a notification that it does not know",
            Self::QuickAfter(disturbance) => disturbance.in_words(),
            Self::Cancels | Self::CancelsBeside | Self::CancelsThenOne => {
                "after the cancel of a running request"
            }
            Self::Beside([disturbance]) => disturbance.in_words(),
            Self::IdZero | Self::QuickIdZero => "with a request whose id is 0",
            Self::Beside(_) => "while a slow request ran beside cancels",
            Self::Progress => "after a request that reports progress",
            Self::ProgressAfterCancel => "after a request that reports progress was cancelled",
            Self::Turn => "after `session/cancel`",
            Self::Tasks(_) => "while a task was begun and cancelled",
            Self::Processor(_) | Self::Counter => "while its work was watched",
        }
    }

    async fn findings(
        self,
        session: &mut PeerSession,
        baselines: &Baselines,
        settings: &CheckSettings,
    ) -> Result<Probed, Lost> {
        let deadline = settings.deadline;
        let only = |findings| Ok(Probed { findings, tries: None, is_lost: false });
        match self {
            Self::Unknown => only(unknown(session, deadline).await?),
            Self::QuickAfter(disturbance) => only(vec![quick_after(session, disturbance, deadline).await?]),
            Self::Cancels | Self::CancelsBeside => {
                let mut tries = cancel_again_and_again(session, baselines, settings.tries, deadline).await;
                let mut others = Vec::new();
                if self == Self::CancelsBeside && tries.are_silent() {
                    others = beside(session, baselines, TOGETHER, settings).await?;
                }
                tries.await_the_rest(session, baselines, deadline).await;
                let mut findings = cancel_findings::read(session, baselines, &tries);
                findings.extend(others);
                Ok(Probed { findings, tries: Some(tries), is_lost: false })
            }
            Self::CancelsThenOne => {
                let mut tries = cancel_again_and_again(session, baselines, settings.tries, deadline).await;
                if !tries.are_alive() {
                    return only(Vec::new());
                }
                let findings = beside(session, baselines, &[Disturbance::Nothing], settings).await?;
                tries.await_the_rest(session, baselines, deadline).await;
                only(findings)
            }
            Self::Turn => only(turn::run(session, baselines, deadline).await?),
            Self::Tasks(leader) => only(tasks::run(session, baselines, leader, settings).await?),
            Self::IdZero => only(vec![cancel_findings::alone(session, baselines, deadline).await?]),
            Self::QuickIdZero => only(vec![cancel_findings::quick(session, deadline).await?]),
            Self::Beside(disturbances) => only(beside(session, baselines, disturbances, settings).await?),
            Self::Progress => {
                let takes = baselines.progress.as_ref().and_then(|progress| progress.takes);
                let within = takes.map_or(settings.longest, |takes| takes * 3) + deadline;
                let seen = work::progress_to_the_end(session, within).await?;
                if seen.answered.is_none() {
                    session.cancel(&seen.sent.id).await?;
                }
                only(vec![of_progress(&seen)])
            }
            Self::ProgressAfterCancel => only(progress_after_cancel(session, baselines, settings).await?),
            Self::Processor(leader) => {
                let seen = work::by_processor_time(session, baselines, leader).await?;
                only(seen.map(stops_work).into_iter().collect())
            }
            Self::Counter => {
                let Some(counter) = Counter::of(&session.profile) else { return only(Vec::new()) };
                let seen = work::by_counter(session, baselines, &counter, settings).await?;
                only(seen.map(stops_work).into_iter().collect())
            }
        }
    }
}

/// Whether a witness saw the work stop.
pub(super) fn stops_work(seen: work::Seen) -> Finding {
    let answer = if seen.stopped { Answer::Yes } else { Answer::No };
    Finding { evidence: vec![seen.evidence], ..Finding::new(Question::StopsWork, answer, seen.detail) }
}

/// A request that was answered more than once, and an answer to a request that was never sent.
fn once(session: &PeerSession) -> Option<Finding> {
    let ids = session.sent_ids();
    let twice = ids.iter().find(|id| session.answers(id).len() > 1)?;
    let count = session.answers(twice).len();
    Some(Finding::new(
        Question::AnswersOnce,
        Answer::No,
        format!("the request {twice} was answered {count} times"),
    ))
}

async fn unknown(session: &mut PeerSession, deadline: Duration) -> Result<Vec<Finding>, Lost> {
    let mut findings = vec![refusal(session, Question::UnknownMethodRefused, deadline).await?];
    let reserves = Question::ReservedMethodRefused.applies(session.wire_format.facts);
    if reserves {
        findings.push(refusal(session, Question::ReservedMethodRefused, deadline).await?);
    }
    let before = session.received.len();
    session.send(session.wire_format.notification(UNKNOWN, json!({}))).await?;
    if reserves {
        session.send(session.wire_format.notification(RESERVED, json!({}))).await?;
    }
    let quick = session.send_kind(RequestKind::Quick).await?;
    let _answer = session.answer(&quick.id, quick.at + deadline).await?;
    let stray = session.strays(before).first().map(|frame| (*frame).clone());
    let notification = match stray {
        None => (Answer::Yes, String::new()),
        Some(frame) => (Answer::No, format!("this came: {frame}")),
    };
    findings.push(Finding::new(Question::UnknownNotificationIgnored, notification.0, notification.1));
    Ok(findings)
}

/// How a method is refused that nobody knows, a reserved one or another.
async fn refusal(session: &mut PeerSession, question: Question, deadline: Duration) -> Result<Finding, Lost> {
    let is_reserved = question == Question::ReservedMethodRefused;
    let sent = session.request(if is_reserved { RESERVED } else { UNKNOWN }, json!({})).await?;
    let Some(answer) = session.answer(&sent.id, sent.at + deadline).await? else {
        return Ok(Finding::new(question, Answer::No, format!("it was not answered within {deadline:?}")));
    };
    if !session.wire_format.is_refusal(&answer.frame) {
        return Ok(Finding::new(question, Answer::No, format!("it was answered with {}", answer.frame)));
    }
    let code = super::baseline::error_of(session.wire_format, &answer).unwrap_or_default();
    let usual = [json!(-32601), json!("NOT_FOUND"), json!("CAPABILITY_NOT_FOUND")].contains(&code);
    let note = match (usual, is_reserved) {
        (true, _) => "",
        (false, true) => ", where -32601 is the code of LSP",
        (false, false) => ", where -32601 is the code of JSON-RPC",
    };
    // JSON-RPC defines the code, and LSP demands it.
    let answered = if is_reserved && !usual { Answer::No } else { Answer::Yes };
    Ok(Finding::new(question, answered, format!("with error {code}{note}")))
}

async fn quick_after(
    session: &mut PeerSession,
    disturbance: Disturbance,
    deadline: Duration,
) -> Result<Finding, Lost> {
    let question = disturbance.question();
    let first = session.send_kind(RequestKind::Quick).await?;
    if session.answer(&first.id, first.at + deadline).await?.is_none() {
        return Ok(Finding::new(
            Question::SessionSurvives,
            Answer::Unsure,
            "a quick request was not answered",
        ));
    }
    undisturbed::disturb(session, disturbance, &first.id, None).await?;
    let next = session.send_kind(RequestKind::Quick).await?;
    let answer = session.answer(&next.id, next.at + deadline).await?;
    Ok(match answer {
        Some(answer) if tries::is_cancelled(session.wire_format, &answer.frame) => {
            Finding::new(question, Answer::No, format!("the next request ended with {}", answer.frame))
        }
        Some(_) => Finding::new(question, Answer::Yes, "the next request was answered"),
        None => Finding::new(
            question,
            Answer::No,
            format!("the next request was not answered within {deadline:?}"),
        ),
    })
}

async fn beside(
    session: &mut PeerSession,
    baselines: &Baselines,
    disturbances: &'static [Disturbance],
    settings: &CheckSettings,
) -> Result<Vec<Finding>, Lost> {
    let before = if disturbances.contains(&Disturbance::Nothing) { settings.tries } else { 0 };
    let ends = undisturbed::run(session, baselines, disturbances, before, settings.deadline).await?;
    Ok(ends.into_iter().map(|(disturbance, end)| of_end(disturbance.question(), end)).collect())
}

fn of_end(question: Question, end: End) -> Finding {
    match end {
        End::Undisturbed => Finding::new(question, Answer::Yes, "no other request was disturbed"),
        End::Disturbed(why) => Finding::new(question, Answer::No, why),
        End::Unknown(why) => Finding::new(question, Answer::Unsure, why),
    }
}

/// What the progress request showed that ran to its end.
pub(super) fn of_progress(seen: &work::Progress) -> Finding {
    let question = Question::ProgressEndsWithAnswer;
    let mut finding = match (seen.answered.is_some(), seen.before, seen.after) {
        (false, _, _) => {
            Finding::new(question, Answer::Unsure, "the request that reports progress was not answered")
        }
        (true, 0, 0) => {
            let why = "no progress was reported: is the notification's method right (`notification`), and the token?";
            Finding::new(question, Answer::Unsure, why)
        }
        (true, before, 0) => Finding::new(
            question,
            Answer::Yes,
            format!("{before} reports before the answer, none in the half second after it"),
        ),
        (true, _, after) => {
            Finding::new(question, Answer::No, format!("{after} reports came after the answer"))
        }
    };
    finding.trace = seen.trace.iter().take(MAX_TRACE).map(TraceLine::shortened).collect();
    finding
}

async fn progress_after_cancel(
    session: &mut PeerSession,
    baselines: &Baselines,
    settings: &CheckSettings,
) -> Result<Vec<Finding>, Lost> {
    let mut findings = Vec::new();
    if let Some((after, interval)) =
        work::progress_after_a_cancel(session, baselines, settings.deadline).await?
    {
        if !interval.is_zero() {
            let detail = format!(
                "progress came every {}; {after} reports after its cancel had taken effect",
                shown(interval)
            );
            // One report may have been on its way.
            if after != 1 {
                let seen = work::Seen { evidence: Evidence::Progress, stopped: after == 0, detail };
                findings.push(stops_work(seen));
            }
        }
    }
    Ok(findings)
}
