//! The scenarios, played in the light of what is known about the peer.

use std::time::Instant;

use rescind_testkit::runner::{
    Calibration, Evidence, Failure, OpenSession, Played, Settings, TraceLine, Verdict, play, shorten,
};
use rescind_testkit::wire_format::Shape;
use rescind_testkit::{Answer, Cell, CellOutcome, Demand, Fact, HandshakeMode, Scenario, ShownBy};
use serde_json::Value;

use super::asking::SESSIONS;
use super::baseline::Baselines;
use super::facts::Checker;
use super::session::{Lost, PeerSession};
use super::tries::normal_end;
use super::{PeerSource, adapt};

/// What the facts mean for the scenarios.
struct Known {
    cancels: Option<bool>,
    concurrent: bool,
    /// Whether two slow requests run at once. `None`: nothing could show it, nor that they do not.
    two_slow: Option<bool>,
    calibration: Calibration,
}

impl Known {
    fn of(baselines: &Baselines, facts: &[Fact], owes_silence: bool, cancelled_error: Option<Value>) -> Self {
        let answer = |name: &str| facts.iter().find(|fact| fact.name == name).map(|fact| fact.answer);
        let cancels = match answer("cancels_running") {
            Some(Answer::Yes) => Some(true),
            Some(Answer::No) => Some(false),
            Some(Answer::Unsure | Answer::NotAsked) | None => None,
        };
        // A cancel that ends the session shows nothing else.
        let cancels = cancels.filter(|_| answer("session_survives") != Some(Answer::No));
        Self {
            cancels,
            concurrent: baselines.concurrent != Some(false),
            two_slow: match answer("siblings_untouched") {
                // The end of a slow request that needs no cancel shows whether it ran beside another.
                Some(Answer::Unsure) => baselines.slow_takes().map(|_| false),
                Some(Answer::Yes | Answer::No | Answer::NotAsked) | None => Some(true),
            },
            calibration: Calibration {
                session: None,
                quick_error: baselines.quick.error.clone(),
                slow_takes: baselines.slow_takes(),
                cancelled_error,
                answers_cancelled: answer("stays_silent") == Some(Answer::No),
                value_may_answer: !owes_silence,
            },
        }
    }
}

/// A scenario that was played in the shared session, and the ids of its requests.
struct Shared {
    /// The number of its scenario.
    cell: u64,
    ids: Vec<Value>,
}

