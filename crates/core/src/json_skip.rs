//! Finding the end of a JSON value without reading it.
//!
//! An envelope is read at each message, and most of its bytes are params or a result that stay unparsed. `serde_json` takes
//! more than two instructions a byte to skip them; long strings are searched in blocks here. It accepts the same texts.
//! `serde_json` stays the judge of what is wrong: where this module finds no end, the caller asks it.

/// The bytes at the beginning of a string that are looked at in words of eight bytes. To begin a search with `memchr` takes as
/// long as to look at so many.
const SHORT: usize = 64;

/// The deepest nesting of a value that is skipped. The object in which the value is a member is one level more, which makes the
/// 127 of a frame. Each level takes one of 128 bits.
const MAX_DEPTH: u32 = 126;

/// The length of the JSON value with which a text begins. `None`: the text does not begin with a value, or with one that is
/// nested too deep. A number or a literal ends where it cannot go on, whatever follows.
pub(crate) fn value_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut levels = Levels::default();
    let mut at = 0;
    loop {
        at = match bytes.get(at)? {
            b'{' => {
                levels.open(true)?;
                at = skip_space(bytes, at + 1);
                if bytes.get(at)? != &b'}' {
                    at = skip_name(bytes, at)?;
                    continue;
                }
                levels.close(true)?;
                at + 1
            }
            b'[' => {
                levels.open(false)?;
                at = skip_space(bytes, at + 1);
                if bytes.get(at)? != &b']' {
                    continue;
                }
                levels.close(false)?;
                at + 1
            }
            b'"' => skip_string(bytes, at)?,
            b't' => skip_literal(bytes, at, b"true")?,
            b'f' => skip_literal(bytes, at, b"false")?,
            b'n' => skip_literal(bytes, at, b"null")?,
            _ => skip_number(bytes, at)?,
        };
        // What follows a value: the ends of what holds it, and then the next one.
        loop {
            let Some(in_object) = levels.innermost() else { return Some(at) };
            at = skip_space(bytes, at);
            match bytes.get(at)? {
                b',' if in_object => at = skip_name(bytes, skip_space(bytes, at + 1))?,
                b',' => at = skip_space(bytes, at + 1),
                b'}' | b']' => {
                    levels.close(bytes.get(at) == Some(&b'}'))?;
                    at += 1;
                    continue;
                }
                _ => return None,
            }
            break;
        }
    }
}

/// The objects and arrays around a place in a text.
#[derive(Default)]
struct Levels {
    /// A bit for each, the innermost one lowest: whether it is an object.
    objects: u128,
    depth: u32,
}

impl Levels {
    fn open(&mut self, object: bool) -> Option<()> {
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        (self.depth <= MAX_DEPTH).then_some(())
    }

    fn close(&mut self, object: bool) -> Option<()> {
        if self.innermost()? != object {
            return None;
        }
        self.depth -= 1;
        self.objects >>= 1;
        Some(())
    }

    /// Whether the innermost one is an object. `None`: there is none.
    fn innermost(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.objects & 1 == 1)
    }
}

/// The place of the value after a name and its colon.
fn skip_name(bytes: &[u8], at: usize) -> Option<usize> {
    let after = skip_space(bytes, skip_string(bytes, at)?);
    (bytes.get(after)? == &b':').then(|| skip_space(bytes, after + 1))
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(at) {
        at += 1;
    }
    at
}

fn skip_literal(bytes: &[u8], at: usize, literal: &[u8]) -> Option<usize> {
    bytes.get(at..)?.starts_with(literal).then_some(at + literal.len())
}

/// `at` is the place of the opening quote.
fn skip_string(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at)? != &b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += plain_length(bytes.get(at..)?);
        if bytes.get(at)? == &b'"' {
            return Some(at + 1);
        }
        at = skip_escape(bytes, at)?;
    }
}

/// The number of bytes before the first quote, backslash or control character.
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
    let short = bytes.get(..SHORT).unwrap_or(bytes);
    let words = short.chunks_exact(size_of::<u64>());
    let rest = words.remainder();
    for (number, word) in words.enumerate() {
        let special = special_bytes(word.try_into().map_or(0, u64::from_le_bytes));
        if special != 0 {
            return number * size_of::<u64>() + special.trailing_zeros() as usize / 8;
        }
    }
    let looked_at = short.len() - rest.len();
    match rest.iter().copied().position(is_special) {
        Some(place) => looked_at + place,
        None if short.len() < bytes.len() => plain_length_of_long(bytes),
        None => bytes.len(),
    }
}

/// The same, for many bytes.
fn plain_length_of_long(bytes: &[u8]) -> usize {
    let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    let plain = bytes.get(..end).unwrap_or(bytes);
    // Without a branch for each byte, so that many are compared at once.
    let least = plain.iter().fold(u8::MAX, |least, byte| least.min(*byte));
    if least >= b' ' { end } else { plain.iter().copied().position(is_special).unwrap_or(end) }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | ..b' ')
}

