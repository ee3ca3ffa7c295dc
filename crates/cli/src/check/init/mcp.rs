//! What an MCP server offers: its tools.

use std::time::Duration;

use rescind_testkit::Profile;
use rescind_testkit::dialects::DialectFacts;
use serde_json::{Value, json};

use super::draft::{Draft, Request, Use, arguments, may_be_slow, sounds_like_progress, sounds_slow, witness};
use super::measure::{Candidate, Measured, Meter, list};
use super::{Source, Talk, says};

/// The most tools that are listed in comments.
const MAX_SHOWN_TOOLS: usize = 20;

/// The most tools that are called.
const MAX_CALLED_TOOLS: usize = 12;

/// A tool of the server.
struct Tool {
    name: String,
    description: String,
    arguments: Value,
    /// The server says that it changes nothing.
    only_reads: bool,
}

impl Tool {
    fn read(tool: &Value) -> Option<Self> {
        let text = |name: &str| tool.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = text("name");
        let arguments = arguments(tool.get("inputSchema").unwrap_or(&Value::Null));
        let only_reads = tool.pointer("/annotations/readOnlyHint") == Some(&Value::Bool(true));
        (!name.is_empty()).then(|| Self { name, description: text("description"), arguments, only_reads })
    }

    fn request(&self) -> Request {
        Request::new("tools/call", json!({ "name": self.name, "arguments": self.arguments }))
    }

    /// An argument is a path in a scratch folder, which a person must provide.
    fn needs_a_folder(&self) -> bool {
        self.arguments.to_string().contains("${scratch}")
    }
}

/// Writes the profile. Tools that only read, as the server says, are called and measured; no others are called.
///
/// # Errors
/// If the tools cannot be listed.
pub(super) async fn write(
    draft: &mut Draft,
    mut talk: Talk,
    source: &mut Source,
    facts: &'static DialectFacts,
    opening: &Value,
    patience: Duration,
) -> Result<Option<Talk>, String> {
    let places = ["/result/serverInfo/name"];
    if let Some(name) = says(opening, &places) {
        draft.note(&format!("The server says that it is {name}."));
    }
    let answer = talk.request("tools/list", json!({})).await?;
    let result = talk.result(&answer).unwrap_or_default();
    let listed = result.get("tools").and_then(Value::as_array);
    let tools: Vec<Tool> = listed.into_iter().flatten().filter_map(Tool::read).collect();

    draft.blank();
    draft.note("Answered at once, at any time, also while the slow request runs.");
    let quick = facts.ping.unwrap_or("tools/list");
    draft.request("quick", &Request::new(quick, json!({})), Use::Active);

    let (talk, measured) = measure_reading(talk, source, facts, &tools, patience).await;
    draft.blank();
    match measured.slow() {
        Some(tried) => {
            draft.note("Runs long: seconds, and at least 20 times as long as the quick one.");
            let times = tried.times_in_words();
            draft.note(&format!("The slowest of the tools that only read, each time: {times}"));
            draft.request("slow", &tried.request, Use::Active);
        }
        None => slow(draft, &tools),
    }
    draft.blank();
    progress(draft, &tools);
    draft.blank();
    witness(draft);
    if !tools.is_empty() {
        draft.blank();
        draft.note("The tools of this server, with arguments made from their schemas:");
        for tool in tools.iter().take(MAX_SHOWN_TOOLS) {
            draft.note(&format!("  {}: {}", tool.name, tool.description));
            draft.note(&format!("  --slow 'tools/call {}'", tool.request().params));
        }
        if measured.tried.is_empty() {
            draft.note("None was called: a tool is called here only if its annotations say `readOnlyHint`.");
        }
    }
    list(draft, &measured);
    Ok(talk)
}

/// Calls the tools that only read.
async fn measure_reading(
    talk: Talk,
    source: &mut Source,
    facts: &'static DialectFacts,
    tools: &[Tool],
    patience: Duration,
) -> (Option<Talk>, Measured) {
    let reading = tools.iter().filter(|tool| tool.only_reads && !tool.needs_a_folder());
    let candidate =
        |tool: &Tool| Candidate { request: tool.request(), title: format!("the tool {}", tool.name) };
    let mut candidates: Vec<Candidate> = reading.take(MAX_CALLED_TOOLS).map(candidate).collect();
    if candidates.is_empty() {
        return (Some(talk), Measured::default());
    }
    // To compare with.
    let quick = Request::new("tools/list", json!({}));
    candidates.push(Candidate { request: quick, title: "tools/list".to_owned() });
    Meter::new(source, facts, Profile::new("init"), patience).measure(talk, candidates).await
}

fn slow(draft: &mut Draft, tools: &[Tool]) {
    let sure = tools.iter().find(|tool| sounds_slow(&tool.name) && !tool.needs_a_folder());
    let maybe = || tools.iter().find(|tool| may_be_slow(&tool.name) || may_be_slow(&tool.description));
    draft.note("Runs long: seconds, and at least 20 times as long as the quick one. Its work is started and cancelled about a hundred times.");
    match (sure, maybe().or(tools.first())) {
        (Some(tool), _) => {
            draft.note("The name of this tool suggests it. See whether its arguments make it last.");
            draft.request("slow", &tool.request(), Use::Active);
        }
        (None, Some(tool)) => {
            draft.note("No tool has a name that says that it is slow. If this one is, or another, remove the `#` before these lines:");
            draft.request("slow", &tool.request(), Use::Suggested);
        }
        (None, None) => {
            draft.note("The server lists no tools. Name a request that takes long:");
            let request = Request::new("tools/call", json!({ "name": "NAME", "arguments": {} }));
            draft.request("slow", &request, Use::Suggested);
        }
    }
}

fn progress(draft: &mut Draft, tools: &[Tool]) {
    let found =
        tools.iter().find(|tool| sounds_like_progress(&tool.name) || sounds_like_progress(&tool.description));
    draft.note("A long request that reports progress, if there is one: then its progress shows whether the work stopped.");
    let mut request = found.or(tools.first()).map_or_else(
        || Request::new("tools/call", json!({ "name": "NAME", "arguments": {} })),
        Tool::request,
    );
    if let Some(params) = request.params.as_object_mut() {
        params.insert("_meta".to_owned(), json!({ "progressToken": "check" }));
    }
    request.notification = Some("notifications/progress");
    draft.request("progress", &request, Use::Suggested);
}
