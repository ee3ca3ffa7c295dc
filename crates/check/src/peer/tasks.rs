//! MCP's tasks: a request that goes on after its first answer, and that `tasks/cancel` stops.

use std::time::{Duration, Instant};

use rescind_core::dialect::TaskForm;
use rescind_testkit::runner::Evidence;
use rescind_testkit::{Answer, ProfileRequest, RequestKind};
use serde_json::{Value, json};

use super::CheckSettings;
use super::probe::Finding;
use super::session::{Lost, PeerSession, Received, Sent, token_for};
use super::statements::Question;
use super::work::{BUSY, Counter, Seen, WATCH, share_of_a_processor};

/// How often the status of a task is asked for.
const POLL: Duration = Duration::from_millis(100);

/// Notifications that were on their way when the cancel was answered are no sign of work.
const SETTLES: Duration = Duration::from_millis(100);

/// The error of a question about a task that is unknown, or that has ended.
const INVALID_PARAMS: i64 = -32_602;

/// The request that is run as a task: the profile's, or else its slow tool call.
pub(super) fn request_of(session: &PeerSession) -> Option<&ProfileRequest> {
    let requests = &session.profile.requests;
    let slow = || requests.get(&RequestKind::Slow).filter(|slow| slow.method == "tools/call");
    requests.get(&RequestKind::Task).or_else(slow)
}

/// A task of the peer.
struct Task {
    sent: Sent,
    id: Value,
    form: TaskForm,
}

/// Begins a task, cancels the request that began it, cancels the task, and looks at it again. `leader`: of the peer's
/// process group, if its processor time is a witness.
pub(super) async fn run(
    session: &mut PeerSession,
    leader: Option<u32>,
    settings: &CheckSettings,
) -> Result<Vec<Finding>, Lost> {
    let Some(form) = session.wire_format.facts.dialect.rules().tasks else { return Ok(Vec::new()) };
    let mut findings = vec![unknown(session, form, settings.deadline).await?];
    let counter = Counter::of(&session.profile);
    let mut counts = vec![count(session, counter.as_ref(), settings).await?];
    let task = match begin(session, form, settings).await? {
        Ok(task) => task,
        Err(finding) => {
            findings.push(finding);
            return Ok(findings);
        }
    };
    findings.push(Finding::new(Question::TaskHandle, Answer::Yes, ""));

    // Over HTTP the stream of the request has ended too.
    session.cancel(&task.sent.id).await?;
    session.listen(session.now() + WATCH / 2).await?;
    let status = task.status(session, settings).await?;
    findings.push(goes_on(status.as_deref()));
    if !status.as_deref().is_some_and(is_open) {
        return Ok(findings);
    }

    counts.push(count(session, counter.as_ref(), settings).await?);
    let busy = busy(session, leader, settings).await?;
    let before = task.reports(session, None);
    let cancelled = task.ask(session, "tasks/cancel", settings).await?;
    let Some(cancelled) = cancelled else {
        let detail = format!("`tasks/cancel` was not answered within {:?}", settings.deadline);
        findings.push(Finding::new(Question::TaskCancelled, Answer::No, detail));
        return Ok(findings);
    };
    findings.push(task.acknowledged(session, &cancelled));
    if session.wire_format.is_refusal(&cancelled.frame) {
        return Ok(findings);
    }
    let ended = task.end(session, settings).await?;
    // The answer to the cancel has the task, and may say already how it has ended.
    let said = status_in(&cancelled.frame).filter(|status| !is_open(status));
    let ended = said.or(ended);
    session.listen(session.now() + WATCH / 2).await?;
    counts.push(count(session, counter.as_ref(), settings).await?);
    let busy_after = if busy.is_some() { busy_share(session, leader).await? } else { None };
    let settled = cancelled.at + SETTLES;
    session.listen(settled + WATCH).await?;
    counts.push(count(session, counter.as_ref(), settings).await?);

    let after = task.reports(session, Some(settled));
    findings.extend(stops_work(counter.as_ref(), &counts, (busy, busy_after), (before, after)));
    let later = task.status(session, settings).await?;
    findings.push(stays(ended.as_deref(), later.as_deref()));
    if form == TaskForm::AskedByClient {
        let again = task.ask(session, "tasks/cancel", settings).await?;
        findings.push(refused(Question::TaskEndedCancelRefused, again.as_ref(), settings.deadline));
    }
    Ok(findings)
}

