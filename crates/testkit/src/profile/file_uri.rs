//! The URI of a file (RFC 8089).

use std::fmt::Write as _;
use std::path::Path;

/// The `file:` URI of an absolute path. Bytes other than letters, digits, `-._~` and separators are percent-encoded.
pub(super) fn file_uri(path: &Path) -> String {
    uri(&bytes(path))
}

#[cfg(unix)]
fn bytes(path: &Path) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec()
}

/// Windows' separators become those of URIs: `C:\a` is `/C:/a`, and `\\server\a` is `//server/a`.
#[cfg(not(unix))]
fn bytes(path: &Path) -> Vec<u8> {
    with_slashes(&path.to_string_lossy()).into_bytes()
}

#[cfg(any(not(unix), test))]
fn with_slashes(path: &str) -> String {
    let plain = match path.strip_prefix(r"\\?\UNC\") {
        Some(share) => format!(r"\\{share}"),
        None => path.strip_prefix(r"\\?\").unwrap_or(path).to_owned(),
    };
    let slashed = plain.replace('\\', "/");
    if slashed.starts_with('/') { slashed } else { format!("/{slashed}") }
}

fn uri(path: &[u8]) -> String {
    // A share of Windows has two separators, and its first part is the host.
    let path = path.strip_prefix(b"//").unwrap_or(path);
    let mut uri = "file://".to_owned();
    let has_drive = matches!(path, [b'/', letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    for (at, byte) in path.iter().enumerate() {
        let is_drive = has_drive && at == 2;
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) || is_drive {
            uri.push(char::from(*byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_encodes_what_is_not_plain() {
        for (path, expected) in [
            ("/home/me/big.py", "file:///home/me/big.py"),
            ("/a b/50%/c#d?e.py", "file:///a%20b/50%25/c%23d%3Fe.py"),
            ("/é/日.py", "file:///%C3%A9/%E6%97%A5.py"),
            ("/a:b/[x]+(y)&z=1,'~-_.py", "file:///a%3Ab/%5Bx%5D%2B%28y%29%26z%3D1%2C%27~-_.py"),
            ("/", "file:///"),
        ] {
            assert_eq!(uri(path.as_bytes()), expected);
        }
    }

    #[test]
    fn a_path_of_windows_keeps_its_drive_or_its_server() {
        for (path, expected) in [
            (r"C:\a b\c.py", "file:///C:/a%20b/c.py"),
            (r"\\?\C:\a\c.py", "file:///C:/a/c.py"),
            (r"\\server\share\c.py", "file://server/share/c.py"),
            (r"\\?\UNC\server\share\c.py", "file://server/share/c.py"),
        ] {
            assert_eq!(uri(with_slashes(path).as_bytes()), expected);
        }
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_not_utf_8_are_encoded_as_they_are() {
        let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"/a\xff");
        assert_eq!(file_uri(Path::new(path)), "file:///a%FF");
    }
}
