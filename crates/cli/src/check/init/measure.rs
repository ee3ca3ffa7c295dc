//! How long the requests take that only read. Bounded in number and time. A peer that refuses one, ends or hangs is asked
//! for the others, in a new session if need be.

use std::time::{Duration, Instant};

use rescind_testkit::Profile;
use rescind_testkit::dialects::DialectFacts;
use serde_json::Value;

use super::super::source::Source;
use super::super::talk::{Asked, Talk};
use super::draft::{Draft, Request};
use crate::table::time_text;

/// So often is a request measured that is written.
const RUNS: usize = 3;

/// A request is awaited this long at most. One that takes longer is too slow for a check.
const LONGEST: Duration = Duration::from_secs(10);

/// All requests together.
const ALL: Duration = Duration::from_secs(60);

/// A request that is shorter cannot be cancelled while it runs.
const LEAST_SLOW: Duration = Duration::from_millis(50);

/// A slow request takes this many times as long as a quick one.
const TIMES_QUICK: u32 = 20;

/// The most requests that are tried once.
const MAX_TRIED: usize = 24;

/// The most of them that are measured again, slow and quick.
const MAX_AGAIN: usize = 4;

/// So many sessions may be lost.
const MAX_LOST: usize = 3;

/// A request that only reads.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// As it is written in the profile.
    pub(super) request: Request,
    /// For people: the method, and what tells it from others.
    pub(super) title: String,
}

/// What became of a candidate.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) request: Request,
    pub(super) title: String,
    times: Vec<Duration>,
    /// Why it cannot be used.
    trouble: Option<String>,
}

impl Tried {
    /// The times, if it was answered each time.
    fn runs(&self) -> Option<(Duration, Duration)> {
        let is_whole = self.trouble.is_none() && self.times.len() >= RUNS;
        let (least, most) = (self.times.iter().min()?, self.times.iter().max()?);
        is_whole.then_some((*least, *most))
    }

    /// One line about it.
    pub(super) fn in_words(&self) -> String {
        let title = &self.title;
        match (&self.trouble, self.times.is_empty()) {
            (Some(trouble), _) => format!("{title}: {trouble}"),
            (None, true) => format!("{title}: not tried, as the time was over"),
            (None, false) => format!("{title}: {}", self.times_in_words()),
        }
    }

    pub(super) fn times_in_words(&self) -> String {
        let times: Vec<String> = self.times.iter().map(|time| shown(*time)).collect();
        times.join(", ")
    }
}

fn shown(time: Duration) -> String {
    time_text(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) tried: Vec<Tried>,
    /// The places of the slow and the quick one.
    slow: Option<usize>,
    quick: Option<usize>,
}

impl Measured {
    /// The slowest that is slow every time.
    pub(super) fn slow(&self) -> Option<&Tried> {
        self.tried.get(self.slow?)
    }

    /// One that is quick every time.
    pub(super) fn quick(&self) -> Option<&Tried> {
        self.tried.get(self.quick?)
    }

    /// Whether any request was answered at all.
    pub(super) fn any_answer(&self) -> bool {
        self.tried.iter().any(|tried| !tried.times.is_empty())
    }

    fn choose(&mut self) {
        let whole = self.tried.iter().enumerate().filter_map(|(at, tried)| Some((at, tried.runs()?)));
        let whole: Vec<(usize, (Duration, Duration))> = whole.collect();
        let quickest = whole.iter().min_by_key(|(_, (_, most))| *most).copied();
        let slowest = whole.iter().max_by_key(|(_, (least, _))| *least).copied();
        let least = |quick: Duration| LEAST_SLOW.max(quick * TIMES_QUICK);
        self.quick = quickest.filter(|(_, (_, most))| *most < LEAST_SLOW).map(|(at, _)| at);
        self.slow = slowest
            .filter(|(_, (slow, _))| {
                let quick = quickest.filter(|(at, _)| self.quick == Some(*at));
                *slow >= least(quick.map_or(Duration::ZERO, |(_, (_, most))| most))
            })
            .map(|(at, _)| at);
    }
}

/// Sends requests to a peer and looks at the clock.
pub(super) struct Meter<'a> {
    source: &'a mut Source,
    facts: &'static DialectFacts,
    /// What is sent when a session opens, and how the peer's requests are answered.
    session: Profile,
    longest: Duration,
    until: Instant,
    lost: usize,
}

impl<'a> Meter<'a> {
    /// `session`: its setup and its replies are used. `patience`: of one request, at most 10 s.
    pub(super) fn new(
        source: &'a mut Source,
        facts: &'static DialectFacts,
        session: Profile,
        patience: Duration,
    ) -> Self {
        let until = Instant::now() + ALL;
        Self { source, facts, session, longest: LONGEST.min(patience), until, lost: 0 }
    }

    /// Measures the candidates. `talk` is an open session, and may be another one afterwards, or none.
    pub(super) async fn measure(
        &mut self,
        talk: Talk,
        candidates: Vec<Candidate>,
    ) -> (Option<Talk>, Measured) {
        let mut talk = Some(talk);
        self.set_up(&mut talk).await;
        let mut measured = Measured::default();
        for Candidate { request, title } in candidates.into_iter().take(MAX_TRIED) {
            let mut tried = Tried { request, title, times: Vec::new(), trouble: None };
            self.run(&mut talk, &mut tried).await;
            measured.tried.push(tried);
        }
        // The first request may have waited until the peer had loaded something.
        for at in again(&measured.tried) {
            for _ in 1..RUNS {
                if let Some(tried) = measured.tried.get_mut(at) {
                    self.run(&mut talk, tried).await;
                }
            }
        }
        measured.choose();
        (talk, measured)
    }

