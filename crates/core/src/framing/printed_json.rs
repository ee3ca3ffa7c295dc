//! JSON among output that a program printed: where a message begins in a line, and where a text over several lines ends.
//!
//! Each function looks at each byte a fixed number of times.

use std::ops::Range;

use serde::de::IgnoredAny;

use crate::json_skip::value_length;

/// An object at the beginning of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a member that it has")]
pub(super) struct Object {
    /// In bytes.
    pub(super) length: usize,
    version: bool,
    method: bool,
    id: bool,
    answer: bool,
    kind: bool,
    envelope: bool,
}

impl Object {
    /// Reads an object with which a text begins. `None`: it begins with none, or the object is not JSON.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(text.get(..error.valid_up_to())?).ok()?,
        };
        let bytes = text.as_bytes();
        let mut object = Self::default();
        if bytes.first()? != &b'{' {
            return None;
        }
        let mut at = skip_space(bytes, 1);
        if bytes.get(at)? == &b'}' {
            object.length = at + 1;
            return Some(object);
        }
        loop {
            if bytes.get(at)? != &b'"' {
                return None;
            }
            let name = at..at + value_length(text.get(at..)?)?;
            let colon = skip_space(bytes, name.end);
            if bytes.get(colon)? != &b':' {
                return None;
            }
            at = skip_space(bytes, colon + 1);
            at = skip_space(bytes, at + value_length(text.get(at..)?)?);
            object.note(text.get(name)?);
            match bytes.get(at)? {
                b',' => at = skip_space(bytes, at + 1),
                b'}' => {
                    object.length = at + 1;
                    return Some(object);
                }
                _ => return None,
            }
        }
    }

    /// Notes a member, by its name in quotes.
    fn note(&mut self, name: &str) {
        match name {
            "\"jsonrpc\"" => self.version = true,
            "\"method\"" => self.method = true,
            "\"id\"" => self.id = true,
            "\"result\"" | "\"error\"" => self.answer = true,
            "\"type\"" => self.kind = true,
            "\"payload\"" | "\"timestamp\"" => self.envelope = true,
            _ => {}
        }
    }

    /// Whether a reader takes it for a message although other output is in the same line.
    pub(super) const fn is_message(self) -> bool {
        self.version || self.method || self.kind || (self.id && self.answer)
    }

    /// Whether it is a message in each place. Objects in results have a `type` too, so that alone does not count.
    pub(super) const fn is_message_of_its_own(self) -> bool {
        self.version || (self.kind && self.envelope)
    }
}

/// Whether a line is one message, whatever is around it.
pub(super) fn is_own_message(line: &[u8]) -> bool {
    let text = trim(line);
    text.last() == Some(&b'}')
        && Object::read(text)
            .is_some_and(|object| object.length == text.len() && object.is_message_of_its_own())
}

/// The place where a message begins that reaches to the end of a line. In JSON the brace at the end belongs to one brace
/// only, which a search from the end finds.
pub(super) fn last_message(line: &[u8]) -> Option<usize> {
    let line = trim_end(line);
    if line.last()? != &b'}' {
        return None;
    }
    let (mut at, mut depth) = (line.len(), 0_usize);
    while let Some(place) = at.checked_sub(1) {
        at = place;
        match line.get(at)? {
            b'}' | b']' => depth += 1,
            b'{' | b'[' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            b'"' => at = opening_quote(line.get(..at)?)?,
            _ => {}
        }
    }
    let text = line.get(at..)?;
    let object = Object::read(text).filter(|object| object.length == text.len() && object.is_message());
    object.map(|_| at)
}

/// The length of the part of a line without its end that can be taken: up to and including its last message. `None`: it has
/// none, or the message may be inside of a text that goes on.
pub(super) fn whole_messages(line: &[u8]) -> Option<usize> {
    let (mut at, mut end) = (0, None);
    while let Some(start) = opening_bracket(line.get(at..)?) {
        let rest = line.get(at + start..)?;
        let Some(length) = Brackets::default().read(rest) else {
            if !begins_text(rest) {
                let (text, _) = line.split_at(memchr::memrchr(b'}', line)? + 1);
                end = last_message(text).map(|_| text.len()).or(end);
            }
            return end;
        };
        at += start + length;
        if is_message(rest.get(..length)?) {
            end = Some(at);
        }
    }
    end
}

