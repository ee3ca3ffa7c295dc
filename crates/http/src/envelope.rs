//! Reading some members of an object.

use serde::Deserialize;

/// What an object says; `None`: it is no object, or not of this shape. An array is none: read as a struct it would give its
/// values to the members, in their order.
pub(crate) fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    is_object(json).then(|| serde_json::from_slice(json).ok()).flatten()
}

/// Whether what is JSON is an object.
pub(crate) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().starts_with(b"{")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Shape {
        id: u64,
        method: String,
    }

    #[test]
    fn an_array_is_no_object() {
        let shape = Shape { id: 1, method: "m".to_owned() };
        assert_eq!(object(br#" {"method":"m","id":1}"#), Some(shape));
        for text in [r#"[1,"m"]"#, "[]", " [1]", "1", "", "{"] {
            assert_eq!(object::<Shape>(text.as_bytes()), None, "{text}");
        }
    }
}
