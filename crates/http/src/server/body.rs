//! Reading a request's body within a bound of bytes and of time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use super::refusal::Refused;

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

/// Reads the whole body. Memory is bounded by the limit, whatever the length that was claimed.
pub(crate) async fn read(mut body: RequestBody, limit: usize, within: Duration) -> Result<Bytes, Refused> {
    let read = async {
        let mut whole = BytesMut::new();
        let mut first = Bytes::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refused::bad("the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if first.len() + whole.len() + data.len() > limit {
                return Err(Refused::too_large(limit));
            }
            if first.is_empty() && whole.is_empty() {
                first = data;
                if body.is_end_stream() {
                    break;
                }
            } else {
                if whole.is_empty() {
                    whole.extend_from_slice(&std::mem::take(&mut first));
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok(if whole.is_empty() { first } else { whole.freeze() })
    };
    tokio::time::timeout(within, read).await.unwrap_or_else(|_| Err(Refused::body_too_slow()))
}
