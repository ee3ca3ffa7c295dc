use std::collections::VecDeque;

/// The last bytes of an endless stream.
#[derive(Debug, Default)]
pub(super) struct RingBuffer(VecDeque<u8>);

impl RingBuffer {
    /// The most bytes that are kept.
    const CAPACITY: usize = 8 * 1024;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(Self::CAPACITY)..).unwrap_or_default();
        let spare = (self.0.len() + bytes.len()).saturating_sub(Self::CAPACITY);
        self.0.drain(..spare);
        self.0.extend(bytes);
    }

    /// The bytes as text. Control characters except line ends and tabs are escaped, so that it can be shown on a
    /// terminal.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let mut text = String::with_capacity(bytes.len());
        for letter in String::from_utf8_lossy(&bytes).chars() {
            if letter.is_control() && !matches!(letter, '\n' | '\t') {
                text.extend(letter.escape_default());
            } else {
                text.push(letter);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_bytes_are_kept() {
        let mut tail = RingBuffer::default();
        tail.push(&[b'a'; RingBuffer::CAPACITY]);
        tail.push(b"end");
        assert_eq!(tail.0.len(), RingBuffer::CAPACITY);
        assert!(tail.text().ends_with("aend"));
        tail.push(&vec![b'b'; 3 * RingBuffer::CAPACITY]);
        assert_eq!(tail.text(), "b".repeat(RingBuffer::CAPACITY));
    }

    #[test]
    fn escapes_for_terminals_are_shown_as_text() {
        let mut tail = RingBuffer::default();
        tail.push(b"\x1b[31mred\n");
        assert_eq!(tail.text(), "\\u{1b}[31mred\n");
    }
}
