//! How the requests of a profile behave without a cancel. Every later verdict is given in comparison with this.

use std::time::Duration;

use rescind_core::dialect::TaskForm;
use rescind_testkit::wire_format::WireFormat;
use rescind_testkit::{ProfileRequest, RequestKind};
use serde_json::{Value, json};

use super::session::{Lost, PeerSession, Received, Sent};
use super::tasks::handle;
use super::tries::is_cancelled;
use super::{CheckSettings, Unusable, work};

/// A slow request must take this many quick round trips.
const LEAST_ROUND_TRIPS: u32 = 20;

/// Below this a cancel can hardly arrive while the request runs.
const LEAST_SLOW: Duration = Duration::from_millis(50);

/// So many times as long may a request take to end that has been cancelled because it took too long.
const LATEST_END: u32 = 6;

/// How long silence is awaited after that cancel, where it is owed.
const SILENCE: Duration = Duration::from_secs(5);

/// A shorter result may be the same whether it is whole or not, such as null or an empty list.
const SHORT: usize = 20;

const QUICK_TRIES: usize = 5;

/// How one request behaves.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// Until its answer. `None`: it does not end within the time of the baseline.
    pub(super) takes: Option<Duration>,
    /// The code of the error with which it is answered. `None`: a result.
    pub(super) error: Option<Value>,
    /// The answer with that error.
    refusal: Option<Value>,
    /// The length of its result as text, which is the same in each session.
    pub(super) length: Option<usize>,
    pub(super) method: String,
}

impl Timing {
    /// Whether a result is as long as the normal one, so that it is no partial one.
    pub(super) fn is_whole(&self, wire_format: WireFormat, answer: &Received) -> bool {
        self.length.is_some_and(|normal| normal >= SHORT) && length_of(wire_format, answer) == self.length
    }

    /// The request is answered with an error too quickly to be cancelled.
    fn refused_at_once(&self) -> Unusable {
        let (code, frame) =
            (self.error.clone().unwrap_or_default(), self.refusal.clone().unwrap_or_default());
        Unusable(format!(
            "the request `{}` of the profile is answered at once with error {code}; it may need a login, a setup or other \
             params: {frame}",
            self.method
        ))
    }
}

/// How the requests of the profile behave.
#[derive(Clone, Debug)]
pub(super) struct Baselines {
    pub(super) quick: Timing,
    pub(super) slow: Option<Timing>,
    /// How long its runs took that ended, in order of length.
    slow_runs: Vec<Duration>,
    pub(super) progress: Option<Timing>,
    /// What the progress request showed, if it ended.
    pub(super) progress_seen: Option<work::Progress>,
    /// Whether a quick request is answered while a slow one runs. `None`: there is no slow one.
    pub(super) concurrent: Option<bool>,
}

impl Baselines {
    /// How long the slow request takes without a cancel. `None`: there is none, or it does not end.
    pub(super) fn slow_takes(&self) -> Option<Duration> {
        self.slow.as_ref()?.takes
    }

    /// Whether the result of a slow request is as long as the normal one, so that it is no partial one.
    pub(super) fn is_whole(&self, wire_format: WireFormat, answer: &Received) -> bool {
        self.slow.as_ref().is_some_and(|slow| slow.is_whole(wire_format, answer))
    }

    /// Adds another run of the slow request. The shorter one of two counts, as a machine may be busy for a while. The
    /// median of three counts, as one may have ended early.
    async fn add_slow(
        &mut self,
        session: &mut PeerSession,
        sent: &Sent,
        longest: Duration,
    ) -> Result<(), Unusable> {
        let answer = session.answer(&sent.id, sent.at + longest).await.map_err(|lost| died("slow", &lost))?;
        if let (Some(answer), Some(slow)) = (answer, &mut self.slow) {
            if error_of(session.wire_format, &answer) == slow.error {
                self.slow_runs.push(answer.at.saturating_duration_since(sent.at));
                self.slow_runs.sort_unstable();
                slow.takes = self.slow_runs.get((self.slow_runs.len() - 1) / 2).copied();
            }
        }
        Ok(())
    }

