//! The members of an object in a text that is not JSON, as far as they are certain.
//!
//! An answer that cannot be read still ends the call that it names. Most of what programs write instead of JSON keeps the
//! structure: `NaN`, a raw control character, bytes that are not UTF-8. There every member of the outermost object is
//! found. Where the structure is broken, only the members before the fault are.

/// The deepest nesting that is followed.
const MAX_DEPTH: usize = 4096;

/// Calls `member` with the name and the value of each member of the outermost object that is certain. `fault` is the
/// place of the first byte that is not JSON. Names and values are bytes as they were sent.
pub(crate) fn members<'a>(text: &'a [u8], fault: usize, mut member: impl FnMut(&'a [u8], &'a [u8])) {
    let mut found = Vec::new();
    let is_intact = walk(text, &mut found).is_some();
    for (name, value, end) in found {
        // A scalar that ends at the fault may go on after it.
        if is_intact || end < fault {
            member(name, value);
        }
    }
}

type Found<'a> = Vec<(&'a [u8], &'a [u8], usize)>;

/// Walks over an object in which any run of bytes may be a value. `None`: its structure is broken.
fn walk<'a>(text: &'a [u8], found: &mut Found<'a>) -> Option<()> {
    // The objects and arrays around the place: whether each is an object.
    let mut levels = Vec::new();
    let (mut name, mut start): (&[u8], usize) = (b"", 0);
    let mut at = skip_space(text, 0);
    if text.get(at)? != &b'{' {
        return None;
    }
    loop {
        at = match text.get(at)? {
            bracket @ (b'{' | b'[') => {
                let is_object = *bracket == b'{';
                levels.push(is_object);
                if levels.len() > MAX_DEPTH {
                    return None;
                }
                at = skip_space(text, at + 1);
                match text.get(at)? {
                    b'}' | b']' => {}
                    _ if is_object => {
                        let (next, value) = read_name(text, at)?;
                        at = value;
                        if levels.len() == 1 {
                            (name, start) = (next, value);
                        }
                        continue;
                    }
                    _ => continue,
                }
                at
            }
            b'"' | b'\'' => skip_string(text, at)?,
            _ => skip_scalar(text, at)?,
        };
        loop {
            at = skip_space(text, at);
            let is_object = *levels.last()?;
            // The value of a member, or an empty object or array, has ended before this byte.
            match text.get(at)? {
                b',' => {
                    note(found, &levels, text, name, start, at);
                    if levels.len() == 1 {
                        start = 0;
                    }
                    at = skip_space(text, at + 1);
                    // A comma after the last one.
                    if let Some(b'}' | b']') = text.get(at) {
                        continue;
                    }
                    if is_object {
                        let (next, value) = read_name(text, at)?;
                        at = value;
                        if levels.len() == 1 {
                            (name, start) = (next, value);
                        }
                    }
                    break;
                }
                close @ (b'}' | b']') if (*close == b'}') == is_object => {
                    note(found, &levels, text, name, start, at);
                    levels.pop();
                    at += 1;
                    if levels.is_empty() {
                        return (skip_space(text, at) == text.len()).then_some(());
                    }
                }
                _ => return None,
            }
        }
    }
}

/// Keeps a member of the outermost object.
fn note<'a>(
    found: &mut Found<'a>,
    levels: &[bool],
    text: &'a [u8],
    name: &'a [u8],
    start: usize,
    end: usize,
) {
    if levels.len() == 1 && start > 0 {
        if let Some(value) = text.get(start..end) {
            found.push((name, value.trim_ascii_end(), end));
        }
    }
}

/// The name without its quotes, and the place of its value.
fn read_name(text: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let end = skip_string(text, at)?;
    let colon = skip_space(text, end);
    if text.get(colon)? != &b':' {
        return None;
    }
    Some((text.get(at + 1..end - 1)?, skip_space(text, colon + 1)))
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// `at` is the place of a quote of either kind.
fn skip_string(text: &[u8], at: usize) -> Option<usize> {
    let quote = *text.get(at).filter(|quote| matches!(quote, b'"' | b'\''))?;
    let mut at = at + 1;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            byte if *byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// A run of bytes that have no meaning in the structure.
fn skip_scalar(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let end = rest.iter().position(|byte| {
        matches!(byte, b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"' | b' ' | b'\t' | b'\n' | b'\r')
    })?;
    (end > 0).then_some(at + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, fault: usize) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let owned = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        members(text.as_bytes(), fault, |name, value| found.push((owned(name), owned(value))));
        found
    }

    fn id(text: &str) -> Option<String> {
        let fault = serde_json::from_str::<serde::de::IgnoredAny>(text).unwrap_err().column();
        read(text, fault).into_iter().find(|(name, _)| name == "id").map(|(_, value)| value)
    }

    #[test]
    fn members_are_found_around_values_that_are_not_json() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN}}"#,
            r#"{"jsonrpc":"2.0","result":{"x":[1,-Infinity,{}],"y":[]},"id":7}"#,
            r#"{"result":{"x":0x1f,"y":01,"id":8,"z":{"id":9}}, "id" : 7 }"#,
            "{\"result\":\"a raw\nline\",\"id\":7}",
            r#"{"result":"\x41","id":7}"#,
            r"{'jsonrpc':'2.0','id':7,'result':None}",
            r#"{"id":7,"result":[1,{"a":2,},],}"#,
        ] {
            assert_eq!(id(text).as_deref(), Some("7"), "{text}");
        }
    }

    #[test]
    fn of_a_broken_text_only_the_members_before_the_fault_are_certain() {
        for text in [
            r#"{"id":7,"result":{"text":"he said "hi", "id": 3}"}}"#,
            r#"{"id":7,"result":{"text":"cut"#,
            r#"{"id":7,"result":[1,2"#,
            r#"{"id":7,"result":{]},"id":3}"#,
            r#"{"id":7,"result":1}}"#,
        ] {
            assert_eq!(id(text).as_deref(), Some("7"), "{text}");
        }
        for text in [
            r#"{"result":{"text":"he said "hi"},"id":3,"x":"}"#,
            r#"{"result":{"x":1,"id":3"#,
            r#"{"id":7"#,
            r#"{"id":"#,
            r#"["id",7"#,
            r#"{"result":]"id":7}"#,
            "{",
            "",
        ] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_walked_over() {
        let whole = br#"{"id":7,"result":{"a":[1,"b\"",{}],"c":NaN}}"#;
        for at in 0..whole.len() {
            for byte in [0, b'"', b'{', b'}', b'[', b']', b',', b':', b'\\', 0xff] {
                let mut text = whole.to_vec();
                text[at] = byte;
                for cut in [text.len(), at + 1] {
                    members(&text[..cut], at, |_, _| ());
                }
            }
        }
        let deep = [&b"{\"id\":7,\"x\":"[..], &b"[".repeat(1 << 20)].concat();
        let mut found = 0;
        members(&deep, deep.len(), |_, _| found += 1);
        assert_eq!(found, 1);
    }
}
