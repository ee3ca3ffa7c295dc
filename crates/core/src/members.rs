//! The only reader of members: it reads a JSON object in one pass and keeps the requested members as they were sent.
//! A frame must be UTF-8 and not nested too deep.
//!
//! The codecs read envelopes and params with it, and so do transports that must read some members of a body. Its fast way,
//! `scan`, is tried first.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::broken_json::as_raw;
use crate::json_skip::{plain_length, value_length};
use crate::message::BadMessage;

/// The deepest nesting of a frame. `serde_json` skips a raw value without a limit of its own, so codecs check the depth
/// before it reads a frame. The fast way has a limit of its own, lower by the object around its values. A transport that reads
/// a body needs no check: nothing there recurses, and the codec reads the body after it.
const MAX_DEPTH: usize = 127;

/// The longest text that is searched for a name before it is read, in bytes.
const MAX_SEARCHED: usize = 1024;

/// The frame as text, if it is UTF-8.
///
/// # Errors
/// It is not.
pub fn text(frame: &[u8]) -> Result<&str, BadMessage> {
    simdutf8::basic::from_utf8(frame).map_err(|_| BadMessage::NotUtf8)
}

/// Refuses a frame that is nested too deep.
pub(crate) fn check_depth(text: &str) -> Result<(), BadMessage> {
    if is_too_deep(text.as_bytes()) { Err(BadMessage::TooDeep) } else { Ok(()) }
}

/// The most messages of a batch that are read. With the frame limit alone, an array of small values could use many times
/// its size in memory.
pub const MAX_BATCH: usize = 1024;

/// The messages of a batch, in their order: the values of an array.
///
/// # Errors
/// It is not an array, it is nested too deep, or it has more than [`MAX_BATCH`] values
/// ([`BadMessage::BatchNotAllowed`]).
pub fn elements(text: &str) -> Result<Vec<&RawValue>, BadMessage> {
    struct Elements;
    impl<'de> Visitor<'de> for Elements {
        type Value = Result<Vec<&'de RawValue>, BadMessage>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some(value) = seq.next_element::<&'de RawValue>()? {
                if found.len() == MAX_BATCH {
                    while seq.next_element::<IgnoredAny>()?.is_some() {}
                    return Ok(Err(BadMessage::BatchNotAllowed));
                }
                found.push(value);
            }
            Ok(Ok(found))
        }
    }
    check_depth(text)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let found = deserializer.deserialize_seq(Elements).map_err(|_| BadMessage::NotJson)?;
    deserializer.end().map_err(|_| BadMessage::NotJson)?;
    found
}

/// The requested members of an envelope. None of them may occur twice.
pub(crate) fn envelope<'a, const N: usize>(
    text: &'a str,
    names: [&str; N],
) -> Result<[Option<Part<'a>>; N], BadMessage> {
    if let Some(members) = scan(text, names) {
        return Ok(members);
    }
    check_depth(text)?;
    let PickedMembers { values, twice } = PickedMembers::read_any(text, names)?;
    if twice { Err(BadMessage::DuplicateMember) } else { Ok(values.map(|value| value.map(Part::Raw))) }
}

/// The kind of the outermost JSON value of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An object.
    Object,
    /// An array.
    Array,
    /// A value of another type, or not JSON.
    Other,
}

/// The shape that the first byte after leading spaces indicates.
#[must_use]
pub fn shape(text: &str) -> Shape {
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'{') => Shape::Object,
        Some(b'[') => Shape::Array,
        Some(_) | None => Shape::Other,
    }
}

/// The requested members of an object, as they were sent.
#[derive(Debug)]
pub struct PickedMembers<'a, const N: usize> {
    /// The first value for each name.
    pub values: [Option<&'a RawValue>; N],
    /// Whether one of the names occurs more than once.
    pub twice: bool,
}

