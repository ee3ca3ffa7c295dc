//! Bytes and characters that are invalid or rare in text.

use super::json::echo;
use super::{Inputs, listed};

/// The places of text in a message. `TEXT` is replaced.
const PLACES: [&str; 5] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":"TEXT"}}"#,
    r#"{"jsonrpc":"2.0","id":"TEXT","method":"test/echo","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"TEXT","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"TEXT":1}}"#,
    r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"TEXT"}}"#,
];

fn in_each_place(text: &[u8]) -> Inputs {
    let place = |place: &str| {
        let (before, after) = place.split_once("TEXT").unwrap();
        [before.as_bytes(), text, after.as_bytes()].concat()
    };
    PLACES.into_iter().map(place).collect()
}

pub(super) fn invalid_utf8() -> Inputs {
    let sequences: [&[u8]; 8] = [
        b"\xff",
        b"\x80",
        b"\xc0\xaf",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"a\xfeb",
    ];
    let mut inputs: Inputs = sequences.iter().flat_map(|text| in_each_place(text)).collect();
    inputs.extend(sequences.iter().map(|text| [text, echo("1", "1").as_bytes()].concat()));
    inputs.extend(sequences.iter().map(|text| text.to_vec()));
    inputs.push(echo("1", "1").encode_utf16().flat_map(u16::to_le_bytes).collect());
    inputs
}

pub(super) fn characters() -> Inputs {
    let mut inputs: Inputs =
        (0..0x20_u8).map(|control| echo("1", &format!("\"{}\"", control as char)).into()).collect();
    inputs.extend(listed("escapes").iter().flat_map(|text| in_each_place(text.as_bytes())));
    inputs
}
