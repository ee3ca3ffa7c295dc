//! A foreign peer's messages as they were meant, and what was wrong with them.
//!
//! The library takes an answer whose meaning is certain. So a peer is judged by what it answers, and the report says
//! beside it what its messages do against the protocol.

use std::collections::HashSet;
use std::fmt;

use rescind_core::Deviation;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use super::foreign::remove_null_member;
use crate::wire_format::{Shape, WireFormat};

/// What a foreign peer did against the form of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviationSeen {
    /// What it did.
    pub deviation: Deviation,
    /// What it sent.
    pub sent: String,
}

impl DeviationSeen {
    /// A deviation and what shows it. A long text loses its middle.
    pub fn new(deviation: Deviation, sent: impl Into<String>) -> Self {
        let mut sent = sent.into();
        super::shorten(&mut sent);
        Self { deviation, sent }
    }
}

/// The messages in a frame, and what is wrong with them.
#[derive(Debug, Default, PartialEq)]
pub struct AsMeant {
    /// The messages.
    pub messages: Vec<Value>,
    /// What is wrong with them.
    pub deviations: Vec<DeviationSeen>,
}

/// Reads a frame of a foreign peer. `asked`: the ids of the requests that it was sent. `batches`: an array of answers is
/// expected, and stays as it is.
///
/// # Errors
/// If the text is no JSON, or a record of a log.
pub fn as_meant(
    text: &str,
    wire_format: WireFormat,
    asked: &[Value],
    batches: bool,
) -> Result<AsMeant, serde_json::Error> {
    let mut read = AsMeant::default();
    let mut note = |deviation| read.deviations.push(DeviationSeen::new(deviation, text));
    let mut plain = text;
    if let Some(rest) = text.strip_prefix('\u{feff}') {
        note(Deviation::ByteOrderMark);
        plain = rest;
    }
    let frame = match serde_json::from_str::<Value>(plain) {
        Ok(frame) => frame,
        Err(error) => {
            let whole = with_whole_characters(plain).ok_or(error)?;
            let frame = serde_json::from_str(&whole)?;
            note(Deviation::LoneSurrogate);
            frame
        }
    };
    let members = match frame {
        Value::Array(members) if !batches && are_answers(wire_format, &members) => {
            note(Deviation::BatchOfAnswers);
            members
        }
        Value::Array(members) => {
            if let [Value::Array(inner)] = &members[..] {
                if are_answers(wire_format, inner) {
                    note(Deviation::InvalidAnswer);
                }
            }
            vec![Value::Array(members)]
        }
        frame if wire_format.is_json_rpc() && is_record(&frame) => {
            return Err(serde_json::Error::custom("it is not a message"));
        }
        frame => {
            let is_answer = matches!(wire_format.shape(&frame), Shape::Answer { .. });
            if wire_format.is_json_rpc() && is_answer && has_a_member_twice(plain) {
                note(Deviation::InvalidAnswer);
            }
            vec![frame]
        }
    };
    for mut message in members {
        let had_null = remove_null_member(&mut message);
        if wire_format.is_json_rpc() && message.is_object() {
            if had_null {
                note(Deviation::NullMember);
            }
            form_of(&message, &mut note);
            if let Some(members) = message.as_object_mut() {
                members.insert("jsonrpc".to_owned(), json!("2.0"));
            }
            respell(&mut message, wire_format, asked, &mut note);
        }
        read.messages.push(message);
    }
    Ok(read)
}

/// Whether an object is a record of a log and not a message: it has none of the names that a message has, or an `error` and a
/// `result` as programs print them.
fn is_record(frame: &Value) -> bool {
    let Some(members) = frame.as_object() else { return false };
    let has_code = || members.get("error").is_some_and(|error| error["code"].is_i64());
    !["jsonrpc", "id", "method"].iter().any(|name| members.contains_key(*name)) && !has_code()
}

/// Whether these are answers, at least one.
fn are_answers(wire_format: WireFormat, members: &[Value]) -> bool {
    let is_answer = |member: &Value| matches!(wire_format.shape(member), Shape::Answer { .. });
    wire_format.is_json_rpc() && !members.is_empty() && members.iter().all(is_answer)
}

