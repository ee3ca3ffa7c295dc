//! Shallow JSON: the values of an array, and writes of members.

use serde::Serialize;
use serde::de::{Deserialize, IgnoredAny};
use serde_json::value::RawValue;

pub(super) use crate::members::{
    PickedMembers, Shape, check_depth, elements, envelope, may_name, member, present, shape, string, text,
};
use crate::message::{AnswerFault, BadMessage};

/// Why a text that is not an object is not a message.
pub(super) fn not_an_object(text: &str) -> BadMessage {
    if let Err(too_deep) = check_depth(text) {
        return too_deep;
    }
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(IgnoredAny) => BadMessage::NotAnObject,
        Err(_) => BadMessage::NotJson,
    }
}

/// A frame that is UTF-16, or one JSON text, as the message that its program meant, with what is wrong with it.
pub(super) fn reencoded(frame: &[u8]) -> Option<(String, AnswerFault)> {
    let unit: fn([u8; 2]) -> u16 = match frame {
        [0xff, 0xfe, ..] | [b'{', 0, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] | [0, b'{', ..] => u16::from_be_bytes,
        _ if frame.trim_ascii_start().starts_with(b"\"") => {
            let text = serde_json::from_slice(frame).ok()?;
            return Some((text, AnswerFault::new("it is inside of a JSON text")));
        }
        _ => return None,
    };
    let pairs = frame.chunks_exact(2).filter_map(|pair| pair.try_into().ok());
    let text: String = char::decode_utf16(pairs.map(unit))
        .map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect();
    Some((text.trim_start_matches('\u{feff}').into(), AnswerFault::new("it is UTF-16, not UTF-8")))
}

/// Appends fixed text.
pub(super) fn push(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// The room that is made after a value for what usually follows it in its message, in bytes: an added member and the
/// closing braces. Otherwise the last byte of a large message would double its buffer and copy it.
const ROOM_AFTER: usize = 128;

/// Appends JSON without its raw line ends. They occur only between tokens, and newline framing and event streams would
/// end the message there.
pub(super) fn push_json(out: &mut Vec<u8>, json: &str) {
    out.reserve(json.len() + ROOM_AFTER);
    if memchr::memchr2(b'\n', b'\r', json.as_bytes()).is_none() {
        push(out, json);
    } else {
        out.extend(json.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')));
    }
}

/// Appends a text as a JSON string.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    // A write into memory cannot fail.
    drop(serde_json::to_writer(out, text));
}

/// Appends a whole number.
pub(super) fn push_number(out: &mut Vec<u8>, number: impl Serialize) {
    // A write into memory cannot fail. It takes half of the instructions of a formatted write.
    drop(serde_json::to_writer(out, &number));
}

/// Appends an object with one more member at its end.
pub(super) fn push_with_member(out: &mut Vec<u8>, object: &str, member: impl FnOnce(&mut Vec<u8>)) {
    let body = object.trim_ascii_end().strip_suffix('}').unwrap_or(object).trim_ascii_end();
    push_json(out, body);
    if !body.ends_with('{') {
        out.push(b',');
    }
    member(out);
    out.push(b'}');
}

/// Appends `whole`, in which `part`, a value inside it, is replaced by what `anew` writes.
pub(super) fn push_replacing(
    out: &mut Vec<u8>,
    whole: &RawValue,
    part: &RawValue,
    anew: impl FnOnce(&mut Vec<u8>),
) {
    let start = part.get().as_ptr().addr().wrapping_sub(whole.get().as_ptr().addr());
    let end = start.wrapping_add(part.get().len());
    match (whole.get().get(..start), whole.get().get(end..)) {
        (Some(before), Some(after)) => {
            push_json(out, before);
            anew(out);
            push_json(out, after);
        }
        _ => push_json(out, whole.get()),
    }
}

/// The written bytes as a value.
pub(super) fn into_raw(written: Vec<u8>) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8(written).ok()?).ok()
}

/// Reads a `RawValue` out of a text that is known to be JSON.
pub(super) fn raw(text: &str) -> Option<&RawValue> {
    <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_added_to_any_object() {
        for (object, expected) in
            [("{}", "{\"x\":1}"), ("{ }", "{\"x\":1}"), ("{\"a\":{}\n}", "{\"a\":{},\"x\":1}")]
        {
            let mut out = Vec::new();
            push_with_member(&mut out, object, |out| push(out, "\"x\":1"));
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn raw_line_ends_are_never_written() {
        let mut out = Vec::new();
        push_json(&mut out, "{\r\n  \"a\": \"b\\n\"\n}");
        assert_eq!(String::from_utf8(out).unwrap(), "{  \"a\": \"b\\n\"}");
    }
}
