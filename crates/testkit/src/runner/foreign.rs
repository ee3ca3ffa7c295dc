//! Foreign peers. Vectors are translated for them: requests of the fixture become those of the profile, and so do their
//! answers. They may send frames in addition to the vector: their own requests and notifications, and their form of a
//! missing answer. Their slow requests may end while a scenario needs them to run.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::outcomes::{Failure, Verdict};
use super::play::{Closed, Play, Stop};
use super::requirements::{Calibration, Requirements};
use super::steps::says_cancelled;
use super::subject::Subject;
use crate::pattern::{Bindings, subset};
use crate::profile::{CancelledForm, Profile, ProfileRequest, RequestKind};
use crate::vector::Abilities;
use crate::wire_format::{Shape, WireFormat};

/// Translates one play. Without a profile it changes nothing.
#[derive(Debug)]
pub(crate) struct Translator<'a> {
    wire_format: WireFormat,
    profile: Option<&'a Profile>,
    calibration: Option<&'a Calibration>,
    /// The requests that were sent, and the kinds that they have.
    sent: Vec<(Value, RequestKind, Words)>,
}

/// Whose params and results a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    /// The peer serves the fixture's method, so the vector's params and results apply.
    Vectors,
    Profiles,
}

impl<'a> Translator<'a> {
    pub(crate) const fn new(
        wire_format: WireFormat,
        profile: Option<&'a Profile>,
        calibration: Option<&'a Calibration>,
    ) -> Self {
        Self { wire_format, profile, calibration, sent: Vec::new() }
    }

    /// Whether the last request with this id is the peer's slow one.
    pub(crate) fn is_slow(&self, id: &Value) -> bool {
        let last = self.sent.iter().rfind(|(sent, _, _)| sent == id);
        self.profile.is_some() && last.is_some_and(|(_, kind, _)| *kind == RequestKind::Slow)
    }

    pub(crate) const fn is_foreign(&self) -> bool {
        self.profile.is_some()
    }

    fn request(&self, kind: RequestKind) -> Option<&'a ProfileRequest> {
        self.profile?.requests.get(&kind)
    }

    /// Translates a frame before it is sent. Its captures are already filled in.
    pub(crate) fn outgoing(&mut self, frame: Value, bindings: &Bindings) -> Value {
        let Shape::Request { id, method } = self.wire_format.shape(&frame) else {
            return frame;
        };
        let Some(kind) = RequestKind::of_method(&method) else {
            return frame;
        };
        let Some(request) = self.request(kind) else {
            return frame;
        };
        if request.method == method {
            self.sent.push((id, kind, Words::Vectors));
            return frame;
        }
        self.sent.push((id, kind, Words::Profiles));
        self.wire_format.with_method(&frame, &request.method, &bindings.fill(&request.params))
    }

    /// Returns the patterns that are allowed in place of this pattern. Its ids are already filled in.
    pub(crate) fn incoming(&self, pattern: &Value) -> Vec<Value> {
        if self.profile.is_none() {
            return vec![pattern.clone()];
        }
        match self.wire_format.shape(pattern) {
            Shape::Answer { id } => {
                let sent = self.sent.iter().rev().find(|(sent, _, _)| *sent == id);
                match sent.and_then(|(_, kind, words)| Some((self.request(*kind)?, *words))) {
                    _ if sent.is_some_and(|(_, kind, _)| *kind == RequestKind::Panic) => {
                        answers(&with_any_code(pattern), None, Words::Vectors)
                    }
                    Some((request, words)) => {
                        let mut forms = answers(pattern, Some(request), words);
                        forms.extend(self.known_forms(pattern, sent.map(|(_, kind, _)| *kind)));
                        // The answer need not wait for a handler that ignores its cancel.
                        if sent.is_some_and(|(_, kind, _)| *kind == RequestKind::Deaf) {
                            forms.extend(answers(&cancelled(pattern), Some(request), words));
                        }
                        forms
                    }
                    None => answers(pattern, None, Words::Vectors),
                }
            }
            Shape::Request { id, .. } => match self.child() {
                Some(child) => vec![json!({"id": id, "method": child, "...": true})],
                None => vec![subset(pattern)],
            },
            Shape::Notification { method } => {
                let named = self.request(RequestKind::Progress).and_then(|it| it.notification.as_ref());
                match named {
                    Some(name) if PROGRESS.contains(&method.as_str()) => {
                        vec![json!({"method": name, "...": true})]
                    }
                    _ => vec![subset(pattern)],
                }
            }
            Shape::Cancel { .. } | Shape::Other => vec![subset(&by_code(pattern))],
        }
    }

    /// The forms in which this peer is known to answer, besides those of the dialect.
    fn known_forms(&self, pattern: &Value, kind: Option<RequestKind>) -> Vec<Value> {
        let Some(known) = self.calibration else { return Vec::new() };
        let id = pattern.get("id").cloned().unwrap_or_default();
        let error = |code: &Value| json!({"id": id, "error": {"code": code, "...": true}, "...": true});
        let mut forms = Vec::new();
        if kind == Some(RequestKind::Quick) {
            forms.extend(known.quick_error.as_ref().map(error));
        }
        if is_cancelled_form(pattern) {
            forms.extend(known.cancelled_error.as_ref().map(error));
            if known.value_may_answer {
                forms.push(json!({"id": id, "result": "$any", "...": true}));
            }
        }
        forms
    }

    /// The request that the peer's nested request sends to its client, if the nested request was sent in place of the
    /// vector's.
    fn child(&self) -> Option<&'a str> {
        let was_sent = self
            .sent
            .iter()
            .any(|(_, kind, words)| (*kind, *words) == (RequestKind::Nested, Words::Profiles));
        let child = self.request(RequestKind::Nested)?.child.as_ref()?;
        was_sent.then_some(child.method.as_str())
    }

    /// Whether the vector expects requests with this method. Others are the peer's own choice.
    fn waits_for(&self, method: &str, requirements: &Requirements) -> bool {
        let nested = requirements.methods.contains("test/nested");
        match self.child() {
            Some(child) => child == method,
            None => {
                requirements.children.contains(method)
                    || (nested && ["test/wait", "test/nested"].contains(&method))
            }
        }
    }
}

