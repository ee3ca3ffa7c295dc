//! Translation of vectors for a foreign peer: requests of the fixture become those of the profile, and so do their
//! answers.

use serde_json::{Map, Value, json};

use super::calibration::Calibration;
use super::requirements::Requirements;
use crate::pattern::{Bindings, subset};
use crate::profile::{CancelledForm, Profile, ProfileRequest, RequestKind};
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
        if says_cancelled(pattern) {
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
    pub(crate) fn waits_for(&self, method: &str, requirements: &Requirements) -> bool {
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
    let says_cancelled = says_cancelled(pattern);
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
fn says_cancelled(pattern: &Value) -> bool {
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

/// Removes a `null` result or error, which some peers send in addition.
pub(crate) fn without_what_is_null(frame: &mut Value) {
    let Some(members) = frame.as_object_mut() else { return };
    let is_null = |name: &str| members.get(name).is_some_and(Value::is_null);
    let spare = match (members.contains_key("result"), is_null("result"), members.contains_key("error")) {
        (true, _, true) if is_null("error") => "error",
        (true, true, true) => "result",
        _ => return,
    };
    members.remove(spare);
}
