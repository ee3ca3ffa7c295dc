//! The header block of a frame: which lines it may have, and what they say of the body.

use memchr::memchr;

use super::BadFrame;

/// The content of the header block so far.
#[derive(Debug, Default)]
pub(super) struct HeaderBlock {
    /// In bytes, including line ends.
    pub(super) size: usize,
    pub(super) length: Option<usize>,
    pub(super) foreign_charset: bool,
    /// Whether its lines end with a bare `\n`. `None`: no line was read.
    pub(super) bare: Option<bool>,
}

impl HeaderBlock {
    /// Reads one line, without its end.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), BadFrame> {
        let colon = memchr(b':', line).ok_or(BadFrame::BadHeader)?;
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        if name.is_empty() || !name.iter().all(|byte| is_of_token(*byte)) {
            return Err(BadFrame::BadHeader);
        }
        if name.eq_ignore_ascii_case(b"Content-Length") {
            let length = parse_length(value).ok_or(BadFrame::BadLength)?;
            if self.length.replace(length).is_some() {
                return Err(BadFrame::BadLength);
            }
        } else if name.eq_ignore_ascii_case(b"Content-Type") {
            self.foreign_charset |= !is_utf8(value);
        }
        Ok(())
    }
}

/// Whether HTTP allows this byte in the name of a header field.
const fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Only digits: no sign, no overflow.
fn parse_length(value: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Whether a content type names UTF-8 or no charset.
fn is_utf8(content_type: &[u8]) -> bool {
    content_type.split(|&byte| byte == b';').skip(1).all(|parameter| {
        let mut halves = parameter.splitn(2, |&byte| byte == b'=');
        let (name, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let value = value.trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
        // Older language clients send `utf8`; the LSP asks servers to accept it.
        !name.trim_ascii().eq_ignore_ascii_case(b"charset")
            || value.eq_ignore_ascii_case(b"utf-8")
            || value.eq_ignore_ascii_case(b"utf8")
    })
}
