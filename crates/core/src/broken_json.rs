//! The members of an object in a text that is not JSON, as far as they are certain.
//!
//! An answer that cannot be read still ends the call that it names. Most of what programs write instead of JSON keeps the
//! structure: `NaN`, a raw control character, bytes that are not UTF-8. There every member of the outermost object is
//! found. Where the structure is broken, only the members before the fault are.

use std::sync::OnceLock;

use serde::de::value::{BorrowedStrDeserializer, MapDeserializer};
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;

/// The deepest nesting that is followed.
const MAX_DEPTH: usize = 4096;

/// Calls `member` with the name and the value of each member of the outermost object that is certain. `fault` is the
/// place of the first byte that is not JSON. Names and values are bytes as they were sent.
///
/// Returns the name of the member in which the structure breaks. `None`: it does not.
pub(crate) fn members<'a>(
    text: &'a [u8],
    fault: usize,
    mut member: impl FnMut(&'a [u8], &'a [u8]),
) -> Option<&'a [u8]> {
    let (mut found, mut name): (_, &[u8]) = (Vec::new(), b"");
    let is_intact = walk(text, &mut found, &mut name).is_some();
    for (name, value, end) in found {
        // A scalar that ends at the fault may go on after it.
        if is_intact || end < fault {
            member(name, value);
        }
    }
    (!is_intact).then_some(name)
}

/// Whether a text is an object whose structure is intact: any run of bytes may be a value in it.
#[cfg(feature = "tokio")]
pub(crate) fn is_intact(text: &[u8]) -> bool {
    members(text, text.len(), |_, _| {}).is_none()
}

type Found<'a> = Vec<(&'a [u8], &'a [u8], usize)>;

/// Walks over an object in which any run of bytes may be a value. `None`: its structure is broken, in or after the member
/// `name`.
fn walk<'a>(text: &'a [u8], found: &mut Found<'a>, name: &mut &'a [u8]) -> Option<()> {
    // The objects and arrays around the place: whether each is an object.
    let mut levels = Vec::new();
    let mut start = 0;
    let mut at = skip_space(text, 0);
    if text.get(at)? != &b'{' {
        return None;
    }
    loop {
        at = match text.get(at)? {
            bracket @ (b'{' | b'[') => {
                let is_object = *bracket == b'{';
                levels.push(is_object);
                if levels.len() > MAX_DEPTH {
                    return None;
                }
                at = skip_space(text, at + 1);
                match text.get(at)? {
                    b'}' | b']' => {}
                    _ if is_object => {
                        let (next, value) = read_name(text, at)?;
                        at = value;
                        if levels.len() == 1 {
                            (*name, start) = (next, value);
                        }
                        continue;
                    }
                    _ => continue,
                }
                at
            }
            b'"' | b'\'' => skip_string(text, at)?,
            _ => skip_scalar(text, at)?,
        };
        loop {
            at = skip_space(text, at);
            let is_object = *levels.last()?;
            // The value of a member, or an empty object or array, has ended before this byte.
            match text.get(at)? {
                b',' => {
                    note(found, &levels, text, name, start, at);
                    if levels.len() == 1 {
                        start = 0;
                    }
                    at = skip_space(text, at + 1);
                    // A comma after the last one.
                    if let Some(b'}' | b']') = text.get(at) {
                        continue;
                    }
                    if is_object {
                        let (next, value) = read_name(text, at)?;
                        at = value;
                        if levels.len() == 1 {
                            (*name, start) = (next, value);
                        }
                    }
                    break;
                }
                close @ (b'}' | b']') if (*close == b'}') == is_object => {
                    note(found, &levels, text, name, start, at);
                    levels.pop();
                    at += 1;
                    if levels.is_empty() {
                        return (skip_space(text, at) == text.len()).then_some(());
                    }
                }
                _ => return None,
            }
        }
    }
}

/// Keeps a member of the outermost object.
fn note<'a>(
    found: &mut Found<'a>,
    levels: &[bool],
    text: &'a [u8],
    name: &'a [u8],
    start: usize,
    end: usize,
) {
    if levels.len() == 1 && start > 0 {
        if let Some(value) = text.get(start..end) {
            found.push((name, value.trim_ascii_end(), end));
        }
    }
}

