//! A running request that nobody cancels must come to its own end, whatever cancels are about other requests.

use std::time::Duration;

use serde_json::{Value, json};

use super::baseline::{Baselines, error_of, shown};
use super::session::{Lost, PeerSession, Received, Sent};
use super::tries::{cancel_delay, is_cancelled};
use crate::profile::RequestKind;

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
    /// Another slow request is cancelled.
    CancelledSibling,
    /// A cancel with the same id in the other type: text for a number.
    OtherType,
}

/// How the request ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// As it ends by itself, or it still ran when it was looked at.
    Undisturbed,
    /// Otherwise, in words.
    Disturbed(String),
    /// It cannot be told, with the reason.
    Unknown(String),
}

/// Runs one slow request with these things happening beside it.
pub(super) async fn run(
    session: &mut PeerSession,
    baselines: &Baselines,
    disturbances: &[Disturbance],
    deadline: Duration,
) -> Result<End, Lost> {
    let mut finished = None;
    if disturbances.contains(&Disturbance::LateCancel) {
        let quick = session.send_kind(RequestKind::Quick).await?;
        let _answer = session.answer(&quick.id, quick.at + deadline).await?;
        finished = Some(quick.id);
    }
    let mut sibling = None;
    if disturbances.contains(&Disturbance::CancelledSibling) {
        sibling = Some(session.send_kind(RequestKind::Slow).await?);
    }
    let sent = session.send_kind(RequestKind::Slow).await?;
    session.listen(sent.at + cancel_delay(baselines)).await?;
    for disturbance in disturbances {
        match disturbance {
            Disturbance::Nothing => {}
            Disturbance::LateCancel => {
                if let Some(id) = &finished {
                    session.cancel(id).await?;
                }
            }
            Disturbance::UnknownCancel => {
                let unknown = session.wire_format.id(987_654_321);
                session.cancel(&unknown).await?;
            }
            Disturbance::MalformedCancel => {
                for frame in malformed_cancels(session, &sent.id) {
                    session.send(frame).await?;
                }
            }
            Disturbance::CancelledSibling => {
                if let Some(sibling) = &sibling {
                    session.cancel(&sibling.id).await?;
                }
            }
            Disturbance::OtherType => {
                session.cancel(&other_type(&sent.id)).await?;
            }
        }
    }
    end_of(session, baselines, &sent, sibling.is_some(), deadline).await
}

async fn end_of(
    session: &mut PeerSession,
    baselines: &Baselines,
    sent: &Sent,
    has_sibling: bool,
    deadline: Duration,
) -> Result<End, Lost> {
    let Some(takes) = baselines.slow_takes() else { return still_runs(session, sent, deadline).await };
    // Two at once may take twice as long, one after another too.
    let times = if has_sibling { 3 } else { 2 };
    let until = sent.at + takes * times + deadline;
    let Some(answer) = session.answer(&sent.id, until).await? else {
        return Ok(End::Disturbed(format!(
            "the other request was not answered within {}; by itself it takes {}",
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
            "the other request ended after {} with {}; by itself it takes {}",
            shown(took),
            answer.frame,
            shown(takes)
        )
    };
    if is_cancelled(session.wire_format, &answer.frame) || error != normal {
        End::Disturbed(in_words())
    } else if took < takes / 3 {
        End::Unknown(in_words())
    } else {
        End::Undisturbed
    }
}

/// A request that does not end by itself must still run, which its own cancel then shows.
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
    let place = ["/params/requestId", "/params/id", "/payload/callId"]
        .into_iter()
        .find(|place| plain.pointer(place).is_some())
        .unwrap_or_default();
    let with = |value: Value| {
        let mut frame = plain.clone();
        if let Some(at) = frame.pointer_mut(place) {
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
