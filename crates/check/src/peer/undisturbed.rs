//! A running request that nobody cancels must come to its own end, whatever cancels are about other requests.

use std::time::Duration;

use rescind_testkit::RequestKind;
use serde_json::{Value, json};

use super::baseline::{Baselines, error_of, shown};
use super::session::{Lost, PeerSession, Received, Sent};
use super::statements::Question;
use super::tries::{cancel_delay, is_cancelled};

/// What happens while the request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Nothing: many requests were cancelled before.
    Nothing,
    /// A cancel for a request that has been answered.
    LateCancel,
    /// A cancel for an id that no request has.
    UnknownCancel,
    /// Cancels whose id is missing or has no type that an id can have.
    MalformedCancel,
    /// Other slow requests are cancelled: one that was sent before, and one that was sent later.
    CancelledSibling,
    /// A cancel with the same id in the other type: text for a number.
    OtherType,
}

impl Disturbance {
    /// The question that it answers.
    pub(super) const fn question(self) -> Question {
        match self {
            Self::Nothing => Question::FreesSlot,
            Self::LateCancel => Question::LateCancelIgnored,
            Self::UnknownCancel => Question::UnknownCancelIgnored,
            Self::MalformedCancel => Question::MalformedCancelIgnored,
            Self::CancelledSibling => Question::SiblingsUntouched,
            Self::OtherType => Question::TellsIdsApart,
        }
    }

    /// When something happened, for a sentence.
    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Nothing => "after many cancels",
            Self::LateCancel => "after a cancel that came too late",
            Self::UnknownCancel => "after a cancel for an unknown id",
            Self::MalformedCancel => "after a malformed cancel",
            Self::CancelledSibling => "after the cancel of another request",
            Self::OtherType => "after a cancel with the id in the other type",
        }
    }
}

/// How the request ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// As it ends without a cancel, or it still ran when it was looked at.
    Undisturbed,
    /// Otherwise, in words.
    Disturbed(String),
    /// Nothing shows how, with the reason.
    Unknown(String),
}

/// Runs a slow request with these things happening beside it, and says for each of them how that request ended. The cancel
/// with the id in the other type gets a slow request of its own.
pub(super) async fn run(
    session: &mut PeerSession,
    baselines: &Baselines,
    disturbances: &[Disturbance],
    cancelled_before: usize,
    deadline: Duration,
) -> Result<Vec<(Disturbance, End)>, Lost> {
    let (apart, beside): (Vec<Disturbance>, Vec<Disturbance>) =
        disturbances.iter().partition(|disturbance| **disturbance == Disturbance::OtherType);
    let mut finished = None;
    if beside.contains(&Disturbance::LateCancel) {
        let quick = session.send_kind(RequestKind::Quick).await?;
        let _answer = session.answer(&quick.id, quick.at + deadline).await?;
        finished = Some(quick.id);
    }
    let mut sibling = None;
    if beside.contains(&Disturbance::CancelledSibling) {
        sibling = Some(session.send_kind(RequestKind::Slow).await?);
    }
    // A late cancel must touch neither the request that is sent next nor one that runs.
    if let Some(finished) = &finished {
        session.cancel(finished).await?;
    }
    let mut sent = None;
    if !beside.is_empty() {
        let slow = session.send_kind(RequestKind::Slow).await?;
        session.uncancelled.push(slow.clone());
        sent = Some(slow);
    }
    // The older one would be the right one for a peer that cancels its oldest request, whichever is named.
    let mut newer = None;
    if beside.contains(&Disturbance::CancelledSibling) {
        newer = Some(session.send_kind(RequestKind::Slow).await?);
    }
    let mut own = None;
    if !apart.is_empty() {
        own = Some(session.send_kind(RequestKind::Slow).await?);
    }
    // The work of cancelled requests may continue, and others may wait behind it.
    let before = u32::try_from(cancelled_before).unwrap_or(u32::MAX);
    let others = [&sibling, &sent, &newer, &own].into_iter().flatten().count();
    let at_once = before + u32::try_from(others).unwrap_or(u32::MAX);
    session.listen(session.now() + cancel_delay(baselines)).await?;
    let superseded = sibling.as_ref().and_then(|sibling| failed_uncancelled(session, baselines, sibling));
    for disturbance in &beside {
        let about = match disturbance {
            Disturbance::LateCancel => finished.as_ref(),
            Disturbance::CancelledSibling => sibling.as_ref().map(|sibling| &sibling.id),
            Disturbance::Nothing
            | Disturbance::UnknownCancel
            | Disturbance::MalformedCancel
            | Disturbance::OtherType => None,
        };
        if let Some(sent) = &sent {
            disturb(session, *disturbance, &sent.id, about).await?;
        }
    }
    if let Some(newer) = &newer {
        session.cancel(&newer.id).await?;
    }
    if let Some(own) = &own {
        disturb(session, Disturbance::OtherType, &own.id, None).await?;
    }
    let mut ends = Vec::new();
    if let Some(sent) = &sent {
        let end = end_of(session, baselines, sent, at_once, deadline).await?;
        ends.extend(beside.into_iter().map(|disturbance| match (disturbance, &superseded) {
            (Disturbance::CancelledSibling, Some(how)) => (disturbance, End::Unknown(how.clone())),
            _ => (disturbance, end.clone()),
        }));
    }
    if let Some(own) = &own {
        let prompt = matches!(ends.first(), Some((_, End::Undisturbed)));
        let end = if prompt && is_overtaken(session, baselines, own, deadline).await? {
            End::Disturbed("it was not answered, and a request that was sent later was".to_owned())
        } else {
            end_of(session, baselines, own, at_once, deadline).await?
        };
        ends.push((Disturbance::OtherType, end));
    }
    // A peer that works on one request at a time reads a cancel only now.
    let quick = session.send_kind(RequestKind::Quick).await?;
    let patience = deadline + baselines.slow_takes().unwrap_or_default() * at_once;
    if session.answer(&quick.id, quick.at + patience).await?.is_none() {
        return Err(Lost(format!("a quick request was not answered within {}", shown(patience))));
    }
    Ok(ends)
}