    /// Sends one request and notes what comes of it.
    async fn run(&mut self, talk: &mut Option<Talk>, tried: &mut Tried) {
        if tried.trouble.is_some() {
            return;
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let Some(open) = self.opened(talk).await else {
            tried.trouble = Some("not tried, as the peer hangs or ends".to_owned());
            return;
        };
        let begun = Instant::now();
        let within = self.longest.min(left);
        match open
            .ask(&tried.request.method, resolved(&self.session, self.source, &tried.request), within)
            .await
        {
            Asked::Answered(answer) if open.result(&answer).is_some() => tried.times.push(begun.elapsed()),
            Asked::Answered(answer) => tried.trouble = Some(format!("it was refused: {answer}")),
            Asked::Unanswered => {
                tried.trouble = Some(format!("it was not answered within {}", shown(within)));
                self.lose(talk).await;
            }
            Asked::Lost(why) => {
                tried.trouble = Some(format!("the session ended: {why}"));
                self.lose(talk).await;
            }
        }
    }

    /// A peer that hangs may be busy with that request forever.
    async fn lose(&mut self, talk: &mut Option<Talk>) {
        self.lost += 1;
        if let Some(talk) = talk.take() {
            talk.leave().await;
        }
    }

    async fn opened<'t>(&mut self, talk: &'t mut Option<Talk>) -> Option<&'t mut Talk> {
        if talk.is_none() && self.lost < MAX_LOST {
            *talk = Talk::open(self.source, self.facts).await.ok().map(|(talk, _)| talk);
            if talk.is_none() {
                self.lost += 1;
            }
            self.set_up(talk).await;
        }
        talk.as_mut()
    }

    async fn set_up(&self, talk: &mut Option<Talk>) {
        let Some(open) = talk else { return };
        open.replies.clone_from(&self.session.session.replies);
        let Ok(resolved) = self.session.resolve(&self.source.base, None) else { return };
        for step in &resolved.session.setup {
            if let Some(method) = &step.notify {
                // If it fails, the next request tells it.
                drop(open.notify(method, step.params.clone()).await);
            }
        }
    }
}

/// The params with the values of this machine.
fn resolved(session: &Profile, source: &Source, request: &Request) -> Value {
    let mut profile = Profile::new(session.name.clone());
    let kind = rescind_testkit::RequestKind::Slow;
    let written = rescind_testkit::ProfileRequest::new(&request.method, request.params.clone());
    profile.requests.insert(kind, written);
    let resolved = profile.resolve(&source.base, None);
    let found = resolved.ok().and_then(|mut profile| profile.requests.remove(&kind));
    found.map_or_else(|| request.params.clone(), |request| request.params)
}

/// Those that are measured again: the slowest and the quickest.
fn again(tried: &[Tried]) -> Vec<usize> {
    let answered = tried.iter().enumerate().filter_map(|(at, tried)| Some((*tried.times.first()?, at)));
    let mut answered: Vec<(Duration, usize)> = answered.collect();
    answered.sort_unstable();
    let quick = answered.iter().take(MAX_AGAIN);
    let slow = answered.iter().rev().take(MAX_AGAIN).filter(|(time, _)| *time >= LEAST_SLOW);
    let mut again: Vec<usize> = quick.chain(slow).map(|(_, at)| *at).collect();
    again.sort_unstable();
    again.dedup();
    again
}

/// Says what was tried.
pub(super) fn list(draft: &mut Draft, measured: &Measured) {
    if measured.tried.is_empty() {
        return;
    }
    draft.blank();
    draft.note("What was tried, and how long it took:");
    for tried in &measured.tried {
        draft.note(&format!("  {}", tried.in_words()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tried(title: &str, millis: &[u64]) -> Tried {
        let times = millis.iter().map(|millis| Duration::from_millis(*millis)).collect();
        let request = Request::new(title, json!({}));
        Tried { request, title: title.to_owned(), times, trouble: None }
    }

    fn chosen(tried: Vec<Tried>) -> (Option<String>, Option<String>) {
        let mut measured = Measured { tried, slow: None, quick: None };
        measured.choose();
        let title = |tried: Option<&Tried>| tried.map(|tried| tried.title.clone());
        (title(measured.slow()), title(measured.quick()))
    }

    #[test]
    fn the_slowest_that_is_slow_every_time_is_chosen() {
        let slow = tried("slow", &[900, 800, 850]);
        let loading = tried("loading", &[4000, 3, 3]);
        let quick = tried("quick", &[1, 1, 2]);
        let (a, b) = chosen(vec![loading.clone(), slow, tried("less slow", &[300, 300, 300]), quick.clone()]);
        assert_eq!((a.as_deref(), b.as_deref()), (Some("slow"), Some("quick")));
        assert_eq!(chosen(vec![loading, quick]), (None, Some("quick".to_owned())));
    }

    #[test]
    fn a_request_that_is_not_much_slower_than_a_quick_one_is_not_slow() {
        let (slow, quick) = chosen(vec![tried("slow", &[100, 100, 100]), tried("quick", &[9, 9, 9])]);
        assert_eq!((slow, quick.as_deref()), (None, Some("quick")));
        // Nothing is quick.
        let (slow, quick) = chosen(vec![tried("slow", &[900, 900, 900]), tried("slower", &[999, 999, 999])]);
        assert_eq!((slow.as_deref(), quick), (Some("slower"), None));
        assert_eq!(chosen(vec![tried("once", &[900])]), (None, None));
    }

    #[test]
    fn the_slowest_and_the_quickest_are_measured_again() {
        let mut all: Vec<Tried> = (0..10).map(|at| tried("x", &[at * 30])).collect();
        assert_eq!(again(&all), [0, 1, 2, 3, 6, 7, 8, 9]);
        all.truncate(2);
        assert_eq!(again(&all), [0, 1]);
    }
}
