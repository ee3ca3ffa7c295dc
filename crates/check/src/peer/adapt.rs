//! Fits a scenario to a peer: ids that its session has not seen, and requests that the profile has.

use rescind_testkit::wire_format::{Shape, WireFormat};
use rescind_testkit::{Demand, HandshakeMode, Profile, RequestKind, Scenario, Step, Vector};
use serde_json::Value;

use super::baseline::Baselines;
use super::statements::Question;

const NEW_SESSION: &str = "session/new";
pub(super) const PROMPT: &str = "session/prompt";

/// Ids of the scenario with this number are above this multiple of it.
const IDS_OF_A_SCENARIO: u64 = 1_000;

/// Whether a scenario can be played in a session in which others were played, and will be.
pub(super) fn can_share_a_session(scenario: &Scenario) -> bool {
    let vector = &scenario.vector;
    // A scenario about the peer's own requests keeps its ids.
    let asks_us = !scenario.requirements().children.is_empty();
    vector.handshake == HandshakeMode::Default && !asks_us && vector.steps.iter().all(Step::keeps_session)
}

/// Replaces requests that the profile does not have by equivalent ones: a slow request that ends without a cancel for a
/// delayed one, an unknown method for one that fails.
pub(super) fn with_requests_of(scenario: &Scenario, profile: &Profile, baselines: &Baselines) -> Scenario {
    let mut adapted = scenario.clone();
    let has = |kind| profile.requests.contains_key(&kind);
    let requirements = scenario.requirements();
    // Beside it, a slow request that must still run would end at the same time.
    let is_plain =
        !requirements.particular.contains("test/sleep") && !requirements.methods.contains("test/wait");
    if !has(RequestKind::Sleep) && is_plain && baselines.slow_takes().is_some() {
        rename(&mut adapted.vector, "test/sleep", "test/wait");
    }
    if !has(RequestKind::Panic) && adapted.vector.name != "panic" {
        rename(&mut adapted.vector, "test/panic", "rescind/unknown");
    }
    if uses_turns(scenario, profile, baselines.slow_takes().is_some()) {
        with_turns(&mut adapted.vector, profile);
    }
    adapted
}

/// Scenarios about turns whose prompts only wait, or end after a while, and which an agent's own slow turn can play where the
/// documents say how such a turn must end.
const TURNS: [&str; 2] = ["prompt_session_cancel", "prompt_after_session_cancel"];

/// Whether the scenario is played with the slow turn of the profile. A turn that does not end shows no ordinary end.
fn uses_turns(scenario: &Scenario, profile: &Profile, ends: bool) -> bool {
    let slow = profile.requests.get(&RequestKind::Slow);
    let is_turn = slow.is_some_and(|slow| slow.method == PROMPT && slow.params.get("sessionId").is_some());
    let named = TURNS.iter().position(|name| *name == scenario.vector.name);
    let must_end_so = Question::TurnCancelled.asked(scenario.facts).demand == Demand::Must;
    must_end_so && is_turn && named.is_some_and(|place| place == 0 || ends)
}

/// The profile, which also serves what the scenario asks of the slow turn.
pub(super) fn profile_for(scenario: &Scenario, profile: &Profile, ends: bool) -> Profile {
    let mut profile = profile.clone();
    if uses_turns(scenario, &profile, ends) {
        profile.serves.extend([NEW_SESSION.to_owned(), PROMPT.to_owned()]);
    }
    profile
}