/// The name without its quotes, and the place of its value. Programs that print objects of JavaScript write names without quotes.
fn read_name(text: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let is_quoted = matches!(text.get(at)?, b'"' | b'\'');
    let (end, name) = if is_quoted {
        let end = skip_string(text, at)?;
        (end, text.get(at + 1..end - 1)?)
    } else {
        let word = text.get(at..)?;
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$');
        let length = word.iter().position(|byte| !is_part(byte))?;
        (at + length, word.get(..length).filter(|word| !word.is_empty())?)
    };
    let colon = skip_space(text, end);
    if text.get(colon)? != &b':' {
        return None;
    }
    Some((name, skip_space(text, colon + 1)))
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// `at` is the place of a quote of either kind.
fn skip_string(text: &[u8], at: usize) -> Option<usize> {
    let quote = *text.get(at).filter(|quote| matches!(quote, b'"' | b'\''))?;
    let mut at = at + 1;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            byte if *byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// A run of bytes that have no meaning in the structure.
fn skip_scalar(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let end = rest.iter().position(|byte| {
        matches!(byte, b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"' | b' ' | b'\t' | b'\n' | b'\r')
    })?;
    (end > 0).then_some(at + end)
}

/// A text that was read as JSON before, as an unparsed value. With a version of `serde_json` that asks for one in a way that is
/// not known here, the text is checked once more.
pub(crate) fn as_raw(text: &str) -> Option<&RawValue> {
    <&RawValue>::deserialize(CheckedText(text)).or_else(|_| serde_json::from_str(text)).ok()
}

/// The text with U+FFFD in place of each escape of half a character (a lone surrogate), which is no text. `None`: it has none.
pub(crate) fn whole_characters(json: &str) -> Option<String> {
    let unit = |escape: &str| u32::from_str_radix(escape.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let mut whole = None::<String>;
    // `kept`: up to here it is written. A backslash occurs only in a string of JSON, before an escape.
    let (mut kept, mut at) = (0, 0);
    while let Some(next) = memchr::memchr(b'\\', json.as_bytes().get(at..)?) {
        at += next;
        let escape = json.get(at..)?;
        let second = escape.get(6..).and_then(unit).filter(|unit| (0xdc00..0xe000).contains(unit));
        let length = match (unit(escape), second) {
            (Some(0xd800..0xdc00), Some(_)) => 12,
            (Some(0xd800..0xe000), _) => {
                let whole = whole.get_or_insert_default();
                whole.push_str(json.get(kept..at)?);
                whole.push('\u{fffd}');
                kept = at + 6;
                6
            }
            // The next byte is part of the escape.
            (_, _) => 2,
        };
        at += length;
    }
    let mut whole = whole?;
    whole.push_str(json.get(kept..)?);
    Some(whole)
}

/// The name by which a deserializer knows that it is asked for a [`RawValue`], in the way that this version of
/// `serde_json` does that. `None`: it does not do it in the way that is known here, and then texts are checked twice. A
/// test says so.
fn raw_value_name() -> Option<&'static str> {
    static NAME: OnceLock<Option<&'static str>> = OnceLock::new();
    *NAME.get_or_init(|| {
        let mut name = None;
        let read = <&RawValue>::deserialize(AskedName(&mut name));
        name.filter(|_| read.is_ok_and(|value| value.get() == UNCHECKED))
    })
}

/// A text that no check accepts.
const UNCHECKED: &str = "[";

/// Gives an unparsed value its text. In serde's data model it is a newtype struct with a name of its own, which is
/// deserialized from a map with this name and the text.
fn give_raw<'de, V: Visitor<'de>>(
    name: &'static str,
    text: &'de str,
    visitor: V,
) -> Result<V::Value, serde_json::Error> {
    let entry = (name, BorrowedStrDeserializer::new(text));
    visitor.visit_map(MapDeserializer::new(std::iter::once(entry)))
}

/// Notes the name of the newtype struct that is asked for.
struct AskedName<'n>(&'n mut Option<&'static str>);

impl<'de> Deserializer<'de> for AskedName<'_> {
    type Error = serde_json::Error;

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = Some(name);
        give_raw(name, UNCHECKED, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("it is not a newtype struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Deserializes a text that was read as JSON before, as `serde_json` does, except that an unparsed value gets the text
/// without another check.
pub(crate) struct CheckedText<'a>(pub(crate) &'a str);

/// Methods of a deserializer that `serde_json` does.
macro_rules! as_serde_json {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Self::Error> {
            let mut deserializer = serde_json::Deserializer::from_str(self.0);
            let value = deserializer.$method($($argument,)* visitor)?;
            // Otherwise a number with a fraction would be read as a whole number.
            deserializer.end().map(|()| value)
        }
    )*};
}

impl<'de> Deserializer<'de> for CheckedText<'de> {
    type Error = serde_json::Error;

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if raw_value_name() == Some(name) {
            give_raw(name, self.0, visitor)
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0 == "null" { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    as_serde_json! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string()
        deserialize_bytes() deserialize_byte_buf() deserialize_unit() deserialize_unit_struct(name: &'static str)
        deserialize_seq() deserialize_tuple(length: usize) deserialize_tuple_struct(name: &'static str, length: usize)
        deserialize_map() deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) deserialize_identifier()
        deserialize_ignored_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, fault: usize) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let owned = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        members(text.as_bytes(), fault, |name, value| found.push((owned(name), owned(value))));
        found
    }

    fn id(text: &str) -> Option<String> {
        let fault = serde_json::from_str::<serde::de::IgnoredAny>(text).unwrap_err().column();
        read(text, fault).into_iter().find(|(name, _)| name == "id").map(|(_, value)| value)
    }

    #[test]
    fn members_are_found_around_values_that_are_not_json() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN}}"#,
            r"{ jsonrpc: '2.0', id: 7, result: { content: [], $x_1: null } }",
            r#"{"jsonrpc":"2.0","result":{"x":[1,-Infinity,{}],"y":[]},"id":7}"#,
            r#"{"result":{"x":0x1f,"y":01,"id":8,"z":{"id":9}}, "id" : 7 }"#,
            "{\"result\":\"a raw\nline\",\"id\":7}",
            r#"{"result":"\x41","id":7}"#,
            r"{'jsonrpc':'2.0','id':7,'result':None}",
            r#"{"id":7,"result":[1,{"a":2,},],}"#,
        ] {
            assert_eq!(id(text).as_deref(), Some("7"), "{text}");
        }
    }

    #[test]
    fn of_a_broken_text_only_the_members_before_the_fault_are_certain() {
        for text in [
            r#"{"id":7,"result":{"text":"he said "hi", "id": 3}"}}"#,
            r#"{"id":7,"result":{"text":"cut"#,
            r#"{"id":7,"result":[1,2"#,
            r#"{"id":7,"result":{]},"id":3}"#,
            r#"{"id":7,"result":1}}"#,
        ] {
            assert_eq!(id(text).as_deref(), Some("7"), "{text}");
        }
        for text in [
            r#"{"result":{"text":"he said "hi"},"id":3,"x":"}"#,
            r#"{"result":{"x":1,"id":3"#,
            r#"{"id":7"#,
            r#"{"id":"#,
            r#"["id",7"#,
            r#"{"result":]"id":7}"#,
            "{",
            "",
        ] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_walked_over() {
        let whole = br#"{"id":7,"result":{"a":[1,"b\"",{}],"c":NaN}}"#;
        for at in 0..whole.len() {
            for byte in [0, b'"', b'{', b'}', b'[', b']', b',', b':', b'\\', 0xff] {
                let mut text = whole.to_vec();
                text[at] = byte;
                for cut in [text.len(), at + 1] {
                    members(&text[..cut], at, |_, _| ());
                }
            }
        }
        let deep = [&b"{\"id\":7,\"x\":"[..], &b"[".repeat(1 << 20)].concat();
        let mut found = 0;
        members(&deep, deep.len(), |_, _| found += 1);
        assert_eq!(found, 1);
    }
}
