//! The params of a message. For a message of this side they are written as JSON. For a message of the peer they are
//! found in its frame, kept, and read as a value.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::error::CallError;
use crate::message::ErrorObject;

/// The largest part that is copied out of its read buffer when it waits, in bytes.
const MAX_COPIED_BYTES: usize = 4 * 1024;

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
pub(crate) fn read_params<P: DeserializeOwned>(params: Option<Bytes>) -> Result<P, ErrorObject> {
    let Some(params) = params else {
        return serde_json::from_str("null")
            .or_else(|_| serde_json::from_str("{}"))
            .map_err(ErrorObject::invalid_params);
    };
    serde_json::from_slice(&params).or_else(|error| match &*params {
        b"{}" | b"[]" => serde_json::from_str("null").map_err(|_| ErrorObject::invalid_params(error)),
        _ => Err(ErrorObject::invalid_params(error)),
    })
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

/// The same bytes without their read buffer, which a few bytes would keep in memory. For values that wait.
pub(crate) fn unpinned(part: Bytes) -> Bytes {
    if part.len() <= MAX_COPIED_BYTES { Bytes::copy_from_slice(&part) } else { part }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_without_params_accepts_missing_and_empty_params() {
        for none in [None, Some("null"), Some("{}"), Some("[]")] {
            assert_eq!(read_params::<()>(none.map(Bytes::from)), Ok(()), "{none:?}");
        }
        for some in ["[1]", r#"{"a":1}"#, "[", "1"] {
            assert!(read_params::<()>(Some(Bytes::from(some))).is_err(), "{some}");
        }
        let empty = read_params::<std::collections::BTreeMap<String, u32>>(None);
        assert_eq!(empty, Ok(std::collections::BTreeMap::new()));
    }

    #[test]
    fn params_inside_a_frame_are_borrowed_and_others_are_copied() {
        for text in ["[1,2]", r#"  {"a":1}"#] {
            let frame = Bytes::from(text);
            let part: &RawValue = serde_json::from_slice(&frame).unwrap();
            let lent = part_of(&frame, part);
            assert_eq!((lent.as_ptr(), &*lent), (part.get().as_ptr(), text.trim().as_bytes()), "a copy");
            let elsewhere = RawValue::from_string("[3]".to_owned()).unwrap();
            assert_eq!(&*part_of(&frame, &elsewhere), b"[3]");
        }
    }
}
