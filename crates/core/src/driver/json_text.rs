//! The text of a JSON value that is kept in the memory of its frame, and read later as a value of any type.
//!
//! The codec has read the text as JSON before, so it is not read a second time to find out whether it is. That matters
//! for large frames: if the requested type is a [`RawValue`], the text is only copied.

use std::sync::OnceLock;

use bytes::Bytes;
use serde::de::value::{BorrowedStrDeserializer, MapDeserializer};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Visitor};
use serde_json::value::RawValue;

/// The largest text that is copied out of its read buffer when it waits, in bytes.
const MAX_COPIED_BYTES: usize = 4 * 1024;

/// The text of one JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonText(Bytes);

impl JsonText {
    /// A value of a frame, without a copy.
    pub(crate) fn in_frame(frame: &Bytes, value: &RawValue) -> Self {
        Self(part_of(frame, value))
    }

    /// A value that is not in a frame.
    #[cfg(any(test, feature = "tower"))]
    pub(crate) fn of_value(value: Box<RawValue>) -> Self {
        Self(Bytes::from(String::from(Box::<str>::from(value))))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text as an unparsed value.
    pub(crate) fn as_raw(&self) -> Option<&RawValue> {
        as_raw(self.as_str()?).ok()
    }

    /// The text as a value of this type.
    ///
    /// # Errors
    /// It is not of this type.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        match self.as_str() {
            Some(text) => T::deserialize(CheckedText(text)),
            None => serde_json::from_slice(&self.0),
        }
    }

    /// The same text without its read buffer, which a few bytes would keep in memory. For texts that wait.
    pub(crate) fn unpinned(self) -> Self {
        if self.len() <= MAX_COPIED_BYTES { Self(Bytes::copy_from_slice(&self.0)) } else { self }
    }

    /// The same text, in bytes that this function makes from its bytes.
    pub(crate) fn map_bytes(self, held: impl FnOnce(Bytes) -> Bytes) -> Self {
        Self(held(self.0))
    }
}

/// A part of a frame, without a copy.
pub(crate) fn part_of(frame: &Bytes, part: &RawValue) -> Bytes {
    let (whole, part) = (frame.as_ptr() as usize, part.get().as_bytes());
    match (part.as_ptr() as usize).checked_sub(whole) {
        Some(start) if start + part.len() <= frame.len() => frame.slice(start..start + part.len()),
        // A codec may return a value that it made itself.
        Some(_) | None => Bytes::copy_from_slice(part),
    }
}

/// A text that was read as JSON before, as an unparsed value.
fn as_raw(text: &str) -> Result<&RawValue, serde_json::Error> {
    <&RawValue>::deserialize(CheckedText(text))
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
struct CheckedText<'a>(&'a str);

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

    #[test]
    fn values_inside_a_frame_are_borrowed_and_others_are_copied() {
        for text in ["[1,2]", r#"  {"a":1}"#] {
            let frame = Bytes::from(text);
            let part: &RawValue = serde_json::from_slice(&frame).unwrap();
            let lent = part_of(&frame, part);
            assert_eq!((lent.as_ptr(), &*lent), (part.get().as_ptr(), text.trim().as_bytes()), "a copy");
            let elsewhere = RawValue::from_string("[3]".to_owned()).unwrap();
            assert_eq!(&*part_of(&frame, &elsewhere), b"[3]");
        }
    }

    #[test]
    fn a_text_is_not_checked_a_second_time() {
        // A text that a check refuses, so no check has read it.
        let text = JsonText(Bytes::from_static(UNCHECKED.as_bytes()));
        let again = "texts are checked twice with this version of serde_json";
        assert_eq!(text.as_raw().map(RawValue::get), Some(UNCHECKED), "{again}");
        assert_eq!(text.as_raw().map(|raw| raw.get().as_ptr()), Some(text.as_bytes().as_ptr()), "a copy");
        assert_eq!(text.read::<Box<RawValue>>().unwrap().get(), UNCHECKED, "{again}");
        assert_eq!(text.read::<Option<Box<RawValue>>>().unwrap().unwrap().get(), UNCHECKED, "{again}");
        assert!(text.read::<serde_json::Value>().is_err());
    }

    /// Reads a text both ways.
    fn agrees<T: DeserializeOwned + PartialEq + std::fmt::Debug>(json: &str) {
        let text = JsonText::of_value(RawValue::from_string(json.to_owned()).unwrap());
        let [ours, theirs] = [text.read::<T>(), serde_json::from_str(json)]
            .map(|read| read.map_err(|error| error.to_string()));
        assert_eq!(ours, theirs, "{json}");
    }

    #[test]
    fn a_text_is_read_as_any_type_as_serde_json_does() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Named {
            a: u8,
            b: Option<String>,
        }
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Wrapped(Vec<u8>);
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Nothing;
        #[derive(Debug, PartialEq, serde::Deserialize)]
        enum Which {
            One,
            Two(u8),
        }
        for json in [
            "null",
            "true",
            "7",
            "-7",
            "300",
            "1.5",
            "1e400",
            r#""\u00e9""#,
            r#""x""#,
            r#""One""#,
            "[]",
            "[7]",
            "[1,2]",
            r#"[1,"\u00e9"]"#,
            "{}",
            r#"{"a":1}"#,
            r#"{"a":1,"b":"c","d":[1]}"#,
            r#"{"Two":1}"#,
            r#"{"Two":1,"x":2}"#,
        ] {
            agrees::<serde_json::Value>(json);
            agrees::<Option<serde_json::Value>>(json);
            agrees::<()>(json);
            agrees::<Option<()>>(json);
            agrees::<bool>(json);
            agrees::<(u8, i16)>(json);
            agrees::<(u8, String)>(json);
            agrees::<Vec<u8>>(json);
            agrees::<Option<u64>>(json);
            agrees::<i128>(json);
            agrees::<f64>(json);
            agrees::<char>(json);
            agrees::<String>(json);
            agrees::<Box<str>>(json);
            agrees::<Named>(json);
            agrees::<Wrapped>(json);
            agrees::<Nothing>(json);
            agrees::<Which>(json);
            agrees::<std::collections::BTreeMap<String, serde_json::Value>>(json);
            agrees::<std::marker::PhantomData<u8>>(json);
        }
    }
}