/// How a slow request failed that nobody has cancelled yet. A peer may end it when another of its kind comes.
fn failed_uncancelled(session: &PeerSession, baselines: &Baselines, sent: &Sent) -> Option<String> {
    let normal = baselines.slow.as_ref().and_then(|slow| slow.error.clone());
    let answers = session.answers(&sent.id);
    let answer = answers.first().filter(|answer| error_of(session.wire_format, answer) != normal)?;
    Some(format!(
        "the first of two slow requests ended with {} before any cancel of it was sent",
        answer.frame
    ))
}

/// Sends the cancels of one disturbance. `about`: the other request that they are about, else the running one.
pub(super) async fn disturb(
    session: &mut PeerSession,
    disturbance: Disturbance,
    running: &Value,
    about: Option<&Value>,
) -> Result<(), Lost> {
    match disturbance {
        Disturbance::Nothing => {}
        Disturbance::LateCancel | Disturbance::CancelledSibling => {
            session.cancel(about.unwrap_or(running)).await?;
        }
        Disturbance::UnknownCancel => {
            let unknown = session.wire_format.id(987_654_321);
            session.cancel(&unknown).await?;
        }
        Disturbance::MalformedCancel => {
            for frame in malformed_cancels(session, running) {
                session.send(frame).await?;
            }
        }
        Disturbance::OtherType => {
            session.cancel(&other_type(running)).await?;
        }
    }
    Ok(())
}

/// Whether a request of the same kind that is sent later is answered, and this one is not. That needs less time than to
/// wait until this one must have been answered on a busy machine.
async fn is_overtaken(
    session: &mut PeerSession,
    baselines: &Baselines,
    sent: &Sent,
    deadline: Duration,
) -> Result<bool, Lost> {
    let Some(takes) = baselines.slow_takes() else { return Ok(false) };
    if session.answer(&sent.id, sent.at + takes * 2 + deadline.min(takes / 2)).await?.is_some() {
        return Ok(false);
    }
    let later = session.send_kind(RequestKind::Slow).await?;
    let Some(answer) = session.answer(&later.id, later.at + takes * 3 + deadline).await? else {
        return Ok(false);
    };
    // A peer that works on both at once may be about to answer this one too.
    let took = answer.at.saturating_duration_since(later.at);
    let until = answer.at + Duration::from_secs(2) + took / 2;
    Ok(session.answer(&sent.id, until).await?.is_none())
}

