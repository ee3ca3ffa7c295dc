//! How the requests of a profile behave without a cancel. Every later verdict is given in comparison with this.

use std::time::Duration;

use serde_json::Value;

use super::Unusable;
use super::session::{Lost, PeerSession, Received, Sent};
use crate::profile::{ProfileRequest, RequestKind};
use crate::report;
use crate::wire_format::WireFormat;

/// A slow request must take this many quick round trips.
const LEAST_ROUND_TRIPS: u32 = 20;

/// Below this a cancel can hardly arrive while the request runs.
const LEAST_SLOW: Duration = Duration::from_millis(50);

/// How long the first answers may take, while the peer still loads.
const LOADING: Duration = Duration::from_secs(30);

const QUICK_TRIES: usize = 5;

/// How one request behaves.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// Until its answer. `None`: it does not end within the time of the baseline.
    pub(super) takes: Option<Duration>,
    /// The code of the error with which it is answered. `None`: a result.
    pub(super) error: Option<Value>,
    pub(super) method: String,
}

/// How the requests of the profile behave.
#[derive(Clone, Debug)]
pub(super) struct Baselines {
    pub(super) quick: Timing,
    pub(super) slow: Option<Timing>,
    pub(super) progress: Option<Timing>,
    /// Whether a quick request is answered while a slow one runs. `None`: there is no slow one.
    pub(super) concurrent: Option<bool>,
}

impl Baselines {
    /// How long the slow request takes without a cancel. `None`: there is none, or it does not end.
    pub(super) fn slow_takes(&self) -> Option<Duration> {
        self.slow.as_ref()?.takes
    }

    /// The baseline as part of the report.
    pub(super) fn rows(&self) -> Vec<report::Baseline> {
        let row = |kind, timing: &Timing| report::Baseline {
            kind,
            method: timing.method.clone(),
            answered_us: timing.takes.map(micros),
            answer: match (&timing.takes, &timing.error) {
                (None, _) => "none".to_owned(),
                (Some(_), None) => "result".to_owned(),
                (Some(_), Some(code)) => format!("error {code}"),
            },
        };
        let others = [("slow", &self.slow), ("progress", &self.progress)];
        let others = others.into_iter().filter_map(|(kind, timing)| Some(row(kind, timing.as_ref()?)));
        std::iter::once(row("quick", &self.quick)).chain(others).collect()
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The quick request of a peer whose profile names none: one that every peer must answer.
pub(super) fn default_quick(wire_format: WireFormat) -> ProfileRequest {
    let method = if wire_format.answer_to_any("ping").is_some() { "ping" } else { "rescind/unknown" };
    ProfileRequest::plain(method)
}

/// Measures the baseline in a new session.
///
/// # Errors
/// If a request cannot be used for its purpose, or the session is lost.
pub(super) async fn measure(
    session: &mut PeerSession,
    deadline: Duration,
    longest: Duration,
) -> Result<Baselines, Unusable> {
    let quick = quick(session, deadline).await?;
    let round_trip = quick.takes.unwrap_or_default();
    let mut baselines = Baselines { quick, slow: None, progress: None, concurrent: None };
    if session.profile.requests.contains_key(&RequestKind::Slow) {
        let (slow, concurrent) = slow(session, round_trip, longest).await?;
        baselines.slow = Some(slow);
        baselines.concurrent = Some(concurrent);
    }
    if session.profile.requests.contains_key(&RequestKind::Progress) {
        let sent = session.send_kind(RequestKind::Progress).await.map_err(|lost| died("progress", &lost))?;
        let answer = session.answer(&sent.id, sent.at + longest).await;
        let answer = answer.map_err(|lost| died("progress", &lost))?;
        if answer.is_none() {
            end(session, &sent).await.map_err(|lost| died("progress", &lost))?;
        }
        baselines.progress = Some(timing(session, RequestKind::Progress, &sent, answer.as_ref())?);
    }
    Ok(baselines)
}

/// The median round trip. The first try may take long, because the peer may still load.
async fn quick(session: &mut PeerSession, deadline: Duration) -> Result<Timing, Unusable> {
    let mut times = Vec::new();
    let mut last = None;
    for at in 0..=QUICK_TRIES {
        let sent = session.send_kind(RequestKind::Quick).await.map_err(|lost| died("quick", &lost))?;
        let patience = if at == 0 { LOADING.max(deadline) } else { deadline };
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
        method: method_of(session, RequestKind::Quick),
    };
    drop(sent);
    timing.takes = times.get(times.len() / 2).copied();
    Ok(timing)
}

/// The slow request, alone and then with a quick one beside it.
async fn slow(
    session: &mut PeerSession,
    round_trip: Duration,
    longest: Duration,
) -> Result<(Timing, bool), Unusable> {
    let died = |lost: Lost| died("slow", &lost);
    let sent = session.send_kind(RequestKind::Slow).await.map_err(died)?;
    let quick = session.send_kind(RequestKind::Quick).await.map_err(died)?;
    let answer = session.answer(&sent.id, sent.at + longest).await.map_err(died)?;
    let quick_answer = session.answer(&quick.id, quick.at + longest).await.map_err(died)?;
    if answer.is_none() {
        end(session, &sent).await.map_err(died)?;
    }
    let mut timing = timing(session, RequestKind::Slow, &sent, answer.as_ref())?;
    // A peer may have kept what it found the first time.
    if timing.takes.is_some_and(|takes| takes < longest / 2) {
        let again = session.send_kind(RequestKind::Slow).await.map_err(died)?;
        if let Some(answer) = session.answer(&again.id, again.at + longest).await.map_err(died)? {
            timing.takes = Some(answer.at.saturating_duration_since(again.at));
        }
    }
    let least = LEAST_SLOW.max(round_trip * LEAST_ROUND_TRIPS);
    if let Some(takes) = timing.takes
        && takes < least
    {
        return Err(Unusable(format!(
            "the slow request `{}` ends by itself after {}, and a quick one takes {}: name one that takes at least {} \
             (`--slow`), so that a cancel arrives while it runs",
            timing.method,
            shown(takes),
            shown(round_trip),
            shown(least)
        )));
    }
    let concurrent = match (&quick_answer, &answer) {
        (Some(quick), Some(slow)) => quick.at < slow.at,
        (Some(_), None) => true,
        (None, _) => false,
    };
    Ok((timing, concurrent))
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
    let takes = answer.map(|answer| answer.at.saturating_duration_since(sent.at));
    if let (Some(code), Some(answer), Some(takes)) = (&error, answer, takes)
        && takes < LEAST_SLOW
    {
        return Err(Unusable(format!(
            "the request `{method}` of the profile is answered at once with error {code}; it may need a login, a setup or other \
             params: {}",
            answer.frame
        )));
    }
    Ok(Timing { takes, error, method })
}

/// Cancels a request that has not ended and waits until it has, or is likely to have.
async fn end(session: &mut PeerSession, sent: &Sent) -> Result<(), Lost> {
    let at = session.cancel(&sent.id).await?;
    session.answer(&sent.id, at + Duration::from_millis(500)).await.map(|_| ())
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
