//! Arguments that fit a JSON schema, for a request that a person then edits.

use serde_json::{Map, Value, json};

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
    use super::*;

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