/// The notifications of the fixture's `test/progress`, in any dialect.
const PROGRESS: [&str; 3] = ["test/tick", "notifications/progress", "progress"];

fn answers(pattern: &Value, request: Option<&ProfileRequest>, words: Words) -> Vec<Value> {
    let id = pattern.get("id").cloned().unwrap_or_default();
    let json_rpc = pattern.get("jsonrpc").is_some();
    let with = |name: &str, inner: Value| {
        let mut answer = Map::from_iter([("id".to_owned(), id.clone()), ("...".to_owned(), true.into())]);
        let inner = match (json_rpc, name) {
            (true, _) => inner,
            (false, "result") => json!({"success": true, "data": inner, "...": true}),
            (false, _) => json!({"success": false, "error": inner, "...": true}),
        };
        answer.insert(if json_rpc { name } else { "payload" }.to_owned(), inner);
        Value::Object(answer)
    };
    let code = pattern.pointer("/error/code").or_else(|| pattern.pointer("/payload/error/code"));
    let says_cancelled = is_cancelled_form(pattern);
    let has_value = pattern.get("result").is_some() || pattern.pointer("/payload/data").is_some();
    match request {
        Some(request) if says_cancelled && !request.cancelled.is_empty() => {
            let form = |form: &CancelledForm| match form {
                CancelledForm::Code(code) => with("error", json!({"code": code, "...": true})),
                CancelledForm::Result(result) => with("result", subset(result)),
            };
            request.cancelled.iter().map(form).collect()
        }
        Some(request) if has_value && words == Words::Profiles => {
            vec![with("result", request.result.as_ref().map_or_else(|| json!("$any"), subset))]
        }
        _ if json_rpc && code.is_some() => vec![with("error", json!({"code": code, "...": true}))],
        _ => vec![subset(&by_code(pattern))],
    }
}

/// Whether the pattern expects the cancelled answer of its dialect.
fn is_cancelled_form(pattern: &Value) -> bool {
    pattern.pointer("/error/code") == Some(&json!(-32800)) || pattern.pointer("/payload/cancelled").is_some()
}

/// The pattern of the answer that reports the same request as cancelled. A pattern that is not an answer is returned
/// unchanged.
fn cancelled(pattern: &Value) -> Value {
    let mut pattern = pattern.clone();
    if let Some(members) = pattern.as_object_mut() {
        if members.remove("result").is_some() {
            members.insert("error".to_owned(), json!({"code": -32800, "message": "$string"}));
        }
    }
    pattern
}

