//! The error of a response that does not answer its request.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::response::Parts;
use http_body_util::BodyExt as _;
use rescind_core::{TransportError, TransportErrorKind};

use super::location::retry_after;
use super::{Failed, ResponseBody};

/// A longer text is not a media type, and would hide the rest of the message.
const LONGEST: usize = 100;
/// The most bytes of a body that an error shows.
const EXCERPT: usize = 200;
/// How long the body of a response that is not an answer is read.
const READING: Duration = Duration::from_secs(1);

/// The address that a response came from, if its request was redirected. An extension of the response.
#[derive(Clone, Debug)]
pub(super) struct RedirectedTo {
    pub(super) address: String,
    pub(super) is_other_origin: bool,
}

/// Whether the response came from another server than the one that the client was given.
pub(crate) fn is_of_another_origin(extensions: &http::Extensions) -> bool {
    extensions.get::<RedirectedTo>().is_some_and(|to| to.is_other_origin)
}

/// Names the status and the media type of the body, the address, and what the body begins with. The address is the one
/// that was asked first.
pub(crate) fn refusal(head: &Parts, address: &str, body: &[u8]) -> String {
    let (status, headers) = (head.status, &head.headers);
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    let media = media.get(..LONGEST).unwrap_or(media);
    let mut text = match (status.is_success(), media) {
        (true, "") => format!("the server answered with {status} and no message"),
        (true, media) => {
            format!("the server answered with {status} and {media}, which does not answer the request")
        }
        (false, "") => format!("the server answered with {status}"),
        (false, media) => format!("the server answered with {status} and {media}"),
    };
    if let Some(wait) = retry_after(headers) {
        let _ = write!(text, ", to be asked again after {} s", wait.as_secs());
    }
    let redirected = head.extensions.get::<RedirectedTo>();
    let _ = write!(text, " ({})", redirected.map_or(address, |to| &to.address));
    if redirected.is_some_and(|to| to.is_other_origin) && status == http::StatusCode::UNAUTHORIZED {
        text.push_str(", to which no credentials are sent, because it is not the server that they are for");
    }
    push_excerpt(&mut text, body);
    text
}

/// The error of a stream that ended without the answer. `sent` is the last event that was dropped.
pub(crate) fn stream_refusal(head: &Parts, address: &str, sent: &[u8]) -> String {
    let to = head.extensions.get::<RedirectedTo>().map_or(address, |to| &to.address);
    let mut text = format!("the event stream ended without the answer ({} from {to})", head.status);
    push_excerpt(&mut text, sent);
    text
}

/// The error of a body that is compressed, although the client asked for none of that. `None`: it is not.
pub(crate) fn encoded(head: &Parts, address: impl FnOnce() -> String) -> Option<Failed> {
    let encoding = encoding_of(&head.headers)?;
    let to = head.extensions.get::<RedirectedTo>().map_or_else(address, |to| to.address.clone());
    let encoding = rescind_core::LogText::name(encoding);
    let status = head.status;
    let text = format!(
        "the server answered with {status} and Content-Encoding: {encoding} ({to}), although the client accepts only identity"
    );
    Some(Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) })
}

/// The encoding of a body that is not as it is. `None`: it is.
pub(crate) fn encoding_of(headers: &HeaderMap) -> Option<String> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter();
    let named = encodings.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned());
    named.into_iter().find(|value| !value.is_empty() && !value.eq_ignore_ascii_case("identity"))
}

/// The error of a response that broke off after this part of its body.
pub(crate) fn cut(head: &Parts, address: &str, cause: &hyper::Error, body: &[u8]) -> Failed {
    let to = head.extensions.get::<RedirectedTo>().map_or(address, |to| &to.address);
    let cause = std::error::Error::source(cause)
        .map_or_else(|| cause.to_string(), |source| format!("{cause}: {source}"));
    let mut text =
        format!("the response with {} broke off after {} bytes ({to}), {cause}", head.status, body.len());
    push_excerpt(&mut text, body);
    Failed { sent: true, error: TransportError::new(TransportErrorKind::Io, text) }
}

/// Adds the beginning of a body, on one line.
fn push_excerpt(text: &mut String, body: &[u8]) {
    let Some(shown) = body.get(..EXCERPT.min(body.len())).filter(|shown| !shown.is_empty()) else { return };
    text.push_str(": ");
    // A character that is cut in two is not shown.
    let shown = match std::str::from_utf8(shown) {
        Err(error) if error.error_len().is_none() => shown.get(..error.valid_up_to()).unwrap_or(shown),
        _ => shown,
    };
    for character in String::from_utf8_lossy(shown).chars() {
        if matches!(character, ' '..='~') || character.is_alphanumeric() {
            text.push(character);
        } else {
            text.extend(character.escape_default());
        }
    }
    if body.len() > EXCERPT {
        text.push_str("...");
    }
}

/// Reads the body of a response that may not be a message: up to `limit` bytes, and not for long. Returns what came, and
/// whether it is the whole body.
pub(crate) async fn beginning(mut body: ResponseBody, limit: usize) -> (Bytes, bool) {
    let (mut read, mut is_whole) = (BytesMut::new(), false);
    let reading = async {
        loop {
            match body.frame().await {
                None => break is_whole = true,
                Some(Err(_)) => break,
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    if read.len() + data.len() > limit {
                        read.extend_from_slice(data.get(..limit - read.len()).unwrap_or_default());
                        break;
                    }
                    read.extend_from_slice(&data);
                }
            }
        }
    };
    // If the time ends, what has come is enough.
    let _late = tokio::time::timeout(READING, reading).await;
    (read.freeze(), is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &'static str)]) -> Parts {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap().into_parts().0
    }

    #[test]
    fn an_error_has_the_status_the_address_and_the_beginning_of_the_body() {
        let json = head(200, &[("content-type", "application/json; charset=utf-8")]);
        assert_eq!(
            refusal(&json, "http://host/mcp", br#"{"detail":"Not authenticated"}"#),
            "the server answered with 200 OK and application/json, which does not answer the request \
             (http://host/mcp): {\"detail\":\"Not authenticated\"}"
        );
        let late = head(503, &[("retry-after", "120")]);
        assert_eq!(
            refusal(&late, "http://host/mcp", b""),
            "the server answered with 503 Service Unavailable, to be asked again after 120 s (http://host/mcp)"
        );
        let long =
            refusal(&head(500, &[]), "x", &[b"<\n\x1b[2J\xff".as_slice(), &b"x".repeat(1 << 20)].concat());
        assert!(
            long.contains(r"<\n\u{1b}[2J\u{fffd}xxx") && long.ends_with("x...") && long.len() < 300,
            "{long}"
        );
        let split = refusal(&head(500, &[]), "x", &[b"x", "é".repeat(100).as_bytes()].concat());
        assert!(split.ends_with("éé..."), "{split}");
    }

    #[test]
    fn an_encoding_is_named() {
        for encoding in ["identity", "", "Identity"] {
            let head = head(200, &[("content-encoding", encoding)]);
            assert!(encoded(&head, || "x".to_owned()).is_none(), "{encoding}");
        }
        let failed =
            encoded(&head(200, &[("content-encoding", "identity"), ("content-encoding", "gzip")]), || {
                "x".to_owned()
            });
        assert!(failed.unwrap().error.source.to_string().contains("Content-Encoding: gzip (x)"));
    }
}
