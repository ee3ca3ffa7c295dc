//! The requirements of a vector on its subject, derived from its steps, and what is known about a foreign peer before
//! scenarios are played.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::subject::Line;
use crate::pattern::Bindings;
use crate::profile::{Profile, ProfileRequest, RequestKind};
use crate::vector::{Abilities, HandshakeMode, Part, Scenario, ShownBy, Step, Vector};
use crate::wire_format::{Shape, WireFormat};

/// The requirements of a vector on its subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent needs, each read by its name")]
pub struct Requirements {
    /// The methods it calls.
    pub methods: BTreeSet<String>,
    /// The methods whose params matter to it. No other request can replace them.
    pub particular: BTreeSet<String>,
    /// The methods of the requests it waits for.
    pub children: BTreeSet<String>,
    /// Whether it needs more than one connection to the same fixture.
    pub many_lines: bool,
    /// Whether it ends the subject's input.
    pub half_close: bool,
    /// Whether it reads counters.
    pub witness: bool,
    /// Whether it sends a cancel.
    pub sends_cancels: bool,
    /// Whether it has its own handshake.
    pub own_opening: bool,
}

impl Vector {
    /// Derives the requirements of this vector from its steps.
    #[must_use]
    pub fn requirements(&self, dialect: &str) -> Requirements {
        self.requirements_in(WireFormat::of(dialect))
    }

    fn requirements_in(&self, wire_format: Option<WireFormat>) -> Requirements {
        let mut requirements = Requirements::default();
        let opening: &[Step] = match &self.handshake {
            HandshakeMode::Default => &[],
            HandshakeMode::None => {
                requirements.own_opening = true;
                &[]
            }
            HandshakeMode::Steps(steps) => {
                requirements.own_opening = true;
                steps
            }
        };
        for step in opening.iter().chain(&self.steps) {
            requirements.add(step, wire_format);
            requirements.sends_cancels |= step.cancels(wire_format);
        }
        requirements
    }
}

impl Scenario {
    /// Derives the requirements of its vector from its steps.
    #[must_use]
    pub fn requirements(&self) -> Requirements {
        self.vector.requirements_in(Some(self.wire_format()))
    }

    /// Why its vector cannot be played against a subject with these abilities through this profile. `None`: it can.
    #[doc(hidden)]
    #[must_use]
    pub fn refusal(
        &self,
        abilities: Abilities,
        profile: Option<&Profile>,
        calibration: Option<&Calibration>,
    ) -> Option<String> {
        let vector = &self.vector;
        let requirements = self.requirements();
        let why = |text: &str| Some(text.to_owned());
        if vector.role == Part::Call && !abilities.calls {
            return why("the subject cannot be instructed to make calls");
        }
        // A foreign peer may itself declare what the options would set.
        if !vector.options.is_default() && !abilities.options && vector.declared.is_empty() {
            return why("it needs settings that this peer cannot be given");
        }
        if requirements.many_lines && !abilities.many_lines {
            return why(
                "it needs two sessions of one agent, with a count of the work of both (over stdio a process is one session)",
            );
        }
        if requirements.half_close && !abilities.half_close {
            return why("this wire cannot end its input alone");
        }
        let profile = profile?;
        if let Some(left_open) = &vector.ours {
            return Some(format!("the documents leave open, and it shows what we decided: {left_open}"));
        }
        if requirements.own_opening && profile.requests.values().any(uses_what_was_bound) {
            return why(
                "the scenario has its own handshake, and the profile needs values from the profile's handshake",
            );
        }
        if let Some(unseen) = vector.unseen(profile, calibration) {
            return why(unseen);
        }
        requirements.methods.iter().find_map(|method| match RequestKind::of_method(method) {
            Some(kind)
                if profile.requests.get(&kind).is_some_and(|request| {
                    request.method == *method || !requirements.particular.contains(method)
                }) =>
            {
                None
            }
            None if !is_of_the_fixture(method) || profile.serves.contains(method) => None,
            _ => Some(format!("it needs a request like `{method}`, and the profile has none")),
        })
    }
}