impl<'a, const N: usize> PickedMembers<'a, N> {
    /// Reads a whole text as one object. Members with other names are skipped, however often they occur.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn read(text: &'a str, names: [&str; N]) -> Result<Self, BadMessage> {
        match scan(text, names) {
            Some(members) => {
                Ok(Self { values: members.map(|member| member.and_then(Part::raw)), twice: false })
            }
            None => Self::read_any(text, names),
        }
    }

    /// The complete reader.
    fn read_any(text: &'a str, names: [&str; N]) -> Result<Self, BadMessage> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let picked = Members { names }.deserialize(&mut deserializer).map_err(|_| BadMessage::NotJson)?;
        deserializer.end().map_err(|_| BadMessage::NotJson)?;
        Ok(picked)
    }

    /// The requested members of a value. If it is not an object, there are none.
    #[must_use]
    pub fn of(value: Option<&'a RawValue>, names: [&str; N]) -> Self {
        let none = Self { values: [None; N], twice: false };
        match value {
            Some(value) if shape(value.get()) == Shape::Object => {
                Self::read(value.get(), names).unwrap_or(none)
            }
            Some(_) | None => none,
        }
    }
}

/// Whether a text may contain a member with one of these names. Empty names are ignored.
///
/// A short text is searched for the names, and for an escape, which takes less than to read it. For a long one it is the
/// other way round, so any name is possible.
#[must_use]
pub fn may_name<const N: usize>(text: &str, names: [&str; N]) -> bool {
    let mut names = names.into_iter().filter(|name| !name.is_empty());
    if text.len() > MAX_SEARCHED || memchr::memchr(b'\\', text.as_bytes()).is_some() {
        names.next().is_some()
    } else {
        names.any(|name| text.contains(name))
    }
}

/// One member of a value. `None`: the value is not an object, or the member is missing or `null`.
#[must_use]
pub fn member<'a>(value: Option<&'a RawValue>, name: &str) -> Option<&'a RawValue> {
    let PickedMembers { values: [found], .. } = PickedMembers::of(value, [name]);
    present(found)
}

/// The value, unless it is `null`.
#[must_use]
pub fn present(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|value| value.get() != "null")
}

/// The text of a JSON string, borrowed if nothing is escaped. `None`: the value is not a string, or not valid text.
#[must_use]
pub fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(value.get()).ok().map(Cow::Owned)
}

struct Members<'n, const N: usize> {
    names: [&'n str; N],
}

impl<'de, const N: usize> DeserializeSeed<'de> for Members<'_, N> {
    type Value = PickedMembers<'de, N>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Members<'_, N> {
    type Value = PickedMembers<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut picked = PickedMembers { values: [None; N], twice: false };
        while let Some(place) = map.next_key_seed(Name { names: &self.names })? {
            match place.and_then(|place| picked.values.get_mut(place)) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(slot) => {
                    let value = map.next_value::<&'de RawValue>()?;
                    picked.twice |= slot.is_some();
                    slot.get_or_insert(value);
                }
            }
        }
        Ok(picked)
    }
}

struct Name<'n> {
    names: &'n [&'n str],
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.names.iter().position(|wanted| *wanted == name))
    }
}

/// The member of an object that has one member.
#[cfg(feature = "tokio")]
pub(crate) fn only_member(text: &str) -> Option<&RawValue> {
    serde_json::from_str(text).ok().map(|OnlyMember(value)| value)
}

#[cfg(feature = "tokio")]
struct OnlyMember<'a>(&'a RawValue);