/// Gives the sessions and the prompts of a scenario the params of the profile. An ordinary end may have any reason.
fn with_turns(vector: &mut Vector, profile: &Profile) {
    let slow = profile.requests.get(&RequestKind::Slow).map(|slow| slow.params.clone()).unwrap_or_default();
    let steps = profile.handshake.steps.iter().chain(&profile.session.setup);
    let opens = steps.rev().find(|step| step.method.as_deref() == Some(NEW_SESSION));
    let new_session = opens.map(|step| step.params.clone());
    for step in &mut vector.steps {
        step.each_frame(&mut |frame| {
            let method = frame.get("method").and_then(Value::as_str).unwrap_or_default().to_owned();
            let session = frame.pointer("/params/sessionId").cloned();
            if let (NEW_SESSION, Some(params), Some(new)) =
                (method.as_str(), frame.get_mut("params"), new_session.as_ref())
            {
                params.clone_from(new);
            } else if let (PROMPT, Some(params), Some(session)) =
                (method.as_str(), frame.get_mut("params"), session)
            {
                params.clone_from(&slow);
                if let Some(place) = params.get_mut("sessionId") {
                    *place = session;
                }
            }
            if let Some(reason) =
                frame.pointer_mut("/result/stopReason").filter(|reason| *reason == "end_turn")
            {
                *reason = Value::from("$string");
            }
        });
    }
}

/// Renames a method. The answer of a method that fails may have any code.
fn rename(vector: &mut Vector, from: &str, to: &str) {
    let mut failing = Vec::new();
    for step in &mut vector.steps {
        step.each_frame(&mut |frame| {
            let place = ["/method", "/payload/capability"]
                .into_iter()
                .find(|place| frame.pointer(place).and_then(Value::as_str) == Some(from));
            if let Some(method) = place.and_then(|place| frame.pointer_mut(place)) {
                *method = Value::from(to);
                failing.extend(frame.get("id").cloned());
            }
            if frame.get("id").is_some_and(|id| failing.contains(id)) {
                for code in ["/error/code", "/payload/error/code"] {
                    if let Some(code) = frame.pointer_mut(code).filter(|_| to == "rescind/unknown") {
                        *code = Value::from("$any");
                    }
                }
            }
        });
    }
}

/// Gives the requests of a scenario ids that no other scenario of the session has. 1 and `"1"` stay alike.
pub(super) fn with_fresh_ids(scenario: &Scenario, wire_format: WireFormat, number: u64) -> Scenario {
    let mut renumbered = scenario.clone();
    let base = (number + 1) * IDS_OF_A_SCENARIO;
    let keys = wire_format.facts.cancel_keys();
    for step in &mut renumbered.vector.steps {
        step.each_frame(&mut |frame| {
            let is_cancel = matches!(wire_format.shape(frame), Shape::Cancel { .. });
            if let Some(id) = frame.get_mut("id") {
                shift(id, base);
            }
            for place in ["/payload/callId", "/payload/options/callId"] {
                if let Some(name) = frame.pointer_mut(place) {
                    shift(name, base);
                }
            }
            let params = frame.get_mut("params").and_then(Value::as_object_mut).filter(|_| is_cancel);
            for (_, key) in params.into_iter().flatten().filter(|(name, _)| keys.contains(&name.as_str())) {
                shift(key, base);
            }
        });
        if let Step::ExpectNothing(unwanted) = step {
            if let Some(about) = &mut unwanted.about {
                shift(about, base);
            }
        }
    }
    renumbered
}

/// Moves each id in a value. Names of captures stay.
fn shift(value: &mut Value, base: u64) {
    match value {
        Value::Number(number) => {
            if let Some(small) = number.as_u64() {
                *value = Value::from(base + small);
            } else if let Some(fraction) = number.as_f64().filter(|_| number.is_f64()) {
                // Precise: the ids of vectors are small.
                *value =
                    serde_json::Number::from_f64(fraction + to_f64(base)).map_or(Value::Null, Value::Number);
            }
        }
        Value::String(text) if !text.starts_with('$') => {
            *text = match text.parse::<u64>() {
                Ok(small) => (base + small).to_string(),
                Err(_) => format!("{text}-{base}"),
            };
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shift(item, base)),
        Value::Object(members) => members.values_mut().for_each(|member| shift(member, base)),
        Value::String(_) | Value::Null | Value::Bool(_) => {}
    }
}

fn to_f64(small: u64) -> f64 {
    u32::try_from(small).map_or(0.0, f64::from)
}