impl Vector {
    /// Why what shows that this vector holds cannot be seen of this peer. `None`: it can.
    fn unseen(&self, profile: &Profile, calibration: Option<&Calibration>) -> Option<&'static str> {
        if profile.witness.as_ref().is_some_and(|witness| !witness.method.is_empty()) {
            return None;
        }
        match self.shown_by {
            ShownBy::Frames => None,
            ShownBy::Silence if calibration.is_some_and(|known| known.slow_takes.is_some()) => None,
            ShownBy::Silence => Some(
                "an answer that does not come shows nothing here: it needs a slow request that ends by itself after a few seconds, or \
                 a witness that work stopped",
            ),
            ShownBy::Work => Some("it needs a witness that work stopped, and the profile has none"),
        }
    }
}

impl Vector {
    /// Why this vector is not played on a transport with these abilities: the protocols require different behaviour
    /// there. `None`: it is played.
    #[doc(hidden)]
    #[must_use]
    pub fn unlike(&self, abilities: Abilities) -> Option<&'static str> {
        if !abilities.bare && self.handshake != HandshakeMode::Default {
            return Some("on this wire nothing can be said before the usual opening");
        }
        self.needs.iter().find_map(|need| need.unmet(abilities))
    }
}

fn uses_what_was_bound(request: &ProfileRequest) -> bool {
    request.params.to_string().contains("${")
}

fn is_of_the_fixture(method: &str) -> bool {
    ["test/", "session/", "tools/"].iter().any(|start| method.starts_with(start))
}

impl Step {
    fn cancels(&self, wire_format: Option<WireFormat>) -> bool {
        let is_cancel = |frame: &Value| {
            wire_format.is_some_and(|wire_format| matches!(wire_format.shape(frame), Shape::Cancel { .. }))
        };
        match self {
            Self::Send(frame) => is_cancel(frame),
            Self::SendTogether(frames) => frames.iter().any(is_cancel),
            _ => false,
        }
    }
}

impl Requirements {
    fn add(&mut self, step: &Step, wire_format: Option<WireFormat>) {
        match step {
            Step::Send(frame) => self.add_frame(frame, wire_format),
            Step::SendTogether(frames) => frames.iter().for_each(|frame| self.add_frame(frame, wire_format)),
            Step::Work(_) => self.witness = true,
            Step::On(_) => self.many_lines = true,
            Step::HalfClose(_) => self.half_close = true,
            // The barrier is an echo.
            Step::Barrier(_) | Step::Skip(_) | Step::ExpectNothing(_) => {
                self.methods.insert("test/echo".to_owned());
            }
            Step::Expect(pattern) => self.add_child(pattern, wire_format),
            Step::ExpectAnyOrder(patterns) => {
                for pattern in patterns {
                    self.add_child(pattern, wire_format);
                }
            }
            Step::ExpectThrough(through) => self.add_child(&through.frame, wire_format),
            Step::SendRaw(_)
            | Step::ExpectClosed(_)
            | Step::Disconnect(_)
            | Step::Call(_)
            | Step::CancelCall(_)
            | Step::DropCall(_)
            | Step::ExpectOutcome(_)
            | Step::Shutdown(_) => {}
        }
    }

    fn add_child(&mut self, pattern: &Value, wire_format: Option<WireFormat>) {
        if let Some(Shape::Request { method, .. }) = wire_format.map(|wire_format| wire_format.shape(pattern))
        {
            self.children.insert(method);
        }
    }

    fn add_frame(&mut self, frame: &Value, wire_format: Option<WireFormat>) {
        if let Value::Array(members) = frame {
            for member in members {
                self.add_frame(member, wire_format);
            }
        } else if let Some(Shape::Request { method, .. }) =
            wire_format.map(|wire_format| wire_format.shape(frame))
        {
            if is_particular(frame, &method) {
                self.particular.insert(method.clone());
            }
            self.methods.insert(method);
        }
    }
}

