//! Naive readers of whole inputs. The real readers, which get the inputs in pieces, must agree with them.

use bytes::Bytes;
use rescind_core::{BadFrame, Decoded};

const MARK: &[u8] = b"\xef\xbb\xbf";
/// The largest header block, in bytes.
const HEADER: usize = 8 * 1024;

pub(super) fn newline(wire: &[u8], limit: usize) -> Vec<Decoded> {
    let wire = wire.strip_prefix(MARK).unwrap_or(wire);
    let lines = wire.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).map(|line| whole(line, limit)).collect()
}

fn whole(body: &[u8], limit: usize) -> Decoded {
    if body.len() > limit {
        Decoded::Bad(BadFrame::TooLarge { limit })
    } else {
        Decoded::Frame(Bytes::copy_from_slice(body))
    }
}

/// The frames, and whether the input ends between two of them.
pub(super) fn content_length(wire: &[u8], limit: usize) -> (Vec<Decoded>, bool) {
    let mut all = Vec::new();
    let mut rest = wire;
    while !rest.is_empty() {
        let (size, length, is_foreign) = match block(rest) {
            Ok(block) => block,
            Err(why) => {
                all.push(Decoded::Bad(why));
                return (all, false);
            }
        };
        let body = rest.get(size..).unwrap_or_default();
        let is_whole = body.len() >= length;
        let (body, after) = body.split_at(length.min(body.len()));
        all.push(match (length > limit, is_foreign, is_whole) {
            (true, _, _) => Decoded::Bad(BadFrame::TooLarge { limit }),
            (false, true, _) => Decoded::Bad(BadFrame::BadCharset),
            (false, false, true) => Decoded::Frame(Bytes::copy_from_slice(body)),
            (false, false, false) => Decoded::Bad(BadFrame::Truncated),
        });
        if !is_whole {
            return (all, false);
        }
        rest = after;
    }
    (all, true)
}

/// The size of a header block, the length in it, and whether it names another charset.
fn block(wire: &[u8]) -> Result<(usize, usize, bool), BadFrame> {
    let mut size = 0;
    let mut length = None;
    let mut is_foreign = false;
    let mut ends = None;
    for line in wire.split_inclusive(|byte| *byte == b'\n') {
        size += line.len();
        let Some(line) = line.strip_suffix(b"\n") else {
            return Err(if size > HEADER { BadFrame::BadHeader } else { BadFrame::Truncated });
        };
        let returned = line.ends_with(b"\r");
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if size > HEADER || *ends.get_or_insert(returned) != returned {
            return Err(BadFrame::BadHeader);
        }
        if line.is_empty() {
            return length.map(|length| (size, length, is_foreign)).ok_or(BadFrame::BadLength);
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(BadFrame::BadHeader)?;
        let (name, value) =
            (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default());
        let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if name.is_empty() || !name.iter().all(is_token) {
            return Err(BadFrame::BadHeader);
        }
        match name.to_ascii_lowercase().as_slice() {
            b"content-length" => {
                let said = number(value.trim_ascii()).filter(|_| length.is_none());
                length = Some(said.ok_or(BadFrame::BadLength)?);
            }
            b"content-type" => is_foreign |= !is_utf8(&value.to_ascii_lowercase()),
            _ => {}
        }
    }
    Err(BadFrame::Truncated)
}

fn number(digits: &[u8]) -> Option<usize> {
    let digit = |byte: &u8| char::from(*byte).to_digit(10).and_then(|digit| usize::try_from(digit).ok());
    let add = |sum: usize, byte: &u8| sum.checked_mul(10)?.checked_add(digit(byte)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// The text is in lower case. `utf8` is also accepted.
fn is_utf8(content_type: &[u8]) -> bool {
    let mut parameters = content_type.split(|byte| *byte == b';').skip(1);
    parameters.all(|parameter| {
        let Some(equals) = parameter.iter().position(|byte| *byte == b'=') else {
            return parameter.trim_ascii() != b"charset";
        };
        let (name, value) = parameter.split_at(equals);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let plain: [&[u8]; 4] = [b"utf-8", b"utf8", b"\"utf-8\"", b"\"utf8\""];
        name.trim_ascii() != b"charset" || plain.contains(&value)
    })
}
