//! Text of the peer, in a form that is safe in a log.

use std::fmt::{self, Write as _};

/// The most bytes of a name that are shown: two names on an event and two on its span leave room on a line of a
/// kilobyte.
const MAX_NAME_BYTES: usize = 128;
/// The most bytes of a text that are shown.
const MAX_TEXT_BYTES: usize = 256;
/// The most bytes of a text that are shown outside of logs.
const MAX_REASON_BYTES: usize = 768;

/// Shows a text that the peer may have written on one short line: characters that are not printable are escaped, and a
/// long text is cut.
///
/// For fields of logs and spans, also in transports of your own: method names, ids, addresses, texts of errors.
///
/// ```
/// use rescind_core::LogText;
///
/// assert_eq!(LogText::name("tools/call\n\u{1b}[2J").to_string(), r"tools/call\u{a}\u{1b}[2J");
/// assert!(LogText::text("x".repeat(1 << 20)).to_string().len() < 300);
/// ```
#[derive(Clone, Copy)]
pub struct LogText<T> {
    value: T,
    most: usize,
}

impl<T: fmt::Display> LogText<T> {
    /// A name: a method, an id, an address. At most 128 bytes of it are shown.
    pub const fn name(value: T) -> Self {
        Self { value, most: MAX_NAME_BYTES }
    }

    /// A text: a reason, an error. At most 256 bytes of it are shown.
    pub const fn text(value: T) -> Self {
        Self { value, most: MAX_TEXT_BYTES }
    }

    /// A reason, a message or an id in an error of this crate. At most 768 bytes of it are shown.
    pub(crate) const fn reason(value: T) -> Self {
        Self { value, most: MAX_REASON_BYTES }
    }
}

impl<T: fmt::Display> fmt::Display for LogText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = BoundedText { out: f, room: self.most, state: TextState::Writing };
        let written = write!(line, "{}", self.value);
        match line.state {
            TextState::Full => f.write_str("..."),
            TextState::Failed => Err(fmt::Error),
            TextState::Writing => written,
        }
    }
}

impl<T: fmt::Display> fmt::Debug for LogText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Receives what a value writes, until there is no room. Then it returns an error, so that a long value stops writing.
struct BoundedText<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    room: usize,
    state: TextState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextState {
    Writing,
    Full,
    Failed,
}

impl fmt::Write for BoundedText<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let plain = matches!(character, ' '..='~') || character.is_alphanumeric();
            let length = if plain { character.len_utf8() } else { character.escape_unicode().len() };
            let Some(left) = self.room.checked_sub(length) else {
                self.room = 0;
                self.state = TextState::Full;
                return Err(fmt::Error);
            };
            self.room = left;
            let written = if plain {
                self.out.write_char(character)
            } else {
                write!(self.out, "{}", character.escape_unicode())
            };
            if written.is_err() {
                self.state = TextState::Failed;
                return written;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_is_one_short_line() {
        for evil in ["\u{1b}", "\n", "\r", "\0", "\u{202e}", "\u{2066}", "\u{85}", "\u{2028}", "x", "é"] {
            for (times, cut) in [(1, false), (1 << 20, true)] {
                for shown in [LogText::name(evil.repeat(times)), LogText::text(evil.repeat(times))] {
                    let shown = shown.to_string();
                    assert!(shown.len() <= MAX_TEXT_BYTES + 3 && shown.ends_with("...") == cut, "{shown}");
                    assert!(shown.chars().all(|shown| shown == ' '
                        || shown.is_alphanumeric()
                        || shown.is_ascii_punctuation()));
                }
            }
        }
    }

    #[test]
    fn letters_of_all_languages_and_ascii_punctuation_are_shown_unescaped() {
        assert_eq!(LogText::reason("é 7~\u{7f}").to_string(), r"é 7~\u{7f}");
    }

    #[test]
    fn a_value_that_was_cut_is_not_formatted_further() {
        struct Endless;
        impl fmt::Display for Endless {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                loop {
                    f.write_str("again ")?;
                }
            }
        }
        assert!(LogText::text(Endless).to_string().ends_with("..."));
    }
}
