//! The slow request, cancelled while it runs, again and again.

use std::time::{Duration, Instant};

use rescind_testkit::RequestKind;
use rescind_testkit::wire_format::WireFormat;
use serde_json::Value;

use super::baseline::{Baselines, error_of};
use super::session::{Lost, PeerSession, Sent};

/// From this part of its normal time on, an ordinary answer counts as the normal end.
pub(super) const NORMAL_END: f64 = 0.7;

/// Silence is awaited at least this much longer than its request takes.
const LEAST_MARGIN: Duration = Duration::from_millis(500);

/// So many times its normal time is a request awaited that nobody cancelled.
const LATEST_END: u32 = 5;

/// What a cancelled request came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// The dialect's cancelled answer.
    Cancelled,
    /// An error with another code, earlier than its normal end.
    OtherError(Value),
    /// A result, earlier than its normal end.
    EarlyResult,
    /// Its normal answer at its normal time.
    NormalEnd,
    /// No answer where none is due, though without the cancel it would have ended.
    Silence,
    /// No answer though one is due, or the request may still run.
    NoAnswer,
    /// An error that came before the cancel was sent.
    Refused,
}

impl Effect {
    /// Whether the cancel did something. `None`: nothing shows it.
    pub(super) const fn worked(&self) -> Option<bool> {
        match self {
            Self::Cancelled | Self::OtherError(_) | Self::EarlyResult | Self::Silence => Some(true),
            Self::NormalEnd => Some(false),
            Self::NoAnswer | Self::Refused => None,
        }
    }
}

/// One cancelled request.
#[derive(Clone, Debug)]
pub(super) struct Try {
    pub(super) effect: Effect,
    /// From the cancel to the answer.
    pub(super) answered: Option<Duration>,
    pub(super) answers: usize,
    /// From the request to the answer.
    took: Option<Duration>,
}

/// All of them, and what came after.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    pub(super) all: Vec<Try>,
    /// How many requests were refused before their cancel, which are not among them.
    pub(super) refused: usize,
    /// How long a quick request took directly after each cancel.
    pub(super) quick_after: Vec<Option<Duration>>,
    /// Why the session ended before the last try.
    pub(super) lost: Option<String>,
    /// The request with the id 0. `None`: none was sent, as no cancel was seen to take effect.
    pub(super) zero: Option<Try>,
    /// Those without an answer so far, with the time of their cancel. They are judged when all of them would have ended.
    pending: Vec<(Sent, Instant)>,
    /// The first one, if it was silent so far.
    first: Option<(Sent, Instant)>,
    /// The one with the id 0, before it is judged.
    pending_zero: Option<(Sent, Instant)>,
    /// How long the slow request took when it was run again without a cancel.
    seen_again: Option<Duration>,
}

impl Tries {
    /// Whether cancels work, if all tries agree on it.
    pub(super) fn worked(&self) -> Option<bool> {
        let mut all = self.all.iter().map(|one| one.effect.worked());
        let first = all.next()??;
        all.all(|one| one == Some(first)).then_some(first)
    }

    /// Whether every request that came after a cancel was answered.
    pub(super) fn are_alive(&self) -> bool {
        self.lost.is_none() && self.quick_after.iter().all(Option::is_some)
    }

    /// Whether the first cancel worked, and the silence of the others has to be awaited.
    pub(super) fn are_silent(&self) -> bool {
        self.are_alive() && self.worked() == Some(true) && !self.pending.is_empty()
    }

    /// Waits for those that have no answer yet, and judges them: where silence is owed, at the end of the silence. Where an
    /// answer is owed, longer than its normal time, as the machine may be busier than it was.
    pub(super) async fn await_the_rest(
        &mut self,
        session: &mut PeerSession,
        baselines: &Baselines,
        deadline: Duration,
    ) {
        if self.are_alive() {
            if let Err(Lost(why)) = self.judge_the_rest(session, baselines, deadline).await {
                self.lost = Some(why);
            }
        }
    }

