//! MCP's tasks: a request that goes on after its first answer, and that `tasks/cancel` stops.

use std::time::{Duration, Instant};

use rescind_core::dialect::TaskForm;
use rescind_testkit::runner::{Evidence, TraceLine};
use rescind_testkit::{Answer, ProfileRequest, RequestKind};
use serde_json::{Value, json};

use super::CheckSettings;
use super::baseline::Baselines;
use super::probe::{Finding, MAX_TRACE};
use super::session::{Lost, PeerSession, Received, Sent, token_for};
use super::statements::Question;
use super::task_course::Course;
use super::work::{BUSY, Counter, Seen, share_of_a_processor};

/// How often the status of a task is asked for.
const POLL: Duration = Duration::from_millis(100);

/// Notifications that were on their way when the cancel was answered are no sign of work.
const SETTLES: Duration = Duration::from_millis(100);

/// How long a task that was begun is looked for.
const LATEST_FOUND: Duration = Duration::from_secs(1);

/// The processor time is counted in steps of 10 ms, so that a shorter window shows too little.
const LEAST_WINDOW: Duration = Duration::from_millis(60);

/// The error of a question about a task that is unknown, or that has ended.
const INVALID_PARAMS: i64 = -32_602;

/// The request that is run as a task: the profile's, or else its slow tool call.
pub(super) fn request_of(session: &PeerSession) -> Option<&ProfileRequest> {
    let requests = &session.profile.requests;
    let slow = || requests.get(&RequestKind::Slow).filter(|slow| slow.method == "tools/call");
    requests.get(&RequestKind::Task).or_else(slow)
}

/// A task of the peer.
pub(super) struct Task {
    pub(super) sent: Sent,
    pub(super) id: Value,
    pub(super) form: TaskForm,
    /// The task, as the answer to its request has it.
    pub(super) handle: Value,
}

/// Runs a task to its end, and then begins one whose request is cancelled, cancels it, and looks at it again. `leader`: of
/// the peer's process group, if it is a program.
pub(super) async fn run(
    session: &mut PeerSession,
    baselines: &Baselines,
    leader: Option<u32>,
    settings: &CheckSettings,
) -> Result<Vec<Finding>, Lost> {
    let Some(form) = session.wire_format.facts.dialect.rules().tasks else { return Ok(Vec::new()) };
    let mut findings = vec![unknown(session, form, settings.deadline).await?];
    let mut course = Course::endless(settings.longest);
    let mut first = None;
    let normal = is_slow(session).then(|| baselines.slow_takes());
    // A call that does not end would not end as a task either.
    if normal != Some(None) {
        let from = session.trace.len();
        let mut found = Vec::new();
        let task = match begin(session, form, settings).await? {
            Ok(task) => task,
            Err(finding) => {
                findings.push(finding);
                return Ok(findings);
            }
        };
        course = task.to_its_end(session, settings, &mut found).await?;
        course.at_work = normal.flatten().map_or(course.at_work, |takes| takes.min(course.at_work));
        found.extend(task.asked_without_extension(session, settings.deadline).await?);
        findings.extend(traced(found, session, from));
        first = Some(task).filter(|_| course.ended.is_some());
    }
    let from = session.trace.len();
    let mut cancelled = Cancelled { form, first, course, leader, findings: Vec::new() };
    cancelled.run(session, settings).await?;
    let gives_tasks = cancelled.findings.iter().any(|finding| finding.question == Question::TaskHandle);
    findings.extend(traced(cancelled.findings, session, from));
    if form == TaskForm::DecidedByServer && gives_tasks {
        let from = session.trace.len();
        let found = undeclared(session, form, settings).await?;
        findings.extend(traced(found.into_iter().collect(), session, from));
    }
    Ok(findings)
}

/// Whether the request that becomes a task is the slow one.
fn is_slow(session: &PeerSession) -> bool {
    let of = |request: &ProfileRequest| {
        (
            request.method.clone(),
            request.params.get("name").cloned(),
            request.params.get("arguments").cloned(),
        )
    };
    let slow = session.profile.requests.get(&RequestKind::Slow);
    slow.is_some_and(|slow| request_of(session).is_some_and(|request| of(request) == of(slow)))
}

