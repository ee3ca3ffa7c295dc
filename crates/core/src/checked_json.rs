//! Texts that were read as JSON before, and are not read a second time to find out whether they are.

use std::sync::OnceLock;

use serde::de::value::{BorrowedStrDeserializer, MapDeserializer};
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;

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