/// The pattern of a failure with any code.
fn with_any_code(pattern: &Value) -> Value {
    let mut pattern = pattern.clone();
    if let Some(code) = pattern.pointer_mut("/error/code") {
        *code = json!("$number");
    }
    pattern
}

/// The pattern with the error's code, and with any message instead of the fixture's.
fn by_code(pattern: &Value) -> Value {
    let mut pattern = pattern.clone();
    for place in ["/error/message", "/payload/error/message"] {
        if let Some(message) = pattern.pointer_mut(place) {
            *message = json!("$string");
        }
    }
    // Whether a request may be retried is the peer's own choice.
    if let Some(error) = pattern.pointer_mut("/payload/error").and_then(Value::as_object_mut) {
        error.remove("retryable");
    }
    pattern
}

/// Removes a `null` result or error, which some peers send in addition. Returns whether there was one.
pub(crate) fn remove_null_member(frame: &mut Value) -> bool {
    let Some(members) = frame.as_object_mut() else { return false };
    let is_null = |name: &str| members.get(name).is_some_and(Value::is_null);
    let spare = match (members.contains_key("result"), is_null("result"), members.contains_key("error")) {
        (true, _, true) if is_null("error") => "error",
        (true, true, true) => "result",
        _ => return false,
    };
    members.remove(spare).is_some()
}

