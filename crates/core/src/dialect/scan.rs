//! The fast reader of objects: for plain names, plain scalars, and whole values, which stay unparsed.
//!
//! It returns `None` for everything unusual, valid or not: an escape in a name, a member that occurs twice, an empty
//! object. The complete reader in `json.rs` then reads the text. So this one never reports why a text is not a message.

use serde_json::Deserializer;
use serde_json::value::RawValue;

/// The longest string that is examined byte by byte, in bytes.
const MAX_STRING_BYTES: usize = 256;

/// An unparsed value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part<'a> {
    /// A whole number, or a string without an escape.
    Plain(&'a str),
    /// Any value.
    Raw(&'a RawValue),
}

impl<'a> Part<'a> {
    pub(super) fn get(self) -> &'a str {
        match self {
            Self::Plain(text) => text,
            Self::Raw(value) => value.get(),
        }
    }

    pub(super) fn raw(self) -> Option<&'a RawValue> {
        match self {
            Self::Plain(text) => serde_json::from_str(text).ok(),
            Self::Raw(value) => Some(value),
        }
    }
}

/// The requested members, if the text is one object and nothing in it is unusual.
pub(super) fn members<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[Option<Part<'a>>; N]> {
    let mut found = [None; N];
    let mut rest = text.strip_prefix('{')?;
    loop {
        let (name, after) = plain_string(skip_space(rest))?;
        let (value, after) = value(skip_space(skip_space(after).strip_prefix(':')?))?;
        let place = names.iter().position(|wanted| *wanted == name);
        if let Some(place) = place.and_then(|place| found.get_mut(place)) {
            if place.replace(value).is_some() {
                return None;
            }
        }
        rest = skip_space(after);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => return skip_space(rest.strip_prefix('}')?).is_empty().then_some(found),
        }
    }
}

fn skip_space(text: &str) -> &str {
    if text.as_bytes().first().is_some_and(|byte| *byte > b' ') {
        return text;
    }
    text.trim_start_matches([' ', '\t', '\n', '\r'])
}

/// The text between the quotes, and the rest after them.
fn plain_string(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    let end =
        inner.bytes().take(MAX_STRING_BYTES).position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
    let (inner, rest) = inner.split_at_checked(end)?;
    Some((inner, rest.strip_prefix('"')?))
}

fn value(text: &str) -> Option<(Part<'_>, &str)> {
    let plain = match text.as_bytes().first()? {
        b'"' => plain_string(text).map(|(_, rest)| rest),
        b'-' | b'0'..=b'9' => whole_number(text),
        _ => None,
    };
    match plain {
        Some(rest) => text.get(..text.len() - rest.len()).map(|plain| (Part::Plain(plain), rest)),
        None => raw_value(text),
    }
}

/// The rest after a whole number, if neither a fraction nor an exponent follows.
fn whole_number(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = digits.split_at_checked(end)?;
    let whole = digits == "0" || (!digits.is_empty() && !digits.starts_with('0'));
    let ends = matches!(rest.as_bytes().first(), Some(b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r'));
    (whole && ends).then_some(rest)
}

fn raw_value(text: &str) -> Option<(Part<'_>, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<&RawValue>();
    let value = values.next()?.ok()?;
    Some((Part::Raw(value), text.get(values.byte_offset()..)?))
}

#[cfg(test)]
mod tests {
    use super::super::json::PickedMembers;
    use super::*;

    const NAMES: [&str; 3] = ["a", "id", "params"];

    /// Both readers must read the same, if the fast one reads the text.
    fn agree(text: &str) {
        let Some(short) = members(text, NAMES) else { return };
        let long =
            PickedMembers::read(text, NAMES).unwrap_or_else(|_| panic!("only the short way read {text:?}"));
        assert!(!long.twice, "{text:?}");
        let long = long.values.map(|value| value.map(RawValue::get));
        assert_eq!(short.map(|part| part.map(Part::get)), long, "{text:?}");
        for part in short.into_iter().flatten() {
            assert_eq!(part.raw().map(RawValue::get), Some(part.get()), "{text:?}");
        }
    }

    #[test]
    fn the_scanner_and_the_parser_read_the_same_values() {
        let whole =
            r#" { "a" : -0 , "id":12,"x":{"a":[1,"\"}"]},"params":{"b":null},"a2":"\u00e9","y":1.5e3 } "#;
        let parts = [
            "", "{", "}", "\"", ",", ":", "0", "1", "-", "\\", "[", "]", "e", ".", "\u{e9}", "\u{0}", "null",
        ];
        for at in (0..=whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            for text in [whole, whole.trim()] {
                let Some((head, tail)) = text.split_at_checked(at) else { continue };
                for part in parts {
                    agree(&format!("{head}{part}{tail}"));
                    agree(&format!("{head}{part}{}", tail.get(1..).unwrap_or_default()));
                }
                agree(head);
                agree(tail);
            }
        }
    }

    #[test]
    fn usual_frames_take_the_fast_path() {
        for text in [
            r#"{"a":1}"#,
            r#"{ "id" : "x" , "params" : [1.5] }"#,
            r#"{"other":true,"a":-7 }"#,
            "{\r\n\t\"id\":\n1\n}\n",
        ] {
            assert!(members(text, NAMES).is_some(), "{text}");
        }
        for text in
            [r#"{"a":1,"a":1}"#, r#"{"\u0061":1}"#, r#"{"a":01}"#, r#"{"a":1}x"#, "{}", "{\"a\":\"\u{1}\"}"]
        {
            assert!(members(text, NAMES).is_none(), "{text}");
        }
    }

    #[test]
    fn integers_and_plain_strings_are_read_without_a_parser() {
        for (text, plain) in [
            ("0", true),
            ("-0", true),
            ("-7", true),
            ("9223372036854775808", true),
            (r#""""#, true),
            (r#""x""#, true),
            ("1.5", false),
            ("1e5", false),
            (r#""\u0041""#, false),
            ("true", false),
            ("[1]", false),
        ] {
            let object = format!(r#"{{"a":{text}}}"#);
            let [Some(part), ..] = members(&object, NAMES).unwrap() else { panic!("{object}") };
            assert_eq!((part.get(), matches!(part, Part::Plain(_))), (text, plain), "{object}");
        }
    }
}
