//! The envelope, good and bad, and the exact bytes of each JSON-RPC dialect.

use proptest::prelude::*;
use serde_json::value::RawValue;

use crate::dialect::{
    ACP, ACP_DRAFT, ACP_V2, CallFrame, Dialect, HandshakePart, LSP, MCP, MCP_2026, Refusal, ReplyTo,
};
use crate::framing::BadFrame;
use crate::message::{AnswerBody, CancelExemption, Incoming};
use crate::{
    AckStatus, BadMessage, CallNumber, Cause, CauseKind, Deviation, ErrorCode, ErrorObject, InvalidId,
    RequestId,
};

const ALL: [Dialect; 6] = [ACP, ACP_V2, ACP_DRAFT, LSP, MCP, MCP_2026];

fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).unwrap()
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

fn bad(dialect: &Dialect, frame: &[u8]) -> Option<BadMessage> {
    match dialect.codec().decode(frame) {
        Incoming::Bad(why) | Incoming::BadRequest { why, .. } => Some(why),
        _ => None,
    }
}

fn reply(id: &RequestId) -> ReplyTo<'_> {
    ReplyTo { id, tag: 0, server_cancellable: false }
}

#[test]
fn a_version_is_a_string_however_it_is_written() {
    for version in [r#""2.0""#, r#""2.\u0030""#, r#""\u0032.0""#] {
        let frame = format!(r#"{{"jsonrpc":{version},"id":1,"method":"m"}}"#);
        let read = LSP.codec().decode(frame.as_bytes());
        assert!(matches!(read, Incoming::Request(_)), "{version}: {read:?}");
    }
    let other = br#"{"jsonrpc":"2.\u0031","id":1,"method":"m"}"#;
    assert_eq!(bad(&LSP, other), Some(BadMessage::WrongVersion));
}

#[test]
fn a_frame_that_is_not_a_message_is_reported_with_its_fault() {
    let not_an_id = BadMessage::InvalidId(InvalidId::NotAnId);
    let cases: &[(&[u8], BadMessage)] = &[
        (b"", BadMessage::NotJson),
        (b"{", BadMessage::NotJson),
        (b"{}}", BadMessage::NotJson),
        (b"\xff{}", BadMessage::NotUtf8),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"\xc3\x28\"}", BadMessage::NotUtf8),
        ("\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"m\"}".as_bytes(), BadMessage::NotJson),
        (b"\0", BadMessage::NotJson),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"\0\"}", BadMessage::NotJson),
        (br#"{"jsonrpc":"2.0","method":"\ud800"}"#, BadMessage::NotJson),
        (br#"{"jsonrpc":"2.0","method":"m","id":"\ud800"}"#, not_an_id),
        (b"7", BadMessage::NotAnObject),
        (b"null", BadMessage::NotAnObject),
        (b"[]", BadMessage::NotAnObject),
        (b"[1,", BadMessage::NotJson),
        (b"{}", BadMessage::WrongVersion),
        (br#"{"jsonrpc":"1.0","method":"m"}"#, BadMessage::WrongVersion),
        (br#"{"jsonrpc":2.0,"method":"m"}"#, BadMessage::WrongVersion),
        (br#"{"method":"m","id":1}"#, BadMessage::WrongVersion),
        (br#"{"jsonrpc":"2.0"}"#, BadMessage::NoKind),
        (br#"{"jsonrpc":"2.0","id":1}"#, BadMessage::NoKind),
        (br#"{"jsonrpc":"2.0","result":1}"#, BadMessage::NoId),
        (br#"{"jsonrpc":"2.0","id":null,"result":1}"#, BadMessage::NoId),
        (br#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#, BadMessage::NoKind),
        (br#"{"jsonrpc":"2.0","id":1,"method":1}"#, BadMessage::InvalidMethod),
        (br#"{"jsonrpc":"2.0","id":1,"method":null}"#, BadMessage::InvalidMethod),
        (br#"{"jsonrpc":"2.0","id":1,"method":["m"]}"#, BadMessage::InvalidMethod),
        (br#"{"jsonrpc":"2.0","id":1,"method":"m","params":7}"#, BadMessage::InvalidParams),
        (br#"{"jsonrpc":"2.0","method":"m","params":"x"}"#, BadMessage::InvalidParams),
        (br#"{"jsonrpc":"2.0","id":1,"method":"m","id":2}"#, BadMessage::DuplicateMember),
        (br#"{"jsonrpc":"2.0","id":1,"method":"m","i\u0064":1}"#, BadMessage::DuplicateMember),
        (br#"{"jsonrpc":"2.0","method":"m","method":"m"}"#, BadMessage::DuplicateMember),
        (br#"{"jsonrpc":"2.0","id":9223372036854775808,"method":"m"}"#, {
            BadMessage::InvalidId(InvalidId::OutOfRange)
        }),
    ];
    for dialect in &ALL {
        for (frame, expected) in cases {
            let shown = String::from_utf8_lossy(frame);
            assert_eq!(bad(dialect, frame), Some(*expected), "{}: {shown}", dialect.name());
        }
        for id in ["null", "true", "[1]", "{}", "1.5", "-1e-1"] {
            let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert_eq!(bad(dialect, frame.as_bytes()), Some(not_an_id), "{id}");
        }
    }
}

#[test]
fn a_frame_nested_too_deep_is_refused_before_it_is_parsed() {
    // An escape in a name takes the fast way from the frame. Both have the same limit.
    for member in ["", r#","\u0078":0"#] {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            format!(r#"{{"jsonrpc":"2.0","method":"m","params":{open}{close}{member}}}"#)
        };
        assert_eq!(bad(&ACP, nested(126).as_bytes()), None, "{member}");
        assert_eq!(bad(&ACP, nested(127).as_bytes()), Some(BadMessage::TooDeep), "{member}");
        assert_eq!(bad(&ACP, nested(100_000).as_bytes()), Some(BadMessage::TooDeep), "{member}");
    }
}

#[test]
fn a_batch_of_a_limited_length_is_read() {
    let batch = br#"[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"}]"#;
    for dialect in [ACP, ACP_V2, ACP_DRAFT, LSP, MCP, MCP_2026] {
        match dialect.codec().decode(batch) {
            Incoming::Batch(members) => assert_eq!(members.len(), 2),
            other => panic!("{other:?}"),
        }
    }
    let endless = format!("[{}1]", "1,".repeat(2000));
    assert_eq!(bad(&MCP, endless.as_bytes()), Some(BadMessage::BatchNotAllowed));
}

#[test]
fn ids_of_requests_are_never_confused() {
    let mut seen = std::collections::HashSet::new();
    for id in ["1", "\"1\"", "-1", "9007199254740992", "9007199254740993", "\"\"", "\" 1\"", "\"1.0\""] {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        match ACP.codec().decode(frame.as_bytes()) {
            Incoming::Request(request) => assert!(seen.insert(request.id), "{id}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn values_errors_and_cancelled_answers_are_distinguished() {
    let call = |frame: &str| match ACP.codec().decode(frame.as_bytes()) {
        Incoming::Answer { call, body, .. } => (call.map(|call| call.0), format!("{body:?}")),
        other => panic!("{frame}: {other:?}"),
    };
    assert_eq!(call(r#"{"jsonrpc":"2.0","id":1,"result":null,"error":null}"#).1, "Value(RawValue(null))");
    assert_eq!(call(r#"{"jsonrpc":"2.0","id":1,"result":7,"error":null}"#).1, "Value(RawValue(7))");
    for frame in [
        r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":5,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":5,"message":"m"}}"#,
    ] {
        assert!(call(frame).1.starts_with("Error"), "{frame}");
    }
    for frame in [
        r#"{"jsonrpc":"2.0","id":4,"result":1,"error":{"code":5,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":4,"error":null}"#,
        r#"{"jsonrpc":"2.0","id":4,"error":"no"}"#,
        r#"{"jsonrpc":"2.0","id":4,"error":{"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":4,"error":[5,"an array is no object"]}"#,
        r#"{"jsonrpc":"2.0","id":4,"error":[-32800,"cancelled"]}"#,
    ] {
        let (number, body) = call(frame);
        assert_eq!(number, Some(4));
        assert!(body.starts_with("Malformed"), "{frame}: {body}");
    }
    for (id, number) in [("0", 0), ("10", 10), ("18446744073709551615", u64::MAX)] {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
        assert_eq!(call(&frame).0, Some(number), "the id is not read as it stands");
    }
    for id in ["1.5", "\"-1\"", "\"01\"", "\"x\"", "\" x\"", "18446744073709551616"] {
        assert_eq!(call(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#)).0, None, "{id}");
    }
    for id in ["\" 4\"", "\"\\f4\"", "\" 4.0 \""] {
        let (number, body) = call(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#));
        assert!(number == Some(4) && body.starts_with("Malformed"), "{id}: {number:?}, {body}");
    }
    for id in ["null", "-1", "true", "[1]", "{}", r#""""#, r#""undefined""#, r#""server-error""#] {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
        assert_eq!(bad(&ACP, frame.as_bytes()), Some(BadMessage::NoId), "{id}");
    }
}

/// The deviation of an answer to call 2 that is taken all the same.
fn deviation(dialect: &Dialect, frame: &str) -> Option<Deviation> {
    match dialect.codec().decode(frame.as_bytes()) {
        Incoming::Answer { call: Some(CallNumber(2)), body: AnswerBody::Value(_), deviation } => deviation,
        other => panic!("{frame}: {other:?}"),
    }
}

#[test]
fn an_answer_with_another_spelling_of_its_id_or_without_a_version_is_that_answer() {
    for id in ["\"2\"", "2.0", "2e0", "\"2.0\"", "20e-1"] {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
        assert_eq!(deviation(&LSP, &frame), Some(Deviation::IdSpelling), "{id}");
    }
    for version in ["", r#""jsonrpc":"1.0","#, r#""jsonrpc":2.0,"#, r#""jsonrpc":null,"#] {
        let frame = format!(r#"{{{version}"id":2,"result":1}}"#);
        assert_eq!(deviation(&MCP, &frame), Some(Deviation::NoVersion), "{version}");
    }
    // It may be a line of a log.
    let Incoming::Answer { body, .. } = MCP.codec().decode(br#"{"id":2,"result":"ok","row":7}"#) else {
        panic!()
    };
    assert!(matches!(body, AnswerBody::Malformed(_)), "{body:?}");
    for members in [r#""result":1,"error":null"#, r#""method":null,"params":null,"result":1,"error":null"#] {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":2,{members}}}"#);
        assert_eq!(deviation(&MCP, &frame), Some(Deviation::NullMember), "{members}");
    }
    let request = br#"{"jsonrpc":"2.0","id":"2","method":"m","params":{},"result":null,"error":null}"#;
    assert!(matches!(MCP.codec().decode(request), Incoming::Request(_)));
}

#[test]
fn a_request_that_is_not_taken_is_refused_with_its_id() {
    // Of a request the version is required: an answer to it would not be certain.
    let cases: [(&[u8], _); 5] = [
        (br#"{"id":2,"method":"m"}"#, BadMessage::WrongVersion),
        (br#"{"jsonrpc":"1.0","id":2,"method":"m","params":{}}"#, BadMessage::WrongVersion),
        (br#"{"id":2,"method":"m","result":null}"#, BadMessage::WrongVersion),
        (br#"{"jsonrpc":"2.0","id":2,"method":5}"#, BadMessage::InvalidMethod),
        (br#"{"jsonrpc":"2.0","id":2,"method":"m","params":3}"#, BadMessage::InvalidParams),
    ];
    for (frame, fault) in cases {
        let read = MCP.codec().decode(frame);
        let Incoming::BadRequest { id, why, .. } = &read else { panic!("{read:?}") };
        assert_eq!((id, *why), (&RequestId::number(2), fault));
    }
    for frame in
        [&br#"{"method":"m"}"#[..], br#"{"id":[2],"method":"m"}"#, br#"{"id":2,"method":"m","error":{}}"#]
    {
        let read = MCP.codec().decode(frame);
        assert!(matches!(read, Incoming::Bad(BadMessage::WrongVersion)), "{read:?}");
    }
}

/// The number that this text of a JSON number is, if it is a whole one.
fn whole(number: u64, fraction: &str, exponent: i32) -> Option<u64> {
    let digits: u128 = format!("{number}{fraction}").parse().ok()?;
    let shift = exponent - i32::try_from(fraction.len()).ok()?;
    let power = 10_u128.checked_pow(shift.unsigned_abs())?;
    let value = match shift {
        0.. => digits.checked_mul(power)?,
        _ if digits % power == 0 => digits / power,
        _ => return None,
    };
    u64::try_from(value).ok()
}

proptest! {
    // So no answer has two calls that it may mean.
    #[test]
    fn an_id_in_any_spelling_names_the_call_with_exactly_that_number(
        number in prop_oneof![0..20_u64, (1_u64 << 53) - 3..(1 << 53) + 3, any::<u64>()],
        fraction in "[05]{0,3}",
        exponent in -3..4_i32,
        is_text in any::<bool>(),
    ) {
        let point = if fraction.is_empty() { "" } else { "." };
        let power = if exponent == 0 { String::new() } else { format!("e{exponent}") };
        let mut id = format!("{number}{point}{fraction}{power}");
        if is_text {
            id = format!("\"{id}\"");
        }
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
        let named = match LSP.codec().decode(frame.as_bytes()) {
            Incoming::Answer { call, .. } => call.map(|call| call.0),
            _ => None,
        };
        let meant = whole(number, &fraction, exponent);
        prop_assert!(named.is_none() || named == meant, "{id} names {named:?} and is {meant:?}");
        if (number, fraction.as_str(), exponent) == (number % 1000, "", 0) {
            prop_assert_eq!(named, Some(number));
        }
    }
}

#[test]
fn the_call_of_an_answer_that_cannot_be_read_is_found() {
    let unreadable = |frame: &[u8]| {
        let why = bad(&MCP, frame)?;
        let (call, fault) = MCP.codec().unreadable_answer(frame, why)?;
        Some((call.map_or(0, |call| call.0), fault.to_string()))
    };
    for (frame, text) in [
        (&br#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN}}"#[..], "it is not JSON at byte 38"),
        (br#"{"jsonrpc":"2.0","result":{"x":Infinity},"id":"7"}"#, "it is not JSON at byte 31"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}", "it is not UTF-8 at byte 34"),
        (br#"{"jsonrpc":"2.0","id":7.0,"result":{"x":"cut"#, "it is cut off at byte 44"),
        (br#"{"jsonrpc":"2.0","id":7}"#, "it has neither a result nor an error"),
        (br#"{"jsonrpc":"2.0","id":7,"value":1}"#, "it has neither a result nor an error"),
        (br#"{"jsonrpc":"2.0","id":7,"result":1,"result":2}"#, "it has a duplicate member"),
        (
            br#"{"Jsonrpc":"2.0","Id":7,"Result":1}"#,
            "its member names are case-sensitive: they have no capital letters",
        ),
        (
            br#"{"jsonrpc":"2.0","ID":"7","Error":{"Code":1}}"#,
            "its member names are case-sensitive: they have no capital letters",
        ),
        (br#"{"jsonrpc":"2.0","id":7,"method":null}"#, "it is not a message"),
        (
            br#"{"jsonrpc":"2.0","id":7,"method":"m","params":{},"result":1}"#,
            "it has a method beside its result or error",
        ),
    ] {
        assert_eq!(unreadable(frame), Some((7, text.into())), "{}", String::from_utf8_lossy(frame));
    }
    // A line of a log, a request, two ids.
    for frame in [
        r#"{"Id":7,"Result":1,"Level":"info"}"#,
        r#"{"Jsonrpc":"2.0","Id":7,"Method":"m","Result":1}"#,
        r#"{"Jsonrpc":"2.0","Id":7,"id":8,"Result":1}"#,
    ] {
        assert_eq!(
            unreadable(frame.as_bytes()).filter(|(_, fault)| fault.contains("capital")),
            None,
            "{frame}"
        );
    }
    // A request of the peer, whose id may be that of a call: its method is broken, or is behind its params.
    for (head, why) in [
        (r#"{"jsonrpc":"2.0","id":7,"method":"sampling/cre"#, BadMessage::NotJson),
        (
            r#"{"jsonrpc":"2.0","id":7,"params":{"text":"lo"#,
            BadMessage::Frame(BadFrame::TooLarge { limit: 1024 }),
        ),
        (r#"{"jsonrpc":"2.0","id":7,"params":{"text":"lo"#, BadMessage::Frame(BadFrame::MemoryFull)),
    ] {
        assert_eq!(MCP.codec().unreadable_answer(head.as_bytes(), why), None, "{head}");
    }
    let deep = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    assert_eq!(unreadable(deep.as_bytes()), Some((7, "it is nested too deep".into())));
    // An answer, but its id is missing, or in or after what is broken: no call.
    for frame in [
        r#"{"jsonrpc":"2.0","result":{"id":7,"x":NaN}}"#,
        r#"{"jsonrpc":"2.0","result":{"text":"he said "hi""},"id":7}"#,
        r#"{"jsonrpc":"2.0","result":{"a":1 /* one */},"id":7}"#,
        r#"{"jsonrpc":"2.0","result":"cut off in the mid"#,
        r#"{"jsonrpc":"2.0","result":1,"id":1"#,
        r#"{"jsonrpc":"2.0","id":x y,"result":1}"#,
        "{\"jsonrpc\":\"2.0\",\n[INFO] started\n\"id\":7,\"result\":1}",
        r#"{"jsonrpc":"2.0","result":1,"result":2}"#,
        r#"{"jsonrpc":"2.0","id":7,"id":8,"result":1}"#,
    ] {
        assert_eq!(unreadable(frame.as_bytes()).map(|(call, _)| call), Some(0), "{frame}");
    }
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"id":8}}"#;
    assert_eq!(
        unreadable(serde_json::Value::from(answer).to_string().as_bytes()),
        Some((7, "it is inside of a JSON text".into()))
    );
    for order in [u16::to_le_bytes, u16::to_be_bytes] {
        for mark in ["", "\u{feff}"] {
            let frame: Vec<u8> = mark.encode_utf16().chain(answer.encode_utf16()).flat_map(order).collect();
            for length in [frame.len(), frame.len() / 2 + 16] {
                let fault = "it is UTF-16, not UTF-8".to_owned();
                assert_eq!(unreadable(&frame[..length]), Some((7, fault)), "{mark:?}, {length} bytes");
            }
        }
    }
    for frame in [
        // It may be a request, or what a program printed.
        r#"{"jsonrpc":"2.0","id":7,"method":"m","params":NaN}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"m","result":NaN}"#,
        // Which call is meant is not certain.
        r#"{"jsonrpc":"2.0","id":7,"\u0069d":8,"result":NaN}"#,
        r#"{"jsonrpc":"2.0","id":7,"meth\u006fd":"m","params":NaN}"#,
        r#"{"jsonrpc":"2.0","params":{"result":"he said "hi""},"method":"m"}"#,
        r#"{"result":{"text":"he said "hi"},"id":7,"x":"}"#,
        r#"{"level":"warn","error":NaN}"#,
        r#"{"level":"info","id":7}"#,
        r#"DEBUG <- {"jsonrpc":"2.0","id":3,"result":{"text":"cut"#,
        r#"{"msg":"sent {"jsonrpc":"2.0","result":1}"}"#,
        r#"["id",7,NaN]"#,
        r#""sent {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":1}""#,
        r#""{\"id\":7,\"result\":1}""#,
        r#""{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"m\"}""#,
        r#""\"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":7,\\\"result\\\":1}\"""#,
    ] {
        assert_eq!(unreadable(frame.as_bytes()), None, "{frame}");
    }
}

#[test]
fn an_error_about_no_frame_in_particular_is_never_answered() {
    for id in ["", r#""id":null,"#, r#""id":-1,"#, r#""id":"","#, r#""id":"undefined","#, r#""id":false,"#] {
        for code in [-32700, -32800] {
            let frame = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":{code},"message":"m"}}}}"#);
            assert!(
                matches!(ACP.codec().decode(frame.as_bytes()), Incoming::PeerError(e) if e.code.0 == code)
            );
        }
    }
}

#[test]
fn cancelled_is_recognised_by_its_code() {
    let says_cancelled = |dialect: &Dialect, code: i64| {
        let frame =
            format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"x","data":[]}}}}"#);
        matches!(
            dialect.codec().decode(frame.as_bytes()),
            Incoming::Answer { body: AnswerBody::Cancelled, .. }
        )
    };
    for dialect in &ALL {
        assert!(says_cancelled(dialect, -32800), "{}", dialect.name());
        assert_eq!(says_cancelled(dialect, -32802), dialect.name() == "lsp");
        assert!(!says_cancelled(dialect, -32803));
        assert!(!says_cancelled(dialect, -32603));
    }
}

#[test]
fn a_cancel_is_read_by_each_name_its_dialect_accepts() {
    let accepted: &[(&Dialect, &str, &str)] = &[
        (&ACP, "$/cancel_request", "requestId"),
        (&ACP, "$/cancelRequest", "id"),
        (&ACP_V2, "$/cancel_request", "requestId"),
        (&ACP_V2, "$/cancelRequest", "id"),
        (&ACP_DRAFT, "$/cancelRequest", "id"),
        (&ACP_DRAFT, "$/cancel_request", "requestId"),
        (&LSP, "$/cancelRequest", "id"),
        (&MCP, "notifications/cancelled", "requestId"),
        (&MCP_2026, "notifications/cancelled", "requestId"),
    ];
    for (dialect, method, key) in accepted {
        let read = |value: &str| {
            let params = format!(r#"{{"other":{{"{key}":9}},{value}"_meta":{{}}}}"#);
            let frame = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            match dialect.codec().decode(frame.as_bytes()) {
                Incoming::Cancel(cancel) => cancel.key,
                other => panic!("{frame}: {other:?}"),
            }
        };
        assert_eq!(read(&format!("\"{key}\":2,")), Ok(RequestId::number(2)));
        assert_eq!(read(&format!("\"{key}\":\"2\",")), Ok(RequestId::text("2").unwrap()));
        assert_eq!(read(""), Err(InvalidId::NotAnId));
        for number in ["2.0", "2e0", "20e-1"] {
            assert_eq!(read(&format!("\"{key}\":{number},")), Ok(RequestId::number(2)), "{number}");
        }
        for value in ["null", "1.5", "true", "{}", "[2]"] {
            assert_eq!(read(&format!("\"{key}\":{value},")), Err(InvalidId::NotAnId), "{value}");
        }
        assert_eq!(read(&format!("\"{key}\":1,\"{key}\":2,")), Err(InvalidId::NotAnId));
        for rest in ["", r#","params":null"#, r#","params":[2]"#, r#","params":7"#] {
            let frame = format!(r#"{{"jsonrpc":"2.0","method":"{method}"{rest}}}"#);
            assert!(
                matches!(dialect.codec().decode(frame.as_bytes()), Incoming::Cancel(c) if c.key.is_err())
            );
        }
        let with_id = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{{"{key}":2}}}}"#);
        assert!(matches!(dialect.codec().decode(with_id.as_bytes()), Incoming::Request(_)), "{with_id}");
    }
    let foreign = br#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}"#;
    assert!(matches!(LSP.codec().decode(foreign), Incoming::Notification { .. }));
}

#[test]
fn only_mcp_reads_and_writes_a_reason() {
    for dialect in &ALL {
        let text = written(|out| {
            let (call, cancel) = (CallNumber(42), CallNumber(43));
            dialect.codec().encode_cancel(dialect.rules(), out, call, cancel, 0, Some("User \"stop\"\n"));
        });
        let Incoming::Cancel(cancel) = dialect.codec().decode(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(cancel.key, Ok(RequestId::number(42)));
        let expected = dialect.name().starts_with("mcp").then_some("User \"stop\"\n");
        assert_eq!(cancel.reason.as_deref(), expected);
        assert!(!text.contains('\n'));
    }
    let odd = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":7}}"#;
    assert!(matches!(MCP.codec().decode(odd), Incoming::Cancel(c) if c.reason.is_none() && c.key.is_ok()));
}

#[test]
fn cancels_are_written_as_each_source_shows_them() {
    let cancel = |dialect: &Dialect| {
        written(|out| {
            dialect.codec().encode_cancel(dialect.rules(), out, CallNumber(2), CallNumber(3), 0, None);
        })
    };
    let acp = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}"#;
    let draft = r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":2}}"#;
    let mcp = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#;
    for (dialect, expected) in
        [(ACP, acp), (ACP_V2, acp), (ACP_DRAFT, draft), (LSP, draft), (MCP, mcp), (MCP_2026, mcp)]
    {
        assert_eq!(cancel(&dialect), expected);
        let id = RequestId::number(2);
        let mut out = Vec::new();
        let status = AckStatus::Cancelled;
        assert!(!dialect.codec().encode_ack(dialect.rules(), &mut out, &id, None, status));
        assert!(out.is_empty());
    }
    let reason = written(|out| {
        let reason = Some("User pressed Stop");
        MCP.codec().encode_cancel(MCP.rules(), out, CallNumber(42), CallNumber(43), 0, reason);
    });
    let shown = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":42,"#;
    assert_eq!(reason, format!(r#"{shown}"reason":"User pressed Stop"}}}}"#));
}

#[test]
fn the_answer_to_a_request_that_an_operator_stopped_says_so_in_each_dialect() {
    let id = RequestId::number(2);
    let codes = [
        (ACP, -32800),
        (ACP_V2, -32800),
        (ACP_DRAFT, -32800),
        (LSP, -32803),
        (MCP, -32800),
        (MCP_2026, -32800),
    ];
    for (dialect, code) in codes {
        let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
        let text = written(|out| {
            let cause = Cause::new(CauseKind::Operator).with_reason("it was too slow");
            dialect.codec().encode_cancelled(dialect.rules(), out, &to, &cause);
        });
        let error = r#""message":"Request cancelled by an operator","data":{"reason":"operator"}}}"#;
        assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":2,"error":{{"code":{code},{error}"#));
    }
}

#[test]
fn the_cancelled_answer_depends_on_who_cancelled() {
    let id = RequestId::number(2);
    let answer = |dialect: &Dialect, kind: CauseKind, server_cancellable: bool| {
        let to = ReplyTo { id: &id, tag: 0, server_cancellable };
        let text = written(|out| {
            dialect.codec().encode_cancelled(dialect.rules(), out, &to, &Cause::new(kind));
        });
        text.replace(r#"{"jsonrpc":"2.0","id":2,"error":"#, "")
    };
    let cancelled = r#"{"code":-32800,"message":"Request cancelled"}}"#;
    for dialect in [ACP, ACP_V2] {
        assert_eq!(answer(&dialect, CauseKind::Peer, false), cancelled);
        assert_eq!(answer(&dialect, CauseKind::Limit, false), cancelled);
    }
    let draft = r#"{"code":-32800,"message":"Cancelled"}}"#;
    assert_eq!(answer(&ACP_DRAFT, CauseKind::Peer, false), draft);
    assert_eq!(answer(&ACP_DRAFT, CauseKind::Deadline, false), draft);
    assert_eq!(answer(&LSP, CauseKind::Peer, true), cancelled);
    let failed = r#"{"code":-32803,"message":"Request cancelled"}}"#;
    assert_eq!(answer(&LSP, CauseKind::Shutdown, false), failed);
    let by_server = r#"{"code":-32802,"message":"Request cancelled"}}"#;
    assert_eq!(answer(&LSP, CauseKind::Shutdown, true), by_server);
    for dialect in [MCP, MCP_2026] {
        let deadline = r#"{"code":-32800,"message":"Request cancelled","data":{"reason":"deadline"}}}"#;
        assert_eq!(answer(&dialect, CauseKind::Deadline, false), deadline);
    }
}

#[test]
fn refusals_carry_an_id_only_where_it_cannot_be_taken_for_an_answer() {
    let id = RequestId::text("a").unwrap();
    let refusal = |dialect: &Dialect, to: Option<&ReplyTo<'_>>, why: Refusal| {
        written(|out| assert!(dialect.codec().encode_refusal(dialect.rules(), out, to, why)))
    };
    let duplicate = r#""error":{"code":-32600,"message":"Invalid message: the id belongs to a request that has no answer yet"}}"#;
    for dialect in &ALL {
        let no_id = if dialect.name().starts_with("mcp") { "" } else { r#","id":null"# };
        let expected = format!(r#"{{"jsonrpc":"2.0"{no_id},{duplicate}"#);
        assert_eq!(refusal(dialect, None, Refusal::DuplicateId), expected);
        assert_eq!(refusal(dialect, Some(&reply(&id)), Refusal::DuplicateId), expected);
        let parse = refusal(dialect, None, Refusal::Bad(BadMessage::NotJson));
        let expected = r#","error":{"code":-32700,"message":"Invalid message: the frame is not JSON"}}"#;
        assert_eq!(parse, format!(r#"{{"jsonrpc":"2.0"{no_id}{expected}"#));
        let code = if dialect.name() == "lsp" { -32803 } else { -32603 };
        let overloaded = refusal(dialect, Some(&reply(&id)), Refusal::Overloaded("queued"));
        let data = r#""message":"Overloaded: queued","data":{"reason":"overloaded","limit":"queued"}}}"#;
        assert_eq!(overloaded, format!(r#"{{"jsonrpc":"2.0","id":"a","error":{{"code":{code},{data}"#));
    }
    let unknown = r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"Method not found"}}"#;
    assert_eq!(refusal(&ACP, Some(&reply(&id)), Refusal::MethodNotFound), unknown);
    let internal = r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"Internal error"}}"#;
    assert_eq!(refusal(&ACP, Some(&reply(&id)), Refusal::Internal), internal);
    for (dialect, code) in [(ACP, -32600), (LSP, -32002), (MCP, -32600)] {
        let early = format!(r#""error":{{"code":{code},"message":"The session is not open yet"}}}}"#);
        let written = refusal(&dialect, Some(&reply(&id)), Refusal::NotInitialized);
        assert_eq!(written, format!(r#"{{"jsonrpc":"2.0","id":"a",{early}"#));
    }
}

#[test]
fn a_call_is_read_back_as_it_was_written() {
    for dialect in &ALL {
        let params = raw("{\n  \"a\": [1, \"\\n\"],\r\n  \"b\": null\n}");
        let call = CallFrame::new(CallNumber(7), 0, "we\"ird", Some(params));
        let text = written(|out| dialect.codec().encode_request(dialect.rules(), out, &call));
        assert!(!text.contains(['\n', '\r']));
        let Incoming::Request(request) = dialect.codec().decode(text.as_bytes()) else { panic!("{text}") };
        assert_eq!((&request.id, &*request.method), (&RequestId::number(7), "we\"ird"));
        let value: serde_json::Value = serde_json::from_str(request.params.unwrap().get()).unwrap();
        assert_eq!(value, serde_json::json!({"a": [1, "\n"], "b": null}));
        let text = written(|out| dialect.codec().encode_notification(dialect.rules(), out, "n", None));
        assert_eq!(text, r#"{"jsonrpc":"2.0","method":"n"}"#);
        let error = ErrorObject::new(ErrorCode(5), "m").with_data(&[1]);
        let id = RequestId::number(7);
        let text = written(|out| dialect.codec().encode_error(dialect.rules(), out, &reply(&id), &error));
        match dialect.codec().decode(text.as_bytes()) {
            Incoming::Answer { call: Some(CallNumber(7)), body: AnswerBody::Error(read), .. } => {
                assert_eq!(read, error);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_progress_token_is_added_to_params_of_any_shape() {
    let text = |dialect: &Dialect, params: Option<&str>| {
        let mut call = CallFrame::new(CallNumber(7), 0, "m", params.map(raw));
        call.progress = true;
        let text = written(|out| dialect.codec().encode_request(dialect.rules(), out, &call));
        text.replace(r#"{"jsonrpc":"2.0","id":7,"method":"m","#, "")
    };
    assert_eq!(text(&LSP, None), r#""params":{"workDoneToken":7}}"#);
    assert_eq!(text(&LSP, Some(r#"{"a":1}"#)), r#""params":{"a":1,"workDoneToken":7}}"#);
    assert_eq!(text(&LSP, Some(r#"{"workDoneToken":"x"}"#)), r#""params":{"workDoneToken":"x"}}"#);
    assert_eq!(text(&LSP, Some("[1]")), r#""params":[1]}"#);
    assert_eq!(text(&MCP, Some("{}")), r#""params":{"_meta":{"progressToken":7}}}"#);
    let expected = r#""params":{"_meta":{"x":1,"progressToken":7},"a":2}}"#;
    assert_eq!(text(&MCP, Some(r#"{"_meta":{"x":1},"a":2}"#)), expected);
    let own = r#"{"_meta":{"progressToken":"mine"}}"#;
    assert_eq!(text(&MCP, Some(own)), format!("\"params\":{own}}}"));
    assert_eq!(text(&ACP, Some("{}")), r#""params":{}}"#);
    for dialect in [MCP, MCP_2026] {
        let frame = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":"p"}}}"#;
        let Incoming::Request(request) = dialect.codec().decode(frame) else { panic!() };
        assert_eq!(request.progress_token.map(RawValue::get), Some("\"p\""));
        let reported = Some(raw(r#"{"progressToken":7,"progress":1}"#));
        let codec = dialect.codec();
        assert_eq!(codec.progressed_call("notifications/progress", reported), Some(CallNumber(7)));
        assert_eq!(codec.progressed_call("notifications/message", reported), None);
    }
    let reported = Some(raw(r#"{"token":7,"value":{}}"#));
    assert_eq!(LSP.codec().progressed_call("$/progress", reported), Some(CallNumber(7)));
    assert_eq!(LSP.codec().progressed_call("$/progress", Some(raw(r#"{"token":"7"}"#))), None);
}

#[test]
fn a_task_augmented_request_is_not_cancelled_by_a_message() {
    let exempt = |dialect: &Dialect, params: &str| {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        match dialect.codec().decode(frame.as_bytes()) {
            Incoming::Request(request) => request.exempt,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(exempt(&MCP, r#"{"task":{"ttl":1}}"#), CancelExemption::FromCancelMessages);
    assert_eq!(exempt(&MCP, r#"{"task":null}"#), CancelExemption::No);
    assert_eq!(exempt(&MCP, r#"{"arguments":{"task":{}}}"#), CancelExemption::No);
    // 2026-07-28 has no such member: it is ignored.
    assert_eq!(exempt(&MCP_2026, r#"{"task":{"ttl":1}}"#), CancelExemption::No);
    assert_eq!(exempt(&ACP, r#"{"task":{},"":1}"#), CancelExemption::No);
    assert_eq!(exempt(&LSP, r#"{"task":{},"":1}"#), CancelExemption::No);
}

#[test]
fn each_result_of_mcp_2026_says_what_it_is() {
    let id = RequestId::text("s").unwrap();
    let result = |value: &str| {
        let text =
            written(|out| MCP_2026.codec().encode_value(MCP_2026.rules(), out, &reply(&id), raw(value)));
        text.replace(r#"{"jsonrpc":"2.0","id":"s","result":"#, "")
    };
    assert_eq!(result("{}"), r#"{"resultType":"complete"}}"#);
    assert_eq!(result(r#"{"a":1}"#), r#"{"a":1,"resultType":"complete"}}"#);
    let asks = r#"{"resultType":"input_required"}"#;
    assert_eq!(result(asks), format!("{asks}}}"));
    assert_eq!(result("7"), "7}");
    let (_, graceful) = MCP_2026.rules().graceful[0];
    let text = written(|out| MCP_2026.codec().encode_graceful(MCP_2026.rules(), out, &reply(&id), graceful));
    let expected = r#"{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"},"resultType":"complete"}"#;
    assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":"s","result":{expected}}}"#));
}

#[test]
fn the_draft_reads_a_declaration_wherever_its_source_puts_it() {
    let flag = |part, body: &str| ACP_DRAFT.codec().read_handshake(part, raw(body)).handles_cancels;
    for (part, holder) in
        [(HandshakePart::Params, "clientCapabilities"), (HandshakePart::Result, "agentCapabilities")]
    {
        for (inner, expected) in [
            (r#"{"cancellation":{"request":true}}"#, true),
            (r#"{"cancellation":{"request":false}}"#, false),
            (r#"{"cancellation":{"supportsRequestCancellation":true}}"#, true),
            (r#"{"supportsRequestCancellation":true}"#, true),
            (r#"{"cancellation":{"request":false},"supportsRequestCancellation":true}"#, false),
            (r#"{"cancellation":{}}"#, false),
            (r#"{"cancellation":true}"#, false),
            (r#"{"cancellation":{"request":1}}"#, false),
            ("{}", false),
            ("null", false),
        ] {
            assert_eq!(flag(part, &format!(r#"{{"{holder}":{inner}}}"#)), Some(expected), "{inner}");
        }
        assert_eq!(flag(part, r#"{"supportsRequestCancellation":true}"#), Some(true));
        assert_eq!(flag(part, "{}"), Some(false));
        assert_eq!(flag(part, "[]"), Some(false));
    }
    let crossed = r#"{"agentCapabilities":{"cancellation":{"request":true}}}"#;
    assert_eq!(flag(HandshakePart::Params, crossed), Some(false));
    assert_eq!(ACP.codec().read_handshake(HandshakePart::Params, raw(crossed)).handles_cancels, None);
}

#[test]
fn the_draft_declares_cancellation_by_default() {
    let declare = |body: &str| {
        let declared = ACP_DRAFT.codec().declare(HandshakePart::Params, raw(body), true);
        declared.map(|body| body.get().to_owned())
    };
    for (body, expected) in [
        (
            r#"{"protocolVersion":1}"#,
            r#"{"protocolVersion":1,"clientCapabilities":{"cancellation":{"request":true}}}"#,
        ),
        (
            r#"{"clientCapabilities":{"fs":{}}}"#,
            r#"{"clientCapabilities":{"fs":{},"cancellation":{"request":true}}}"#,
        ),
        (
            r#"{"clientCapabilities":{"cancellation":{}},"z":1}"#,
            r#"{"clientCapabilities":{"cancellation":{"request":true}},"z":1}"#,
        ),
        (
            r#"{"clientCapabilities":{"cancellation":{"x":1}}}"#,
            r#"{"clientCapabilities":{"cancellation":{"x":1,"request":true}}}"#,
        ),
        (
            r#"{"clientCapabilities":{"cancellation":true,"fs":{}}}"#,
            r#"{"clientCapabilities":{"cancellation":{"request":true},"fs":{}}}"#,
        ),
        (r#"{"clientCapabilities":null}"#, r#"{"clientCapabilities":{"cancellation":{"request":true}}}"#),
        (
            r#"{"clientCapabilities":{"cancellation":{"request":null}}}"#,
            r#"{"clientCapabilities":{"cancellation":{"request":true}}}"#,
        ),
    ] {
        assert_eq!(declare(body).as_deref(), Some(expected));
        let withheld = ACP_DRAFT.codec().declare(HandshakePart::Params, raw(body), false);
        assert!(withheld.is_none());
        assert!(ACP.codec().declare(HandshakePart::Params, raw(body), true).is_none());
    }
    assert_eq!(declare(r#"{"clientCapabilities":{"cancellation":{"request":false}}}"#), None);
}

#[test]
fn the_requests_with_tasks_are_read_from_either_half() {
    let listed = |dialect: &Dialect, body: &str| {
        let of = |part| dialect.codec().read_handshake(part, raw(body)).exempting;
        assert_eq!(of(HandshakePart::Params), of(HandshakePart::Result), "{body}");
        of(HandshakePart::Result)
    };
    for (tasks, expected) in [
        (r#"{"cancel":{},"requests":{"tools":{"call":{}}}}"#, &["tools/call"][..]),
        (
            r#"{"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{},"x":null}}}"#,
            &["elicitation/create", "sampling/createMessage"],
        ),
        (r#"{"requests":{"tools":true}}"#, &[]),
        (r#"{"requests":[]}"#, &[]),
        ("{}", &[]),
        ("null", &[]),
    ] {
        let body = format!(r#"{{"capabilities":{{"tasks":{tasks}}}}}"#);
        assert_eq!(listed(&MCP, &body).unwrap(), expected, "{body}");
        assert_eq!(listed(&ACP, &body), None);
    }
    assert_eq!(listed(&MCP, "{}").unwrap(), [""; 0]);
    let many: Vec<_> = (0..100).map(|number| format!(r#""m{number}":{{}}"#)).collect();
    let body = format!(r#"{{"capabilities":{{"tasks":{{"requests":{{"tools":{{{}}}}}}}}}}}"#, many.join(","));
    assert_eq!(listed(&MCP, &body).unwrap().len(), 64, "a peer cannot have more of them kept");
}

#[test]
fn the_revision_is_read_as_text() {
    let revision = |dialect: &Dialect, body: &str| {
        dialect.codec().read_handshake(HandshakePart::Result, raw(body)).revision
    };
    assert_eq!(revision(&ACP, r#"{"protocolVersion":1}"#).as_deref(), Some("1"));
    assert_eq!(revision(&MCP, r#"{"protocolVersion":"2025-03-26"}"#).as_deref(), Some("2025-03-26"));
    assert_eq!(revision(&LSP, r#"{"capabilities":{}}"#), None);
}

/// The tokens with which a request may report are the tokens that can cancel it, also at the size limit.
#[test]
fn a_progress_token_of_256_bytes_cancels_and_a_longer_one_does_not() {
    let cancel = |length: usize| {
        let params = format!(r#"{{"token":"{}"}}"#, "t".repeat(length));
        LSP.codec().cancelled_token("window/workDoneProgress/cancel", Some(raw(&params)))
    };
    assert_eq!(cancel(256), Some(RequestId::text(&"t".repeat(256)).unwrap()));
    assert_eq!(cancel(257), None);
}