/// Whether some output ends in a text that may be JSON and goes on.
pub(super) fn has_open_text(mut output: &[u8]) -> bool {
    while let Some(start) = opening_bracket(output) {
        let (_, text) = output.split_at(start);
        let Some(length) = Brackets::default().read(text) else { return begins_text(text) };
        (_, output) = text.split_at(length);
    }
    false
}

/// Whether a text with its brackets closed is a message, or an array that begins with one.
fn is_message(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"[").map_or(text, <[u8]>::trim_ascii_start);
    Object::read(text).is_some_and(Object::is_message)
}

/// The place of the quote with which the string begins that a text is the inside of, at its end.
fn opening_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        let quote = memchr::memrchr(b'"', text.get(..end)?)?;
        let before = text.get(..quote)?;
        let escapes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
        if escapes % 2 == 0 {
            return Some(quote);
        }
        end = quote - escapes;
    }
}

/// Follows brackets and strings over several lines. Everything else has no meaning here, so a text is followed to its end
/// even if it has values that are not JSON.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Brackets {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Brackets {
    /// Reads more of a text. Returns the number of bytes up to and including its last bracket. `None`: it goes on.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        for (place, &byte) in bytes.iter().enumerate() {
            match byte {
                _ if std::mem::take(&mut self.escaped) => {}
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(place + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// The messages of a line that is not JSON as a whole: `{"progress":1} {"jsonrpc":…}{"jsonrpc":…}` has two. Each is a text
/// with its brackets closed, so what is inside of another text is none. Everything between them and after the last one is
/// left out, except objects with an `id` that are not JSON or not whole: those come last. A line with a bracket too many, or with a quote
/// after its last text, has none, and each is shorter than the line.
///
/// If messages end the line and the text before them is cut off or cannot be JSON, they come first, and then that text if it
/// may have been a message.
pub(super) fn messages_of_line(line: &[u8]) -> Vec<&[u8]> {
    let messages = closed_messages(line);
    if messages.is_empty() { messages_after_other(line).unwrap_or_default() } else { messages }
}

/// The messages at the end of a line, and the text before them: half of a message as in
/// `{"jsonrpc":"2.0","id":1,"resu{"jsonrpc":…}`, or output with a bracket as in `{INFO: started {"jsonrpc":…}`. Where a value
/// of that text may begin, a message can be that value, and is none.
fn messages_after_other(line: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut other, mut messages) = (line, Vec::new());
    while let Some(end) = memchr::memrchr(b'}', other) {
        let (text, after) = other.split_at(end + 1);
        let Some(at) = last_message(text).filter(|_| memchr::memchr2(b']', b'"', after).is_none()) else {
            break;
        };
        messages.push(at..end + 1);
        other = line.get(..at)?;
    }
    messages.reverse();
    let first = messages.first().filter(|_| !trim(other).is_empty())?;
    let mut values = 0;
    if begins_text(other) && may_have_value(other, line.get(..first.end)?) {
        // After a value, the next one needs a comma.
        let is_apart =
            |pair: &[Range<usize>]| matches!(pair, [one, two] if is_blank(line, one.end..two.start));
        values = messages.windows(2).position(is_apart)? + 1;
    }
    let messages = messages.get(values..)?;
    let other = line.get(..messages.first()?.start)?;
    let other = (begins_text(other) || may_be_answer(trim(other))).then_some(other);
    Some(messages.iter().filter_map(|place| line.get(place.clone())).chain(other).collect())
}

fn is_blank(line: &[u8], place: Range<usize>) -> bool {
    line.get(place).is_some_and(|between| trim(between).is_empty())
}

/// Whether a text that begins as JSON does may have a value at its end, where `line` goes on with an object.
fn may_have_value(text: &[u8], line: &[u8]) -> bool {
    if is_cut(text) {
        return is_cut(line);
    }
    let mut brackets = Brackets::default();
    if let Some(end) = brackets.read(text) {
        // A bracket too many is behind it. Only a message is certain not to go on there.
        let is_message = Object::read(text).is_some_and(|object| object.length == end && object.is_message());
        return !is_message || matches!(trim_end(text).last(), Some(b':' | b',' | b'['));
    }
    match trim_end(text).last() {
        _ if brackets.in_string => true,
        Some(b':' | b'[') => true,
        // In an object a name would follow.
        Some(b',') => innermost(text) != Some(b'{'),
        _ => false,
    }
}

/// The innermost bracket that is open at the end of a text.
fn innermost(text: &[u8]) -> Option<u8> {
    let (mut at, mut depth) = (text.len(), 0_usize);
    while let Some(place) = at.checked_sub(1) {
        at = place;
        match text.get(at)? {
            b'}' | b']' => depth += 1,
            bracket @ (b'{' | b'[') => match depth.checked_sub(1) {
                Some(outer) => depth = outer,
                None => return Some(*bracket),
            },
            b'"' => at = opening_quote(text.get(..at)?)?,
            _ => {}
        }
    }
    None
}

/// Whether a text is the beginning of JSON.
fn is_cut(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_err_and(|error| error.is_eof())
}

/// A message at the end of a text that is not closed behind it, where it may be a value of that text.
pub(super) fn message_behind_half(text: &[u8]) -> Option<&[u8]> {
    let text = trim(text);
    let (half, message) = text.split_at(last_message(text)?);
    let is_inside = Brackets::default().read(text) == Some(text.len());
    (begins_text(half) && !is_inside).then_some(message)
}

fn closed_messages(mut line: &[u8]) -> Vec<&[u8]> {
    let (mut messages, mut unreadable, whole) = (Vec::new(), Vec::new(), line.len());
    let mut has_quote = false;
    while let Some(start) = opening_bracket(line) {
        let (between, rest) = line.split_at(start);
        line = rest;
        if memchr::memchr2(b'}', b']', between).is_some() {
            return Vec::new();
        }
        let Some(end) = Brackets::default().read(line) else {
            // The rest of the line is cut off.
            if messages.is_empty() || has_quote || memchr::memchr(b'"', between).is_some() {
                return Vec::new();
            }
            unreadable.extend(may_be_answer(line).then_some(line));
            line = b"";
            break;
        };
        has_quote |= memchr::memchr(b'"', between).is_some();
        let (text, rest) = line.split_at(end);
        let object = Object::read(text).filter(|object| object.length == text.len() && text.len() < whole);
        if object.is_some_and(Object::is_message) {
            messages.push(text);
        } else if object.is_none() && may_be_answer(text) {
            unreadable.push(text);
        }
        line = rest;
    }
    if messages.is_empty() || memchr::memchr3(b'}', b']', b'"', line).is_some() {
        return Vec::new();
    }
    messages.extend(unreadable);
    messages
}

/// The objects with which an array begins, up to the first value that is not an object. A comma may be missing, and the last
/// object may be cut off.
pub(super) fn objects_of_array(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = trim(text).strip_prefix(b"[").unwrap_or_default();
    std::iter::from_fn(move || {
        let objects = rest.trim_ascii_start();
        let end = Brackets::default().read(objects).unwrap_or(objects.len());
        let (object, after) = objects.split_at(end);
        rest = after.trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest);
        object.starts_with(b"{").then_some(object)
    })
}

