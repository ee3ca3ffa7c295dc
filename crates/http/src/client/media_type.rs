//! The media type of a response.

use http::HeaderValue;

use crate::headers::{EVENT_STREAM, JSON};

/// The media types that the bindings know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// One message.
    Json,
    /// A stream of messages.
    Events,
    /// Anything else.
    Other,
}

/// The media type that a `Content-Type` names. Parameters are ignored.
pub(crate) fn media_of(value: &HeaderValue) -> Media {
    // The spelling that nearly all servers use.
    match value.as_bytes() {
        usual if usual == JSON.as_bytes() => return Media::Json,
        usual if usual == EVENT_STREAM.as_bytes() => return Media::Events,
        _ => {}
    }
    let media = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case(JSON) {
        Media::Json
    } else if media.eq_ignore_ascii_case(EVENT_STREAM) {
        Media::Events
    } else {
        Media::Other
    }
}
