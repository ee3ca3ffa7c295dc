//! The sessions with a peer, and how findings become facts.

use rescind_testkit::runner::{Abilities, DeviationSeen, Direction, Evidence, Subject as _, TraceLine};
use rescind_testkit::wire_format::WireFormat;
use rescind_testkit::{Answer, Fact, Profile, RequestKind, Scenario};
use serde_json::Value;

use super::baseline::{Baselines, default_quick};
use super::probe::Finding;
use super::session::{Lost, PeerSession};
use super::statements::{Question, deviation_source};
use super::work::limited_to;
use super::{CheckSettings, PeerSource, Started, statements};

/// Opens sessions with the peer and puts the questions.
pub(super) struct Checker<'a, P> {
    pub(super) wire_format: WireFormat,
    /// The scenarios that are played.
    pub(super) scenarios: Vec<&'a Scenario>,
    pub(super) source: &'a mut P,
    pub(super) settings: &'a CheckSettings,
    pub(super) on_progress: &'a mut (dyn FnMut(&str) + Send),
    /// The peer is our own fixture.
    pub(super) is_fixture: bool,
    /// The peer did not declare cancellation, where no cancel may be sent then.
    pub(super) takes_no_cancels: bool,
    /// The peer declared that its requests can become tasks.
    pub(super) runs_tasks: bool,
    /// The error with which a cancelled request is answered, if it is not the dialect's.
    pub(super) cancelled_error: Option<Value>,
    pub(super) findings: Vec<Finding>,
    /// The abilities and the profile of the session that was opened last.
    pub(super) opened: Option<(Abilities, Profile)>,
    /// The first bytes that are not a message, from all sessions.
    pub(super) noise: Option<String>,
    /// What the peer did against the form of messages: the first of each kind, from all sessions.
    pub(super) deviations: Vec<DeviationSeen>,
}