#[cfg(feature = "tokio")]
impl<'de> serde::Deserialize<'de> for OnlyMember<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = OnlyMember<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one member")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let first = members.next_entry::<IgnoredAny, &RawValue>()?;
                let is_last = members.next_key::<IgnoredAny>()?.is_none();
                let only = first.filter(|_| is_last).map(|(_, value)| OnlyMember(value));
                only.ok_or_else(|| A::Error::invalid_length(2, &self))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// An unparsed value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// A whole number, or a string without an escape.
    Plain(&'a str),
    /// Any value.
    Raw(&'a RawValue),
}

impl<'a> Part<'a> {
    pub(crate) fn get(self) -> &'a str {
        match self {
            Self::Plain(text) => text,
            Self::Raw(value) => value.get(),
        }
    }

    pub(crate) fn raw(self) -> Option<&'a RawValue> {
        match self {
            Self::Plain(text) => as_raw(text),
            Self::Raw(value) => Some(value),
        }
    }
}

/// The fast reader: the requested members, if the text is one object and nothing in it is unusual. It reads plain names,
/// plain scalars, and whole values, which stay unparsed.
///
/// It returns `None` for everything unusual, valid or not: an escape in a name, a member that occurs twice, an empty
/// object. The complete reader then reads the text. So this one never reports why a text is not a message.
pub(crate) fn scan<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[Option<Part<'a>>; N]> {
    let mut found = [None; N];
    let mut rest = skip_space(text).strip_prefix('{')?;
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
    let (inner, rest) = inner.split_at_checked(plain_length(inner.as_bytes()))?;
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
    let (value, rest) = text.split_at_checked(value_length(text)?)?;
    Some((Part::Raw(as_raw(value)?), rest))
}

fn is_too_deep(frame: &[u8]) -> bool {
    // `[` and `{` differ in one bit. A frame with few of them is not nested too deep, whether they are in strings or
    // not. They are counted as bytes over short pieces, so that many are compared at once.
    let opened = |piece: &[u8]| piece.iter().map(|byte| u8::from((byte | 0x20) == b'{')).sum::<u8>();
    if frame.chunks(240).map(|piece| usize::from(opened(piece))).sum::<usize>() <= MAX_DEPTH {
        return false;
    }
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in frame {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["a", "id", "params"];

    /// Both readers must read the same, if the fast one reads the text.
    fn agree(text: &str) {
        let Some(short) = scan(text, NAMES) else { return };
        let long = PickedMembers::read_any(text, NAMES)
            .unwrap_or_else(|_| panic!("only the short way read {text:?}"));
        assert!(!long.twice, "{text:?}");
        let long = long.values.map(|value| value.map(RawValue::get));
        assert_eq!(short.map(|part| part.map(Part::get)), long, "{text:?}");
        for part in short.into_iter().flatten() {
            assert_eq!(part.raw().map(RawValue::get), Some(part.get()), "{text:?}");
        }
    }

    #[test]
    fn brackets_inside_strings_do_not_count_as_depth() {
        let flat = format!("{{\"a\":\"{}\"}}", "[{\\\"".repeat(500));
        assert_eq!(check_depth(&flat), Ok(()));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check_depth(&nested(127)), Ok(()));
        assert_eq!(check_depth(&nested(128)), Err(BadMessage::TooDeep));
        assert_eq!(check_depth(&nested(100_000)), Err(BadMessage::TooDeep));
        // There is one bracket more than the limit, and the nesting is exactly at the limit.
        let beside = format!("[[],{}]", nested(126));
        assert_eq!(check_depth(&beside), Ok(()), "the deepest nesting that is read");
        let wide = format!("[{}]", vec!["{}"; 10_000].join(","));
        assert_eq!(check_depth(&wide), Ok(()));
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
            assert!(scan(text, NAMES).is_some(), "{text}");
        }
        for text in
            [r#"{"a":1,"a":1}"#, r#"{"\u0061":1}"#, r#"{"a":01}"#, r#"{"a":1}x"#, "{}", "{\"a\":\"\u{1}\"}"]
        {
            assert!(scan(text, NAMES).is_none(), "{text}");
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
            let [Some(part), ..] = scan(&object, NAMES).unwrap() else { panic!("{object}") };
            assert_eq!((part.get(), matches!(part, Part::Plain(_))), (text, plain), "{object}");
        }
    }
}
