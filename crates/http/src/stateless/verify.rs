//! What [`crate::verify`] shows of this binding.

use http::HeaderMap;

use super::envelope::{self, Envelope, VERSION};
use super::mirror::Mirrors;

pub(crate) fn fits(headers: &HeaderMap, body: &[u8]) -> bool {
    let versions = [VERSION.to_owned()];
    Envelope::read(body).is_ok_and(|message| message.check(headers, &versions, &Mirrors::default()).is_ok())
}

pub(crate) fn mirrored(body: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    Envelope::read(body).ok()?.headers(&mut headers, &Mirrors::default());
    let _ = envelope::status_of(body);
    Some(headers)
}

pub(crate) fn encode_name(name: &str) -> String {
    envelope::encode(name)
}

pub(crate) fn decode_name(value: &str) -> Option<String> {
    envelope::decode(value).map(std::borrow::Cow::into_owned)
}
