//! A profile as it is written: tables, and the same in comments where a person has to decide; values as TOML; and arguments
//! that fit a JSON schema.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// A request of a profile.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) cancelled: Option<Value>,
    pub(super) notification: Option<&'static str>,
}

impl Request {
    pub(super) fn new(method: impl Into<String>, params: Value) -> Self {
        Self { method: method.into(), params, cancelled: None, notification: None }
    }
}

/// Whether a part of the profile is used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Active,
    /// It is commented out, for a person to edit.
    Suggested,
}

/// The text of a profile.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft(String);

impl Draft {
    pub(super) fn new(name: &str) -> Self {
        let mut draft = Self::default();
        draft.note("A profile of `rescind check`. Lines that begin with `#` are comments; edit what they say, and then run");
        draft.note("  rescind check --dialect D --profile THIS-FILE -- COMMAND");
        let _ = writeln!(draft.0, "name = {}", string(name));
        draft
    }

    /// A line of explanation. Text of the peer in it is made safe.
    pub(super) fn note(&mut self, text: &str) {
        let indent = if text.starts_with("  ") { "  " } else { "" };
        let _ = writeln!(self.0, "# {indent}{}", comment(text));
    }

    pub(super) fn blank(&mut self) {
        self.0.push('\n');
    }

    /// Lines of TOML.
    pub(super) fn lines(&mut self, lines: &[String], used: Use) {
        let sign = match used {
            Use::Active => "",
            Use::Suggested => "#",
        };
        for line in lines {
            let _ = writeln!(self.0, "{sign}{line}");
        }
    }

    /// `[requests.KIND]`.
    pub(super) fn request(&mut self, kind: &str, request: &Request, used: Use) {
        let mut lines = vec![
            format!("[requests.{kind}]"),
            format!("method = {}", string(&request.method)),
            format!("params = {}", inline(&request.params)),
        ];
        if let Some(cancelled) = &request.cancelled {
            lines.push(format!("cancelled = {}", inline(cancelled)));
        }
        if let Some(notification) = request.notification {
            lines.push(format!("notification = {}", string(notification)));
        }
        self.lines(&lines, used);
    }

    /// What is written so far.
    pub(super) fn so_far(&self) -> &str {
        &self.0
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// Whether a name or a description suggests long work.
pub(super) fn sounds_slow(name: &str) -> bool {
    has_word(name, &["long", "slow", "sleep", "wait", "longrunning", "delay", "countdown"])
}

/// Whether a description suggests work that may take long.
pub(super) fn may_be_slow(text: &str) -> bool {
    sounds_slow(text)
        || has_word(
            text,
            &[
                "run",
                "exec",
                "execute",
                "search",
                "crawl",
                "build",
                "index",
                "generate",
                "simulate",
                "operation",
                "research",
                "scan",
                "analyze",
            ],
        )
}

pub(super) fn sounds_like_progress(text: &str) -> bool {
    has_word(text, &["progress", "long", "longrunning", "stream", "notifications"])
}

/// Whether one of the words of a name (`longRunningOperation`, `long-running`) or of a text is one of these.
fn has_word(text: &str, words: &[&str]) -> bool {
    let mut split = String::new();
    let mut was_small = false;
    for c in text.chars() {
        if c.is_uppercase() && was_small {
            split.push(' ');
        }
        was_small = c.is_lowercase();
        split.extend(c.to_lowercase());
    }
    split.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word))
}

/// The table of a witness, for a person to fill in.
pub(super) fn witness(draft: &mut Draft) {
    draft.note("A command that prints a number which grows while the peer works, if there is one. Without it progress, the next answer");
    draft.note("and the processor time of the program show whether work stopped.");
    draft.lines(
        &["[witness]".to_owned(), "command = [ \"cat\", \"counter.txt\" ]".to_owned()],
        Use::Suggested,
    );
}

// Values in the form of TOML, on one line.

/// A value as TOML. TOML has no null, so members and items that are null are left out.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::Null => "\"null\"".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().filter(|item| !item.is_null()).map(inline).collect();
            if items.is_empty() { "[]".to_owned() } else { format!("[ {} ]", items.join(", ")) }
        }
        Value::Object(members) => {
            let members = members.iter().filter(|(_, member)| !member.is_null());
            let members: Vec<String> =
                members.map(|(name, member)| format!("{} = {}", key(name), inline(member))).collect();
            if members.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", members.join(", ")) }
        }
    }
}

/// A string. The escapes of JSON are TOML's too, but TOML has one more character that must be escaped.
fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { string(name) }
}

/// Text of a peer in a comment: one line of printable characters.
fn comment(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(150) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

// Arguments that fit a JSON schema, for a request that a person then edits.

/// Deeper schemas get an empty value.
const MAX_DEPTH: usize = 6;

/// The arguments of a tool: the required members, and those that say how long it takes.
pub(super) fn arguments(schema: &Value) -> Value {
    object(schema, 0)
}

fn object(schema: &Value, depth: usize) -> Value {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut members = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if required.contains(&name.as_str()) || (depth == 0 && duration(name).is_some()) {
            members.insert(name.clone(), value(name, property, depth + 1));
        }
    }
    Value::Object(members)
}

