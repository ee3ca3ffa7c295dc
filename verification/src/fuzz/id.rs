//! Request ids: type and value are kept, and different ids are never equal.

use std::hash::{BuildHasher, RandomState};

use rescind_core::dialect::{self, Dialect};
use rescind_core::{BadMessage, Incoming, InvalidId, MAX_ID_BYTES, RequestId};
use serde_json::value::RawValue;

/// The value of a token for a naive reader.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Naive {
    Number(i64),
    Text(String),
    Neither(InvalidId),
}

/// Each line is a token.
pub(super) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut known: Vec<(Naive, RequestId)> = Vec::new();
    for token in text.split('\n').take(16) {
        let (expected, read) = (naive(token), RequestId::from_json(token));
        let same = match (&read, &expected) {
            (Ok(id), Naive::Number(number)) => id.as_number() == Some(*number) && id.as_text().is_none(),
            (Ok(id), Naive::Text(text)) => id.as_text() == Some(text.as_str()) && id.as_number().is_none(),
            (Err(why), Naive::Neither(expected)) => why == expected,
            _ => false,
        };
        assert!(same, "I4: {token:?} is {read:?}, and should be {expected:?}");
        through_serde(token, read.as_ref().ok());
        for dialect in dialect::ALL.iter().filter(|dialect| dialect.codec().as_json_rpc().is_some()) {
            in_messages(dialect, token, &read);
        }
        let Ok(id) = read else { continue };
        written_and_read(token, &id);
        for (other, other_id) in &known {
            assert_eq!(
                id == *other_id,
                expected == *other,
                "I4: {id} and {other_id}: which are one is not clear"
            );
            assert_eq!(
                id == *other_id,
                id.to_string() == other_id.to_string(),
                "I4: {id} shows as {other_id}"
            );
        }
        known.push((expected, id));
    }
}

fn naive(token: &str) -> Naive {
    let token = token.trim_ascii();
    if token.starts_with('"') {
        return match serde_json::from_str::<String>(token) {
            Ok(text) if text.len() > MAX_ID_BYTES => Naive::Neither(InvalidId::TooLong),
            Ok(text) => Naive::Text(text),
            Err(_) => Naive::Neither(InvalidId::NotAnId),
        };
    }
    // A whole number is valid only if writing it again gives the same text.
    let digits = token.strip_prefix('-').unwrap_or(token);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Naive::Neither(InvalidId::NotAnId);
    }
    match token.parse::<i64>() {
        Ok(number) if number.to_string() == token => Naive::Number(number),
        Ok(_) => Naive::Neither(InvalidId::NotAnId),
        Err(_) if digits.starts_with('0') => Naive::Neither(InvalidId::NotAnId),
        Err(_) => Naive::Neither(InvalidId::OutOfRange),
    }
}

fn written_and_read(token: &str, id: &RequestId) {
    let mut written = Vec::new();
    id.write_json(&mut written);
    let written = String::from_utf8(written).unwrap_or_default();
    assert_eq!(RequestId::from_json(&written).as_ref(), Ok(id), "{token:?} was written as {written}");
    if id.as_number().is_some() {
        assert_eq!(written, token.trim_ascii(), "a number is not written as it came");
    }
    assert_eq!(serde_json::to_string(id).ok(), Some(written), "{token:?}: both writers agree");
    let hasher = RandomState::new();
    assert_eq!(hasher.hash_one(id), hasher.hash_one(id.clone()));
    match (id.as_number(), id.as_text()) {
        (Some(number), None) => assert_eq!(&RequestId::number(number), id),
        (None, Some(text)) => assert_eq!(RequestId::text(text).as_ref(), Ok(id)),
        _ => panic!("I4: {id} is of two types, or of none"),
    }
}

/// A token that is JSON has the same value inside a larger one.
fn through_serde(token: &str, read: Option<&RequestId>) {
    if serde_json::from_str::<&RawValue>(token).is_ok() {
        assert_eq!(serde_json::from_str::<RequestId>(token).ok().as_ref(), read, "{token:?} through serde");
    }
}

/// The token as the id of a request, of an answer, and in a cancel.
fn in_messages(dialect: &Dialect, token: &str, read: &Result<RequestId, InvalidId>) {
    if serde_json::from_str::<&RawValue>(token).is_err() {
        return;
    }
    let (codec, name) = (dialect.codec(), dialect.name());
    let request = format!(r#"{{"jsonrpc":"2.0","id":{token},"method":"m"}}"#);
    match codec.decode(request.as_bytes()) {
        Incoming::Request(request) => assert_eq!(Ok(request.id), *read, "{name}: the id {token}"),
        Incoming::Bad(BadMessage::InvalidId(why)) => assert_eq!(Err(why), *read, "{name}: the id {token}"),
        Incoming::Bad(BadMessage::TooDeep) => {}
        other => panic!("{name}: a request with the id {token} is {other:?}"),
    }
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{token},"result":0}}"#);
    if let Incoming::Answer { call, .. } = codec.decode(answer.as_bytes()) {
        let number = token.trim_ascii().parse::<u64>().ok();
        let number = number.filter(|number| number.to_string() == token.trim_ascii());
        assert_eq!(call.map(|call| call.0), number, "{name}: an answer to {token}");
    }
    let Some(cancel) = codec.as_json_rpc().map(|codec| codec.cancel) else { return };
    let cancel =
        format!(r#"{{"jsonrpc":"2.0","method":"{}","params":{{"{}":{token}}}}}"#, cancel.method, cancel.key);
    match codec.decode(cancel.as_bytes()) {
        Incoming::Cancel(cancel) => assert_eq!(cancel.key, *read, "{name}: a cancel of {token}"),
        Incoming::Bad(BadMessage::TooDeep) => {}
        other => panic!("{name}: a cancel of {token} is {other:?}"),
    }
}
