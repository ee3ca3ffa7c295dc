//! Tests for all dialects: the list, the recognition of first messages, the builder, and invalid frames.

use proptest::prelude::*;

use super::{ACP, ACP_DRAFT, ACP_V2, ALL, CancelName, Dialect, JsonRpc, LSP, MCP, MCP_2026, negotiate};
use crate::{BadMessage, CancelExemption, Incoming};

/// The first message of each dialect, with the name of the dialect.
const OPENINGS: [(&str, &str); 7] = [
    (
        "acp",
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}"#,
    ),
    (
        "acp-v2",
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":2,"capabilities":{}}}"#,
    ),
    (
        "acp-draft",
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"cancellation":{"request":false}}}}"#,
    ),
    (
        "lsp",
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"processId":null,"capabilities":{}}}"#,
    ),
    ("mcp", r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#),
    (
        "mcp-2026",
        r#"{"jsonrpc":"2.0","id":0,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
    ),
    ("abp", r#"{"type":"initialize","id":"1","payload":{"protocolVersion":"0.1"}}"#),
];

#[test]
fn every_built_in_dialect_is_found_by_its_name() {
    for dialect in &ALL {
        assert_eq!(Dialect::by_name(dialect.name()).unwrap().name(), dialect.name());
    }
    assert!(Dialect::by_name("ACP").is_none());
    let names: std::collections::HashSet<_> = ALL.iter().map(Dialect::name).collect();
    assert_eq!(names.len(), 7);
}

#[test]
fn each_codec_is_in_step_with_its_rules() {
    for dialect in &ALL {
        if let Some(codec) = dialect.codec().as_json_rpc() {
            let followed = codec.clone().following(dialect.rules());
            assert_eq!(followed.uncancellable_param, codec.uncancellable_param, "{}", dialect.name());
        }
    }
}

#[test]
fn each_first_message_is_recognised_whatever_the_order_of_the_offer() {
    // The draft is a special case of ACP, so it must be offered before ACP.
    let orders = [
        [ACP_DRAFT, ACP, ACP_V2, LSP, MCP, MCP_2026, super::ABP],
        [super::ABP, MCP_2026, MCP, LSP, ACP_V2, ACP_DRAFT, ACP],
    ];
    for order in orders {
        let negotiation = negotiate(order);
        for (name, frame) in OPENINGS {
            assert_eq!(negotiation.recognise(frame.as_bytes()).map(Dialect::name), Ok(name));
        }
    }
    let draft = OPENINGS[2].1.as_bytes();
    assert_eq!(negotiate([ACP, ACP_DRAFT]).recognise(draft).map(Dialect::name), Ok("acp"));
}

#[test]
fn an_unknown_first_message_is_refused_and_settles_nothing() {
    let negotiation = negotiate([ACP, MCP]);
    assert!(negotiation.offered().iter().map(Dialect::name).eq(["acp", "mcp"]), "what is offered, in order");
    let stranger = br#"{"jsonrpc":"2.0","id":"x","method":"hello"}"#;
    assert_eq!(negotiation.recognise(stranger).map(Dialect::name), Err(BadMessage::UnknownDialect));
    let mut out = Vec::new();
    assert!(negotiation.refuse(&mut out, stranger, BadMessage::UnknownDialect));
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with(r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32600,"#), "{text}");
    let fault = negotiation.recognise(b"{").map(Dialect::name);
    assert_eq!(fault, Err(BadMessage::NotJson));
    let mut out = Vec::new();
    assert!(negotiation.refuse(&mut out, b"{", BadMessage::NotJson));
    assert!(
        String::from_utf8(out).unwrap().starts_with(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700"#)
    );
    assert_eq!(negotiation.recognise(OPENINGS[4].1.as_bytes()).map(Dialect::name), Ok("mcp"));
}

#[test]
fn a_single_offered_dialect_is_settled_at_once() {
    let negotiation = negotiate([LSP]);
    assert!(negotiation.offered().iter().map(Dialect::name).eq(["lsp"]));
    assert_eq!(negotiation.settled().map(Dialect::name), Some("lsp"));
    assert_eq!(negotiation.recognise(b"anything").map(Dialect::name), Ok("lsp"));
    assert_eq!(negotiate([]).recognise(b"{}").map(Dialect::name), Err(BadMessage::UnknownDialect));
}

#[test]
fn plain_json_rpc_opens_with_its_handshake_or_with_any_message_if_it_has_none() {
    let plain = Dialect::builder("plain").build();
    let greets = Dialect::builder("greets").handshake("hello").build();
    for (frame, to_plain, to_greets) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"hello"}"#, true, true),
        (r#"{"jsonrpc":"2.0","id":1,"method":"work"}"#, true, false),
        (r#"{"jsonrpc":"2.0","method":"hello"}"#, true, false),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, true, false),
        (r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}"#, true, false),
        (r#"{"id":1,"method":"hello"}"#, false, false),
    ] {
        let opens = |dialect: &Dialect| dialect.codec().recognises(dialect.rules(), frame.as_bytes());
        assert_eq!((opens(&plain), opens(&greets)), (to_plain, to_greets), "{frame}");
        // A dialect that requires a version recognises none of these messages.
        assert!(
            !opens(&ACP) && !opens(&MCP) && !opens(&LSP.to_builder().rules(no_handshake).build()),
            "{frame}"
        );
    }
}

fn no_handshake(rules: &mut super::Rules) {
    rules.handshake = None;
}

#[test]
fn the_builder_keeps_the_codec_in_step_with_the_rules() {
    let dialect = Dialect::builder("house")
        .json_rpc(JsonRpc::new(CancelName { method: "stop", key: "call" }))
        .uncancellable_param("forever")
        .subprotocols(&["mine"])
        .batch_revision("1")
        .build();
    let request = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"forever":true}}"#;
    let Incoming::Request(request) = dialect.codec().decode(request) else { panic!() };
    assert_eq!(request.exempt, CancelExemption::FromCancelMessages);
    assert!(matches!(dialect.codec().decode(b"[1]"), Incoming::Batch(_)));
    let changed = MCP.to_builder().rules(|rules| rules.uncancellable_param = None).build();
    let request = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"task":{}}}"#;
    let Incoming::Request(request) = changed.codec().decode(request) else { panic!() };
    assert_eq!(request.exempt, CancelExemption::No);
    let again = super::ABP.to_builder().name("abp-house").build().to_builder().build();
    assert!(matches!(again.codec().decode(OPENINGS[6].1.as_bytes()), Incoming::Request(_)));
}

