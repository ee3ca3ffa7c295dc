//! Whether the work of a cancelled request stops: by progress that ceases, by the next answer of a peer that serves one
//! request at a time, by the processor time of its processes, or by a count that the user's command or the peer gives.

use std::time::{Duration, Instant};

use rescind_testkit::runner::{Evidence, TraceLine};
use rescind_testkit::wire_format::WireFormat;
use rescind_testkit::{RequestKind, follow};
use serde_json::Value;

use super::CheckSettings;
use super::baseline::{Baselines, Timing, error_of, shown};
use super::processor_time;
use super::session::{Lost, PeerSession, Received, Sent, TOKEN_PLACES, token_for};
use super::tries::{NORMAL_END, Tries, cancel_delay, is_cancelled};
use super::witness::Counter;

/// How long the peer is watched after a cancel.
const WATCH: Duration = Duration::from_millis(500);

/// From this share of one processor on, the work of a request is seen in the processor time.
const BUSY: f64 = 0.15;

/// What a witness saw.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) evidence: Evidence,
    pub(super) stopped: bool,
    pub(super) detail: String,
}

/// What the progress of one request showed.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) sent: Sent,
    /// The answer, if it came.
    pub(super) answered: Option<Received>,
    /// The notifications before the cancel or the answer.
    pub(super) before: usize,
    /// Those after the answer to the request, or after its cancel if no answer is due.
    pub(super) after: usize,
    /// What was sent and received meanwhile.
    pub(super) trace: Vec<TraceLine>,
}

impl Progress {
    /// Whether the answer is an error.
    pub(super) fn is_error(&self, wire_format: WireFormat) -> bool {
        self.answered.as_ref().is_some_and(|answer| error_of(wire_format, answer).is_some())
    }
}

/// Runs the progress request to its normal end and watches what follows.
pub(super) async fn progress_to_the_end(
    session: &mut PeerSession,
    within: Duration,
) -> Result<Progress, Lost> {
    let begun = session.trace.len();
    let sent = session.send_kind(RequestKind::Progress).await?;
    let token = token_of(session, &sent.id);
    let answered = session.answer(&sent.id, sent.at + within).await?;
    let mut progress = Progress { sent, answered, before: 0, after: 0, trace: Vec::new() };
    if let Some(answer) = &progress.answered {
        let answered_at = answer.at;
        session.listen(answered_at + WATCH).await?;
        let times = progress_times(session, &token, progress.sent.at);
        progress.before = times.iter().filter(|at| **at <= answered_at).count();
        progress.after = times.len() - progress.before;
    }
    progress.trace = session.trace.get(begun..).unwrap_or_default().to_vec();
    Ok(progress)
}

/// Cancels the progress request after its first notifications and watches what follows. Returns how many came after the
/// cancel had taken effect, and how often they came before.
pub(super) async fn progress_after_a_cancel(
    session: &mut PeerSession,
    baselines: &Baselines,
    deadline: Duration,
) -> Result<Option<(usize, Duration)>, Lost> {
    let sent = session.send_kind(RequestKind::Progress).await?;
    let token = token_of(session, &sent.id);
    // Two notifications show how often they come.
    while progress_times(session, &token, sent.at).len() < 2 {
        let until = sent.at + deadline;
        if session.now() >= until || !session.answers(&sent.id).is_empty() {
            return Ok(None);
        }
        session.listen((session.now() + Duration::from_millis(5)).min(until)).await?;
    }
    let seen = progress_times(session, &token, sent.at);
    let interval = match seen.as_slice() {
        [.., first, second] => second.saturating_duration_since(*first),
        _ => Duration::ZERO,
    };
    let cancelled = session.cancel(&sent.id).await?;
    let patience = (interval * 3).max(WATCH).min(deadline);
    let answer = session.answer(&sent.id, cancelled + patience).await?;
    // Progress ceases at the normal end of the request too.
    if ended_normally(session, baselines.progress.as_ref(), &sent) {
        return Ok(None);
    }
    // Those that were on their way when the cancel came are no sign of work.
    let settled =
        answer.as_ref().map_or(cancelled + interval.max(Duration::from_millis(100)), |answer| answer.at);
    session.listen(settled + patience).await?;
    let times = progress_times(session, &token, sent.at);
    let after = times.iter().filter(|at| **at > settled).count();
    Ok(Some((after, interval)))
}

/// The name under which the peer reports progress of the request with this id. Null: it has none.
fn token_of(session: &PeerSession, id: &Value) -> Value {
    let request = session.profile.requests.get(&RequestKind::Progress);
    let has_token = request
        .is_some_and(|request| TOKEN_PLACES.iter().any(|place| request.params.pointer(place).is_some()));
    if has_token { token_for(id) } else { Value::Null }
}

/// When progress of this request was reported.
fn progress_times(session: &PeerSession, token: &Value, since: Instant) -> Vec<Instant> {
    let request = session.profile.requests.get(&RequestKind::Progress);
    let named = request.and_then(|request| request.notification.clone());
    let method = named.unwrap_or_else(|| session.wire_format.progress_method().to_owned());
    let is_it = |frame: &Value| {
        let by_method = frame.get("method").and_then(Value::as_str) == Some(&method);
        let tokens = ["params.progressToken", "params.token"];
        let by_token = token.is_null() || tokens.iter().any(|path| follow(frame, path) == Some(token));
        by_method && by_token
    };
    let later = session.received.iter().filter(|one| one.at >= since);
    later.filter(|one| is_it(&one.frame)).map(|one| one.at).collect()
}