impl<S: Subject> Play<'_, S> {
    /// Whether the frame is an additional notification or request of a foreign peer, which is allowed.
    pub(super) async fn is_unrelated_frame(&mut self, frame: &Value) -> Result<bool, Stop> {
        let wire_format = self.wire_format;
        if !self.is_foreign() {
            return Ok(false);
        }
        match wire_format.shape(frame) {
            Shape::Notification { .. } => Ok(true),
            Shape::Request { id, method } => {
                self.decline(id, &method).await?;
                Ok(true)
            }
            Shape::Cancel { .. } => self.is_unrelated_request(frame).await,
            Shape::Answer { .. } | Shape::Other => Ok(false),
        }
    }

    /// Whether the frame is a request that the vector does not contain, or the cancel of one. The request is refused,
    /// so that the peer can continue.
    pub(super) async fn is_unrelated_request(&mut self, frame: &Value) -> Result<bool, Stop> {
        let wire_format = self.wire_format;
        if !self.is_foreign() {
            return Ok(false);
        }
        match wire_format.shape(frame) {
            Shape::Request { id, method } => {
                self.refused.retain(|refused| *refused != id);
                if self.translator.waits_for(&method, &self.requirements) {
                    return Ok(false);
                }
                self.decline(id, &method).await?;
                Ok(true)
            }
            Shape::Cancel { key } => Ok(self.refused.contains(&key)),
            Shape::Notification { .. } | Shape::Answer { .. } | Shape::Other => Ok(false),
        }
    }

    /// Refuses a request, except a ping, which must be answered. After this side has closed its output, no answer can
    /// be sent.
    async fn decline(&mut self, id: Value, method: &str) -> Result<(), Stop> {
        if self.line()?.closed == Closed::No {
            let wire_format = self.wire_format;
            let answer = match wire_format.answer_to_any(method) {
                Some(value) => wire_format.answer(&id, method, &value),
                None => wire_format.refusal(&id),
            };
            self.send(vec![answer]).await?;
        }
        self.refused.push(id);
        Ok(())
    }

    /// Whether the frame answers a request of an earlier scenario in the same session.
    pub(super) fn is_of_an_earlier_scenario(&self, frame: &Value) -> bool {
        let Shape::Answer { id } = self.wire_format.shape(frame) else { return false };
        let session = self.settings.calibration.as_ref().and_then(|known| known.session.as_ref());
        session.is_some_and(|session| session.earlier.contains(&id))
    }

    /// A POST that is answered in JSON cannot end without an answer. A cancelled one has the error -32800, once.
    pub(super) fn is_cancelled_without_answer(&mut self, frame: &Value) -> bool {
        let Abilities { ordered, exchange_scoped, .. } = self.subject.abilities();
        // The transport with exchanges in a session.
        let by_post = !ordered && !exchange_scoped;
        let code = frame.pointer("/error/code").and_then(Value::as_i64);
        let in_its_form = by_post && code == Some(-32800);
        // The documents recommend silence. A peer that is known to answer is not blamed in each scenario.
        let known = self.settings.calibration.as_ref().is_some_and(|known| known.answers_cancelled);
        if !(self.is_foreign() && self.wire_format.owes_silence() && (in_its_form || known)) {
            return false;
        }
        let cancelled = self.silenced.iter().position(|key| frame.get("id") == Some(key));
        if let Some(index) = cancelled {
            self.silenced.remove(index);
        }
        cancelled.is_some()
    }

    /// Describes a frame that may be the awaited answer with another id or in another form.
    fn unexpected_frames(&self) -> String {
        let Ok(line) = self.line() else { return String::new() };
        let is_answer =
            |frame: &&Value| matches!(self.wire_format.shape(frame), Shape::Answer { .. } | Shape::Other);
        // The latest is the most likely one.
        line.inbox
            .iter()
            .rfind(is_answer)
            .map_or_else(String::new, |frame| format!("; meanwhile this came: {frame}"))
    }

    /// Fails at once if the transport has reported that one of these requests will not be answered.
    pub(super) fn can_come(&self, what: &str, awaited: &[Value]) -> Result<(), Stop> {
        // Answers without an id belong to requests that were not understood. Each has a separate exchange.
        let mut known = self.line()?.unanswered.iter().filter(|(id, _)| !id.is_null());
        match known.find(|(id, _)| awaited.contains(id)) {
            Some((_, why)) => Err(Stop::Broke(
                Failure::Unanswered,
                format!("{what} cannot come: {why}{}", self.unexpected_frames()),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn timed_out(&self, what: &str) -> Stop {
        let deadline = self.settings.deadline;
        let mut came = self.unexpected_frames();
        if let (true, Some((_, why))) =
            (came.is_empty(), self.line().ok().and_then(|line| line.unanswered.last()))
        {
            came = format!("; meanwhile an exchange ended without an answer: {why}");
        }
        Stop::Broke(Failure::Unanswered, format!("waited {deadline:?} for {what}, and it did not come{came}"))
    }
}

/// A slow request of a foreign peer.
#[derive(Debug)]
pub(super) struct SlowRequest {
    pub(super) id: Value,
    pub(super) sent: Instant,
    pub(super) cancelled: bool,
    /// It came to its normal end, after this time.
    pub(super) ended_normally: Option<Duration>,
    /// It failed, with this error, when no cancel of any request had been sent yet.
    pub(super) refused: Option<String>,
}

impl<S: Subject> Play<'_, S> {
    /// Notes that a slow request came to its end at about the time at which it ends without a cancel.
    pub(super) fn note_a_normal_end(&mut self, frame: &Value) {
        let Shape::Answer { id } = self.wire_format.shape(frame) else { return };
        let takes = self.settings.calibration.as_ref().and_then(|known| known.slow_takes);
        let Some(takes) = takes else { return };
        let now = self.subject.now();
        let nothing_was_cancelled = !self.has_sent_a_cancel;
        let is_cancelled = says_cancelled(frame);
        for one in self.slow.iter_mut().filter(|one| one.id == id) {
            let took = now.saturating_duration_since(one.sent);
            let refused = frame.get("error").filter(|_| nothing_was_cancelled);
            if let Some(error) = refused {
                one.refused = Some(error.to_string());
            } else if took >= takes.mul_f64(0.7) && !is_cancelled {
                one.ended_normally = Some(took);
            }
        }
    }

    /// A slow request that came to its normal end shows nothing about cancels.
    pub(super) fn in_the_light_of_normal_ends(&self, verdict: Verdict) -> Verdict {
        if let (Verdict::Broke { why, .. }, Some(error)) =
            (&verdict, self.slow.iter().find_map(|one| one.refused.as_ref()))
        {
            let why = format!(
                "a slow request failed before any cancel was sent, with {error}: its answer shows nothing about cancels ({why})"
            );
            return Verdict::Unsure { why };
        }
        let ended = |one: &&SlowRequest| one.ended_normally.is_some();
        let Some(one) = self.slow.iter().find(ended) else { return verdict };
        let after = one.ended_normally.unwrap_or_default();
        match verdict {
            Verdict::Held if one.cancelled => Verdict::Unsure {
                why: format!(
                    "the slow request came to its normal end after {after:?} although it was cancelled, so its cancel showed nothing"
                ),
            },
            Verdict::Broke { why, .. } => Verdict::Unsure {
                why: format!(
                    "the slow request ended by itself after {after:?}, in the middle of the scenario; name one that takes longer ({why})"
                ),
            },
            verdict => verdict,
        }
    }
}
