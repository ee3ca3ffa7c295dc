//! The params of a message. For a message of this side they are written as JSON. For a message of the peer they are
//! found in its frame, kept, and read as a value.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::driver::json_text::JsonText;
use crate::error::CallError;
use crate::message::ErrorObject;

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
