//! Both framings: splits do not matter, the buffered bytes are limited, and a bad frame does not affect a good one.

use bytes::{Bytes, BytesMut};
use rescind_core::{BadFrame, Decoded, Framing};
use serde::de::IgnoredAny;

use super::meaning::squeezed;
use super::{pieces, reference};

/// Limits of a frame, in bytes. The control byte selects one.
const LIMITS: [usize; 4] = [24, 32, 64, 1024];
/// How many bytes a buffer may have beyond what it needs.
const SPARE: usize = 64 * 1024;

/// A message of its own, which ends a text over several lines.
const GOOD: &[u8] = b"{\"jsonrpc\":\"2.0\"}";

fn limit(control: u8) -> usize {
    LIMITS.get(usize::from(control) % LIMITS.len()).copied().unwrap_or(24)
}

/// The control byte, then the bytes of a stream.
pub(super) fn newline(data: &[u8]) {
    let Some((control, wire)) = pieces::controlled(data) else { return };
    let limit = limit(control);
    let whole = normal(reference::newline(wire, limit), limit);
    for pieces in pieces::all_cuts(wire, control) {
        assert_eq!(decoded(Framing::Newline, limit, &pieces).0, whole, "cut into {pieces:?}");
    }
    let behind = [wire, b"\n", GOOD, b"\n"].concat();
    let frames = decoded(Framing::Newline, limit, &[&behind]).0;
    assert_eq!(frames, normal(reference::newline(&behind, limit), limit));
    assert_eq!(frames.last(), Some(&Decoded::Frame(Bytes::from_static(GOOD))), "a good line was lost");

    let mut line = BytesMut::new();
    Framing::Newline.encode(wire, &mut line);
    let text = line.strip_suffix(b"\n").unwrap_or_default();
    assert_eq!(text.len() + 1, line.len(), "a line ends");
    assert!(!text.contains(&b'\n') && !text.contains(&b'\r'), "a line is one line");
    if let (Ok(json), Ok(written)) = (std::str::from_utf8(wire), std::str::from_utf8(text)) {
        if serde_json::from_str::<IgnoredAny>(json).is_ok() {
            assert_eq!(squeezed(written), squeezed(json), "a line says something else");
        }
    }
}

/// The control byte, then the bytes of a stream.
pub(super) fn content_length(data: &[u8]) {
    let Some((control, wire)) = pieces::controlled(data) else { return };
    let limit = limit(control);
    let (whole, is_between_frames) = reference::content_length(wire, limit);
    let whole = normal(whole, limit);
    for pieces in pieces::all_cuts(wire, control) {
        let (frames, is_failed) = decoded(Framing::ContentLength, limit, &pieces);
        assert_eq!(frames, whole, "cut into {pieces:?}");
        assert!(!(is_failed && is_between_frames), "the decoder gave up between two frames");
    }
    let mut good = BytesMut::new();
    Framing::ContentLength.encode(GOOD, &mut good);
    if is_between_frames {
        let mut expected = whole;
        expected.push(Decoded::Frame(Bytes::from_static(GOOD)));
        let behind = [wire, &good].concat();
        assert_eq!(decoded(Framing::ContentLength, limit, &[&behind]).0, expected, "a good frame was lost");
    }

    let mut framed = BytesMut::new();
    Framing::ContentLength.encode(wire, &mut framed);
    framed.extend_from_slice(&good);
    let first = if wire.len() > limit {
        let head = wire.get(..1024.min(limit)).unwrap_or(wire);
        Decoded::Bad(BadFrame::TooLarge { limit }, Bytes::copy_from_slice(head))
    } else {
        Decoded::Frame(Bytes::copy_from_slice(wire))
    };
    let expected = [first, Decoded::Frame(Bytes::from_static(GOOD))];
    let pieces = pieces::cut(&framed, control);
    assert_eq!(decoded(Framing::ContentLength, limit, &pieces).0, expected, "a frame does not come back");
}

/// The frames, and whether the decoder stopped because of an error.
fn decoded(framing: Framing, limit: usize, pieces: &[&[u8]]) -> (Vec<Decoded>, bool) {
    let most = match framing {
        // A `\r` directly above the limit may belong to the line end.
        Framing::Newline => limit + 1,
        Framing::ContentLength => limit.max(reference::NOISE),
    };
    let mut decoder = framing.decoder(limit);
    let mut all = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        all.extend(std::iter::from_fn(|| decoder.next_frame()));
        // As a connection does before its next read.
        decoder.make_room();
        let (held, room) = (decoder.partial(), decoder.buffer_mut().capacity());
        assert!(held <= most, "I11: {held} bytes are held, the limit is {limit}");
        assert!(room <= 2 * (most + piece.len()) + SPARE, "I11: room for {room} bytes, the limit is {limit}");
    }
    let is_failed = decoder.is_failed();
    all.extend(std::iter::from_fn(|| decoder.finish()));
    assert_eq!(decoder.finish(), None, "the end was reported twice");
    for frame in &all {
        if let Decoded::Frame(body) | Decoded::SeveralLines(body) = frame {
            assert!(body.len() <= limit, "I11: a frame of {} bytes over the limit of {limit}", body.len());
        }
    }
    (normal(all, limit), is_failed)
}

/// Without what depends on how much had arrived when a frame was refused.
fn normal(mut all: Vec<Decoded>, limit: usize) -> Vec<Decoded> {
    for decoded in &mut all {
        match decoded {
            Decoded::Bad(BadFrame::TooLarge { .. }, head) => head.truncate(limit),
            Decoded::Bad(why, head) if !why.is_recoverable() => head.clear(),
            Decoded::ByteOrderMark(after) => after.clear(),
            _ => {}
        }
    }
    all
}