/// Gives the findings the lines that were sent and received for them: the first and the last, if there are many.
fn traced(mut findings: Vec<Finding>, session: &PeerSession, from: usize) -> Vec<Finding> {
    let lines = session.trace.get(from..).unwrap_or_default();
    let end = lines.len().saturating_sub(MAX_TRACE / 2).max(MAX_TRACE / 2);
    let ends = lines.iter().take(MAX_TRACE / 2).chain(lines.iter().skip(end));
    let trace: Vec<TraceLine> = ends.map(TraceLine::shortened).collect();
    for finding in &mut findings {
        finding.trace.clone_from(&trace);
    }
    findings
}

/// A task that is cancelled.
struct Cancelled {
    form: TaskForm,
    /// The task that has come to its own end.
    first: Option<Task>,
    /// How a task goes that is not cancelled.
    course: Course,
    leader: Option<u32>,
    findings: Vec<Finding>,
}

impl Cancelled {
    async fn run(&mut self, session: &mut PeerSession, settings: &CheckSettings) -> Result<(), Lost> {
        let (leader, step) = (self.leader, self.course.step());
        let counter = Counter::of(&session.profile);
        let mut counts = vec![count(session, counter.as_ref(), settings).await?];
        let task = match begin(session, self.form, settings).await? {
            Ok(task) => task,
            Err(finding) => {
                self.findings.push(finding);
                return Ok(());
            }
        };
        self.findings.push(Finding::new(Question::TaskHandle, Answer::Yes, ""));
        self.findings.extend(task.form_of_the_handle());
        self.findings.extend(task.ids(self.first.as_ref(), leader.is_some()));

        // Over HTTP the stream of the request has ended too.
        session.cancel(&task.sent.id).await?;
        session.listen(session.now() + step).await?;
        let status = task.first_status(session, settings).await?;
        self.findings.push(goes_on(status.as_deref()));
        if !self.may_be_cancelled(session) {
            let why = "the peer does not declare `tasks.cancel`";
            let questions = [
                Question::TaskCancelled,
                Question::TaskStopsWork,
                Question::TaskStaysEnded,
                Question::TaskEndedCancelRefused,
            ];
            self.findings.extend(questions.map(|question| Finding::not_asked(question, why)));
            return Ok(());
        }
        if !status.as_deref().is_some_and(is_open) {
            return Ok(());
        }

        counts.push(count(session, counter.as_ref(), settings).await?);
        let busy = busy(session, leader, step, settings).await?;
        let before = task.reports(session, None).len();
        let Some(answer) = task.ask(session, "tasks/cancel", settings).await? else {
            let detail = format!("`tasks/cancel` was not answered within {:?}", settings.deadline);
            self.findings.push(Finding::new(Question::TaskCancelled, Answer::No, detail));
            return Ok(());
        };
        let acknowledged = task.acknowledged(session, &answer, &self.course, settings).await?;
        self.findings.push(acknowledged);
        if session.wire_format.is_refusal(&answer.frame) {
            return Ok(());
        }
        self.findings.extend(task.form_of_a_cancel(&answer));
        let ended = task.end(session, settings).await?;
        // The answer to the cancel has the task, and may say already how it has ended.
        let said = status_in(&answer.frame).filter(|status| !is_open(status));
        let ended = said.or(ended);
        // In the other revision the status follows the answer.
        let stopped_at = match self.form {
            TaskForm::AskedByClient => answer.at,
            TaskForm::DecidedByServer => session.now(),
        };
        let settled = stopped_at + SETTLES;
        session.listen(session.now() + step).await?;
        counts.push(count(session, counter.as_ref(), settings).await?);
        let busy_after = if busy.is_some() { busy_share(session, leader, step).await? } else { None };
        let since_begin = |at: Instant| at.saturating_duration_since(task.sent.at);
        let busy_until = since_begin(session.now());
        session.listen(settled + step * 2).await?;
        counts.push(count(session, counter.as_ref(), settings).await?);
        let counted_until = since_begin(session.now());

        let later = task.status(session, settings).await?;
        let later = match self.course.latest_end().filter(|_| is_cancelled(later.as_deref())) {
            Some(latest) => {
                session.listen(task.sent.at + latest).await?;
                task.status(session, settings).await?
            }
            None => later,
        };
        self.findings.push(self.stays(ended.as_deref(), later.as_deref(), settings.longest));
        let after = task.reports(session, Some(settled)).len();
        let progress =
            settings.progress.then(|| self.by_progress((before, after), since_begin(settled), step));
        let seen = [
            by_count(counter.as_ref(), &counts).map(|seen| (seen, counted_until)),
            by_processor(busy, busy_after).map(|seen| (seen, busy_until)),
            progress.flatten(),
        ];
        self.findings.extend(self.stops_work(seen.into_iter().flatten().collect()));
        if self.form == TaskForm::AskedByClient {
            let again = task.ask(session, "tasks/cancel", settings).await?;
            self.findings.push(refused(Question::TaskEndedCancelRefused, again.as_ref(), settings.deadline));
        } else if self.first.is_none() {
            self.findings.extend(task.asked_without_extension(session, settings.deadline).await?);
        }
        Ok(())
    }