/// Whether its params matter. The nested request of a profile makes two calls at once, its progress request sends two
/// notifications.
fn is_particular(frame: &Value, method: &str) -> bool {
    let params = frame.get("params").or_else(|| frame.pointer("/payload/params"));
    let number = |name: &str| params.and_then(|params| params.get(name)).and_then(Value::as_u64);
    match method {
        "test/nested" => (number("depth"), number("width")) != (Some(1), Some(2)),
        "test/progress" => number("count") != Some(2),
        // A task-augmented request, say.
        "test/sleep" => params.and_then(Value::as_object).is_some_and(|params| {
            params.keys().any(|name| !["ms", "value", "_meta"].contains(&name.as_str()))
        }),
        _ => false,
    }
}

/// What is known about a foreign peer, and the session in which a scenario is played.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// The open session. `None`: the scenario opens its own.
    pub session: Option<OpenSession>,
    /// The code with which the quick request is answered. `None`: a result.
    pub quick_error: Option<Value>,
    /// How long the slow request takes without a cancel. `None`: it does not end.
    pub slow_takes: Option<Duration>,
    /// The error with which a cancelled request is answered, if it is not the dialect's.
    pub cancelled_error: Option<Value>,
    /// Whether a cancelled request is answered where silence is owed.
    pub answers_cancelled: bool,
    /// Whether a value may answer a cancelled request.
    pub value_may_answer: bool,
}

/// A session that is open already.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Its connection.
    pub line: Line,
    /// The values from its handshake.
    pub bindings: Bindings,
    /// The answer to `initialize`.
    pub opening: Option<Value>,
    /// The number of the first request that the runner itself sends.
    pub first_request: u64,
    /// The requests of earlier scenarios, whose answers may still come.
    pub earlier: Vec<Value>,
}

#[cfg(test)]
mod tests {
    use crate::vector::{Part, Scenario, ShownBy, Step, scenarios_of};

    #[test]
    fn each_vector_says_what_shows_that_it_holds() {
        for (dialect, name, shown_by) in [
            ("acp", "cancel_running", ShownBy::Frames),
            ("acp", "cancel_twice", ShownBy::Frames),
            ("acp", "unknown_method", ShownBy::Frames),
            ("acp", "disconnect_stops_work", ShownBy::Work),
            ("lsp", "reuse_after_cancel", ShownBy::Frames),
            ("abp", "cancel_running", ShownBy::Frames),
            // A peer that drops every cancel sends nothing either.
            ("mcp", "cancel_running", ShownBy::Silence),
            ("mcp", "late_result_withheld", ShownBy::Silence),
            // The id is used again after its first request has visibly ended.
            ("mcp", "reuse_after_cancel", ShownBy::Silence),
            ("mcp", "unknown_method", ShownBy::Frames),
            ("mcp-2026", "cancel_running", ShownBy::Silence),
        ] {
            let scenario = scenarios_of(dialect).find(|scenario| scenario.vector.name == name).unwrap();
            assert_eq!(scenario.vector.shown_by, shown_by, "{dialect} {name}");
        }
    }

    #[test]
    fn a_vector_that_cancels_where_silence_is_owed_does_not_claim_to_be_shown_by_frames_alone() {
        for dialect in ["mcp", "mcp-2026"] {
            for Scenario { vector, .. } in scenarios_of(dialect) {
                let silent = vector
                    .steps
                    .iter()
                    .any(|step| matches!(step, Step::ExpectNothing(about) if about.about.is_some()));
                let cancels = vector.requirements(dialect).sends_cancels;
                let last_is_silence = silent
                    && cancels
                    && vector.role == Part::Serve
                    && !vector.steps.iter().any(|step| matches!(step, Step::Expect(_)));
                assert!(!last_is_silence || vector.shown_by != ShownBy::Frames, "{dialect} {}", vector.name);
            }
        }
    }

    #[test]
    fn a_vector_that_cancels_is_known() {
        for (name, cancels) in
            [("cancel_running", true), ("cancel_together", true), ("unknown_method", false)]
        {
            let scenario = scenarios_of("acp").find(|scenario| scenario.vector.name == name).unwrap();
            assert_eq!(scenario.vector.requirements("acp").sends_cancels, cancels, "{name}");
        }
    }
}