/// Sends the request and waits for the handle.
async fn begin(
    session: &mut PeerSession,
    form: TaskForm,
    settings: &CheckSettings,
) -> Result<Result<Task, Finding>, Lost> {
    let is_named = session.profile.requests.contains_key(&RequestKind::Task);
    let Some(request) = request_of(session).cloned() else {
        let why = "the profile names no request that is run as a task (`[requests.task]`)";
        return Ok(Err(Finding::not_asked(Question::TaskHandle, why)));
    };
    let id = session.fresh();
    let params = session.params_for(&request, &id);
    let frame = session.wire_format.request_with(&id, &request.method, declaring(form, params));
    session.send(frame).await?;
    let sent = Sent { id, at: session.now() };
    let wait = settings.deadline + settings.longest;
    let Some(answer) = session.answer(&sent.id, sent.at + wait).await? else {
        let detail = format!("the request was not answered within {wait:?}");
        return Ok(Err(Finding::new(Question::TaskHandle, Answer::No, detail)));
    };
    Ok(match handle(form, &answer.frame) {
        Some(id) => Ok(Task { sent, id: id.clone(), form }),
        // The server decides in the one form, and which tools can be tasks in the other.
        None if !is_named || form == TaskForm::DecidedByServer => Err(Finding::not_asked(
            Question::TaskHandle,
            format!(
                "`{}` does not become a task; name a request that does (`[requests.task]`): {}",
                request.method, answer.frame
            ),
        )),
        None => Err(Finding::new(
            Question::TaskHandle,
            Answer::No,
            format!("the answer is no task's handle: {}", answer.frame),
        )),
    })
}

/// The params with what says that the client takes a task.
fn declaring(form: TaskForm, mut params: Value) -> Value {
    let Some(members) = params.as_object_mut() else { return params };
    match form {
        TaskForm::AskedByClient => {
            members.entry("task").or_insert_with(|| json!({}));
        }
        TaskForm::DecidedByServer => {
            let meta = members.entry("_meta").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
                meta.insert("io.modelcontextprotocol/clientCapabilities".to_owned(), capabilities);
            }
        }
    }
    params
}

/// The task's id, if this answer is a handle.
fn handle(form: TaskForm, answer: &Value) -> Option<&Value> {
    let id = match form {
        TaskForm::AskedByClient => answer.pointer("/result/task/taskId"),
        TaskForm::DecidedByServer => {
            let result = answer.get("result")?;
            (result.get("resultType")? == "task").then(|| result.get("taskId")).flatten()
        }
    };
    id.filter(|id| id.is_string())
}

fn is_open(status: &str) -> bool {
    matches!(status, "working" | "input_required")
}

fn status_in(answer: &Value) -> Option<String> {
    answer.pointer("/result/status")?.as_str().map(str::to_owned)
}

impl Task {
    async fn ask(
        &self,
        session: &mut PeerSession,
        method: &str,
        settings: &CheckSettings,
    ) -> Result<Option<Received>, Lost> {
        let params = declaring(self.form, json!({ "taskId": self.id }));
        let sent = session.request(method, params).await?;
        session.answer(&sent.id, sent.at + settings.deadline).await
    }

    async fn status(
        &self,
        session: &mut PeerSession,
        settings: &CheckSettings,
    ) -> Result<Option<String>, Lost> {
        let answer = self.ask(session, "tasks/get", settings).await?;
        Ok(answer.and_then(|answer| status_in(&answer.frame)))
    }

    /// The first status that is final, or the last one that was seen.
    async fn end(&self, session: &mut PeerSession, settings: &CheckSettings) -> Result<Option<String>, Lost> {
        let until = session.now() + settings.deadline;
        loop {
            let status = self.status(session, settings).await?;
            if !status.as_deref().is_some_and(is_open) || session.now() >= until {
                return Ok(status);
            }
            session.listen(session.now() + POLL).await?;
        }
    }

    /// How many notifications about its progress have come, since then.
    fn reports(&self, session: &PeerSession, since: Option<Instant>) -> usize {
        let token = token_for(&self.sent.id);
        let is_it = |one: &&Received| {
            since.is_none_or(|since| one.at > since)
                && one.frame.pointer("/params/progressToken") == Some(&token)
        };
        session.received.iter().filter(is_it).count()
    }

    /// What the answer to `tasks/cancel` says.
    fn acknowledged(&self, session: &PeerSession, answer: &Received) -> Finding {
        let says_it = match self.form {
            TaskForm::AskedByClient => status_in(&answer.frame).as_deref() == Some("cancelled"),
            TaskForm::DecidedByServer => !session.wire_format.is_refusal(&answer.frame),
        };
        if says_it {
            return Finding::new(Question::TaskCancelled, Answer::Yes, "");
        }
        let detail = format!("`tasks/cancel` of a task that worked was answered with {}", answer.frame);
        Finding::new(Question::TaskCancelled, Answer::No, detail)
    }
}

