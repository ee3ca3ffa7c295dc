//! The error text for a response that does not answer its request.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

/// A longer text is not a media type, and would hide the rest of the message.
const LONGEST: usize = 100;

/// Names the status and the media type of the body.
pub(crate) fn refusal(status: StatusCode, headers: &HeaderMap) -> String {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    let media = media.get(..LONGEST).unwrap_or(media);
    match (status.is_success(), media) {
        (true, "") => format!("the server answered with {status} and no message"),
        (true, media) => {
            format!("the server answered with {status} and {media}, which does not answer the request")
        }
        (false, "") => format!("the server answered with {status}"),
        (false, media) => format!("the server answered with {status} and {media}"),
    }
}