proptest! {
    #[test]
    fn no_bytes_make_a_codec_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for dialect in &ALL {
            let _ = format!("{:?}", dialect.codec().decode(&bytes));
            let _ = dialect.codec().recognises(dialect.rules(), &bytes);
        }
    }

    #[test]
    fn no_modified_frame_makes_a_codec_panic(
        frame in 0..FRAMES.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4), 1..6),
        token in proptest::sample::select(TOKENS.to_vec()),
    ) {
        let mut bytes = FRAMES[frame].as_bytes().to_vec();
        for (place, byte, how) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = place.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.truncate(at),
                _ => drop(bytes.splice(at..at, token.bytes())),
            }
        }
        for dialect in &ALL {
            let _ = format!("{:?}", dialect.codec().decode(&bytes));
            let _ = dialect.codec().recognises(dialect.rules(), &bytes);
        }
    }
}

const TOKENS: [&str; 8] = ["null", "\"", "{\"id\":1}", "[", "-0", "\\ud800", "\"method\":1,", "1e999"];

const FRAMES: [&str; 9] = [
    OPENINGS[0].1,
    OPENINGS[2].1,
    OPENINGS[5].1,
    OPENINGS[6].1,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":42,"reason":"User pressed Stop"}}"#,
    r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"a\u0041"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"m","data":[1,{}]}}"#,
    r#"{"type":"capabilities/call","id":"1","timestamp":1,"payload":{"capability":"a","options":{"callId":"k"}}}"#,
    r#"{"type":"capabilities/cancel-result","id":"1","payload":{"callId":"k","cancelled":false,"error":{"code":"X"}}}"#,
];