/// Whether something is awaited of the peer while a slow request runs that no cancel was sent for: a peer that serves one
/// request at a time cannot do that.
pub(super) fn needs_two_at_once(scenario: &Scenario, wire_format: WireFormat) -> bool {
    let mut running: Vec<Value> = Vec::new();
    for step in &scenario.vector.steps {
        let mut sent = Vec::new();
        match step {
            Step::Send(frame) => sent.push(frame),
            Step::SendTogether(frames) => sent.extend(frames),
            Step::Barrier(_) | Step::Skip(_) | Step::ExpectNothing(_) if !running.is_empty() => return true,
            Step::Expect(pattern) => {
                if let Shape::Answer { id } = wire_format.shape(pattern) {
                    if !running.is_empty() && !running.contains(&id) {
                        return true;
                    }
                }
            }
            _ => {}
        }
        for frame in sent {
            match wire_format.shape(frame) {
                Shape::Request { id, method } if method == "test/wait" => {
                    running.push(wire_format.cancel_key(&id));
                }
                Shape::Cancel { key } => running.retain(|id| *id != key),
                _ => {}
            }
        }
    }
    false
}

/// Whether two slow requests run at the same time in the scenario.
pub(super) fn runs_two_slow(scenario: &Scenario, wire_format: WireFormat) -> bool {
    let mut running: Vec<Value> = Vec::new();
    for frame in sent_frames(scenario) {
        match wire_format.shape(frame) {
            Shape::Request { id, method } if method == "test/wait" => {
                running.push(wire_format.cancel_key(&id));
            }
            Shape::Cancel { key } => running.retain(|id| *id != key),
            _ => {}
        }
        if running.len() > 1 {
            return true;
        }
    }
    false
}

/// Whether the scenario waits for a cancel to take effect.
pub(super) fn needs_cancels(scenario: &Scenario, wire_format: WireFormat) -> bool {
    let mut slow: Vec<Value> = Vec::new();
    sent_frames(scenario).any(|frame| match wire_format.shape(frame) {
        Shape::Request { id, method } if method.starts_with("test/") && method != "test/echo" => {
            slow.push(wire_format.cancel_key(&id));
            false
        }
        Shape::Cancel { key } => slow.contains(&key),
        _ => false,
    })
}

/// The ids of the requests of a scenario.
pub(super) fn request_ids(scenario: &Scenario, wire_format: WireFormat) -> Vec<Value> {
    let ids = sent_frames(scenario).filter_map(|frame| match wire_format.shape(frame) {
        Shape::Request { id, .. } => Some(id),
        Shape::Notification { .. } | Shape::Answer { .. } | Shape::Cancel { .. } | Shape::Other => None,
    });
    ids.collect()
}

/// The ids of the requests that a scenario neither cancels after it sent them nor awaits the answers of.
pub(super) fn left_running(scenario: &Scenario, wire_format: WireFormat) -> Vec<Value> {
    let mut running = Vec::new();
    for step in &scenario.vector.steps {
        step.clone().each_frame(&mut |frame| match wire_format.shape(frame) {
            Shape::Request { id, .. } => running.push(id),
            Shape::Cancel { key } => running.retain(|id| wire_format.cancel_key(id) != key),
            Shape::Answer { id } => running.retain(|other| *other != id),
            Shape::Notification { .. } | Shape::Other => {}
        });
    }
    running
}

fn sent_frames(scenario: &Scenario) -> impl Iterator<Item = &Value> {
    scenario.vector.steps.iter().flat_map(|step| match step {
        Step::Send(frame) => std::slice::from_ref(frame),
        Step::SendTogether(frames) => frames.as_slice(),
        _ => &[],
    })
}

#[cfg(test)]
mod tests {
    use rescind_testkit::scenarios_of;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_that_no_later_cancel_names_is_left_running() {
        let left = |dialect, name: &str| {
            let scenario = scenarios_of(dialect).find(|scenario| scenario.vector.name == name).unwrap();
            left_running(scenario, WireFormat::of(dialect).unwrap())
        };
        assert_eq!(left("mcp-2026", "posted_cancel_names_nothing"), [json!(7)]);
        assert_eq!(left("mcp-2026", "cancel_running"), Vec::<Value>::new());
        assert_eq!(left("lsp", "unknown_method"), Vec::<Value>::new());
    }
}