impl<P: PeerSource> Checker<'_, P> {
    /// Plays all scenarios that can be asked of the peer.
    pub(super) async fn play_all(
        &mut self,
        mut open: Option<PeerSession>,
        baselines: &Baselines,
        facts: &[Fact],
    ) -> Vec<Cell> {
        let known =
            Known::of(baselines, facts, self.wire_format.owes_silence(), self.cancelled_error.clone());
        let mut cells: Vec<(u64, Cell)> = Vec::new();
        let mut shared: Vec<Shared> = Vec::new();
        let mut strays: Vec<Value> = Vec::new();
        let mut asked: Vec<(u64, &Scenario)> = (0..).zip(self.scenarios.iter().copied()).collect();
        // First those after whose cancels silence has to be awaited, which the others do meanwhile.
        asked.sort_by_key(|(_, scenario)| {
            let alone = !adapt::can_share_a_session(scenario);
            (alone, !adapt::needs_cancels(scenario, self.wire_format))
        });
        let mut last_cancel = None;
        for (number, scenario) in asked {
            (self.on_progress)(&scenario.vector.name);
            let why = self.refusal(scenario, &known);
            let why = why.or_else(|| self.refusal_of_the_vector(scenario, baselines, &known));
            if let Some(why) = why {
                cells.push((number, Cell::not_asked(scenario, self.source.wire(), why)));
                continue;
            }
            let earlier: Vec<Value> = shared.iter().flat_map(|one| one.ids.clone()).collect();
            let (next, played, ids) =
                self.play_one(scenario, number, open.take(), baselines, &known, earlier).await;
            open = next;
            strays.extend(played.strays.iter().cloned());
            self.deviates(&played.deviations);
            let (verdict, deviates) = self.confirmed(scenario, number, played, baselines, &known).await;
            if !ids.is_empty() {
                shared.push(Shared { cell: number, ids });
                if let Some(session) =
                    open.as_ref().filter(|_| adapt::needs_cancels(scenario, self.wire_format))
                {
                    last_cancel = Some(session.now());
                }
            }
            let mut cell = self.cell(scenario, verdict);
            cell.deviates = deviates;
            cells.push((number, cell));
        }
        let since = last_cancel.filter(|_| self.wire_format.owes_silence());
        let until = since.map(|last| normal_end(last, baselines, self.settings.deadline));
        self.look_at_silence(
            open,
            until.filter(|_| baselines.slow_takes().is_some()),
            &mut cells,
            &shared,
            strays,
        )
        .await;
        cells.sort_by_key(|(number, _)| *number);
        cells.into_iter().map(|(_, cell)| cell).collect()
    }

    /// Why a scenario cannot be played against this peer at all, which is known without a session.
    fn refusal_of_the_vector(
        &self,
        scenario: &Scenario,
        baselines: &Baselines,
        known: &Known,
    ) -> Option<String> {
        let (abilities, profile) = self.opened.as_ref()?;
        let adapted = adapt::with_requests_of(scenario, profile, baselines);
        let profile = adapt::profile_for(scenario, profile, baselines.slow_takes().is_some());
        adapted
            .refusal(*abilities, Some(&profile), Some(&known.calibration))
            .or_else(|| adapted.vector.unlike(*abilities).map(str::to_owned))
    }

    /// Why a scenario shows nothing about this peer.
    fn refusal(&self, scenario: &Scenario, known: &Known) -> Option<String> {
        if self.is_fixture {
            return None;
        }
        if !known.concurrent && adapt::needs_two_at_once(scenario, self.wire_format) {
            return Some("the peer serves one request at a time, so nothing else can be asked while its slow request runs".into());
        }
        if known.two_slow == Some(false) && adapt::runs_two_slow(scenario, self.wire_format) {
            return Some("the peer did not run two slow requests at once (see the facts)".into());
        }
        let why = match known.cancels {
            Some(true) => return None,
            Some(false) => {
                "the peer ignores the cancel of a running request (see the facts), so the scenario shows nothing"
            }
            None => "whether a cancel takes effect is not known (see the facts)",
        };
        adapt::needs_cancels(scenario, self.wire_format).then(|| why.to_owned())
    }

    /// Plays one scenario, in the shared session if it can be. Returns the session if it can still be used, and the ids
    /// that the scenario used there.
    async fn play_one(
        &mut self,
        scenario: &Scenario,
        number: u64,
        open: Option<PeerSession>,
        baselines: &Baselines,
        known: &Known,
        earlier: Vec<Value>,
    ) -> (Option<PeerSession>, Played, Vec<Value>) {
        let mut settings = Settings::default();
        settings.deadline = self.settings.deadline;
        if let Some(takes) = baselines.slow_takes() {
            settings.deadline += takes * 2;
        }
        let shares = adapt::can_share_a_session(scenario);
        if scenario.vector.handshake != HandshakeMode::Default {
            let mut started = self.start();
            let adapted = adapt::with_requests_of(scenario, &started.profile, baselines);
            settings.profile = Some(started.profile);
            settings.calibration = Some(known.calibration.clone());
            let played = play(&adapted, &mut started.subject, &settings).await;
            if self.source.process_group().is_none() {
                started.subject.leave().await;
            }
            return (open, played, Vec::new());
        }
        // One that cannot share a session has a new one, and leaves the shared one as it is.
        let (kept, session) = match open {
            Some(session) if shares => (None, Ok(session)),
            kept => (kept, self.open_warm().await),
        };
        let mut session = match session {
            Ok(session) => session,
            Err(Lost(why)) => return (kept, unopened(&why), Vec::new()),
        };
        let adapted = adapt::with_requests_of(scenario, &session.profile, baselines);
        // The ids of the peer's own requests are its choice, and a scenario about them keeps its ids.
        let keeps_ids = !scenario.requirements().children.is_empty();
        let adapted =
            if keeps_ids { adapted } else { adapt::with_fresh_ids(&adapted, self.wire_format, number) };
        let mut calibration = known.calibration.clone();
        calibration.session = Some(OpenSession {
            line: session.line,
            bindings: session.bindings.clone(),
            first_request: number * 1_000,
            opening: session.opening.clone(),
            earlier: if keeps_ids {
                Vec::new()
            } else {
                earlier.into_iter().chain(session.sent_ids()).collect()
            },
        });
        let ends = baselines.slow_takes().is_some();
        settings.profile = Some(adapt::profile_for(scenario, &session.profile, ends));
        settings.calibration = Some(calibration);
        let played = play(&adapted, &mut session.subject, &settings).await;
        let ids = adapt::request_ids(&adapted, self.wire_format);
        let is_sound = matches!(played.verdict, Verdict::Held | Verdict::NotAsked { .. });
        if is_sound && shares {
            return (Some(session), played, ids);
        }
        self.close(session).await;
        (kept, played, Vec::new())
    }

    /// A fault is one only if the scenario breaks in three fresh sessions, and only if the documents demand it. What they do
    /// not demand is a deviation: the second value says so.
    async fn confirmed(
        &mut self,
        scenario: &Scenario,
        number: u64,
        played: Played,
        baselines: &Baselines,
        known: &Known,
    ) -> (Played, bool) {
        let Verdict::Broke { why, failure, .. } = &played.verdict else { return (played, false) };
        if self.is_fixture {
            // Its counters include what an earlier scenario of the session cancelled, and what ends only now.
            let again = match failure {
                Failure::Counters => self.play_alone(scenario, number, baselines, known).await,
                _ => played,
            };
            return (again, false);
        }
        // Sessions with the peer were opened before.
        if *failure == Failure::Opening {
            let verdict = unopened(why).verdict;
            return (with_verdict(played, verdict), false);
        }
        if scenario.vector.demand != Demand::Must {
            let words = match scenario.vector.demand {
                Demand::Should => "the documents recommend it and do not demand it",
                Demand::Must | Demand::Open => "the documents leave it open",
            };
            let why = format!("no fault, as {words}: {why}");
            return (with_verdict(played, Verdict::Unsure { why }), true);
        }
        if known.two_slow.is_none()
            && *failure == Failure::Counters
            && adapt::runs_two_slow(scenario, self.wire_format)
        {
            let why = format!(
                "whether the peer runs two slow requests at once is not known (see the facts): {why}"
            );
            return (with_verdict(played, Verdict::Unsure { why }), false);
        }
        for at in 1..=SESSIONS {
            let again = self.play_alone(scenario, number, baselines, known).await;
            let otherwise = match again.verdict {
                Verdict::Broke { .. } => continue,
                Verdict::Held => "it held".to_owned(),
                Verdict::Unsure { why } | Verdict::NotAsked { why } => why,
            };
            let why = format!("it came out differently in fresh session {at}: {otherwise}; before: {why}");
            return (with_verdict(played, Verdict::Unsure { why }), false);
        }
        (played, false)
    }

    /// Plays a scenario in a session of its own.
    async fn play_alone(
        &mut self,
        scenario: &Scenario,
        number: u64,
        baselines: &Baselines,
        known: &Known,
    ) -> Played {
        let (session, played, _) = self.play_one(scenario, number, None, baselines, known, Vec::new()).await;
        if let Some(session) = session {
            self.close(session).await;
        }
        played
    }

    fn cell(&self, scenario: &Scenario, played: Played) -> Cell {
        let mut cell = Cell::new(scenario, self.source.wire(), played);
        cell.trace = cell.trace.iter().map(TraceLine::shortened).collect();
        shorten(&mut cell.why);
        if cell.outcome == CellOutcome::Held && scenario.vector.shown_by == ShownBy::Work {
            cell.evidence = vec![Evidence::Request];
        }
        cell
    }

    /// Whether a scenario leaves this request running, so that its answer comes after the end.
    fn leaves_running(&self, name: &str, id: &Value) -> bool {
        let mut asked = self.scenarios.iter().zip(0..);
        asked.find(|(scenario, _)| scenario.vector.name == name).is_some_and(|(scenario, number)| {
            let played = adapt::with_fresh_ids(scenario, self.wire_format, number);
            adapt::left_running(&played, self.wire_format).contains(id)
        })
    }

    /// Waits until every cancelled request would have ended without a cancel, and looks whether one was answered after all.
    async fn look_at_silence(
        &mut self,
        open: Option<PeerSession>,
        until: Option<Instant>,
        cells: &mut [(u64, Cell)],
        shared: &[Shared],
        mut strays: Vec<Value>,
    ) {
        let Some(mut session) = open else { return };
        if let Some(until) = until {
            (self.on_progress)("silence");
            let from = session.received.len();
            // If the session ends now, no answer comes either.
            let _lost = session.listen(until).await;
            strays.extend(session.received.iter().skip(from).map(|one| one.frame.clone()));
        }
        for frame in strays {
            let Shape::Answer { id } = self.wire_format.shape(&frame) else { continue };
            let Some(one) = shared.iter().find(|one| one.ids.contains(&id)) else { continue };
            let cell = cells.iter_mut().find(|(number, _)| *number == one.cell);
            if let Some((_, cell)) = cell.filter(|(_, cell)| cell.outcome == CellOutcome::Held) {
                if !self.leaves_running(&cell.scenario, &id) {
                    cell.outcome = CellOutcome::Unsure;
                    cell.evidence.clear();
                    cell.why = format!("this came after the end of the scenario: {frame}");
                }
            }
        }
        self.close(session).await;
    }
}

fn with_verdict(mut played: Played, verdict: Verdict) -> Played {
    played.verdict = verdict;
    played
}

fn unopened(why: &str) -> Played {
    Played::unplayed(Verdict::Unsure { why: format!("no session could be opened for it: {why}") })
}