    async fn judge_the_rest(
        &mut self,
        session: &mut PeerSession,
        baselines: &Baselines,
        deadline: Duration,
    ) -> Result<(), Lost> {
        let waiting = self.first.iter().chain(&self.pending).chain(&self.pending_zero);
        let Some((last, cancelled)) = waiting.max_by_key(|(_, cancelled)| *cancelled).cloned() else {
            return Ok(());
        };
        let until = if session.wire_format.owes_silence() {
            end_of_silence(session, baselines, &last, deadline).await?
        } else {
            let until = cancelled + baselines.slow_takes().unwrap_or_default() * 3 + deadline;
            let waiting = self.pending.iter().chain(&self.pending_zero).map(|(sent, _)| &sent.id);
            session.answers_to(waiting, until).await?;
            session.now()
        };
        let mut judged = |(sent, cancelled): (Sent, Instant)| {
            let one = judge(session, baselines, &sent, cancelled, until);
            if one.effect == Effect::Silence {
                session.silenced.push(sent.id);
            }
            one
        };
        // On a busy machine its normal end may have come after it was looked at.
        if let (Some(first), Some(place)) = (self.first.take(), self.all.first_mut()) {
            *place = judged(first);
        }
        self.zero = self.pending_zero.take().map(&mut judged).or(self.zero.take());
        let rest: Vec<Try> = std::mem::take(&mut self.pending).into_iter().map(judged).collect();
        for one in rest {
            self.add(one);
        }
        Ok(())
    }

    fn add(&mut self, one: Try) {
        if one.effect == Effect::Refused {
            self.refused += 1;
        } else {
            self.all.push(one);
        }
    }

    /// Whether some tries worked and some did not.
    pub(super) fn differ(&self) -> bool {
        let worked = |word| self.all.iter().any(|one| one.effect.worked() == Some(word));
        worked(true) && worked(false)
    }

    /// The code of an error that is not the dialect's cancelled one.
    pub(super) fn other_error(&self) -> Option<Value> {
        self.all.iter().find_map(|one| match &one.effect {
            Effect::OtherError(code) => Some(code.clone()),
            Effect::Cancelled
            | Effect::EarlyResult
            | Effect::NormalEnd
            | Effect::Silence
            | Effect::NoAnswer
            | Effect::Refused => None,
        })
    }

    /// From each cancel to its answer, if the cancel worked.
    pub(super) fn latencies(&self) -> Vec<Duration> {
        let worked = self.all.iter().filter(|one| one.effect.worked() == Some(true));
        let mut all: Vec<Duration> = worked.filter_map(|one| one.answered).collect();
        all.sort_unstable();
        all
    }
}

/// When a request is cancelled: early enough that it runs, and long before its normal end.
pub(super) fn cancel_delay(baselines: &Baselines) -> Duration {
    let longest = Duration::from_millis(100);
    baselines.slow_takes().map_or(longest / 2, |takes| (takes / 10).min(longest))
}

/// Until when the answer of a request is awaited that would end at its normal time.
pub(super) fn normal_end(sent: Instant, baselines: &Baselines, deadline: Duration) -> Instant {
    let takes = baselines.slow_takes().unwrap_or_default();
    sent + takes + (takes / 4).max(LEAST_MARGIN).min(deadline)
}

