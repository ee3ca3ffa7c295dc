//! The text of a JSON value that is kept in the memory of its frame, and read later as a value of any type.
//!
//! The codec has read the text as JSON before, so it is not read a second time to find out whether it is. That matters
//! for large frames: if the requested type is a [`RawValue`], the text is only copied.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::broken_json::{CheckedText, as_raw, whole_characters};
use crate::error::CallError;
use crate::message::ErrorObject;

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
        simdutf8::basic::from_utf8(&self.0).ok()
    }

    /// The text as an unparsed value.
    pub(crate) fn as_raw(&self) -> Option<&RawValue> {
        as_raw(self.as_str()?)
    }

    /// The text as a value of this type. Where a string is asked for that has half a character (a lone surrogate), it has
    /// U+FFFD in its place, and `replaced` is called with the text.
    ///
    /// # Errors
    /// It is not of this type.
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        replaced: impl FnOnce(&[u8]),
    ) -> Result<T, serde_json::Error> {
        let Some(text) = self.as_str() else { return serde_json::from_slice(&self.0) };
        T::deserialize(CheckedText(text)).or_else(|error| {
            let Some(whole) = whole_characters(text) else { return Err(error) };
            let value = serde_json::from_str(&whole)?;
            replaced(&self.0);
            Ok(value)
        })
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

/// A method and its params, written as JSON.
pub(crate) struct Frame {
    pub(crate) method: Arc<str>,
    pub(crate) params: Option<Box<RawValue>>,
}

impl Frame {
    /// Params that are `null` are omitted.
    pub(crate) fn new<P: Serialize + ?Sized>(
        max_frame: usize,
        method: Arc<str>,
        params: &P,
    ) -> Result<Self, CallError> {
        match to_raw_value(params) {
            Ok(params) => {
                Self::checked(max_frame, method, Some(params).filter(|params| params.get() != "null"))
            }
            Err(error) => Err(CallError::Params { method: method.to_string(), what: error.to_string() }),
        }
    }

    /// Refuses params that no message allows or that do not fit into a frame.
    pub(crate) fn checked(
        max_frame: usize,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) -> Result<Self, CallError> {
        // A peer refuses other params without an id, so the caller would get no answer.
        if params.as_ref().is_some_and(|params| !params.get().starts_with(['{', '['])) {
            let what = "params are an object or an array".to_owned();
            return Err(CallError::Params { method: method.to_string(), what });
        }
        let bytes = method.len() + params.as_ref().map_or(0, |params| params.get().len());
        if bytes > max_frame {
            let what = format!("they take {bytes} bytes, and a frame holds {max_frame}");
            return Err(CallError::Params { method: method.to_string(), what });
        }
        Ok(Self { method, params })
    }
}

/// Reads the params of a request or a notification. Missing params are read as `null`, or else as an empty object.
///
/// `replaced` is called as by [`JsonText::read`].
pub(crate) fn read_params<P: DeserializeOwned>(
    params: Option<JsonText>,
    replaced: impl FnOnce(&[u8]),
) -> Result<P, ErrorObject> {
    let Some(params) = params else {
        return serde_json::from_str("null")
            .or_else(|_| serde_json::from_str("{}"))
            .map_err(ErrorObject::invalid_params);
    };
    params.read(replaced).or_else(|error| match params.as_bytes() {
        b"{}" | b"[]" => serde_json::from_str("null").map_err(|_| ErrorObject::invalid_params(error)),
        _ => Err(ErrorObject::invalid_params(error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that no check accepts.
    const UNCHECKED: &str = "[";

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
        let text = JsonText(Bytes::from_static(UNCHECKED.as_bytes()));
        let again = "texts are checked twice with this version of serde_json";
        assert_eq!(text.as_raw().map(RawValue::get), Some(UNCHECKED), "{again}");
        assert_eq!(text.as_raw().map(|raw| raw.get().as_ptr()), Some(text.as_bytes().as_ptr()), "a copy");
        assert_eq!(text.read::<Box<RawValue>>(|_| ()).unwrap().get(), UNCHECKED, "{again}");
        assert_eq!(text.read::<Option<Box<RawValue>>>(|_| ()).unwrap().unwrap().get(), UNCHECKED, "{again}");
        assert!(text.read::<serde_json::Value>(|_| ()).is_err());
    }

    #[test]
    fn half_a_character_is_read_as_a_replacement_character_where_a_string_is_asked_for() {
        let text = JsonText(Bytes::from_static(br#"{"a":"x\ud800y","b":"\ud83d\ude00\udc00"}"#));
        let mut replaced = 0;
        let read: std::collections::BTreeMap<String, String> = text.read(|_| replaced += 1).unwrap();
        assert_eq!((&*read["a"], &*read["b"], replaced), ("x\u{fffd}y", "\u{1f600}\u{fffd}", 1));
        assert_eq!(text.read::<Box<RawValue>>(|_| panic!()).unwrap().get().as_bytes(), text.as_bytes());
        assert!(text.read::<Vec<u8>>(|_| panic!()).is_err());
    }

    /// Reads a text both ways.
    fn agrees<T: DeserializeOwned + PartialEq + std::fmt::Debug>(json: &str) {
        let text = JsonText::of_value(RawValue::from_string(json.to_owned()).unwrap());
        let [ours, theirs] = [text.read::<T>(|_| ()), serde_json::from_str(json)]
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

    #[test]
    fn a_handler_without_params_accepts_missing_and_empty_params() {
        let text = |text: &str| RawValue::from_string(text.to_owned()).map(JsonText::of_value).unwrap();
        for none in [None, Some("null"), Some("{}"), Some("[]")] {
            assert_eq!(read_params::<()>(none.map(text), |_| ()), Ok(()), "{none:?}");
        }
        for some in ["[1]", r#"{"a":1}"#, "1"] {
            assert!(read_params::<()>(Some(text(some)), |_| ()).is_err(), "{some}");
        }
        let empty = read_params::<std::collections::BTreeMap<String, u32>>(None, |_| ());
        assert_eq!(empty, Ok(std::collections::BTreeMap::new()));
    }
}