/// Whether a text may be an answer that cannot be read. Its call ends then.
pub(super) fn may_be_answer(text: &[u8]) -> bool {
    let has = |name: &[u8]| memchr::memmem::find(text, name).is_some();
    text.starts_with(b"{") && (has(b"\"id\"") || has(b"'id'"))
}

/// The place of the first bracket that is not part of a colour of a terminal (`ESC [ 3 2 m`).
fn opening_bracket(line: &[u8]) -> Option<usize> {
    memchr::memchr2_iter(b'{', b'[', line).find(|place| {
        line.get(*place) == Some(&b'{') || !line.get(..*place).is_some_and(|before| before.ends_with(b"\x1b"))
    })
}

/// Whether a line can be the beginning of a JSON text over several lines. An array must be one of objects: other lines
/// with a bracket are those of logs.
pub(super) fn begins_text(line: &[u8]) -> bool {
    match trim(line) {
        [b'{', rest @ ..] => matches!(trim(rest).first(), None | Some(b'"')),
        [b'[', rest @ ..] => matches!(trim(rest).first(), None | Some(b'{')),
        _ => false,
    }
}

/// The place of a bracket at the end of a line with which an object may begin that goes on over the next lines.
pub(super) fn opens_object(line: &[u8]) -> Option<usize> {
    let at = trim_end(line).len().checked_sub(1)?;
    (line.get(at) == Some(&b'{')).then_some(at)
}

