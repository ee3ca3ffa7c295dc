//! Patterns: JSON that describes other JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The values that `$bind` captured, by name.
#[derive(Clone, Debug, Default)]
pub struct Bindings(BTreeMap<String, Value>);

impl Bindings {
    /// Returns the value captured under a name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Captures a value.
    pub fn bind(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Replaces `"${x}"` with the value captured under `x`. Inside a longer text it is inserted as text.
    #[must_use]
    pub fn fill(&self, template: &Value) -> Value {
        match template {
            Value::String(text) => self.fill_text(text),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.fill(item)).collect()),
            Value::Object(members) => {
                Value::Object(members.iter().map(|(name, value)| (name.clone(), self.fill(value))).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
        }
    }

    fn fill_text(&self, text: &str) -> Value {
        if let Some(value) = whole_name(text).and_then(|name| self.value(name)) {
            return value.clone();
        }
        let mut filled = text.to_owned();
        for (name, value) in &self.0 {
            let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            filled = filled.replace(&format!("${{{name}}}"), &plain);
        }
        Value::String(filled)
    }
}

fn whole_name(text: &str) -> Option<&str> {
    text.strip_prefix("${")?.strip_suffix('}')
}

/// Checks whether `value` matches `pattern`. Captures values only if it does.
///
/// # Errors
/// Returns a sentence with the first difference: its place, what was expected and what was found.
pub fn matches(pattern: &Value, value: &Value, bindings: &mut Bindings) -> Result<(), String> {
    let mut captured = bindings.clone();
    matches_at(pattern, Some(value), &mut captured, "")?;
    *bindings = captured;
    Ok(())
}

fn matches_at(
    pattern: &Value,
    value: Option<&Value>,
    bindings: &mut Bindings,
    at: &str,
) -> Result<(), String> {
    if let Some(special) = Special::of(pattern) {
        return special.matches(value, bindings, at);
    }
    let Some(value) = value else {
        return Err(format!("{} is missing", place(at)));
    };
    match (pattern, value) {
        (Value::Object(wanted), Value::Object(found)) => object_matches(wanted, found, bindings, at),
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            let mut pairs = wanted.iter().zip(found).enumerate();
            pairs.try_for_each(|(index, (pattern, item))| {
                matches_at(pattern, Some(item), bindings, &format!("{at}[{index}]"))
            })
        }
        (Value::String(text), _) => equal(&bindings.fill_text(text), value, at),
        _ => equal(pattern, value, at),
    }
}

fn object_matches(
    wanted: &Map<String, Value>,
    found: &Map<String, Value>,
    bindings: &mut Bindings,
    at: &str,
) -> Result<(), String> {
    for (name, pattern) in wanted.iter().filter(|(name, _)| *name != "...") {
        matches_at(pattern, found.get(name), bindings, &format!("{at}.{name}"))?;
    }
    if wanted.get("...").and_then(Value::as_bool) == Some(true) {
        return Ok(());
    }
    match found.keys().find(|name| !wanted.contains_key(*name)) {
        Some(extra) => Err(format!("{} is there and should not be", place(&format!("{at}.{extra}")))),
        None => Ok(()),
    }
}

fn equal(wanted: &Value, found: &Value, at: &str) -> Result<(), String> {
    if wanted == found { Ok(()) } else { Err(format!("{} should be {wanted} and is {found}", place(at))) }
}

fn place(at: &str) -> &str {
    let path = at.trim_start_matches('.');
    if path.is_empty() { "the frame" } else { path }
}