/// Looks at the processor time of the peer while the slow request runs and after its cancel.
pub(super) async fn by_processor_time(
    session: &mut PeerSession,
    baselines: &Baselines,
    leader: u32,
) -> Result<Option<Seen>, Lost> {
    let window = baselines.slow_takes().map_or(WATCH, |takes| (takes / 4).min(WATCH));
    let rest = baselines.slow_takes().map(|takes| takes.saturating_sub(window + cancel_delay(baselines)));
    // The time after the cancel must end well before the normal end of the request.
    if rest.is_some_and(|rest| rest < window * 2) {
        return Ok(None);
    }
    let sent = session.send_kind(RequestKind::Slow).await?;
    session.listen(sent.at + cancel_delay(baselines)).await?;
    let Some(busy) = share_of_a_processor(session, leader, window).await? else { return Ok(None) };
    if busy < BUSY || !session.answers(&sent.id).is_empty() {
        session.cancel(&sent.id).await?;
        return Ok(None);
    }
    session.cancel(&sent.id).await?;
    // The work may look at its cancel only now and then.
    session.listen(session.now() + window / 2).await?;
    let Some(after) = share_of_a_processor(session, leader, window).await? else { return Ok(None) };
    // A request that came to its own end meanwhile uses no more processor time either.
    if ended_normally(session, baselines.slow.as_ref(), &sent) {
        return Ok(None);
    }
    let stopped = after < busy / 3.0;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let detail = format!(
        "processor time: {} of a processor before its cancel, {} after it",
        percent(busy),
        percent(after)
    );
    // In between: other work of the peer, or of the machine.
    let clear = stopped || after > busy / 2.0;
    Ok(clear.then_some(Seen { evidence: Evidence::Processor, stopped, detail }))
}

/// Whether a cancelled request has been answered as if nobody had cancelled it.
fn ended_normally(session: &PeerSession, baseline: Option<&Timing>, sent: &Sent) -> bool {
    let answers = session.answers(&sent.id);
    let (Some(baseline), Some(answer)) = (baseline, answers.first()) else { return false };
    let took = answer.at.saturating_duration_since(sent.at);
    let is_late = baseline.takes.is_some_and(|takes| {
        took >= takes.mul_f64(NORMAL_END)
            // A machine that is less busy than before.
            || (took >= takes / 3 && baseline.is_whole(session.wire_format, answer))
    });
    is_late
        && error_of(session.wire_format, answer) == baseline.error
        && !is_cancelled(session.wire_format, &answer.frame)
}

async fn share_of_a_processor(
    session: &mut PeerSession,
    leader: u32,
    window: Duration,
) -> Result<Option<f64>, Lost> {
    let (begun, before) = (Instant::now(), processor_time::of_group(leader));
    session.listen(session.now() + window).await?;
    let after = processor_time::of_group(leader);
    let (Some(before), Some(after)) = (before, after) else { return Ok(None) };
    Ok(Some(after.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64()))
}

/// The next answer of a peer that serves one request at a time comes sooner than the work would have allowed.
pub(super) fn by_serial_service(baselines: &Baselines, owes_silence: bool, tries: &Tries) -> Option<Seen> {
    let takes = baselines.slow_takes().filter(|_| baselines.concurrent == Some(false))?;
    let rest = takes.saturating_sub(cancel_delay(baselines));
    // Where an answer is owed, the next request was sent behind it, which shows something only if it came early. Where
    // silence is owed, the first try waited for the normal end.
    let first = match (owes_silence, tries.worked()) {
        (true, _) => 1,
        (false, Some(true)) => 0,
        (false, Some(false) | None) => return None,
    };
    let mut times: Vec<Duration> = tries.quick_after.iter().skip(first).copied().collect::<Option<_>>()?;
    times.sort_unstable();
    let median = *times.get(times.len() / 2)?;
    let stopped = median < rest / 2;
    let detail = format!(
        "it serves one request at a time, and the next was answered {} after the cancel; the slow one had {} left",
        shown(median),
        shown(rest)
    );
    Some(Seen { evidence: Evidence::Serial, stopped, detail })
}

/// A count of the user's command or of a request of the peer, which grows while work runs.
pub(super) async fn by_counter(
    session: &mut PeerSession,
    baselines: &Baselines,
    counter: &Counter,
    settings: &CheckSettings,
) -> Result<Option<Seen>, Lost> {
    let sent = session.send_kind(RequestKind::Slow).await?;
    let first = counter.read(session, settings.deadline).await?;
    session.listen(sent.at + cancel_delay(baselines).max(WATCH / 2)).await?;
    let running = counter.read(session, settings.deadline).await?;
    session.cancel(&sent.id).await?;
    session.listen(session.now() + WATCH / 2).await?;
    let cancelled = counter.read(session, settings.deadline).await?;
    session.listen(session.now() + WATCH / 2).await?;
    let later = counter.read(session, settings.deadline).await?;
    // A count that ceases at the normal end of the request shows nothing.
    if ended_normally(session, baselines.slow.as_ref(), &sent) {
        return Ok(None);
    }
    let (Some(first), Some(running), Some(cancelled), Some(later)) = (first, running, cancelled, later)
    else {
        return Ok(None);
    };
    Ok(counter.judge([first, running, cancelled, later]))
}
