//! What an ABP application offers: its capabilities.

use serde_json::{Value, json};

use super::draft::{Draft, Request, Use, may_be_slow, sounds_slow};
use super::mcp::witness;
use super::{says, schema};

pub(super) fn write(draft: &mut Draft, opening: &Value) {
    if let Some(name) = says(opening, &["/payload/app/name"]) {
        draft.note(&format!("The application says that it is {name}."));
    }
    let capabilities = opening.pointer("/payload/capabilities").and_then(Value::as_array);
    let all: Vec<Request> = capabilities.into_iter().flatten().filter_map(request).collect();
    let sure = all.iter().find(|request| sounds_slow(&request.method));
    let maybe = all.iter().find(|request| may_be_slow(&request.method));
    let unknown = Request::new("CAPABILITY", json!({}));
    draft.blank();
    draft.note("Runs long: seconds, and at least 20 times as long as the quick one.");
    match (sure, maybe.or(all.first())) {
        (Some(request), _) => draft.request("slow", request, Use::Active),
        (None, Some(request)) => draft.request("slow", request, Use::Suggested),
        (None, None) => draft.request("slow", &unknown, Use::Suggested),
    }
    draft.blank();
    draft.note(
        "Answered at once, at any time, also while the slow request runs. If this one is, remove the `#`:",
    );
    let quick = all.iter().find(|request| !may_be_slow(&request.method)).unwrap_or(&unknown);
    draft.request("quick", quick, Use::Suggested);
    draft.blank();
    witness(draft);
}

fn request(capability: &Value) -> Option<Request> {
    let name = capability.get("name").and_then(Value::as_str)?;
    let params = capability.get("inputSchema").or_else(|| capability.get("params")).unwrap_or(&Value::Null);
    Some(Request::new(name, schema::arguments(params)))
}