/// A question about a task that does not exist.
async fn unknown(session: &mut PeerSession, form: TaskForm, deadline: Duration) -> Result<Finding, Lost> {
    let params = declaring(form, json!({ "taskId": "rescind-no-such-task" }));
    let sent = session.request("tasks/get", params).await?;
    let answer = session.answer(&sent.id, sent.at + deadline).await?;
    Ok(refused(Question::TaskUnknownRefused, answer.as_ref(), deadline))
}

fn refused(question: Question, answer: Option<&Received>, deadline: Duration) -> Finding {
    let Some(answer) = answer else {
        return Finding::new(question, Answer::No, format!("it was not answered within {deadline:?}"));
    };
    if answer.frame.pointer("/error/code").and_then(Value::as_i64) == Some(INVALID_PARAMS) {
        return Finding::new(question, Answer::Yes, "");
    }
    Finding::new(question, Answer::No, format!("it was answered with {}", answer.frame))
}

/// The task after the cancel of its request.
fn goes_on(status: Option<&str>) -> Finding {
    let question = Question::TaskGoesOn;
    match status {
        Some(status) if is_open(status) => Finding::new(question, Answer::Yes, ""),
        Some("cancelled") => {
            let detail = "the cancel of the answered request ended the task";
            Finding::new(question, Answer::No, detail)
        }
        Some(status) => {
            let detail =
                format!("the task was `{status}` before it could be asked about: name one that takes longer");
            Finding::new(question, Answer::Unsure, detail)
        }
        None => {
            Finding::new(question, Answer::No, "`tasks/get` has no status of a task whose handle was given")
        }
    }
}

/// The final status, and the status later.
fn stays(ended: Option<&str>, later: Option<&str>) -> Finding {
    let question = Question::TaskStaysEnded;
    match (ended, later) {
        (Some(ended), _) if is_open(ended) => {
            Finding::new(question, Answer::Unsure, format!("the task was still `{ended}`"))
        }
        (Some(ended), Some(later)) if ended == later => {
            Finding::new(question, Answer::Yes, format!("it stayed `{ended}`"))
        }
        // A store may forget a task that has ended.
        (Some(_), None) => Finding::new(question, Answer::Unsure, "the task was not known any more"),
        (ended, later) => {
            let words = |status: Option<&str>| status.unwrap_or("unknown").to_owned();
            let detail = format!("it was `{}`, and later `{}`", words(ended), words(later));
            Finding::new(question, Answer::No, detail)
        }
    }
}

async fn count(
    session: &mut PeerSession,
    counter: Option<&Counter>,
    settings: &CheckSettings,
) -> Result<Option<i64>, Lost> {
    match counter {
        Some(counter) => counter.read(session, settings.deadline).await,
        None => Ok(None),
    }
}

/// The share of a processor that the task uses, if it is seen in it.
async fn busy(
    session: &mut PeerSession,
    leader: Option<u32>,
    settings: &CheckSettings,
) -> Result<Option<f64>, Lost> {
    if !settings.processor_time {
        return Ok(None);
    }
    Ok(busy_share(session, leader).await?.filter(|share| *share >= BUSY))
}

async fn busy_share(session: &mut PeerSession, leader: Option<u32>) -> Result<Option<f64>, Lost> {
    match leader {
        Some(leader) => share_of_a_processor(session, leader, WATCH / 2).await,
        None => Ok(None),
    }
}

/// What each witness saw.
fn stops_work(
    counter: Option<&Counter>,
    counts: &[Option<i64>],
    (busy, busy_after): (Option<f64>, Option<f64>),
    (before, after): (usize, usize),
) -> Vec<Finding> {
    let by_count = match (counter, counts) {
        (Some(counter), &[Some(first), Some(running), Some(cancelled), Some(later)]) => {
            counter.judge([first, running, cancelled, later])
        }
        _ => None,
    };
    let by_processor = busy.zip(busy_after).and_then(|(busy, after)| {
        let stopped = after < busy / 3.0;
        // In between: other work of the peer, or of the machine.
        (stopped || after > busy / 2.0).then(|| Seen {
            evidence: Evidence::Processor,
            stopped,
            detail: format!(
                "processor time: {:.0} % of a processor before its cancel, {:.0} % after it",
                busy * 100.0,
                after * 100.0
            ),
        })
    });
    let by_progress = (before >= 2 && after != 1).then(|| Seen {
        evidence: Evidence::Progress,
        stopped: after == 0,
        detail: format!("{before} reports of progress before its cancel, {after} after it"),
    });
    let seen = [by_count, by_processor, by_progress].into_iter().flatten();
    let finding = |seen: Seen| {
        let answer = if seen.stopped { Answer::Yes } else { Answer::No };
        Finding {
            evidence: vec![seen.evidence],
            ..Finding::new(Question::TaskStopsWork, answer, seen.detail)
        }
    };
    seen.map(finding).collect()
}