fn value(name: &str, schema: &Value, depth: usize) -> Value {
    for given in ["const", "default"] {
        if let Some(given) = schema.get(given).filter(|_| duration(name).is_none()) {
            return given.clone();
        }
    }
    for list in ["enum", "examples"] {
        if let Some(first) = schema.get(list).and_then(Value::as_array).and_then(|all| all.first()) {
            return first.clone();
        }
    }
    if depth > MAX_DEPTH {
        return json!({});
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        let choices = schema.get(choice).and_then(Value::as_array);
        let is_null = |schema: &&Value| schema.get("type").and_then(Value::as_str) == Some("null");
        if let Some(first) = choices.and_then(|all| all.iter().find(|schema| !is_null(schema))) {
            return value(name, first, depth + 1);
        }
    }
    match kind(schema) {
        "integer" | "number" => number(name, schema),
        "boolean" => json!(false),
        "array" => match (schema.get("minItems").and_then(Value::as_u64), schema.get("items")) {
            (Some(1..), Some(items)) => json!([value(name, items, depth + 1)]),
            _ => json!([]),
        },
        "object" => object(schema, depth + 1),
        _ => json!(text(name, schema)),
    }
}

/// The type. Of several the first that is not null.
fn kind(schema: &Value) -> &str {
    let has_members = schema.get("properties").is_some();
    match schema.get("type") {
        Some(Value::String(kind)) => kind,
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("string")
        }
        _ if has_members => "object",
        _ => "string",
    }
}

/// A value for a member that says how long the work takes: some seconds.
fn duration(name: &str) -> Option<f64> {
    let name = name.to_ascii_lowercase();
    if name.contains("timeout") {
        return None;
    }
    match name.as_str() {
        "ms" | "millis" | "milliseconds" | "duration_ms" | "durationms" | "delay_ms" | "delayms" => {
            Some(5_000.0)
        }
        "duration" | "seconds" | "secs" | "delay" | "sleep" => Some(5.0),
        "steps" | "iterations" | "ticks" => Some(10.0),
        _ => None,
    }
}

fn number(name: &str, schema: &Value) -> Value {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let mut number = duration(name).unwrap_or(1.0);
    if let Some(least) = bound("minimum").or_else(|| bound("exclusiveMinimum").map(|least| least + 1.0)) {
        number = number.max(least);
    }
    if let Some(most) = bound("maximum").or_else(|| bound("exclusiveMaximum").map(|most| most - 1.0)) {
        number = number.min(most);
    }
    let whole = format!("{number:.0}").parse::<i64>();
    match whole {
        Ok(whole) if kind(schema) == "integer" || number.fract() == 0.0 => json!(whole),
        _ => json!(number),
    }
}

fn text(name: &str, schema: &Value) -> String {
    let name = name.to_ascii_lowercase();
    let says = |word: &str| name.contains(word);
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    match format {
        "date-time" => return "2026-01-01T00:00:00Z".to_owned(),
        "date" => return "2026-01-01".to_owned(),
        "uuid" => return "00000000-0000-4000-8000-000000000000".to_owned(),
        "email" => return "someone@example.org".to_owned(),
        _ => {}
    }
    let text = if format.starts_with("ur") || says("url") || says("uri") {
        "http://127.0.0.1:9/"
    } else if says("path") || says("file") || says("dir") {
        "${scratch}"
    } else if says("timezone") {
        "UTC"
    } else if name == "time" {
        "12:00"
    } else if says("query") || says("pattern") {
        "a"
    } else {
        "check"
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use rescind_testkit::{Profile, RequestKind};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_words_of_a_name_tell_whether_it_is_slow() {
        for name in ["longRunningOperation", "trigger-long-running-operation", "sleep", "Wait_For", "slow"] {
            assert!(sounds_slow(name), "{name}");
        }
        for name in ["echo", "belong", "prolonged", "waiter"] {
            assert!(!sounds_slow(name), "{name}");
        }
        assert!(may_be_slow("Run a command") && !may_be_slow("Trunk"));
    }

    #[test]
    fn a_value_is_the_same_after_it_was_read_back() {
        let value = json!({
            "name": "a \"b\" \\ \n\t\u{7f}\u{1b} é", "a b": {"": [1, -2.5, 1e40, true, [], {}]}, "list": [{"x": "${y}"}],
        });
        let text = format!("name = \"x\"\n[requests.slow]\nmethod = \"m\"\nparams = {}\n", inline(&value));
        let profile = Profile::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(profile.requests[&RequestKind::Slow].params, value);
    }

    #[test]
    fn a_comment_is_one_line() {
        assert_eq!(comment("a\n b\u{1b}[31m\r\nc"), "a b [31m c");
        assert_eq!(comment(&"x".repeat(500)).len(), 153);
    }

    #[test]
    fn the_required_members_and_those_of_time_are_filled_in() {
        let schema = json!({
            "type": "object",
            "required": ["message", "mode", "count", "when", "nested", "list", "either"],
            "properties": {
                "message": {"type": "string"},
                "mode": {"enum": ["fast", "slow"]},
                "count": {"type": "integer", "minimum": 3, "maximum": 9},
                "when": {"type": "string", "format": "date"},
                "nested": {"type": "object", "required": ["ratio"], "properties": {"ratio": {"type": "number", "maximum": 0.5}, "left_out": {}}},
                "list": {"type": "array", "minItems": 1, "items": {"type": "boolean"}},
                "either": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                "duration": {"type": "number", "default": 10},
                "optional": {"type": "string"},
                "timeout": {"type": "number"},
            },
        });
        let expected = json!({
            "message": "check", "mode": "fast", "count": 3, "when": "2026-01-01", "nested": {"ratio": 0.5},
            "list": [false], "either": 1, "duration": 5,
        });
        assert_eq!(arguments(&schema), expected);
        assert_eq!(arguments(&json!({})), json!({}));
        assert_eq!(arguments(&json!("no schema")), json!({}));
    }

    #[test]
    fn a_schema_without_end_gets_arguments_too() {
        let mut schema = json!({ "type": "string" });
        for _ in 0..100 {
            schema = json!({ "type": "object", "required": ["x"], "properties": {"x": schema} });
        }
        assert!(arguments(&schema).to_string().len() < 200);
    }
}
