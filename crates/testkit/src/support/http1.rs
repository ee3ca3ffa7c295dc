//! Requests and responses of HTTP/1.1, written and read by hand.

use std::fmt::Write as _;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::in_time;

/// A request with these headers, with `Host` if it is not among them, and with the length of its body.
#[must_use]
pub fn request(method: &str, target: &str, host: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if headers.iter().all(|(name, _)| *name != "Host") {
        let _ = write!(text, "Host: {host}\r\n");
    }
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
    text
}

/// Reads the head of a response and no byte behind it. It is shorter if the connection ends.
///
/// # Panics
/// If it does not come in time.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match in_time("a head", stream.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Reads until this text is there, and what comes with it.
///
/// # Panics
/// If the connection ends before, or the text does not come in time.
pub async fn read_until(stream: &mut (impl AsyncRead + Unpin), wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 1024];
    while !text.contains(wanted) {
        let count = in_time(wanted, stream.read(&mut buffer)).await.unwrap_or(0);
        assert!(count > 0, "it ended before `{wanted}`: {text}");
        text.push_str(&String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()));
    }
    text
}

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its head, in lower case.
    pub head: String,
    /// Its body, as it was sent.
    pub body: String,
}

impl Response {
    /// The JSON object in its body, which may be the data of an event.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn json(&self) -> Value {
        let ends = self.body.find('{').zip(self.body.rfind('}'));
        let json = ends.and_then(|(start, end)| serde_json::from_str(self.body.get(start..=end)?).ok());
        json.unwrap_or_else(|| panic!("no JSON: {}", self.body))
    }
}

/// Reads a response to the end of its connection.
///
/// # Panics
/// If it is no response, or does not end in time.
pub async fn read_response(stream: &mut (impl AsyncRead + Unpin)) -> Response {
    let head = read_head(stream).await.to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no response: {head}"));
    let mut body = String::new();
    let read = in_time("the response", stream.read_to_string(&mut body)).await;
    assert!(read.is_ok(), "{read:?} after {body}");
    Response { status, head, body }
}
