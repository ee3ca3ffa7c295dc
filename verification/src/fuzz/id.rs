//! Request ids: type and value are kept, and different ids are never equal.

use std::hash::{BuildHasher, RandomState};

use rescind_core::dialect::{self, Dialect};
use rescind_core::{AnswerBody, BadMessage, Incoming, InvalidId, MAX_ID_BYTES, RequestId};
use serde::de::IgnoredAny;
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
                id.to_string() == other_id.to_string() || id.as_number().is_some() && id == *other_id,
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
    let digits = token.strip_prefix('-').unwrap_or(token);
    let has_zero_before = digits.len() > 1 && digits.starts_with('0');
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !has_zero_before && token != "-0";
    let is_number = serde_json::from_str::<IgnoredAny>(token).is_ok()
        && digits.starts_with(|first: char| first.is_ascii_digit());
    match () {
        () if !is_number && token.len() > MAX_ID_BYTES && !is_plain => Naive::Neither(InvalidId::TooLong),
        () if !is_number => Naive::Neither(InvalidId::NotAnId),
        () if !is_plain && token.len() > MAX_ID_BYTES => Naive::Neither(InvalidId::TooLong),
        () => shifted(digits).map_or_else(Naive::Neither, |whole| {
            let sign = if digits.len() < token.len() { "-" } else { "" };
            format!("{sign}{whole}").parse().map_or(Naive::Neither(InvalidId::OutOfRange), Naive::Number)
        }),
    }
}

/// The digits of a number without sign, after its point is moved as its exponent says. The rest must be zeros.
fn shifted(number: &str) -> Result<String, InvalidId> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.bytes().chain(fraction.bytes()).all(|digit| digit == b'0') {
        return Ok("0".to_owned());
    }
    let places: i64 = exponent.parse().map_err(|_| InvalidId::OutOfRange)?;
    if places > 1000 {
        return Err(InvalidId::OutOfRange);
    }
    let zeros = "0".repeat(usize::try_from(places.unsigned_abs().min(1000)).unwrap_or_default());
    let (whole, fraction) = (format!("{zeros}{whole}"), format!("{fraction}{zeros}"));
    let (whole, fraction) = if places >= 0 {
        let (moved, rest) = fraction.split_at(zeros.len());
        (format!("{whole}{moved}"), rest.to_owned())
    } else {
        let (rest, moved) = whole.split_at(whole.len() - zeros.len());
        (rest.to_owned(), format!("{moved}{fraction}"))
    };
    if fraction.bytes().all(|digit| digit == b'0') { Ok(whole) } else { Err(InvalidId::NotAnId) }
}

fn written_and_read(token: &str, id: &RequestId) {
    let mut written = Vec::new();
    id.write_json(&mut written);
    let written = String::from_utf8(written).unwrap_or_default();
    assert_eq!(RequestId::from_json(&written).as_ref(), Ok(id), "{token:?} was written as {written}");
    if id.as_number().is_some() {
        assert_eq!(written, token.trim_ascii(), "a number is not written as it came");
    }
    let by_serde = serde_json::to_string(id).unwrap_or_default();
    assert_eq!(RequestId::from_json(&by_serde).as_ref(), Ok(id), "{token:?}: both writers agree");
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
    if let Incoming::Answer { call, body, .. } = codec.decode(answer.as_bytes()) {
        let number = token.trim_ascii().parse::<u64>().ok();
        let number = number.filter(|number| number.to_string() == token.trim_ascii());
        // Other spellings of a number are that number, also in a text.
        let text = serde_json::from_str::<String>(token);
        let respelled = || match naive(text.as_deref().unwrap_or(token).trim_ascii()) {
            Naive::Number(number) => u64::try_from(number).ok(),
            Naive::Text(_) | Naive::Neither(_) => None,
        };
        let number = number.or_else(respelled);
        assert_eq!(call.map(|call| call.0), number, "{name}: an answer to {token}");
        // In a text with blanks around it, it names the call and is no answer to it.
        let is_padded = number.is_some() && text.as_ref().is_ok_and(|text| text.trim_ascii() != text);
        let is_malformed = matches!(body, AnswerBody::Malformed(_));
        assert_eq!(is_malformed, is_padded, "{name}: an answer to {token}");
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
