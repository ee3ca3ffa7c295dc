//! A task that nobody cancels: how long it works, and what the messages about it must have.

use std::time::Duration;

use rescind_core::dialect::TaskForm;
use rescind_testkit::Answer;
use serde_json::{Value, json};

use super::CheckSettings;
use super::probe::Finding;
use super::session::{Lost, PeerSession, Received, Sent};
use super::statements::Question;
use super::tasks::{Task, is_open, status_in};
use super::work::WATCH;

/// The most time between two questions about the status of a task, and the least.
const POLL: Duration = Duration::from_millis(100);
const LEAST_POLL: Duration = Duration::from_millis(20);

/// An end within this of what is watched may be the cause of what is seen.
const MARGIN: Duration = Duration::from_millis(50);

/// A task that was known is forgotten if it is refused so many times in a row.
const FORGOTTEN: usize = 3;

/// An id with less entropy can be guessed.
const LEAST_BITS: f64 = 48.0;

/// What a request must not be served with, where the client does not declare the extension.
const MISSING_CAPABILITY: i64 = -32_021;

/// How a task goes that nobody cancels.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// It was seen at work this long after its request was sent.
    pub(super) at_work: Duration,
    /// It was seen to have ended after this time. `None`: not within the time of the baseline.
    pub(super) ended: Option<Duration>,
    /// When its progress was reported, since its request was sent.
    pub(super) reports: Vec<Duration>,
}

impl Course {
    /// That of a request which is known not to end within this time.
    pub(super) const fn endless(longest: Duration) -> Self {
        Self { at_work: longest, ended: None, reports: Vec::new() }
    }

    /// The unit of time in which a task is watched, so that it is cancelled early and seen for a while after that.
    pub(super) fn step(&self) -> Duration {
        (self.at_work / 6).clamp(Duration::from_millis(30), WATCH / 2)
    }

    /// Whether a task that is not cancelled still works so long after its request.
    pub(super) fn works_after(&self, time: Duration) -> bool {
        time + MARGIN.max(self.at_work / 10) <= self.at_work
    }

    /// How many reports of its progress come later than that, and surely while it works.
    pub(super) fn reports_after(&self, time: Duration) -> usize {
        self.reports.iter().filter(|at| **at > time && self.works_after(**at)).count()
    }

    /// When a task must have come to its own end, even if it is somewhat slower.
    pub(super) fn latest_end(&self) -> Option<Duration> {
        self.ended.map(|ended| ended + (ended / 4).max(WATCH * 2))
    }
}

impl Task {
    /// Looks at the task until its own end.
    pub(super) async fn to_its_end(
        &self,
        session: &mut PeerSession,
        settings: &CheckSettings,
        findings: &mut Vec<Finding>,
    ) -> Result<Course, Lost> {
        let mut course = Course { at_work: Duration::ZERO, ended: None, reports: Vec::new() };
        let first = self.ask(session, "tasks/get", settings).await?;
        findings.extend(self.found_at_once(first.as_ref()));
        findings.extend(first.as_ref().and_then(|answer| self.form_of_a_get(answer)));
        let result = match self.form {
            TaskForm::AskedByClient => {
                Some(session.request("tasks/result", json!({ "taskId": self.id })).await?)
            }
            TaskForm::DecidedByServer => None,
        };
        let mut early = None;
        let mut refused = Vec::new();
        let until = self.sent.at + settings.longest;
        while course.ended.is_none() && session.now() < until {
            let asked = session.now();
            let result_before = result.as_ref().and_then(|sent| first_answer(session, sent));
            let answer = self.ask(session, "tasks/get", settings).await?;
            let status = answer.as_ref().and_then(|answer| status_in(&answer.frame));
            let seen = session.now().saturating_duration_since(self.sent.at);
            match status {
                Some(status) if is_open(&status) => {
                    course.at_work = asked.saturating_duration_since(self.sent.at);
                    refused.clear();
                    if let (None, Some(answer)) = (&early, result_before) {
                        early = Some((answer, status));
                    }
                }
                Some(_) => course.ended = Some(seen),
                // A server may forget a task that has ended.
                None => {
                    refused.push(seen);
                    let is_forgotten = refused.len() >= FORGOTTEN && !course.at_work.is_zero();
                    course.ended = refused.first().copied().filter(|_| is_forgotten);
                }
            }
            session.listen(session.now() + (seen / 8).clamp(LEAST_POLL, POLL)).await?;
        }
        let reports = self.reports(session, None);
        course.reports = reports.iter().map(|at| at.saturating_duration_since(self.sent.at)).collect();
        if course.ended.is_none() {
            self.ask(session, "tasks/cancel", settings).await?;
        }
        if let Some(sent) = result {
            self.result(session, &sent, &course, early, settings, findings).await?;
        }
        Ok(course)
    }