    /// Whether the peer serves `tasks/cancel`. In 2026-07-28 whoever declares tasks does.
    fn may_be_cancelled(&self, session: &PeerSession) -> bool {
        let declared = |answer: &Value| answer.pointer("/result/capabilities/tasks/cancel").is_some();
        self.form == TaskForm::DecidedByServer || session.opening.as_ref().is_none_or(declared)
    }

    /// The final status, and the status later: after the time at which the task would have ended, if that is known.
    fn stays(&self, ended: Option<&str>, later: Option<&str>, longest: Duration) -> Finding {
        let question = Question::TaskStaysEnded;
        match (ended, later) {
            (Some(ended), _) if is_open(ended) => {
                Finding::new(question, Answer::Unsure, format!("the task was still `{ended}`"))
            }
            (Some("cancelled"), Some("cancelled")) if self.course.ended.is_none() => Finding::new(
                question,
                Answer::Unsure,
                format!(
                    "it stayed `cancelled`, but its work may end later: name a task that ends within {longest:?}"
                ),
            ),
            (Some(ended), Some(later)) if ended == later => {
                Finding::new(question, Answer::Yes, format!("it stayed `{ended}`"))
            }
            // A store may forget a task that has ended.
            (_, None) => Finding::new(question, Answer::Unsure, "the task was not known any more"),
            (ended, Some(later)) => {
                let detail = format!("it was `{}`, and later `{later}`", ended.unwrap_or("unknown"));
                Finding::new(question, Answer::No, detail)
            }
        }
    }

    /// What the reports of progress show, and until when they were looked at.
    fn by_progress(
        &self,
        (before, after): (usize, usize),
        settled: Duration,
        step: Duration,
    ) -> Option<(Seen, Duration)> {
        let expected = self.course.reports_after(settled);
        let detail = format!("{before} reports of progress before its cancel, {after} after it");
        let seen = Seen { evidence: Evidence::Progress, stopped: after == 0, detail };
        match after {
            // One report may have been on its way.
            1 => None,
            // A task that is not cancelled reports later than that, before its end.
            0 if expected >= 2 => Some((seen, settled)),
            0 => (before >= 2).then_some((seen, settled + step * 2)),
            _ => Some((seen, settled)),
        }
    }