pub(super) fn trim(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

fn trim_end(line: &[u8]) -> &[u8] {
    line.trim_ascii_end()
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<&str> {
        last_message(line.as_bytes()).and_then(|at| line.get(at..))
    }

    #[test]
    fn a_message_at_the_end_of_a_line_is_found() {
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"id":1,"error":{"code":1,"message":"a } \" { \\"}}"#,
            r#"{"method":"x","params":[[],{"a":{}}]}"#,
            r#"{"type":"x"}"#,
            r#"{ "a" : "\\\\\"" , "jsonrpc" : "2.0" } "#,
            r#"{"jsonrpc":"\\"}"#,
        ] {
            for noise in ["Loading... ", "it's \"so", "{", "{{\"a\":", "[INFO] ", "} ", "\u{e9}\\\"", "\\"] {
                assert_eq!(found(&format!("{noise}{message}")), Some(message), "{noise}");
            }
        }
    }

    #[test]
    fn an_object_that_is_no_message_or_not_whole_is_not_found() {
        for line in [
            r#"x {"id":1}"#,
            r#"x {"result":1}"#,
            r#"x {"a":{"jsonrpc":"2.0"}}"#,
            r#"x {"jsonrpc":"2.0"} y"#,
            r#"x {"jsonrpc":NaN}"#,
            r#"x {"jsonrpc":"2.0","a":}"#,
            r"x {'jsonrpc':'2.0'}",
            r#"x ["jsonrpc"}"#,
            r#"x "}"#,
            "}",
            "",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
        assert_eq!(last_message(b"x {\"jsonrpc\":\"\xff\"}"), None);
    }

    #[test]
    fn the_messages_of_a_line_are_those_that_no_text_is_around() {
        let found = |line: &'static str| -> Vec<&str> {
            messages_of_line(line.as_bytes())
                .into_iter()
                .map(|text| std::str::from_utf8(text).unwrap())
                .collect()
        };
        let (one, two) = (r#"{"jsonrpc":"2.0","id":1,"result":"}{"}"#, r#"{"id":2,"error":{}}"#);
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"result":"}{"}{"id":2,"error":{}}"#,
            r#"{"progress":1} {"jsonrpc":"2.0","id":1,"result":"}{"} [x] {"id":2,"error":{}}"#,
            r#"{NaN}{"jsonrpc":"2.0","id":1,"result":"}{"}, {"id":2,"error":{}}"#,
            "\u{1b}[32m{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"}{\"}\u{1b}[0m {\"id\":2,\"error\":{}} done\u{1b}[0m",
        ] {
            assert_eq!(found(line), [one, two], "{line}");
        }
        let unreadable = r#"{"jsonrpc":"2.0","id":3,"result":NaN} {"id":2,"error":{}}"#;
        assert_eq!(found(unreadable), [two, r#"{"jsonrpc":"2.0","id":3,"result":NaN}"#]);
        let cut = r#"{"jsonrpc":"2.0","id":1,"result":"}{"}Content-Length: 40 {"jsonrpc":"2.0","id":3,"resu"#;
        assert_eq!(found(cut), [one, r#"{"jsonrpc":"2.0","id":3,"resu"#]);
        assert_eq!(found(r#"{"a":1} said "{"jsonrpc":"2.0","id":1,"result":1}" {"id":3,"#), [""; 0]);
        assert_eq!(found(r#"{"x":NaN,"y":[{"jsonrpc":"2.0","id":1,"result":1}]}"#), [""; 0]);
        assert_eq!(found(r#"{"x":[{"jsonrpc":"2.0","id":1,"result":1}"#), [""; 0]);
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":1,"result":1}}"#), [""; 0]);
        assert_eq!(found(r#"{"a":1}} {"jsonrpc":"2.0","id":1,"result":1}"#), [""; 0]);
        assert_eq!(found(r#"{"a":1} {"jsonrpc":"2.0","id":1,"result":1} "x""#), [""; 0]);
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":1,"result":"\ud800"}"#), [""; 0]);
        assert_eq!(found(r#"{"x":"he said "{"jsonrpc":"2.0","id":1,"result":1}""}"#), [""; 0]);
    }

    #[test]
    fn a_message_behind_half_a_message_is_taken_unless_it_may_be_a_value_of_it() {
        let message = r#"{"jsonrpc":"2.0","id":2,"result":{"a":"}"}}"#;
        for half in [
            r#"{"jsonrpc":"2.0","id":1,"resu"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"text":"he said {"#,
            r#"{"jsonrpc":"2.0","id":1,"result":[{"a":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"#,
            r#"[{"jsonrpc":"2.0","id":1"#,
            "{",
        ] {
            let line = format!("{half}{message}");
            assert_eq!(messages_of_line(line.as_bytes()), [message.as_bytes(), half.as_bytes()], "{line}");
            assert!(messages_of_line(half.as_bytes()).is_empty(), "{half}");
        }
        for around in [
            r#"{"jsonrpc":"2.0","id":1,"result":"#,
            r#"{"jsonrpc":"2.0","id":1,"result":[1, "#,
            "[",
            "[{},",
            r#"{"a":NaN,"x"#,
        ] {
            let line = format!("{around}{message}");
            assert!(messages_of_line(line.as_bytes()).is_empty(), "{line}");
        }
    }

    #[test]
    fn a_message_behind_an_open_bracket_that_cannot_be_json_is_found() {
        let message = r#"{"jsonrpc":"2.0","id":2,"result":{"a":"}"}}"#;
        let found = |line: &str| -> Vec<String> {
            let owned = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
            messages_of_line(line.as_bytes()).into_iter().map(owned).collect()
        };
        for other in [
            "{INFO: starting ",
            "{ x ",
            "{x: ",
            "{main.go:32 ",
            "{'a':",
            "{'a': 1, ",
            "{{ ",
            "{ thinking { ",
            "{ thinking } { ",
            "{it's \"so ",
        ] {
            for after in ["", " ", " (3 ms)", "\u{1b}[0m", "\0"] {
                assert_eq!(found(&format!("{other}{message}{after}")), [message], "{other}");
            }
            let two = format!("{other}{message} {message}");
            assert_eq!(found(&two), [message, message], "{other}");
        }
        // It begins as JSON does, and is not.
        for other in [
            r#"{"level": info "#,
            r#"{"id":1,"result":NaN, "#,
            r#"{"id":1,"result":[NaN] "#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}}"#,
        ] {
            assert_eq!(found(&format!("{other}{message}")), [message, other], "{other}");
        }
        let answer = "{'jsonrpc':'2.0','id':1,'resu";
        assert_eq!(found(&format!("{answer}{message}")), [message, answer]);
        let values = format!(r#"{{"id":1,"result":[{message},{message}"#);
        assert_eq!(found(&values), [""; 0]);
        assert_eq!(found(&format!("{values} {message}{message}")), [message, message, &format!("{values} ")]);
        // A value may begin there.
        for around in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"a":NaN,"b":"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"a":[NaN, "#,
            r#"{"jsonrpc":"2.0","id":1,"result":"x"}}","b": "#,
            r#"{"a":NaN,"b":"he said "#,
            r#"{"a":1}}"#,
        ] {
            assert_eq!(found(&format!("{around}{message}")), [""; 0], "{around}");
            assert_eq!(
                message_behind_half(format!("{around}{message}").as_bytes()),
                Some(message.as_bytes()),
                "{around}"
            );
        }
        let closed = format!(r#"{{"a":NaN,"b":{message}}}"#);
        assert_eq!((found(&closed), message_behind_half(closed.as_bytes())), (vec![], None));
    }

    #[test]
    fn a_line_without_its_end_can_be_taken_up_to_its_last_message() {
        let message = r#"{"jsonrpc":"2.0","id":2,"result":{"a":"}"}}"#;
        for before in
            ["", "> ", "\u{feff}", "\u{1b}[32m", "[INFO] ", "{x} ", "{ x ", "[x ", "{\"a\":1}} ", message]
        {
            for after in [
                "",
                " ",
                "\0",
                "}",
                ";",
                "\u{1b}[0m",
                "\u{feff}",
                " [x] {\"a\":1}",
                " {\"jsonrpc\":\"2.0\",\"i",
            ] {
                let whole = format!("{before}{message}");
                let line = format!("{whole}{after}");
                let is_closed = after.ends_with('}') && matches!(before, "{ x " | "[x ");
                let expected = (!is_closed).then_some(whole.len());
                assert_eq!(whole_messages(line.as_bytes()), expected, "{line}");
            }
        }
        let array = format!("[ {message}] ");
        assert_eq!(whole_messages(array.as_bytes()), Some(array.len() - 1));
        for none in ["", "{}", "x {} ", "[INFO]", r#"{"a":1} x"#, r#"{"jsonrpc":NaN} "#] {
            assert_eq!(whole_messages(none.as_bytes()), None, "{none}");
        }
        for inside in [r#"{"a":"#, r#"[{"a":["#, "["] {
            assert_eq!(whole_messages(format!("{inside}{message} ").as_bytes()), None, "{inside}");
        }
    }

    #[test]
    fn the_objects_of_an_array_are_found_in_its_order() {
        let found = |text: &'static str| -> Vec<&str> {
            objects_of_array(text.as_bytes()).map(|text| std::str::from_utf8(text).unwrap()).collect()
        };
        assert_eq!(
            found(" [ {\"a\":NaN} ,{\"b\":\"},{\"}\n{}]{} "),
            ["{\"a\":NaN}", "{\"b\":\"},{\"}", "{}"]
        );
        assert_eq!(found("[{},{\"a\":1},"), ["{}", "{\"a\":1}"]);
        assert_eq!(found("[{},{\"a\":[{}"), ["{}", "{\"a\":[{}"]);
        assert_eq!(found("[{},[{}],{}]"), ["{}"]);
        for none in ["", "[", "[]", "[1,{}]", "{}", "x [{}]"] {
            assert_eq!(found(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn a_search_takes_linear_time() {
        // A search that began at each brace or quote again would take hours.
        for unit in ["{", "{\"a\":", "\\\"", "\"", "\\", "{}", "}", "{\"jsonrpc\":"] {
            let line = unit.repeat((4 << 20) / unit.len()) + "}";
            assert_eq!(last_message(line.as_bytes()).map(|_| ()), None, "{unit}");
            assert!(messages_of_line(line.as_bytes()).is_empty(), "{unit}");
            assert_eq!(whole_messages(line.as_bytes()), None, "{unit}");
            assert!(objects_of_array(format!("[{line}").as_bytes()).count() <= line.len(), "{unit}");
        }
        let message = r#"{"jsonrpc":"2.0"}"#;
        for other in ["{x ", r#"{"a":NaN "#, r#"{"a":["#] {
            let count = (4 << 20) / message.len();
            let line = format!("{other}{}", message.repeat(count));
            assert!(messages_of_line(line.as_bytes()).len() >= count - 1, "{other}");
        }
    }

    #[test]
    fn brackets_are_followed_in_pieces_of_any_size() {
        let text = br#"{"a": "}\"]{", "b": [1, {"c": NaN}], "d": "\\"} rest"#;
        let length = text.len() - " rest".len();
        for size in 1..text.len() {
            let (mut brackets, mut before) = (Brackets::default(), 0);
            let end = text.chunks(size).find_map(|piece| {
                let end = brackets.read(piece).map(|end| before + end);
                before += piece.len();
                end
            });
            assert_eq!(end, Some(length), "{size}");
        }
    }
}
