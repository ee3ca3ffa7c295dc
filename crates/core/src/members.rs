//! The only reader of members: it reads a JSON object in one pass and keeps the requested members as they were sent.
//! The codecs read envelopes and params with it, and so do transports that must read some members of a body.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::message::BadMessage;

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