    /// What each witness saw, and until when it looked. Work that came to its own end has stopped as well, which says nothing.
    fn stops_work(&self, seen: Vec<(Seen, Duration)>) -> Vec<Finding> {
        let tells = |(seen, until): &(Seen, Duration)| !seen.stopped || self.course.works_after(*until);
        let (telling, others): (Vec<_>, Vec<_>) = seen.into_iter().partition(tells);
        if telling.is_empty() {
            let why = "its work may have ended by itself: name a task that takes longer (`--slow`, `[requests.task]`)";
            let finding = Finding {
                evidence: Vec::new(),
                ..Finding::new(Question::TaskStopsWork, Answer::Unsure, why)
            };
            return others.first().map(|_| finding).into_iter().collect();
        }
        let finding = |(seen, _): (Seen, Duration)| {
            let answer = if seen.stopped { Answer::Yes } else { Answer::No };
            Finding {
                evidence: vec![seen.evidence],
                ..Finding::new(Question::TaskStopsWork, answer, seen.detail)
            }
        };
        telling.into_iter().map(finding).collect()
    }
}

fn is_cancelled(status: Option<&str>) -> bool {
    status == Some("cancelled")
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
    let mut params = session.params_for(&request, &id);
    // A peer that reports progress of a request may report that of a task, if it gets a token.
    if let (true, Some(members)) =
        (session.profile.requests.contains_key(&RequestKind::Progress), params.as_object_mut())
    {
        let meta = members.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert("progressToken".to_owned(), token_for(&id));
        }
    }
    if let (TaskForm::AskedByClient, Some(members)) = (form, params.as_object_mut()) {
        members.entry("task").or_insert_with(|| json!({}));
    }
    let frame = session.wire_format.request_with(&id, &request.method, declaring(form, params));
    session.send(frame).await?;
    let sent = Sent { id, at: session.now() };
    let wait = settings.deadline + settings.longest;
    let Some(answer) = session.answer(&sent.id, sent.at + wait).await? else {
        let detail = format!("the request was not answered within {wait:?}");
        return Ok(Err(Finding::new(Question::TaskHandle, Answer::No, detail)));
    };
    Ok(match handle(form, &answer.frame) {
        Some((id, handle)) => Ok(Task { sent, id: id.clone(), form, handle: handle.clone() }),
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

/// The params with the declaration of the extension, which each request about tasks has where the server decides.
fn declaring(form: TaskForm, mut params: Value) -> Value {
    if let (TaskForm::DecidedByServer, Some(members)) = (form, params.as_object_mut()) {
        let meta = members.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
            meta.insert("io.modelcontextprotocol/clientCapabilities".to_owned(), capabilities);
        }
    }
    params
}

/// The task's id and the task, if this answer is a handle.
pub(super) fn handle(form: TaskForm, answer: &Value) -> Option<(&Value, &Value)> {
    let result = answer.get("result")?;
    let task = match form {
        TaskForm::AskedByClient => result.get("task")?,
        TaskForm::DecidedByServer => {
            Some(result).filter(|_| result.get("resultType").is_some_and(|it| it == "task"))?
        }
    };
    Some((task.get("taskId").filter(|id| id.is_string())?, task))
}

pub(super) fn is_open(status: &str) -> bool {
    matches!(status, "working" | "input_required")
}

pub(super) fn status_in(answer: &Value) -> Option<String> {
    answer.pointer("/result/status")?.as_str().map(str::to_owned)
}

impl Task {
    pub(super) async fn ask(
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

    /// The status of a task that was begun just now. In this revision a server may find it late, which is another fault.
    async fn first_status(
        &self,
        session: &mut PeerSession,
        settings: &CheckSettings,
    ) -> Result<Option<String>, Lost> {
        let until = session.now() + LATEST_FOUND;
        loop {
            let status = self.status(session, settings).await?;
            let is_known = status.is_some() || self.form == TaskForm::AskedByClient;
            if is_known || session.now() >= until {
                return Ok(status);
            }
            session.listen(session.now() + POLL).await?;
        }
    }

    /// When notifications about its progress have come, since then.
    pub(super) fn reports(&self, session: &PeerSession, since: Option<Instant>) -> Vec<Instant> {
        let token = token_for(&self.sent.id);
        let is_it = |one: &&Received| {
            since.is_none_or(|since| one.at > since)
                && one.frame.pointer("/params/progressToken") == Some(&token)
        };
        session.received.iter().filter(is_it).map(|one| one.at).collect()
    }

    /// What the answer to `tasks/cancel` says. A task that has ended before is refused, and that is no fault.
    async fn acknowledged(
        &self,
        session: &mut PeerSession,
        answer: &Received,
        course: &Course,
        settings: &CheckSettings,
    ) -> Result<Finding, Lost> {
        let question = Question::TaskCancelled;
        let is_refused = session.wire_format.is_refusal(&answer.frame);
        let took = answer.at.saturating_duration_since(self.sent.at);
        let (says_it, status) = match (self.form, is_refused) {
            (_, true) => (false, self.status(session, settings).await?),
            (TaskForm::AskedByClient, false) => {
                let status = status_in(&answer.frame);
                // A server that ends a task otherwise at its cancel does so long before its end.
                let ended = status.clone().filter(|status| is_open(status) || !course.works_after(took * 2));
                (is_cancelled(status.as_deref()), ended.or_else(|| Some("working".to_owned())))
            }
            (TaskForm::DecidedByServer, false) => (true, None),
        };
        if says_it {
            return Ok(Finding::new(question, Answer::Yes, ""));
        }
        let said = format!("`tasks/cancel` of a task that worked was answered with {}", answer.frame);
        Ok(match status {
            Some(status) if is_open(&status) => Finding::new(question, Answer::No, said),
            status => {
                let status = status.map_or_else(|| "unknown".to_owned(), |status| format!("`{status}`"));
                let why = format!(
                    "the task was {status} after its cancel and may have ended before it: name one that takes longer (`--slow`, \
                     `[requests.task]`)"
                );
                Finding::new(question, Answer::Unsure, why)
            }
        })
    }
}

/// The same request from a client that does not declare the extension.
async fn undeclared(
    session: &mut PeerSession,
    form: TaskForm,
    settings: &CheckSettings,
) -> Result<Option<Finding>, Lost> {
    let question = Question::TaskOnlyDeclared;
    let Some(request) = request_of(session).cloned() else { return Ok(None) };
    let id = session.fresh();
    let params = session.params_for(&request, &id);
    session.send(session.wire_format.request_with(&id, &request.method, params)).await?;
    let sent = Sent { id, at: session.now() };
    let Some(answer) = session.answer(&sent.id, sent.at + settings.deadline).await? else {
        // It runs as any other, and is not needed.
        session.cancel(&sent.id).await?;
        return Ok(Some(Finding::new(question, Answer::Yes, "")));
    };
    let Some((id, handle)) = handle(form, &answer.frame) else {
        return Ok(Some(Finding::new(question, Answer::Yes, "")));
    };
    let task = Task { sent, id: id.clone(), form, handle: handle.clone() };
    task.ask(session, "tasks/cancel", settings).await?;
    Ok(Some(Finding::new(question, Answer::No, format!("it was answered with {}", answer.frame))))
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
    window: Duration,
    settings: &CheckSettings,
) -> Result<Option<f64>, Lost> {
    if !settings.processor_time || window < LEAST_WINDOW {
        return Ok(None);
    }
    Ok(busy_share(session, leader, window).await?.filter(|share| *share >= BUSY))
}

async fn busy_share(
    session: &mut PeerSession,
    leader: Option<u32>,
    window: Duration,
) -> Result<Option<f64>, Lost> {
    match leader {
        Some(leader) => share_of_a_processor(session, leader, window).await,
        None => Ok(None),
    }
}

fn by_count(counter: Option<&Counter>, counts: &[Option<i64>]) -> Option<Seen> {
    match (counter, counts) {
        (Some(counter), &[Some(first), Some(running), Some(cancelled), Some(later)]) => {
            counter.judge([first, running, cancelled, later])
        }
        _ => None,
    }
}

fn by_processor(busy: Option<f64>, after: Option<f64>) -> Option<Seen> {
    let (busy, after) = busy.zip(after)?;
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
}