/// Waits until the silence of cancelled requests can be judged, and returns when that is. `last`: the one that was sent last.
///
/// A slow request that was sent later and that nobody cancelled has ended then. It is as slow as the machine makes it, so a
/// cancelled request that goes on has ended too, however busy the machine is.
async fn end_of_silence(
    session: &mut PeerSession,
    baselines: &Baselines,
    last: &Sent,
    deadline: Duration,
) -> Result<Instant, Lost> {
    let earliest = normal_end(last.at, baselines, deadline);
    let Some(takes) = baselines.slow_takes() else {
        session.listen(earliest).await?;
        return Ok(earliest);
    };
    let uncancelled = match session.uncancelled.iter().find(|sent| sent.at > last.at) {
        Some(sent) => sent.clone(),
        None => session.send_kind(RequestKind::Slow).await?,
    };
    let latest = uncancelled.at + takes * LATEST_END + deadline;
    let answer = session.answer(&uncancelled.id, latest).await?;
    let until = answer.map_or(latest, |answer| {
        let took = answer.at.saturating_duration_since(uncancelled.at);
        answer.at + (took / 4).max(LEAST_MARGIN)
    });
    let until = until.max(earliest);
    session.listen(until).await?;
    Ok(until)
}

/// Cancels the slow request `count` times, one after another. If the first cancel does nothing, only twice more.
pub(super) async fn cancel_again_and_again(
    session: &mut PeerSession,
    baselines: &Baselines,
    count: usize,
    deadline: Duration,
) -> Tries {
    let mut tries = Tries::default();
    let mut done = run(session, baselines, count, deadline, &mut tries).await;
    if done.is_ok() && tries.are_alive() && tries.worked() == Some(true) {
        done = cancel_zero(session, baselines, deadline, &mut tries).await;
    }
    tries.lost = done.err().map(|Lost(why)| why);
    tries
}

/// Cancels a slow request with the id 0. For a session in which there was none. Its silence is judged with that of the others.
pub(super) async fn cancel_zero(
    session: &mut PeerSession,
    baselines: &Baselines,
    deadline: Duration,
    tries: &mut Tries,
) -> Result<(), Lost> {
    if session.wire_format.id(0) != 0 {
        return Ok(());
    }
    let sent = session.send_as_zero(RequestKind::Slow).await?;
    session.listen(sent.at + cancel_delay(baselines)).await?;
    let cancelled = session.cancel(&sent.id).await?;
    if !session.wire_format.owes_silence() {
        let until =
            normal_end(cancelled, baselines, deadline).max(cancelled + least_wait(baselines, deadline));
        if session.answer(&sent.id, until).await?.is_some() {
            tries.zero = Some(judge(session, baselines, &sent, cancelled, session.now()));
            return Ok(());
        }
    }
    tries.pending_zero = Some((sent, cancelled));
    Ok(())
}

async fn run(
    session: &mut PeerSession,
    baselines: &Baselines,
    count: usize,
    deadline: Duration,
    tries: &mut Tries,
) -> Result<(), Lost> {
    let owes_silence = session.wire_format.owes_silence();
    let mut count = count.max(1);
    let mut at = 0;
    while at < count {
        at += 1;
        let sent = session.send_kind(RequestKind::Slow).await?;
        session.listen(sent.at + cancel_delay(baselines)).await?;
        let cancelled = session.cancel(&sent.id).await?;
        // The first is awaited for as long as the request would have taken: a peer that ignores cancels is not asked for many
        // at once. The others are looked at together at the end.
        if owes_silence && at > 1 {
            tries.pending.push((sent, cancelled));
        } else {
            let until =
                normal_end(cancelled, baselines, deadline).max(cancelled + least_wait(baselines, deadline));
            let answer = session.answer(&sent.id, until).await?;
            if answer.is_some() || owes_silence {
                let one = judge(session, baselines, &sent, cancelled, session.now());
                if one.effect == Effect::Silence {
                    tries.first = Some((sent, cancelled));
                }
                tries.add(one);
                look_again(session, baselines, deadline, tries).await?;
            } else {
                tries.pending.push((sent, cancelled));
                count = count.min(3);
            }
            if tries.all.first().is_some_and(|first| first.effect.worked() != Some(true)) {
                count = count.min(3);
            }
        }
        let quick = session.send_kind(RequestKind::Quick).await?;
        let patience = deadline + baselines.slow_takes().unwrap_or_default() * 5;
        let answer = session.answer(&quick.id, quick.at + patience).await?;
        tries.quick_after.push(answer.map(|answer| answer.at.saturating_duration_since(quick.at)));
        if tries.quick_after.last() == Some(&None) {
            return Ok(());
        }
    }
    Ok(())
}

