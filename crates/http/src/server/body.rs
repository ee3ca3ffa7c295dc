//! Reading a request's body within a bound of bytes and of time.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use http_body_util::combinators::UnsyncBoxBody;

use super::refusal::Refused;
use crate::whole::{NotWhole, whole};

/// A request's body, whichever server it came through.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Refuses a length over the limit before a byte is read. HTTP/1.1 must say how its body ends.
pub(crate) fn check_length(version: Version, headers: &HeaderMap, limit: usize) -> Result<(), Refused> {
    let length = headers.get(CONTENT_LENGTH);
    if length.is_none() && version < Version::HTTP_2 && !headers.contains_key(TRANSFER_ENCODING) {
        return Err(Refused::length_required());
    }
    let length = length.and_then(|length| length.to_str().ok()).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit.try_into().unwrap_or(u64::MAX)) {
        return Err(Refused::too_large(limit));
    }
    Ok(())
}

/// Reads the whole body.
pub(crate) async fn read(body: RequestBody, limit: usize, within: Duration) -> Result<Bytes, Refused> {
    match tokio::time::timeout(within, whole(body, limit)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(NotWhole::TooLarge)) => Err(Refused::too_large(limit)),
        Ok(Err(NotWhole::Broken(_))) => Err(Refused::bad("the body broke off")),
        Err(_) => Err(Refused::body_too_slow()),
    }
}