/// The patterns that are not literal JSON.
enum Special<'a> {
    Any,
    Number,
    Text,
    /// Letters, digits, `_`, `-` and `.` only.
    Name,
    Bind(&'a str),
    Absent,
    Not(&'a Value),
    OneOf(&'a [Value]),
    Each(&'a Value),
}

impl<'a> Special<'a> {
    fn of(pattern: &'a Value) -> Option<Self> {
        match pattern {
            Value::String(text) => match text.as_str() {
                "$any" => Some(Self::Any),
                "$number" => Some(Self::Number),
                "$string" => Some(Self::Text),
                "$name" => Some(Self::Name),
                _ => text.strip_prefix("$bind:").map(Self::Bind),
            },
            Value::Object(members) if members.len() == 1 => {
                let (name, inner) = members.iter().next()?;
                match name.as_str() {
                    "$absent" => Some(Self::Absent),
                    "$not" => Some(Self::Not(inner)),
                    "$one_of" => inner.as_array().map(|choices| Self::OneOf(choices)),
                    "$each" => Some(Self::Each(inner)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn matches(&self, value: Option<&Value>, bindings: &mut Bindings, at: &str) -> Result<(), String> {
        let wanted = |holds: bool, what: &str| match (holds, value) {
            (true, _) => Ok(()),
            (false, Some(value)) => Err(format!("{} should be {what} and is {value}", place(at))),
            (false, None) => Err(format!("{} is missing", place(at))),
        };
        match self {
            Self::Any => wanted(value.is_some(), "there"),
            Self::Number => wanted(value.is_some_and(Value::is_number), "a number"),
            Self::Text => wanted(value.is_some_and(Value::is_string), "a string"),
            Self::Name => wanted(value.and_then(Value::as_str).is_some_and(is_name), "a plain name"),
            Self::Bind(name) => {
                if let Some(value) = value {
                    bindings.bind(name, value.clone());
                }
                wanted(value.is_some(), "there")
            }
            Self::Absent => wanted(value.is_none(), "absent"),
            Self::Not(inner) => {
                let refused = matches_at(inner, value, &mut bindings.clone(), at).is_err();
                wanted(refused, &format!("anything but {inner}"))
            }
            Self::OneOf(choices) => one_of(choices, value, bindings, at),
            Self::Each(inner) => match value {
                Some(Value::Array(items)) => {
                    items.iter().try_for_each(|item| matches_at(inner, Some(item), bindings, at))
                }
                _ => wanted(false, "an array"),
            },
        }
    }
}

fn one_of(choices: &[Value], value: Option<&Value>, bindings: &mut Bindings, at: &str) -> Result<(), String> {
    let mut first = None;
    for choice in choices {
        let mut captured = bindings.clone();
        match matches_at(choice, value, &mut captured, at) {
            Ok(()) => {
                *bindings = captured;
                return Ok(());
            }
            Err(why) => first = first.or(Some(why)),
        }
    }
    Err(first.unwrap_or_else(|| format!("{} has no choice to match", place(at))))
}

fn is_name(text: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.');
    !text.is_empty() && text.chars().all(plain)
}

/// The pattern that requires these members and allows others.
pub(crate) fn subset(value: &Value) -> Value {
    match value {
        Value::Object(members) if members.contains_key("$one_of") => {
            let one_of = members.iter().map(|(name, value)| (name.clone(), subset(value)));
            Value::Object(one_of.collect())
        }
        Value::Object(members) if members.keys().any(|name| name.starts_with('$')) => value.clone(),
        Value::Object(members) => {
            let inner = members.iter().map(|(name, value)| (name.clone(), subset(value)));
            Value::Object(inner.chain([("...".to_owned(), Value::Bool(true))]).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(subset).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(pattern: &Value, value: &Value) -> Result<(), String> {
        matches(pattern, value, &mut Bindings::default())
    }

    #[test]
    fn objects_match_exactly_unless_they_say_otherwise() {
        assert!(check(&json!({"a": 1}), &json!({"a": 1})).is_ok());
        assert!(check(&json!({"a": 1}), &json!({"a": 1, "b": 2})).is_err());
        assert!(check(&json!({"a": 1, "...": true}), &json!({"a": 1, "b": 2})).is_ok());
        assert!(
            check(&json!({"a": 1, "b": {"$absent": true}, "...": true}), &json!({"a": 1, "b": 2})).is_err()
        );
    }

    #[test]
    fn a_number_and_its_text_differ() {
        assert!(check(&json!({"id": 1}), &json!({"id": "1"})).is_err());
        assert!(check(&json!({"id": null}), &json!({})).is_err());
    }

    #[test]
    fn each_wildcard_matches_its_kind() {
        assert!(
            check(&json!(["$any", "$number", "$string", "$name"]), &json!([null, 2, "x", "a-b.c_1"])).is_ok()
        );
        assert!(check(&json!("$name"), &json!("a/b")).is_err());
        assert!(check(&json!({"$one_of": [1, 2]}), &json!(2)).is_ok());
        assert!(check(&json!({"$not": {"a": 1, "...": true}}), &json!({"a": 1})).is_err());
        assert!(check(&json!({"$each": "$number"}), &json!([1, 2])).is_ok());
    }

    #[test]
    fn a_bound_value_keeps_its_type() {
        let mut bindings = Bindings::default();
        matches(&json!({"id": "$bind:x"}), &json!({"id": 7}), &mut bindings).unwrap();
        assert_eq!(
            bindings.fill(&json!({"id": "${x}", "text": "call ${x}"})),
            json!({"id": 7, "text": "call 7"})
        );
        assert!(matches(&json!({"id": "${x}"}), &json!({"id": 7}), &mut bindings).is_ok());
        assert!(matches(&json!({"id": "${x}"}), &json!({"id": "7"}), &mut bindings).is_err());
    }

    #[test]
    fn a_failed_match_captures_nothing() {
        let mut bindings = Bindings::default();
        let pattern = json!({"a": "$bind:x", "b": 1});
        assert!(matches(&pattern, &json!({"a": 1, "b": 2}), &mut bindings).is_err());
        assert!(bindings.value("x").is_none());
    }
}