    /// Whether one run of the slow request was too quick and the other was not.
    fn needs_third_slow(&self, round_trip: Duration) -> bool {
        let is_too_quick = |run: &Duration| *run < least_slow(round_trip);
        matches!(&*self.slow_runs, [short, long] if is_too_quick(short) && !is_too_quick(long))
    }

    fn refuse_what_is_too_quick(&self, round_trip: Duration) -> Result<(), Unusable> {
        let Some(slow) = &self.slow else { return Ok(()) };
        let least = least_slow(round_trip);
        match slow.takes {
            Some(takes) if takes < least && slow.refusal.is_some() => Err(slow.refused_at_once()),
            Some(takes) if takes < least => Err(Unusable(format!(
                "the slow request `{}` ends by itself after {}, and a quick one takes {}: name one that takes at least {} \
                 (`--slow`), so that a cancel arrives while it runs",
                slow.method,
                shown(takes),
                shown(round_trip),
                shown(least)
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// The baseline as part of the report.
    pub(super) fn rows(&self) -> Vec<rescind_testkit::Baseline> {
        let row = |kind, timing: &Timing| {
            let mut row =
                rescind_testkit::Baseline::new(kind, timing.method.as_str(), timing.takes.map(micros));
            row.answer = match (&timing.takes, &timing.error) {
                (None, _) => "none".to_owned(),
                (Some(_), None) => "result".to_owned(),
                (Some(_), Some(code)) => format!("error {code}"),
            };
            row
        };
        let others = [("slow", &self.slow), ("progress", &self.progress)];
        let others = others.into_iter().filter_map(|(kind, timing)| Some(row(kind, timing.as_ref()?)));
        std::iter::once(row("quick", &self.quick)).chain(others).collect()
    }
}

/// A request that takes less is too quick to be cancelled while it runs.
fn least_slow(round_trip: Duration) -> Duration {
    LEAST_SLOW.max(round_trip * LEAST_ROUND_TRIPS)
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The quick request of a peer whose profile names none: one that every peer must answer.
pub(super) fn default_quick(wire_format: WireFormat) -> ProfileRequest {
    ProfileRequest::new(wire_format.facts.ping.unwrap_or("rescind/unknown"), json!({}))
}

/// Measures the baseline in a new session. `leader`: of the peer's process group, if it is a program.
///
/// # Errors
/// If a request cannot be used for its purpose, or the session is lost.
pub(super) async fn measure(
    session: &mut PeerSession,
    leader: Option<u32>,
    settings: &CheckSettings,
    longest: Duration,
) -> Result<Baselines, Unusable> {
    let quick = quick(session, settings).await?;
    let round_trip = quick.takes.unwrap_or_default();
    let mut baselines = Baselines {
        quick,
        slow: None,
        slow_runs: Vec::new(),
        progress: None,
        progress_seen: None,
        concurrent: None,
    };
    let mut again = None;
    if session.profile.requests.contains_key(&RequestKind::Slow) {
        let died = |lost: Lost| died("slow", &lost);
        let first = slow(session, leader, longest).await?;
        baselines.concurrent = Some(first.concurrent);
        // A peer may have kept what it found the first time.
        if first.timing.takes.is_some_and(|takes| takes < longest / 2) {
            again = Some(session.send_kind(RequestKind::Slow).await.map_err(died)?);
        }
        baselines.slow_runs.extend(first.timing.takes);
        baselines.slow = Some(first.timing);
        // Of a peer that waits rather than works something else can be measured meanwhile.
        if let Some(sent) = again.take_if(|_| !(first.concurrent && first.waits)) {
            baselines.add_slow(session, &sent, longest).await?;
        }
    }
    if session.profile.requests.contains_key(&RequestKind::Progress) {
        let died = |lost: Lost| died("progress", &lost);
        let mut seen = work::progress_to_the_end(session, longest).await.map_err(died)?;
        // It may be refused while the slow one runs.
        if let Some(sent) = again.take_if(|_| seen.is_error(session.wire_format)) {
            baselines.add_slow(session, &sent, longest).await?;
            seen = work::progress_to_the_end(session, longest).await.map_err(died)?;
        }
        if seen.answered.is_none() {
            end(session, RequestKind::Progress, &seen.sent, longest).await?;
        }
        baselines.progress =
            Some(timing(session, RequestKind::Progress, &seen.sent, seen.answered.as_ref())?);
        baselines.progress_seen = Some(seen).filter(|seen| seen.answered.is_some());
    }
    if let Some(sent) = again {
        baselines.add_slow(session, &sent, longest).await?;
    }
    if baselines.needs_third_slow(round_trip) {
        let third = session.send_kind(RequestKind::Slow).await.map_err(|lost| died("slow", &lost))?;
        baselines.add_slow(session, &third, longest).await?;
    }
    baselines.refuse_what_is_too_quick(round_trip)?;
    Ok(baselines)
}

/// The median round trip. The first try may take long, because the peer may still load.
async fn quick(session: &mut PeerSession, settings: &CheckSettings) -> Result<Timing, Unusable> {
    let mut times = Vec::new();
    let mut last = None;
    for at in 0..=QUICK_TRIES {
        let sent = session.send_kind(RequestKind::Quick).await.map_err(|lost| died("quick", &lost))?;
        let patience = if at == 0 { settings.starting() } else { settings.deadline };
        let method = method_of(session, RequestKind::Quick);
        let answer = session.needed_answer(&method, &sent, patience).await;
        let Some(answer) = answer.map_err(|lost| died("quick", &lost))? else {
            return Err(Unusable(format!(
                "the quick request `{method}` was not answered within {patience:?}: name one that is answered at once (`--quick`)"
            )));
        };
        if at > 0 {
            times.push(answer.at.saturating_duration_since(sent.at));
        }
        last = Some((sent, answer));
    }
    times.sort_unstable();
    let (sent, answer) = last.ok_or_else(|| Unusable("no quick request was sent".to_owned()))?;
    let mut timing = Timing {
        takes: None,
        error: error_of(session.wire_format, &answer),
        refusal: None,
        length: None,
        method: method_of(session, RequestKind::Quick),
    };
    drop(sent);
    timing.takes = times.get(times.len() / 2).copied();
    Ok(timing)
}

/// The first run of the slow request.
struct FirstSlow {
    timing: Timing,
    /// Whether a quick request was answered while it ran.
    concurrent: bool,
    /// Whether the peer was seen to use hardly any processor time.
    waits: bool,
}

/// Below this share of one processor a peer waits rather than works.
const WAITS: f64 = 0.2;

/// The slow request, with a quick one beside it.
async fn slow(
    session: &mut PeerSession,
    leader: Option<u32>,
    longest: Duration,
) -> Result<FirstSlow, Unusable> {
    let died = |lost: Lost| died("slow", &lost);
    let used = || leader.and_then(work::processor_time_of_group);
    let before = used();
    let sent = session.send_kind(RequestKind::Slow).await.map_err(died)?;
    let quick = session.send_kind(RequestKind::Quick).await.map_err(died)?;
    let mut answer = session.answer(&sent.id, sent.at + longest).await.map_err(died)?;
    let after = used();
    if answer.is_none() {
        answer = end(session, RequestKind::Slow, &sent, longest).await?;
    }
    let quick_answer = session.answer(&quick.id, quick.at + longest).await.map_err(died)?;
    let timing = timing(session, RequestKind::Slow, &sent, answer.as_ref())?;
    let concurrent = match (&quick_answer, &answer) {
        (Some(quick), Some(slow)) => quick.at < slow.at,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let waits = match (before, after, timing.takes) {
        (Some(before), Some(after), Some(takes)) => after.saturating_sub(before) < takes.mul_f64(WAITS),
        (None, _, _) | (_, None, _) | (_, _, None) => false,
    };
    Ok(FirstSlow { timing, concurrent, waits })
}

/// Reads the answer of a request of the profile.
///
/// # Errors
/// If the answer shows that the profile is wrong.
fn timing(
    session: &PeerSession,
    kind: RequestKind,
    sent: &Sent,
    answer: Option<&Received>,
) -> Result<Timing, Unusable> {
    let method = method_of(session, kind);
    let error = answer.and_then(|answer| error_of(session.wire_format, answer));
    let wrong = [Value::from(-32601), Value::from(-32602), Value::from(-32600)];
    if let (Some(code), Some(answer)) = (error.as_ref().filter(|code| wrong.contains(code)), answer) {
        return Err(Unusable(format!(
            "the request `{method}` of the profile is refused with {code}, so it cannot be used: {}",
            answer.frame
        )));
    }
    let is_task = |answer: &&Received| handle(TaskForm::DecidedByServer, &answer.frame).is_some();
    if let Some(answer) = answer.filter(is_task) {
        return Err(Unusable(format!(
            "the request `{method}` of the profile is answered with a task, though it declares no tasks, and a server must not do that: \
             {}",
            answer.frame
        )));
    }
    let takes = answer.map(|answer| answer.at.saturating_duration_since(sent.at));
    let length = answer.and_then(|answer| length_of(session.wire_format, answer));
    let refusal = answer.filter(|_| error.is_some()).map(|answer| answer.frame.clone());
    let timing = Timing { takes, error, refusal, length, method };
    if timing.refusal.is_some() && takes.is_some_and(|takes| takes < LEAST_SLOW) {
        return Err(timing.refused_at_once());
    }
    Ok(timing)
}

/// Cancels a request that has not ended, and returns its answer if it came to its own end all the same. `None`: it ended
/// because of its cancel, or silence is owed.
///
/// # Errors
/// If nothing ends it: whatever is asked next might have to wait behind it.
async fn end(
    session: &mut PeerSession,
    kind: RequestKind,
    sent: &Sent,
    longest: Duration,
) -> Result<Option<Received>, Unusable> {
    let method = method_of(session, kind);
    let died = |lost: Lost| died("cancelled", &lost);
    let cancelled = session.cancel(&sent.id).await.map_err(died)?;
    let quick = session.send_kind(RequestKind::Quick).await.map_err(died)?;
    let latest = cancelled + longest * LATEST_END;
    let due = if session.wire_format.owes_silence() { cancelled + longest.min(SILENCE) } else { latest };
    let answer = session.answer(&sent.id, due).await.map_err(died)?;
    let is_served = session.answer(&quick.id, latest).await.map_err(died)?.is_some();
    if !is_served || (answer.is_none() && !session.wire_format.owes_silence()) {
        return Err(Unusable(format!(
            "the request `{method}` did not end within {}, and its cancel did not end it in {} more: name one that takes one to \
             five seconds",
            shown(longest),
            shown(longest * LATEST_END)
        )));
    }
    let by_itself = |answer: &Received| {
        !is_cancelled(session.wire_format, &answer.frame) && error_of(session.wire_format, answer).is_none()
    };
    Ok(answer.filter(by_itself))
}

fn method_of(session: &PeerSession, kind: RequestKind) -> String {
    session.profile.requests.get(&kind).map(|request| request.method.clone()).unwrap_or_default()
}

/// The code of the error in an answer.
pub(super) fn error_of(wire_format: WireFormat, answer: &Received) -> Option<Value> {
    let code = ["/error/code", "/payload/error/code"].into_iter().find_map(|at| answer.frame.pointer(at));
    code.cloned().or_else(|| wire_format.is_refusal(&answer.frame).then_some(Value::Null))
}

fn died(kind: &str, lost: &Lost) -> Unusable {
    Unusable(format!(
        "the session ended with the first {kind} request, which no cancel disturbed: {}",
        lost.0
    ))
}

/// The length of the result in an answer, as text.
fn length_of(wire_format: WireFormat, answer: &Received) -> Option<usize> {
    wire_format.value(&answer.frame).map(|value| value.to_string().len())
}

/// A time for people.
pub(super) fn shown(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        10_000..1_000_000 => format!("{:.0} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}
