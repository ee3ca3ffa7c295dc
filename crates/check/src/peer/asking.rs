//! The order of the probes, and how a fault is confirmed.

use rescind_testkit::{Answer, Demand, RequestKind};

use super::baseline::Baselines;
use super::facts::Checker;
use super::probe::{Finding, Probe, Probed, of_progress, stops_work};
use super::session::{Lost, PeerSession};
use super::statements::Question;
use super::tries::Tries;
use super::undisturbed::Disturbance;
use super::work::Counter;
use super::{PeerSource, Unusable, turn, work};

/// A fault is one only if it is seen in this many sessions, one after another.
pub(super) const SESSIONS: usize = 3;

/// What must not touch a running request, after many cancels. All at once: if it comes to its own end, none of them did.
pub(super) const TOGETHER: &[Disturbance] = &[
    Disturbance::Nothing,
    Disturbance::LateCancel,
    Disturbance::UnknownCancel,
    Disturbance::MalformedCancel,
    Disturbance::CancelledSibling,
    Disturbance::OtherType,
];

/// The same, each alone, in a session of its own.
const EACH: [Probe; 5] = [
    Probe::Beside(&[Disturbance::LateCancel]),
    Probe::Beside(&[Disturbance::UnknownCancel]),
    Probe::Beside(&[Disturbance::MalformedCancel]),
    Probe::Beside(&[Disturbance::CancelledSibling]),
    Probe::Beside(&[Disturbance::OtherType]),
];

const NOTHING: Probe = Probe::Beside(&[Disturbance::Nothing]);

impl<P: PeerSource> Checker<'_, P> {
    /// Puts all questions. Returns the session, if it can still be used.
    pub(super) async fn ask(
        &mut self,
        session: PeerSession,
        baselines: &Baselines,
    ) -> Result<Option<PeerSession>, Unusable> {
        let has = |session: &PeerSession, kind| session.profile.requests.contains_key(&kind);
        let slow = has(&session, RequestKind::Slow);
        // The fixture's reports carry no token in most dialects, and its own scenarios look at them.
        let progress = has(&session, RequestKind::Progress) && !self.is_fixture;
        let counter = Counter::of(&session.profile).is_some();
        let turns = turn::is_a_turn(&session) && Question::TurnCancelled.applies(self.wire_format.facts);

        let mut open = self.put(Probe::Unknown, Some(session), baselines).await.0;
        if self.takes_no_cancels {
            return Ok(open);
        }
        if slow {
            open = self.ask_cancels(open, baselines).await;
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
            open = self.ask_progress(open, baselines).await;
        }
        if turns {
            open = self.put(Probe::Turn, open, baselines).await.0;
        }
        if self.runs_tasks {
            let leader = self.source.process_group();
            open = self.put(Probe::Tasks(leader), open, baselines).await.0;
        }
        if let Some(session) = &open {
            self.look_back(session);
        }
        self.confirm_id_zero(baselines).await;
        Ok(open)
    }

    /// Cancels the slow request many times, and then runs it beside cancels for other requests.
    async fn ask_cancels(
        &mut self,
        mut open: Option<PeerSession>,
        baselines: &Baselines,
    ) -> Option<PeerSession> {
        let mut tries = None;
        let mut is_asked = false;
        // Where silence is owed, it is awaited while the slow request runs beside other cancels.
        if self.wire_format.owes_silence() && open.is_some() {
            let (next, probed) = self.run(Probe::CancelsBeside, open, baselines).await;
            open = next;
            if !probed.is_lost && self.faults(&probed).is_empty() {
                let (beside, cancels): (Vec<Finding>, Vec<Finding>) =
                    probed.findings.into_iter().partition(|finding| is_beside(finding.question));
                self.findings.extend(cancels);
                tries = probed.tries;
                is_asked = !beside.is_empty() && !beside.iter().any(is_open_question);
                if is_asked {
                    self.findings.extend(beside);
                }
            } else if let Some(session) = open.take() {
                self.close(session).await;
            }
        }
        if tries.is_none() {
            (open, tries) = self.put(Probe::Cancels, open, baselines).await;
        }
        self.cancelled_error = tries.as_ref().and_then(Tries::other_error);
        self.add_serial_witness(baselines, tries.as_ref());
        if is_asked { open } else { self.ask_beside(open, baselines).await }
    }

    /// Runs the cancels beside a slow request all at once, and each alone if that request did not come to its own end.
    async fn ask_beside(
        &mut self,
        mut open: Option<PeerSession>,
        baselines: &Baselines,
    ) -> Option<PeerSession> {
        // Many slow requests were cancelled in this session, or else that has to be done again first.
        let mut is_asked = false;
        if open.is_some() {
            let (next, probed) = self.run(Probe::Beside(TOGETHER), open, baselines).await;
            open = next;
            if !probed.findings.iter().any(is_open_question) {
                self.findings.extend(probed.findings);
                return open;
            }
        }
        if open.is_some() {
            let (next, probed) = self.run(NOTHING, open, baselines).await;
            open = next;
            is_asked = !probed.findings.iter().any(is_open_question);
            if is_asked {
                self.findings.extend(probed.findings);
            }
        }
        if !is_asked {
            if let Some(session) = open.take() {
                self.close(session).await;
            }
            open = self.put(Probe::CancelsThenOne, None, baselines).await.0;
        }
        for one in EACH {
            open = self.put(one, open, baselines).await.0;
        }
        open
    }

    /// What the progress request shows. The baseline has run it to its end once.
    async fn ask_progress(
        &mut self,
        mut open: Option<PeerSession>,
        baselines: &Baselines,
    ) -> Option<PeerSession> {
        match baselines.progress_seen.as_ref().map(of_progress) {
            Some(finding) if finding.answer == Answer::Yes => self.findings.push(finding),
            // On a busy machine it may not have ended in the time of the baseline.
            Some(_) | None => open = self.put(Probe::Progress, open, baselines).await.0,
        }
        if self.settings.progress {
            open = self.put(Probe::ProgressAfterCancel, open, baselines).await.0;
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
            finding.answer == Answer::No
                && finding.question.asked(self.wire_format.facts).demand == Demand::Must
        };
        probed.findings.iter().filter(is_fault).map(|finding| finding.question).collect()
    }

    /// Runs a probe in this session, or in a new one. A session in which something went wrong is not used again.
    pub(super) async fn run(
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
                    return (None, Probed { findings: vec![finding], tries: None, is_lost: true });
                }
            },
        };
        let probe = match (probe, self.source.process_group()) {
            // The program may have been started again.
            (Probe::Processor(_), Some(leader)) => Probe::Processor(leader),
            (Probe::Tasks(Some(_)), leader) => Probe::Tasks(leader),
            (probe, _) => probe,
        };
        let probed = probe.run(&mut session, baselines, self.settings).await;
        // Work that goes on after its cancel disturbs what is asked next.
        let works_on = |finding: &Finding| {
            matches!(finding.question, Question::StopsWork | Question::TaskStopsWork)
                && finding.answer == Answer::No
        };
        let is_sound = session.closed.is_none()
            && !probed.is_lost
            && self.faults(&probed).is_empty()
            && !probed.findings.iter().any(works_on);
        if is_sound {
            return (Some(session), probed);
        }
        self.close(session).await;
        (None, probed)
    }
}

/// Whether the question has no answer yet. One id for 1 and `"1"` is an answer.
fn is_open_question(finding: &Finding) -> bool {
    finding.answer != Answer::Yes && finding.question != Question::TellsIdsApart
}

fn is_beside(question: Question) -> bool {
    TOGETHER.iter().any(|disturbance| disturbance.question() == question)
}
