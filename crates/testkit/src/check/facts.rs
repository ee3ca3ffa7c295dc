//! The facts about a peer: which probes are run, how a fault is confirmed, and how findings become facts.

use serde_json::Value;

use super::baseline::{Baselines, default_quick};
use super::probe::{Finding, Probe, Probed, stops_work};
use super::session::{Lost, PeerSession};
use super::statements::Question;
use super::tries::Tries;
use super::undisturbed::Disturbance;
use super::witness::Counter;
use super::{CheckSettings, PeerSource, Started, Unusable, work};
use crate::profile::{Profile, RequestKind};
use crate::report::{Answer, Demand, Evidence, Fact};
use crate::wire_format::WireFormat;

/// A fault is one only if it is seen in this many sessions, one after another.
pub(super) const SESSIONS: usize = 3;

/// What must not touch a running request, after many cancels. All at once: if it comes to its own end, none of them did.
const TOGETHER: &[Disturbance] = &[
    Disturbance::Nothing,
    Disturbance::LateCancel,
    Disturbance::UnknownCancel,
    Disturbance::MalformedCancel,
    Disturbance::CancelledSibling,
    Disturbance::OtherType,
];

/// The same, each alone.
const EACH: [Probe; 6] = [
    Probe::CancelsThenOne,
    Probe::Beside(&[Disturbance::LateCancel]),
    Probe::Beside(&[Disturbance::UnknownCancel]),
    Probe::Beside(&[Disturbance::MalformedCancel]),
    Probe::Beside(&[Disturbance::CancelledSibling]),
    OTHER_TYPE,
];

const OTHER_TYPE: Probe = Probe::Beside(&[Disturbance::OtherType]);

/// Opens sessions with the peer and puts the questions.
pub(super) struct Checker<'a, P> {
    pub(super) dialect: &'static str,
    pub(super) wire_format: WireFormat,
    pub(super) source: &'a mut P,
    pub(super) settings: &'a CheckSettings,
    pub(super) on_progress: &'a mut (dyn FnMut(&str) + Send),
    /// The peer is our own fixture.
    pub(super) is_fixture: bool,
    /// The peer did not declare cancellation, where no cancel may be sent then.
    pub(super) takes_no_cancels: bool,
    /// The error with which a cancelled request is answered, if it is not the dialect's.
    pub(super) cancelled_error: Option<Value>,
    findings: Vec<Finding>,
    /// The first bytes that are not a message, from all sessions.
    noise: Option<String>,
}

impl<'a, P: PeerSource> Checker<'a, P> {
    pub(super) fn new(
        dialect: &'static str,
        wire_format: WireFormat,
        source: &'a mut P,
        settings: &'a CheckSettings,
        on_progress: &'a mut (dyn FnMut(&str) + Send),
    ) -> Self {
        Self {
            dialect,
            wire_format,
            source,
            settings,
            on_progress,
            is_fixture: false,
            takes_no_cancels: false,
            cancelled_error: None,
            findings: Vec::new(),
            noise: None,
        }
    }

    /// Starts the peer, with the profile that it is asked by.
    pub(super) fn start(&mut self) -> Started {
        let mut started = self.source.start();
        if let (true, Ok(profile)) = (self.is_fixture, Profile::fixture()) {
            started.profile = profile;
        }
        let witness = started.profile.witness;
        started.profile.witness = witness.and_then(|witness| witness.limited_to(self.settings));
        let quick = default_quick(self.wire_format);
        started.profile.requests.entry(RequestKind::Quick).or_insert(quick);
        started
    }

    /// Whether the peer says that it is the fixture of this kit.
    pub(super) async fn is_our_fixture(&self, session: &mut PeerSession) -> bool {
        let mut said = session.opening.clone();
        if said.is_none() && self.wire_format.opening().is_none() {
            let Ok(sent) = session.request("server/discover", serde_json::json!({})).await else {
                return false;
            };
            let answer = session.needed_answer("server/discover", &sent, self.settings.deadline).await;
            said = answer.ok().flatten().map(|answer| answer.frame);
        }
        said.is_some_and(|said| said.to_string().contains("\"rescind-fixture\""))
    }

    /// Opens a new session.
    pub(super) async fn open(&mut self) -> Result<PeerSession, Lost> {
        let started = self.start();
        PeerSession::open(started, self.wire_format, self.settings.deadline).await
    }