    /// What the answer to `tasks/result` shows. `early`: one that came before the end, and the status after it.
    async fn result(
        &self,
        session: &mut PeerSession,
        sent: &Sent,
        course: &Course,
        early: Option<(Received, String)>,
        settings: &CheckSettings,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Lost> {
        let question = Question::TaskResultAtEnd;
        if let Some((answer, status)) = early {
            let detail = format!("it was answered with {} while the task was `{status}`", answer.frame);
            findings.push(Finding::new(question, Answer::No, detail));
            return Ok(());
        }
        if course.ended.is_none() {
            return Ok(());
        }
        let deadline = settings.deadline;
        let Some(answer) = session.answer(&sent.id, session.now() + deadline).await? else {
            let detail = format!("it was not answered within {deadline:?} of the end of the task");
            findings.push(Finding::new(question, Answer::No, detail));
            return Ok(());
        };
        findings.push(Finding::new(question, Answer::Yes, ""));
        if !session.wire_format.is_refusal(&answer.frame) {
            let related = "/result/_meta/io.modelcontextprotocol~1related-task/taskId";
            let is_named = answer.frame.pointer(related) == Some(&self.id);
            findings.push(holds(Question::TaskResultRelated, is_named, &answer.frame));
        }
        Ok(())
    }

    fn found_at_once(&self, answer: Option<&Received>) -> Option<Finding> {
        let answer = answer.filter(|_| self.form == TaskForm::DecidedByServer)?;
        let is_unknown = answer.frame.pointer("/error/code").and_then(Value::as_i64) == Some(-32_602);
        Some(holds(Question::TaskFoundAtOnce, !is_unknown, &answer.frame))
    }

    /// Whether an answer to `tasks/get` has what its form demands. `None`: it has no task.
    pub(super) fn form_of_a_get(&self, answer: &Received) -> Option<Finding> {
        status_in(&answer.frame)?;
        let result = answer.frame.get("result")?;
        Some(match self.form {
            TaskForm::AskedByClient => {
                let ttl = result.get("ttl").is_some_and(|ttl| ttl.is_null() || ttl.is_number());
                holds(Question::TaskHasTimes, ttl && has_times(result), &answer.frame)
            }
            TaskForm::DecidedByServer => is_complete(answer),
        })
    }

    /// What the handle must have.
    pub(super) fn form_of_the_handle(&self) -> Vec<Finding> {
        match self.form {
            TaskForm::AskedByClient => {
                let begins = self.handle.get("status").and_then(Value::as_str) == Some("working");
                vec![
                    holds(Question::TaskBeginsWorking, begins, &self.handle),
                    holds(Question::TaskHasTimes, has_times(&self.handle), &self.handle),
                ]
            }
            TaskForm::DecidedByServer => Vec::new(),
        }
    }

    /// What the acknowledgement of a cancel must have.
    pub(super) fn form_of_a_cancel(&self, answer: &Received) -> Vec<Finding> {
        let Some(result) = answer.frame.get("result") else { return Vec::new() };
        match self.form {
            TaskForm::AskedByClient => Vec::new(),
            TaskForm::DecidedByServer => {
                let is_other = |name: &String| !["resultType", "_meta"].contains(&name.as_str());
                let is_empty = result
                    .as_object()
                    .is_some_and(|members| members.keys().filter(|name| is_other(name)).count() == 0);
                vec![holds(Question::TaskCancelEmpty, is_empty, &answer.frame), is_complete(answer)]
            }
        }
    }

    /// A question about the task by a client that does not declare the extension.
    pub(super) async fn asked_without_extension(
        &self,
        session: &mut PeerSession,
        deadline: Duration,
    ) -> Result<Option<Finding>, Lost> {
        if self.form == TaskForm::AskedByClient {
            return Ok(None);
        }
        let sent = session.request("tasks/get", json!({ "taskId": self.id })).await?;
        let answer = session.answer(&sent.id, sent.at + deadline).await?;
        Ok(answer.map(|answer| {
            let code = answer.frame.pointer("/error/code").and_then(Value::as_i64);
            holds(Question::TaskNeedsExtension, code == Some(MISSING_CAPABILITY), &answer.frame)
        }))
    }

    /// The ids of two tasks in a row. `is_ours`: the program was started by the check, so that there is no authorization
    /// to which it could bind its tasks. The other task has ended and is not forgotten.
    pub(super) fn ids(&self, other: Option<&Self>, is_ours: bool) -> Vec<Finding> {
        let text = |task: &Self| task.id.as_str().unwrap_or_default().to_owned();
        let (id, other) = (text(self), other.map(text));
        let both = || other.as_ref().map_or_else(String::new, |other| format!(" after {other:?}"));
        let mut findings = Vec::new();
        if let Some(other) = &other {
            let is_new = self.handle.get("status").and_then(Value::as_str) == Some("working");
            let is_same = id == *other && is_new;
            let detail = if is_same { format!("two tasks have the id {id:?}") } else { String::new() };
            let answer = if is_same { Answer::No } else { Answer::Yes };
            findings.push(Finding::new(Question::TaskIdsUnique, answer, detail));
        }
        let question = Question::TaskIdsSecret;
        findings.push(if self.form == TaskForm::AskedByClient && !is_ours {
            let why = "the endpoint may bind its tasks to an authorization";
            Finding::not_asked(question, why)
        } else if bits(&id, other.as_deref()) < LEAST_BITS {
            Finding::new(question, Answer::No, format!("a task has the id {id:?}{}", both()))
        } else {
            Finding::new(question, Answer::Yes, "")
        });
        findings
    }
}

fn first_answer(session: &PeerSession, sent: &Sent) -> Option<Received> {
    session.answers(&sent.id).first().map(|answer| (*answer).clone())
}

fn has_times(task: &Value) -> bool {
    ["createdAt", "lastUpdatedAt"].iter().all(|name| task.get(*name).is_some_and(Value::is_string))
}

fn is_complete(answer: &Received) -> Finding {
    let result_type = answer.frame.pointer("/result/resultType");
    holds(Question::TaskResultTypes, result_type.is_some_and(|found| found == "complete"), &answer.frame)
}

fn holds(question: Question, holds: bool, what: &Value) -> Finding {
    if holds {
        return Finding::new(question, Answer::Yes, "");
    }
    Finding::new(question, Answer::No, format!("this came: {what}"))
}

/// At most so much entropy does the part of an id have in which it differs from that of the task before it. Two random
/// ids may be the same in a character at each end.
fn bits(id: &str, other: Option<&str>) -> f64 {
    let id: Vec<char> = id.chars().collect();
    let mut part = id.as_slice();
    let mut same_ends = 0;
    if let Some(other) = other {
        let mut other: Vec<char> = other.chars().collect();
        while let ([first, rest @ ..], Some(begin)) = (part, other.first()) {
            if first != begin {
                break;
            }
            part = rest;
            other.remove(0);
        }
        while let ([rest @ .., last], Some(end)) = (part, other.last()) {
            if last != end {
                break;
            }
            part = rest;
            other.pop();
        }
        same_ends = (id.len() - part.len()).min(2);
    }
    let all = |is_it: fn(&char) -> bool| part.iter().all(is_it);
    let letters: f64 = if all(char::is_ascii_digit) {
        10.0
    } else if all(char::is_ascii_hexdigit) {
        16.0
    } else if all(|letter| !letter.is_ascii_uppercase()) || all(|letter| !letter.is_ascii_lowercase()) {
        36.0
    } else {
        64.0
    };
    let length = u32::try_from(part.len() + same_ends).unwrap_or(u32::MAX);
    f64::from(length) * letters.log2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_counts_can_be_guessed_and_a_random_one_cannot() {
        for (id, other) in [
            ("2", Some("1")),
            ("task-00000000000000000002", Some("task-00000000000000000001")),
            ("same-same-same-same", Some("same-same-same-same")),
            ("task-1764529805321", Some("task-1764529804123")),
            ("3f2b8c1d", Some("90ad17e4")),
            ("7", None),
            // The time, and the same machine.
            ("2b1d7a10-cd6f-11f0-8de9-0242ac120002", Some("2b1a4c22-cd6f-11f0-8de9-0242ac120002")),
        ] {
            assert!(bits(id, other) < LEAST_BITS, "{id} {other:?}");
        }
        for (id, other) in [
            ("786512e2-9e0d-44bd-8f29-789f320fe840", Some("1b671a64-40d5-491e-99b0-da01ff1f3341")),
            ("0192f0c1-1c3a-7b6e-9d2f-3a5b7c9d1e2f", Some("0192f0c1-1b2c-7a1d-8e4f-90ab12cd34ef")),
            ("V1StGXR8_Z5jdHi", Some("V1xAq0PbTz9LkWs")),
            ("9f86d081884c7d659a2feaa0c55ad015", None),
        ] {
            assert!(bits(id, other) >= LEAST_BITS, "{id} {other:?}");
        }
    }

    #[test]
    fn a_task_is_watched_for_the_time_in_which_it_surely_works() {
        let course = Course {
            at_work: Duration::from_millis(600),
            ended: Some(Duration::from_millis(650)),
            reports: [100, 300, 500, 590].map(Duration::from_millis).to_vec(),
        };
        assert_eq!(course.step(), Duration::from_millis(100));
        assert!(course.works_after(Duration::from_millis(540)));
        assert!(!course.works_after(Duration::from_millis(541)));
        assert_eq!(course.reports_after(Duration::from_millis(200)), 2);
        assert_eq!(course.latest_end(), Some(Duration::from_millis(1_650)));
    }
}