/// What is wrong with the members of a message.
fn form_of(message: &Value, note: &mut impl FnMut(Deviation)) {
    if message.get("jsonrpc") != Some(&json!("2.0")) {
        note(Deviation::NoVersion);
    }
    let (result, error) = (message.get("result"), message.get("error"));
    if message.get("method").is_some() {
        if result.is_some() || error.is_some() {
            note(Deviation::InvalidAnswer);
        }
        return;
    }
    // An error with the id null answers what could not be read.
    match message.get("id") {
        None if result.is_some() || error.is_some() => note(Deviation::NoId),
        Some(Value::Null) if result.is_some() => note(Deviation::NoId),
        Some(_) if result.is_some() == error.is_some() || error.is_some_and(|error| !error.is_object()) => {
            note(Deviation::InvalidAnswer);
        }
        _ => {}
    }
}

/// Whether a text is an object with two members of one name.
fn has_a_member_twice(text: &str) -> bool {
    struct Names;

    impl<'de> Visitor<'de> for Names {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
            let (mut names, mut is_twice) = (HashSet::<String>::new(), false);
            while let Some((name, IgnoredAny)) = members.next_entry::<String, IgnoredAny>()? {
                is_twice |= !names.insert(name);
            }
            Ok(is_twice)
        }
    }

    struct IsTwice(bool);

    impl<'de> Deserialize<'de> for IsTwice {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Names).map(Self)
        }
    }

    serde_json::from_str::<IsTwice>(text).is_ok_and(|IsTwice(is_twice)| is_twice)
}

/// Gives an answer the id of the request that it can only mean.
fn respell(message: &mut Value, wire_format: WireFormat, asked: &[Value], note: &mut impl FnMut(Deviation)) {
    let Shape::Answer { id } = wire_format.shape(message) else { return };
    if asked.contains(&id) {
        return;
    }
    let mut meant = asked.iter().filter(|other| is_respelled(&id, other));
    let (Some(only), None) = (meant.next(), meant.next()) else { return };
    if let Some(place) = message.get_mut("id") {
        *place = only.clone();
        note(Deviation::IdSpelling);
    }
}

/// Whether an id of an answer spells this number differently: `"2"`, `2.0` or `2e0` for 2.
fn is_respelled(id: &Value, number: &Value) -> bool {
    let Some(number) = number.as_u64() else { return false };
    let of_text = |text: &str| serde_json::from_str::<Value>(text).ok();
    let spelled = match id {
        Value::String(text) => of_text(text),
        other => Some(other.clone()),
    };
    match spelled {
        Some(Value::Number(spelled)) => {
            let fraction = spelled.as_f64().filter(|value| value.fract() == 0.0 && value.is_sign_positive());
            // Ids of the check are far below the numbers that a float cannot hold.
            spelled.as_u64() == Some(number)
                || fraction.is_some_and(|value| format!("{value:.0}") == number.to_string())
        }
        _ => false,
    }
}