    /// Opens a session that is ready for work: it has answered one quick request.
    pub(super) async fn open_warm(&mut self) -> Result<PeerSession, Lost> {
        let mut session = self.open().await?;
        let quick = session.send_kind(RequestKind::Quick).await?;
        let patience = self.settings.deadline.max(std::time::Duration::from_secs(30));
        match session.answer(&quick.id, quick.at + patience).await? {
            Some(_) => Ok(session),
            None => Err(Lost(format!("a quick request was not answered within {patience:?}"))),
        }
    }

    /// Ends a session: a running peer sees that its client leaves.
    pub(super) async fn close(&mut self, mut session: PeerSession) {
        if self.noise.is_none() {
            self.noise = session.noise.first().cloned();
        }
        if self.source.process_group().is_none() {
            session.subject.leave().await;
        }
    }

    /// Puts all questions. Returns the session, if it can still be used.
    pub(super) async fn ask(
        &mut self,
        mut session: PeerSession,
        baselines: &Baselines,
    ) -> Result<Option<PeerSession>, Unusable> {
        let has = |session: &PeerSession, kind| session.profile.requests.contains_key(&kind);
        let slow = has(&session, RequestKind::Slow);
        // The fixture's reports carry no token in most dialects, and its own scenarios look at them.
        let progress = has(&session, RequestKind::Progress) && !self.is_fixture;
        let counter = Counter::of(&session.profile).is_some();

        let mut open = self.put(Probe::Unknown, Some(session), baselines).await.0;
        if self.takes_no_cancels {
            return Ok(open);
        }
        if slow {
            let (next, tries) = self.put(Probe::Cancels, open, baselines).await;
            open = next;
            self.cancelled_error = tries.as_ref().and_then(Tries::other_error);
            self.add_serial_witness(baselines, tries.as_ref());
            open = self.ask_beside(open, baselines).await;
            if let Some(leader) = self.source.process_group().filter(|_| self.settings.processor_time) {
                open = self.put(Probe::Processor(leader), open, baselines).await.0;
            }
            if counter {
                open = self.put(Probe::Counter, open, baselines).await.0;
            }
        } else {
            for disturbance in
                [Disturbance::LateCancel, Disturbance::UnknownCancel, Disturbance::MalformedCancel]
            {
                open = self.put(Probe::QuickAfter(disturbance), open, baselines).await.0;
            }
        }
        if progress {
            open = self.put(Probe::Progress, open, baselines).await.0;
        }
        if let Some(session) = &open {
            self.noise = self.noise.take().or_else(|| session.noise.first().cloned());
        }
        session = match open {
            Some(session) => session,
            None => return Ok(None),
        };
        Ok(Some(session))
    }

    /// Runs the cancels beside a slow request all at once, and each alone if that request did not come to its own end.
    async fn ask_beside(&mut self, open: Option<PeerSession>, baselines: &Baselines) -> Option<PeerSession> {
        // Many slow requests were cancelled in this session, or else that has to be done again first.
        if open.is_some() {
            let (next, probed) = self.run(Probe::Beside(TOGETHER), open, baselines).await;
            let open_question = |finding: &Finding| {
                finding.answer != Answer::Yes && finding.question != Question::TellsIdsApart
            };
            if !probed.findings.iter().any(open_question) {
                self.findings.extend(probed.findings);
                return next;
            }
            if let Some(session) = next {
                self.close(session).await;
            }
        }
        let mut open = None;
        for one in EACH {
            open = self.put(one, open, baselines).await.0;
        }
        open
    }

    fn add_serial_witness(&mut self, baselines: &Baselines, tries: Option<&Tries>) {
        let silence = self.wire_format.owes_silence();
        let seen = tries.filter(|_| self.settings.serial);
        if let Some(seen) = seen.and_then(|tries| work::by_serial_service(baselines, silence, tries)) {
            self.findings.push(stops_work(seen));
        }
    }