/// How long an answer is awaited of a request that does not end without a cancel.
fn least_wait(baselines: &Baselines, deadline: Duration) -> Duration {
    if baselines.slow_takes().is_some() { Duration::ZERO } else { deadline }
}

/// Reads what a cancelled request came to by then. What comes later changes nothing: whether it is still seen is chance.
fn judge(
    session: &PeerSession,
    baselines: &Baselines,
    sent: &Sent,
    cancelled: Instant,
    until: Instant,
) -> Try {
    let mut answers = session.answers(&sent.id);
    answers.retain(|answer| answer.at <= until);
    let Some(answer) = answers.first() else {
        let shows_it = baselines.slow_takes().is_some() && session.wire_format.owes_silence();
        let effect = if shows_it { Effect::Silence } else { Effect::NoAnswer };
        return Try { effect, answered: None, answers: 0, took: None };
    };
    let took = answer.at.saturating_duration_since(sent.at);
    let answered = answer.at.saturating_duration_since(cancelled);
    // A whole result long after the cancel is the normal one, of a machine that is less busy than before.
    let is_late = baselines.slow_takes().is_some_and(|takes| {
        took >= takes.mul_f64(NORMAL_END)
            || (answered >= takes / 5 && baselines.is_whole(session.wire_format, answer))
    });
    let normal_error = baselines.slow.as_ref().and_then(|slow| slow.error.clone());
    let error = error_of(session.wire_format, answer);
    let profile = session.profile.requests.get(&RequestKind::Slow);
    let named = profile.is_some_and(|request| request.says_cancelled(session.wire_format, &answer.frame));
    let effect = match error {
        _ if named || is_cancelled(session.wire_format, &answer.frame) => Effect::Cancelled,
        // It says nothing about a cancel that had not been sent, for example of a peer that limits the rate of requests.
        Some(_) if answer.at <= cancelled && error != normal_error => Effect::Refused,
        error if is_late && error == normal_error => Effect::NormalEnd,
        Some(code) => Effect::OtherError(code),
        None => Effect::EarlyResult,
    };
    Try { effect, answered: Some(answered), answers: answers.len(), took: Some(took) }
}

/// A result that came early may be the normal end on a machine that was busier when the baseline was taken: so the slow
/// request is run once more without a cancel.
async fn look_again(
    session: &mut PeerSession,
    baselines: &Baselines,
    deadline: Duration,
    tries: &mut Tries,
) -> Result<(), Lost> {
    let early = |one: &Try| one.effect == Effect::EarlyResult;
    let Some(normal) = baselines.slow_takes().filter(|_| tries.all.iter().any(early)) else { return Ok(()) };
    let takes = if let Some(takes) = tries.seen_again {
        takes
    } else {
        let sent = session.send_kind(RequestKind::Slow).await?;
        let answer = session.answer(&sent.id, sent.at + normal * 2 + deadline).await?;
        answer.map_or(normal, |answer| answer.at.saturating_duration_since(sent.at)).min(normal)
    };
    tries.seen_again = Some(takes);
    for one in tries.all.iter_mut().filter(|one| early(one)) {
        if one.took.is_some_and(|took| took >= takes.mul_f64(NORMAL_END)) {
            one.effect = Effect::NormalEnd;
        }
    }
    Ok(())
}

/// Whether an answer has the cancelled form of its dialect.
pub(super) fn is_cancelled(wire_format: WireFormat, frame: &Value) -> bool {
    let code = frame.pointer("/error/code").and_then(Value::as_i64);
    code.is_some_and(|code| wire_format.facts.cancelled_codes.contains(&code))
        || frame.pointer("/payload/cancelled") == Some(&Value::Bool(true))
        || frame.pointer("/result/stopReason").and_then(Value::as_str) == Some("cancelled")
}