/// The top bit of the first byte of a word that is a quote, a backslash or a control character is set in the result, and
/// none before it. Of the bytes after it nothing is known: a subtraction may borrow from them.
const fn special_bytes(word: u64) -> u64 {
    const EACH: u64 = u64::MAX / 0xff;
    const TOP: u64 = EACH * 0x80;
    const fn below(word: u64, least: u8) -> u64 {
        word.wrapping_sub(EACH * least as u64) & !word
    }
    const fn equal(word: u64, byte: u8) -> u64 {
        below(word ^ (EACH * byte as u64), 1)
    }
    (below(word, b' ') | equal(word, b'"') | equal(word, b'\\')) & TOP
}

/// `at` is the place of the backslash. A control character has no escape either.
fn skip_escape(bytes: &[u8], at: usize) -> Option<usize> {
    match (bytes.get(at)?, bytes.get(at + 1)?) {
        (b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Some(at + 2),
        (b'\\', b'u') => bytes.get(at + 2..at + 6)?.iter().all(u8::is_ascii_hexdigit).then_some(at + 6),
        _ => None,
    }
}

fn skip_number(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + usize::from(bytes.get(at)? == &b'-');
    at = if bytes.get(at)? == &b'0' { at + 1 } else { skip_digits(bytes, at)? };
    if bytes.get(at) == Some(&b'.') {
        at = skip_digits(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1;
        at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
        at = skip_digits(bytes, at)?;
    }
    Some(at)
}

/// At least one digit.
fn skip_digits(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = bytes.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0).then_some(at + digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    /// More than the bytes that are looked at in words.
    const BLOCK: usize = SHORT + 8;

    /// What `serde_json` takes as one value at the beginning of a text.
    fn length_by_parser(text: &str) -> Option<usize> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
        values.next()?.ok().map(|value| value.get().len())
    }

    /// A value in an array ends with a bracket or a comma. At the end of a text `serde_json` demands more of a number.
    fn agree(value: &str) {
        let text = format!("[{value}]");
        assert_eq!(value_length(&text), length_by_parser(&text), "{text:?}");
    }

    #[test]
    fn the_length_is_that_of_the_parser_whatever_is_broken() {
        let long = "x".repeat(3 * BLOCK);
        for whole in [
            r#"{ "a" : [ 1 , -0.5e+10, 2E3 ], "b\u00e9\n":{} ,"c":[[],{"d":null}] , "e":[true,false]}"#
                .to_owned(),
            format!(r#"["{long}\"{long}é{long}", "", "\\", "{long}\ud800"]"#),
        ] {
            agree(&whole);
            for (at, _) in whole.char_indices() {
                let (head, tail) = whole.split_at(at);
                agree(head);
                agree(tail);
                for part in [
                    "", "{", "}", "[", "]", "\"", "\\", ",", ":", " ", "\t", "\u{b}", "\u{0}", "\u{1f}",
                    "\u{7f}", "\u{a0}", "0", "1", "-", "+", ".", "e", "E", "null", "tru", "u12G4", "u00E9",
                    "x",
                ] {
                    agree(&format!("{head}{part}{tail}"));
                    let mut rest = tail.chars();
                    rest.next();
                    agree(&format!("{head}{part}{}", rest.as_str()));
                }
            }
        }
    }

    #[test]
    fn every_place_in_a_block_is_looked_at() {
        for length in 0..3 * BLOCK {
            for special in ["\"", "\\", "\\n", "\u{1}", "\u{1f}", " ", "!", "#", "[", "]", "\u{7f}", "é", ""]
            {
                let text = format!(r#""{}{special}{}""#, "y".repeat(length), "z".repeat(BLOCK));
                agree(&text);
            }
        }
    }

    #[test]
    fn nesting_is_skipped_to_its_limit() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let deepest = MAX_DEPTH as usize;
        assert_eq!(value_length(&nested(deepest)), Some(2 * deepest));
        assert_eq!(value_length(&nested(deepest + 1)), None);
        // Every level keeps its kind.
        let mixed = r#"{"a":["#.repeat(deepest / 2) + &"]}".repeat(deepest / 2);
        assert_eq!(value_length(&mixed), Some(mixed.len()));
        assert_eq!(value_length(&mixed.replacen("]}", "}]", 1)), None);
        let wide = format!("[{}]", vec!["{}"; 10_000].join(","));
        assert_eq!(value_length(&wide), Some(wide.len()));
    }

    proptest! {
        #[test]
        fn a_text_of_json_characters_has_the_length_of_the_parser(
            text in r#"([\[\]{},:" 01.eE+\-\\u"\n]|true|null|"[a-z\\"]{0,40}"|\PC){0,30}"#,
        ) {
            agree(&text);
        }
    }
}