impl<'a, P: PeerSource> Checker<'a, P> {
    pub(super) fn new(
        scenarios: Vec<&'a Scenario>,
        wire_format: WireFormat,
        source: &'a mut P,
        settings: &'a CheckSettings,
        on_progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> Self {
        Self {
            scenarios,
            wire_format,
            source,
            settings,
            on_progress,
            is_fixture: false,
            takes_no_cancels: false,
            runs_tasks: false,
            cancelled_error: None,
            findings: Vec::new(),
            opened: None,
            noise: None,
            deviations: Vec::new(),
        }
    }

    /// Starts the peer, with the profile that it is asked by.
    pub(super) fn start(&mut self) -> Started {
        let mut started = self.source.start();
        if let (true, Ok(profile)) = (self.is_fixture, Profile::fixture()) {
            started.profile = profile;
        }
        let witness = started.profile.witness;
        started.profile.witness =
            witness.and_then(|witness| limited_to(witness, self.settings.command, self.settings.request));
        let quick = default_quick(self.wire_format);
        started.profile.requests.entry(RequestKind::Quick).or_insert(quick);
        started
    }

    /// Whether the peer says that it is the fixture of this kit.
    pub(super) async fn is_our_fixture(&self, session: &mut PeerSession) -> bool {
        let said = self.declaration(session).await;
        said.is_some_and(|said| said.to_string().contains("\"rescind-fixture\""))
    }

    /// Whether the peer declares that its requests can become tasks.
    pub(super) async fn declares_tasks(&self, session: &mut PeerSession) -> bool {
        let Some(place) = self.wire_format.task_declaration() else { return false };
        self.declaration(session).await.is_some_and(|said| said.pointer(place).is_some())
    }

    /// What the peer says it can do: when its session was opened, or asked about it.
    async fn declaration(&self, session: &mut PeerSession) -> Option<Value> {
        if session.opening.is_some() {
            return session.opening.clone();
        }
        let method = self.wire_format.facts.discovery?;
        let sent = session.request(method, serde_json::json!({})).await.ok()?;
        let answer = session.needed_answer(method, &sent, self.settings.deadline).await.ok()??;
        Some(answer.frame)
    }

    /// Opens a new session.
    pub(super) async fn open(&mut self) -> Result<PeerSession, Lost> {
        let started = self.start();
        let session = PeerSession::open(started, self.wire_format, self.settings.starting()).await?;
        self.opened = Some((session.subject.abilities(), session.profile.clone()));
        Ok(session)
    }

    /// Opens a session that is ready for work: it has answered one quick request.
    pub(super) async fn open_warm(&mut self) -> Result<PeerSession, Lost> {
        let mut session = self.open().await?;
        let quick = session.send_kind(RequestKind::Quick).await?;
        let patience = self.settings.starting();
        match session.answer(&quick.id, quick.at + patience).await? {
            Some(_) => Ok(session),
            None => Err(Lost(format!("a quick request was not answered within {patience:?}"))),
        }
    }

    /// Looks for what came in a session after it was asked about.
    pub(super) fn look_back(&mut self, session: &PeerSession) {
        if self.noise.is_none() {
            self.noise = session.noise.first().cloned();
        }
        self.deviates(&session.deviations);
        // The answer does not depend on this: how long a session stays open, and so what it still sees, is chance.
        let late = session.silenced.iter().filter(|id| !session.answers(id).is_empty()).count();
        let silent = |finding: &&mut Finding| {
            finding.question == Question::StaysSilent && finding.answer == Answer::Yes
        };
        if late > 0 {
            if let Some(finding) = self.findings.iter_mut().find(silent) {
                let detail = &finding.detail;
                finding.detail =
                    format!("{detail}; {late} were answered later, when silence was no longer judged");
            }
        }
    }

    pub(super) fn deviates(&mut self, seen: &[DeviationSeen]) {
        for one in seen {
            if self.deviations.iter().all(|known| known.deviation != one.deviation) {
                self.deviations.push(one.clone());
            }
        }
    }

    /// Ends a session: a running peer sees that its client leaves.
    pub(super) async fn close(&mut self, mut session: PeerSession) {
        self.look_back(&session);
        if self.source.process_group().is_none() {
            session.subject.leave().await;
        }
    }

    /// The facts, one for each question that makes sense in the dialect.
    pub(super) fn facts(&mut self, baselines: &Baselines) -> Vec<Fact> {
        self.add_what_follows(baselines);
        let asked = Question::ALL.into_iter().filter(|question| {
            question.applies(self.wire_format.facts) && (self.runs_tasks || !question.is_about_tasks())
        });
        let mut facts: Vec<Fact> = asked.map(|question| self.fact(question, baselines)).collect();
        statements::resolve_contradictions(&mut facts);
        facts
    }

    /// What other findings show.
    fn add_what_follows(&mut self, baselines: &Baselines) {
        let forms = Question::FORMS.map(|question| self.form_of_messages(question));
        self.findings.extend(forms);
        if let Some(concurrent) = baselines.concurrent {
            let answer = if concurrent { Answer::Yes } else { Answer::No };
            self.findings.push(Finding::new(Question::ServesConcurrently, answer, ""));
        }
        if !self.findings.iter().any(|finding| finding.question == Question::AnswersOnce) {
            self.findings.push(Finding::new(Question::AnswersOnce, Answer::Yes, ""));
        }
        // A witness knows more than silence.
        let stopped = self.findings.iter().find(|finding| finding.question == Question::StopsWork).cloned();
        let running = self.findings.iter_mut().find(|finding| finding.question == Question::CancelsRunning);
        if let (Some(stopped), Some(running)) = (stopped, running) {
            if running.answer == Answer::Unsure
                && running.evidence.is_empty()
                && stopped.answer == Answer::Yes
            {
                running.answer = Answer::Yes;
                running.detail = stopped.detail;
                running.evidence = stopped.evidence;
            }
        }
    }

    /// What all messages show together of their form.
    fn form_of_messages(&self, question: Question) -> Finding {
        if let Some(noise) = self.noise.as_ref().filter(|_| question == Question::CleanOutput) {
            let detail = format!("the peer wrote this, which is not a message: {noise}");
            return Finding::new(question, Answer::No, detail);
        }
        let shows = |seen: &&DeviationSeen| Question::of_deviation(seen.deviation) == question;
        let Some(seen) = self.deviations.iter().find(shows) else {
            return Finding::new(question, Answer::Yes, "");
        };
        let mut finding = Finding::new(question, Answer::No, format!("{}: {}", seen.deviation, seen.sent));
        finding.source = deviation_source(seen.deviation, self.wire_format.facts);
        finding.trace.push(TraceLine::new(Direction::Received, seen.sent.clone()));
        finding
    }

    /// Tells what was seen only while the scenarios were played.
    pub(super) fn add_what_came_later(&self, facts: &mut [Fact]) {
        for question in Question::FORMS {
            let name = question.asked(self.wire_format.facts).name;
            let known = facts.iter_mut().find(|fact| fact.name == name && fact.answer == Answer::Yes);
            let finding = self.form_of_messages(question);
            if let (Some(known), Answer::No) = (known, finding.answer) {
                *known = self.fact_of(finding);
            }
        }
    }

    fn why_not_asked(&self, question: Question, baselines: &Baselines) -> &'static str {
        match question {
            _ if self.takes_no_cancels => "the peer declares no cancellation, so no cancel may be sent",
            Question::ProgressEndsWithAnswer if self.is_fixture => {
                "the fixture's scenarios look at its progress"
            }
            Question::ProgressEndsWithAnswer if baselines.progress.is_none() => {
                "it needs a request that reports progress (`--progress`)"
            }
            Question::TurnCancelled
            | Question::TurnEndsSoon
            | Question::OtherTurnsUntouched
            | Question::NextTurnServed
                if self.is_fixture =>
            {
                "the fixture's scenarios look at its turns"
            }
            Question::TurnCancelled
            | Question::TurnEndsSoon
            | Question::OtherTurnsUntouched
            | Question::NextTurnServed
                if baselines.slow.as_ref().is_none_or(|slow| slow.method != "session/prompt") =>
            {
                "it needs a slow request that is a turn (`--slow 'session/prompt ..'`)"
            }
            _ if baselines.slow.is_none() && !question.is_about_tasks() => {
                "it needs a slow request (`--slow`)"
            }
            Question::StopsWork => {
                "no witness saw the work: it uses little processor time, reports no progress, and others are served beside it"
            }
            Question::TaskStopsWork => "no witness saw the work of a task",
            Question::TaskResultAtEnd | Question::TaskResultRelated => {
                "no task was seen to end with a result"
            }
            Question::TaskIdsUnique => "no two tasks were begun",
            question if question.is_about_tasks() => "no task was begun and cancelled",
            Question::CancelsIdZero => "no cancel was seen to take effect",
            Question::OtherTurnsUntouched | Question::NextTurnServed => {
                "no turn was seen to end after `session/cancel`"
            }
            Question::FreesSlot => "the session did not survive the cancels",
            _ => "the session ended before",
        }
    }

