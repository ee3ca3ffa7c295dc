//! Values in the form of TOML, on one line.

use serde_json::Value;

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
pub(super) fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { string(name) }
}

/// Text of a peer in a comment: one line of printable characters.
pub(super) fn comment(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(150) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use rescind_testkit::{Profile, RequestKind};
    use serde_json::json;

    use super::*;

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
}
