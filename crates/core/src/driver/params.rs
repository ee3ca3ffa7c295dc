//! The params of a message: found in its frame, kept beside it, and read as a value.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::message::ErrorObject;

/// What waits is copied out of its read buffer up to this size, in bytes.
const COPIED: usize = 4 * 1024;

/// Reads the params of a request or a notification. None at all may stand for an empty object or for `null`.
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

/// What stands in a frame, without copying it.
pub(crate) fn part_of(frame: &Bytes, part: &RawValue) -> Bytes {
    let (whole, part) = (frame.as_ptr() as usize, part.get().as_bytes());
    match (part.as_ptr() as usize).checked_sub(whole) {
        Some(start) if start + part.len() <= frame.len() => frame.slice(start..start + part.len()),
        // A codec may lend what it made itself.
        Some(_) | None => Bytes::copy_from_slice(part),
    }
}

/// The same bytes without the read buffer they came in, which a few bytes of it would keep whole: for what has to wait.
pub(crate) fn unpinned(part: Bytes) -> Bytes {
    if part.len() <= COPIED { Bytes::copy_from_slice(&part) } else { part }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_params_and_empty_ones_are_the_same_to_a_handler_that_takes_none() {
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
    fn what_stands_in_a_frame_is_lent_and_what_stands_elsewhere_is_copied() {
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