/// The text with U+FFFD for each escape that is half of a character. `None`: it has none.
fn with_whole_characters(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut whole = String::new();
    let mut at = 0;
    let mut is_changed = false;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                whole.push_str("\\ufffd");
                is_changed = true;
                at += 6;
                continue;
            }
            (Some(_), _) => 6,
            // Any other escape has two characters, and the second may be a backslash.
            (None, _) if rest.starts_with('\\') => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            (None, _) => rest.find('\\').unwrap_or(rest.len()),
        };
        whole.push_str(text.get(at..at + length)?);
        at += length;
    }
    is_changed.then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<Value>, Vec<Deviation>) {
        let mcp = WireFormat::of("mcp").unwrap();
        let read = as_meant(text, mcp, &[json!(1), json!(2), json!("3"), json!(12)], false).unwrap();
        (read.messages, read.deviations.into_iter().map(|seen| seen.deviation).collect())
    }

    #[test]
    fn a_right_message_is_as_it_came() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"3","result":null}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"\ud83d\ude00 \\ud800"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}}"#,
            r#"{"jsonrpc":"2.0","method":"m"}"#,
        ] {
            let (messages, deviations) = read(text);
            assert_eq!(messages, [serde_json::from_str::<Value>(text).unwrap()], "{text}");
            assert!(deviations.is_empty(), "{text}: {deviations:?}");
        }
    }

    #[test]
    fn a_null_error_beside_a_result_is_told_and_so_is_a_null_result_beside_an_error() {
        for (text, meant) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#,
                json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":""}}"#,
                json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}),
            ),
        ] {
            assert_eq!(read(text), (vec![meant], vec![Deviation::NullMember]), "{text}");
        }
    }

    #[test]
    fn an_id_that_is_spelled_differently_is_that_of_its_request() {
        for (spelled, id) in [("\"1\"", 1), ("1.0", 1), ("1e0", 1), ("\"2.0\"", 2), ("1.2e1", 12)] {
            let (messages, deviations) =
                read(&format!(r#"{{"jsonrpc":"2.0","id":{spelled},"result":{{}}}}"#));
            assert_eq!(messages.first().unwrap().get("id"), Some(&json!(id)), "{spelled}");
            assert_eq!(deviations, [Deviation::IdSpelling], "{spelled}");
        }
        // A text was asked, and it is no number.
        for other in ["3", "3.0", "\"4\"", "1.5", "-1", "\"01\"", "[1]", "\"\"", "1e400"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{other},"result":{{}}}}"#);
            if let Ok(frame) = serde_json::from_str::<Value>(&text) {
                assert_eq!(read(&text), (vec![frame], vec![]), "{other}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_told() {
        for (text, deviation) in [
            (r#"{"id":1,"result":{}}"#, Deviation::NoVersion),
            (r#"{"jsonrpc":"1.0","id":1,"result":{}}"#, Deviation::NoVersion),
            (r#"{"jsonrpc":"2.0","result":{}}"#, Deviation::NoId),
            (r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, Deviation::NoId),
            (r#"{"jsonrpc":"2.0","id":1}"#, Deviation::InvalidAnswer),
            (r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#, Deviation::InvalidAnswer),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"result":2}"#, Deviation::InvalidAnswer),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"result":1}"#, Deviation::InvalidAnswer),
            (r#"[[{"jsonrpc":"2.0","id":1,"result":1}]]"#, Deviation::InvalidAnswer),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}"#,
                Deviation::InvalidAnswer,
            ),
            ("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", Deviation::ByteOrderMark),
            (r#"{"jsonrpc":"2.0","id":1,"result":"\ud800"}"#, Deviation::LoneSurrogate),
        ] {
            assert_eq!(read(text).1, [deviation], "{text}");
        }
        let (messages, deviations) =
            read(r#"[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":2,"result":2}]"#);
        assert_eq!((messages.len(), deviations), (2, vec![Deviation::BatchOfAnswers]));
    }

    #[test]
    fn a_record_of_a_log_is_not_a_message() {
        let read = |text| as_meant(text, WireFormat::of("mcp").unwrap(), &[], false);
        for record in
            [r#"{"level":"info","msg":"x"}"#, r#"{"level":"error","error":"x"}"#, r#"{"result":"hit"}"#, "{}"]
        {
            assert!(read(record).is_err(), "{record}");
        }
        for message in [r#"{"error":{"code":1,"message":""}}"#, r#"{"id":1,"result":2}"#, r#"{"method":"m"}"#]
        {
            assert!(read(message).is_ok(), "{message}");
        }
    }

    #[test]
    fn half_a_character_is_replaced_and_nothing_else() {
        let half = with_whole_characters;
        assert_eq!(half(r#""a\ud800b\udfff""#).unwrap(), r#""a\ufffdb\ufffd""#);
        assert_eq!(half(r#""\ud83d\ude00\ud83d""#).unwrap(), r#""\ud83d\ude00\ufffd""#);
        assert_eq!(half(r#""\\ud800 é\n""#), None);
        assert_eq!(half("\"\\"), None);
        assert!(as_meant("{", WireFormat::of("mcp").unwrap(), &[], false).is_err());
    }
}