    fn fact(&self, question: Question, baselines: &Baselines) -> Fact {
        let found = self.findings.iter().filter(|finding| finding.question == question);
        let finding = found
            .reduce(worse)
            .cloned()
            .unwrap_or_else(|| Finding::not_asked(question, self.why_not_asked(question, baselines)));
        let evidence = evidence(&self.findings, &finding);
        let mut fact = self.fact_of(finding);
        fact.evidence = evidence;
        fact
    }

    fn fact_of(&self, finding: Finding) -> Fact {
        let asked = finding.question.asked(self.wire_format.facts);
        let mut fact = Fact::new(asked.name, asked.statement, finding.answer, asked.demand);
        fact.detail = finding.detail;
        fact.evidence = finding.evidence;
        fact.source = finding.source.map_or(asked.source, str::to_owned);
        fact.cancel_us = finding.cancel_us;
        fact.trace = finding.trace;
        fact
    }
}

/// Of two findings about one question the one that says more: a no, then unsure, then yes.
fn worse<'f>(first: &'f Finding, second: &'f Finding) -> &'f Finding {
    const fn weight(answer: Answer) -> u8 {
        match answer {
            Answer::No => 3,
            Answer::Unsure => 2,
            Answer::Yes => 1,
            Answer::NotAsked => 0,
        }
    }
    if weight(second.answer) > weight(first.answer) { second } else { first }
}

/// All witnesses that say the same.
fn evidence(findings: &[Finding], finding: &Finding) -> Vec<Evidence> {
    let same = findings.iter().filter(|other| {
        other.question == finding.question
            && other.answer == finding.answer
            && other.answer != Answer::NotAsked
    });
    let mut evidence: Vec<Evidence> = same.flat_map(|other| other.evidence.clone()).collect();
    evidence.sort_unstable();
    evidence.dedup();
    evidence
}
