//! Frames that RFC 6455 forbids, and frames without an end.

use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::json::{Numbers, echo};
use super::{Field, Inputs, SILENCE, run};
use crate::raw_stream::{Stream, websocket_head};
use crate::target::Wire;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// No further fragment follows.
const LAST: u8 = 0x80;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&websocket_head(kind, payload.len())[..], payload].concat()
}

pub(super) fn inputs() -> Inputs {
    let message = echo("1", "1").into_bytes();
    let mut inputs = Inputs::new();
    // Every opcode and reserved bit, whole and as a fragment.
    for opcode in 0..16_u8 {
        inputs.push(frame(LAST | opcode, &message));
        inputs.push(frame(opcode, b"x"));
        inputs.push([frame(opcode, b"x"), frame(LAST | TEXT, &message)].concat());
    }
    for reserved in [0x10, 0x20, 0x40, 0x70] {
        inputs.extend([TEXT, BINARY, PING, CLOSE].map(|opcode| frame(LAST | reserved | opcode, &message)));
    }
    // Without a mask.
    for opcode in [TEXT, BINARY, CLOSE, PING] {
        inputs.push(vec![LAST | opcode, 2, b'{', b'}']);
    }
    // Lengths: over the limit, over 63 bits, longer than needed, and longer than the data.
    for length in [0_u64, 1, 125, 126, 65_535, 16 << 20, (16 << 20) + 1, 1 << 40, u64::MAX >> 1, u64::MAX] {
        for opcode in [TEXT, BINARY, CLOSE, PING, PONG] {
            let length = length.to_be_bytes();
            inputs.push([&[LAST | opcode, 0xff][..], &length, &[0; 4], b"{}"].concat());
        }
    }
    for opcode in [CLOSE, PING, PONG] {
        inputs.push(frame(LAST | opcode, &[b'x'; 126]));
    }
    // Close frames: an incomplete code, forbidden codes, reasons that are not UTF-8.
    inputs.push(frame(LAST | CLOSE, b"\x03"));
    for code in [0_u16, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65_535] {
        inputs.push(frame(LAST | CLOSE, &code.to_be_bytes()));
    }
    inputs.push(frame(LAST | CLOSE, b"\x03\xe8\xff\xff"));
    inputs.push([frame(LAST | CLOSE, b""), frame(LAST | TEXT, &message)].concat());
    // Text that is not UTF-8, also across fragments.
    for bad in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"{\"a\":\"\x80\"}"] {
        inputs.push(frame(LAST | TEXT, bad));
        inputs.push([frame(TEXT, &bad[..1]), frame(LAST, &bad[1..])].concat());
    }
    // Fragments that are many, empty, or of two messages at once.
    inputs.push(frame(TEXT, b"").repeat(2));
    inputs.push([frame(TEXT, b"{"), frame(0, b"").repeat(5000), frame(LAST, b"}")].concat());
    inputs.push([frame(TEXT, b"{"), frame(LAST | PING, b""), frame(LAST, b"}")].concat());
    inputs.push(frame(LAST | PING, b"x").repeat(5000));
    let mut numbers = Numbers::new();
    inputs.extend((0..40).map(|_| {
        let length = 1 + numbers.below(60);
        (0..length).map(|_| u8::try_from(numbers.below(256)).unwrap()).collect()
    }));
    inputs
}

/// Each input after a separate handshake.
pub(super) fn play_all(wire: Wire, inputs: &Inputs) {
    run(async {
        let mut field = Field::open(wire, &[]).await;
        for input in inputs {
            let mut stream = Stream::connect(&mut field.target).await;
            let _closed_early = timeout(SILENCE, stream.writer.write(input)).await;
            let mut answer = Vec::new();
            let _silent = timeout(SILENCE / 2, stream.reader.bytes.read_to_end(&mut answer)).await;
        }
        field.close().await;
    });
}