async fn end_of(
    session: &mut PeerSession,
    baselines: &Baselines,
    sent: &Sent,
    at_once: u32,
    deadline: Duration,
) -> Result<End, Lost> {
    let Some(takes) = baselines.slow_takes() else { return still_runs(session, sent, deadline).await };
    // Several at once take as long as one after another where they share a processor.
    let until = sent.at + takes * (at_once + 1) + deadline;
    let Some(answer) = session.answer(&sent.id, until).await? else {
        return Ok(End::Disturbed(format!(
            "the other request was not answered within {}; without a cancel it takes {}",
            shown(until.saturating_duration_since(sent.at)),
            shown(takes)
        )));
    };
    Ok(read(session, baselines, sent, &answer, takes))
}

fn read(
    session: &PeerSession,
    baselines: &Baselines,
    sent: &Sent,
    answer: &Received,
    takes: Duration,
) -> End {
    let took = answer.at.saturating_duration_since(sent.at);
    let normal = baselines.slow.as_ref().and_then(|slow| slow.error.clone());
    let error = error_of(session.wire_format, answer);
    let in_words = || {
        format!(
            "the other request ended after {} with {}; without a cancel it takes {}",
            shown(took),
            answer.frame,
            shown(takes)
        )
    };
    let is_cancelled = is_cancelled(session.wire_format, &answer.frame);
    if error != normal && !is_cancelled && took < cancel_delay(baselines) {
        // It was refused before any cancel was sent, perhaps because another one runs.
        End::Unknown(in_words())
    } else if is_cancelled || error != normal {
        End::Disturbed(in_words())
    } else if took < takes / 3 && !baselines.is_whole(session.wire_format, answer) {
        End::Unknown(in_words())
    } else {
        End::Undisturbed
    }
}

/// A request that does not end without a cancel must still run, which its own cancel then shows.
async fn still_runs(session: &mut PeerSession, sent: &Sent, deadline: Duration) -> Result<End, Lost> {
    let quick = session.send_kind(RequestKind::Quick).await?;
    let _answer = session.answer(&quick.id, quick.at + deadline).await?;
    session.listen(session.now() + Duration::from_millis(300)).await?;
    if let Some(answer) = session.answers(&sent.id).first() {
        return Ok(End::Disturbed(format!("the other request ended with {}", answer.frame)));
    }
    let cancelled = session.cancel(&sent.id).await?;
    if session.wire_format.owes_silence() {
        return Ok(End::Unknown(
            "the slow request does not end by itself, and no answer is due after its cancel, so nothing shows that it still ran; \
             name a slow request that ends after a few seconds"
                .to_owned(),
        ));
    }
    Ok(match session.answer(&sent.id, cancelled + deadline).await? {
        Some(_) => End::Undisturbed,
        None => End::Disturbed(format!(
            "the other request was not answered within {} of its own cancel",
            shown(deadline)
        )),
    })
}

/// Cancels that name no request: the id is missing, or has no type that an id can have. Some of them hold the id of the
/// running request, for a peer that takes what it finds.
fn malformed_cancels(session: &PeerSession, id: &Value) -> Vec<Value> {
    let wire_format = session.wire_format;
    let plain = wire_format.cancel(&wire_format.cancel_key(id));
    let key = wire_format.facts.cancel_name().map(|name| name.key);
    let place = key.map_or_else(|| "/payload/callId".to_owned(), |key| format!("/params/{key}"));
    let with = |value: Value| {
        let mut frame = plain.clone();
        if let Some(at) = frame.pointer_mut(&place) {
            *at = value;
        }
        frame
    };
    let mut all =
        vec![with(json!([id])), with(json!({ "id": id })), with(Value::Bool(true)), with(Value::Null)];
    let members = ["params", "payload"].into_iter().find(|name| plain.get(name).is_some());
    if let Some(name) = members {
        let mut empty = plain.clone();
        if let Some(inner) = empty.get_mut(name) {
            *inner = json!({});
        }
        let mut missing = plain.clone();
        if let Some(members) = missing.as_object_mut() {
            members.remove(name);
        }
        all.extend([empty, missing]);
    }
    all
}

/// The same id in the other type that an id can have.
fn other_type(id: &Value) -> Value {
    match id {
        Value::String(text) => text.parse::<u64>().map_or_else(|_| Value::from(0), Value::from),
        other => Value::from(other.to_string()),
    }
}
