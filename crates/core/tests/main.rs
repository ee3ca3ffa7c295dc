//! The tests of the public API of the core, except what the driver logs. Here are those that need no driver: framings, and a
//! dialect from outside.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use rescind_core::dialect::{AckStyle, CallFrame, ReplyTo};
use rescind_core::{BadFrame, Decoded, Decoder, Framing};

use self::example::debug_adapter;

// The example of a custom dialect finds the items of `rescind_core` where the crate `rescind` has them.
extern crate self as rescind;
pub(crate) use rescind_core::{self as machine, *};

/// The driver over real connections.
#[cfg(feature = "tokio")]
#[expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
mod driver {
    mod bad_input;
    mod calls;
    mod drains;
    mod exchanges;
    mod memory;
    mod notifications;
    mod requests;
    mod router;
    mod serving;
    mod task_faults;
    mod tasks;
    mod wire;
}

#[path = "../../../examples/custom_dialect/dialect.rs"]
mod example;

// The decoders against arbitrary input, split at arbitrary places.

const LIMIT: usize = 64;

fn drain(decoder: &mut Decoder) -> Vec<Decoded> {
    std::iter::from_fn(|| decoder.next_frame()).collect()
}

fn decode(framing: Framing, input: &[u8], cuts: &[usize]) -> Vec<Decoded> {
    let mut decoder = framing.decoder(LIMIT);
    let mut all = Vec::new();
    let mut rest = input;
    for &cut in cuts {
        let (piece, tail) = rest.split_at(cut.min(rest.len()));
        decoder.push(piece);
        all.extend(drain(&mut decoder));
        rest = tail;
    }
    decoder.push(rest);
    all.extend(drain(&mut decoder));
    all.extend(std::iter::from_fn(|| decoder.finish()));
    for decoded in &mut all {
        match decoded {
            // Only what had arrived is known of it.
            Decoded::Bad(BadFrame::NotJson, _) => {}
            Decoded::Bad(_, head) | Decoded::ByteOrderMark(head) => *head = Bytes::new(),
            _ => {}
        }
    }
    all
}

fn framings() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Newline), Just(Framing::ContentLength)]
}

/// Bytes that look like framing more often than random bytes.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        vec(any::<u8>(), 0..40),
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\xef\xbb\xbf".to_vec()),
        Just(b"{\"jsonrpc\":1}".to_vec()),
        Just(b"{\n\"a\":".to_vec()),
        Just(b"}\n".to_vec()),
        Just(b"  \n".to_vec()),
        Just(b"Warning: x\n".to_vec()),
        Just(b"Content-Type: x; charset=ascii\r\n".to_vec()),
        (0..200usize).prop_map(|length| format!("Content-Length: {length}\r\n").into_bytes()),
        (0..80usize).prop_map(|length| format!("Content-Length: {length}\r\n\r\n").into_bytes()),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn the_chunking_of_the_input_does_not_change_the_frames(framing in framings(), input in noise(), cuts in vec(0..9usize, 0..64)) {
        let whole = decode(framing, &input, &[]);
        prop_assert_eq!(decode(framing, &input, &cuts), whole.clone());
        prop_assert_eq!(decode(framing, &input, &vec![1; input.len()]), whole);
    }

    #[test]
    fn decoded_frames_never_exceed_the_limit(framing in framings(), input in noise()) {
        for decoded in decode(framing, &input, &[]) {
            if let Decoded::Frame(body) | Decoded::SeveralLines(body) = decoded {
                prop_assert!(body.len() <= LIMIT);
            }
        }
    }

    #[test]
    fn encoded_frames_are_decoded_unchanged(
        framing in framings(),
        bodies in vec("\\{[ -~]{0,62}\\}", 0..12),
        cuts in vec(0..30usize, 0..12),
    ) {
        let mut wire = BytesMut::new();
        for body in &bodies {
            framing.encode(body.as_bytes(), &mut wire);
        }
        let expected: Vec<_> = bodies.into_iter().map(|body| Decoded::Frame(body.into())).collect();
        prop_assert_eq!(decode(framing, &wire, &cuts), expected);
    }

    #[test]
    fn a_newline_frame_is_always_one_line(body in vec(any::<u8>(), 0..64)) {
        let mut wire = BytesMut::new();
        Framing::Newline.encode(&body, &mut wire);
        prop_assert_eq!(wire.iter().position(|&byte| byte == b'\n'), Some(wire.len() - 1));
        prop_assert!(!wire.contains(&b'\r'));
    }

    #[test]
    fn an_oversize_frame_does_not_affect_the_next_frame(framing in framings(), size in LIMIT + 1..4096) {
        let mut wire = BytesMut::new();
        framing.encode(&vec![b'x'; size], &mut wire);
        framing.encode(b"{}", &mut wire);
        let expected = [
            Decoded::Bad(BadFrame::TooLarge { limit: LIMIT }, Bytes::new()),
            Decoded::Frame("{}".into()),
        ];
        prop_assert_eq!(decode(framing, &wire, &[]), expected);
    }
}

// A dialect with its own envelope, defined outside the crate: the Debug Adapter Protocol of the example, in which a
// cancel is a request with a response.

#[test]
fn a_debug_adapter_dialect_can_be_made_from_outside() {
    let dialect = debug_adapter();
    let (codec, rules) = (dialect.codec(), dialect.rules());
    assert_eq!((dialect.name(), rules.ack), ("dap", AckStyle::Acknowledged));

    let mut out = Vec::new();
    codec.encode_request(rules, &mut out, &CallFrame::new(CallNumber(4), 0, "evaluate", None));
    assert!(matches!(codec.decode(&out), Incoming::Request(request) if request.method == "evaluate"));

    let mut out = Vec::new();
    codec.encode_cancel(rules, &mut out, CallNumber(4), CallNumber(5), 0, None);
    let Incoming::Cancel(cancel) = codec.decode(&out) else { panic!("a cancel") };
    assert_eq!((cancel.key, cancel.ack), (Ok(RequestId::number(4)), Some(RequestId::number(5))));

    let mut out = Vec::new();
    assert!(codec.encode_ack(rules, &mut out, &RequestId::number(5), None, AckStatus::Cancelled));
    assert!(matches!(codec.decode(&out), Incoming::Ack { cancel: Some(CallNumber(5)), cancelled: true, .. }));

    let id = RequestId::number(4);
    let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
    let mut out = Vec::new();
    codec.encode_cancelled(rules, &mut out, &to, &Cause::new(CauseKind::Peer));
    let answer = codec.decode(&out);
    assert!(matches!(
        answer,
        Incoming::Answer { call: Some(CallNumber(4)), body: AnswerBody::Cancelled, .. }
    ));
}

#[test]
fn a_codec_writes_a_fixed_result_as_any_other_value_unless_it_says_how() {
    let dialect = debug_adapter();
    let id = RequestId::number(4);
    let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
    let answer = |result| {
        let mut out = Vec::new();
        dialect.codec().encode_graceful(dialect.rules(), &mut out, &to, result);
        match dialect.codec().decode(&out) {
            Incoming::Answer { call: Some(CallNumber(4)), body, .. } => format!("{body:?}"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(r#"{"over":true}"#), r#"Value(RawValue({"over":true}))"#);
    let broken = answer("{over");
    assert!(broken.starts_with("Error"), "what is no JSON is not written as a result: {broken}");
}
