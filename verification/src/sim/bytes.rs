//! Frames of a byte stream, parsed by separate code: an independent check of the library's framing.

use rescind_core::Framing;

use super::judge::Judge;
use super::sides::Side;

/// Compares the bytes that this side wrote with its frames: the frames are all there, in order, and only the last one
/// may be cut off.
pub(super) fn check(judge: &Judge, side: Side, framing: Framing, bytes: &[u8]) {
    let mut state = judge.state();
    let mut rest = bytes;
    let mut number = 0;
    let mut torn = false;
    let mut wrong = None;
    while !rest.is_empty() && wrong.is_none() {
        let found = match framing {
            Framing::Newline => line(rest),
            Framing::ContentLength => block(rest),
        };
        let Some((body, after)) = found else {
            torn = true;
            break;
        };
        match state.written.of(side).frames.get(number) {
            Some(frame) if frame.body == body => {}
            Some(_) | None => wrong = Some(String::from_utf8_lossy(body).into_owned()),
        }
        number += 1;
        rest = after;
    }
    let whole = !torn || state.is_going();
    state.holds_and_counts(number > 0, wrong.is_none(), "I12", || {
        format!("frame {number} of the {side}'s bytes is {wrong:?}, which it never wrote there")
    });
    if !whole {
        state.breaks("I12", || format!("the {side}'s bytes end in the middle of frame {number}"));
    }
}

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

fn block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse::<usize>().ok()?;
    let body = bytes.get(end + 4..)?;
    Some((body.get(..length)?, body.get(length..)?))
}