    /// Runs a probe, and again in fresh sessions where it found a fault.
    async fn put(
        &mut self,
        probe: Probe,
        open: Option<PeerSession>,
        baselines: &Baselines,
    ) -> (Option<PeerSession>, Option<Tries>) {
        let (mut open, mut probed) = self.run(probe, open, baselines).await;
        let mut faults = self.faults(&probed);
        if faults.is_empty() {
            self.findings.extend(probed.findings);
            return (open, probed.tries);
        }
        for at in 1..SESSIONS {
            if let Some(session) = open.take() {
                self.close(session).await;
            }
            let (next, again) = self.run(probe, None, baselines).await;
            open = next;
            let confirmed = self.faults(&again);
            for finding in &mut probed.findings {
                let question = finding.question;
                if faults.contains(&question) && !confirmed.contains(&question) {
                    let seen = again.findings.iter().find(|other| other.question == question);
                    let otherwise = seen.map_or_else(String::new, |seen| seen.detail.clone());
                    finding.answer = Answer::Unsure;
                    finding.detail = format!(
                        "it came out differently in session {}: {}; before: {}",
                        at + 1,
                        otherwise,
                        finding.detail
                    );
                }
            }
            faults.retain(|question| confirmed.contains(question));
            if faults.is_empty() {
                break;
            }
        }
        self.findings.extend(probed.findings);
        (open, probed.tries)
    }

    /// The questions whose answer is a fault.
    fn faults(&self, probed: &Probed) -> Vec<Question> {
        let is_fault = |finding: &&Finding| {
            finding.answer == Answer::No && finding.question.asked(self.dialect).demand == Demand::Must
        };
        probed.findings.iter().filter(is_fault).map(|finding| finding.question).collect()
    }

    /// Runs a probe in this session, or in a new one. A session in which something went wrong is not used again.
    async fn run(
        &mut self,
        probe: Probe,
        open: Option<PeerSession>,
        baselines: &Baselines,
    ) -> (Option<PeerSession>, Probed) {
        (self.on_progress)(probe.title());
        let mut session = match open {
            Some(session) => session,
            None => match self.open_warm().await {
                Ok(session) => session,
                Err(Lost(why)) => {
                    let why = format!("no session could be opened for it: {why}");
                    let finding = Finding::new(Question::SessionSurvives, Answer::Unsure, why);
                    return (None, Probed { findings: vec![finding], tries: None });
                }
            },
        };
        let probe = match (probe, self.source.process_group()) {
            // The program may have been started again.
            (Probe::Processor(_), Some(leader)) => Probe::Processor(leader),
            (probe, _) => probe,
        };
        let probed = probe.run(&mut session, baselines, self.settings).await;
        let is_sound =
            session.closed.is_none() && probed.findings.iter().all(|finding| finding.answer != Answer::No);
        if is_sound {
            return (Some(session), probed);
        }
        self.close(session).await;
        (None, probed)
    }

    /// The facts, one for each question that makes sense in the dialect.
    pub(super) fn facts(&mut self, baselines: &Baselines) -> Vec<Fact> {
        self.add_what_follows(baselines);
        let silence = self.wire_format.owes_silence();
        let asked = Question::ALL.into_iter().filter(|question| question.applies(silence));
        asked.map(|question| self.fact(question, baselines)).collect()
    }

    /// What other findings show.
    fn add_what_follows(&mut self, baselines: &Baselines) {
        let clean = match &self.noise {
            Some(noise) => (Answer::No, format!("the peer wrote this, which is not a message: {noise}")),
            None => (Answer::Yes, String::new()),
        };
        self.findings.push(Finding::new(Question::CleanOutput, clean.0, clean.1));
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
        if let (Some(stopped), Some(running)) = (stopped, running)
            && running.answer == Answer::Unsure
            && running.evidence.is_empty()
            && stopped.answer == Answer::Yes
        {
            running.answer = Answer::Yes;
            running.detail = stopped.detail;
            running.evidence = stopped.evidence;
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
            _ if baselines.slow.is_none() => "it needs a slow request (`--slow`)",
            Question::StopsWork => {
                "no witness saw the work: it uses little processor time, reports no progress, and others are served beside it"
            }
            Question::FreesSlot => "the session did not survive the cancels",
            _ => "the session ended before",
        }
    }

    fn fact(&self, question: Question, baselines: &Baselines) -> Fact {
        let asked = question.asked(self.dialect);
        let found = self.findings.iter().filter(|finding| finding.question == question);
        let finding = found
            .reduce(worse)
            .cloned()
            .unwrap_or_else(|| Finding::not_asked(question, self.why_not_asked(question, baselines)));
        let evidence = evidence(&self.findings, &finding);
        Fact {
            name: asked.name,
            statement: asked.statement.to_owned(),
            answer: finding.answer,
            detail: finding.detail,
            demand: asked.demand,
            evidence,
            source: asked.source.to_owned(),
            cancel_us: finding.cancel_us,
            trace: finding.trace,
        }
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
