//! The parts of this binding that [`crate::verify`] exports.

use http::HeaderMap;
use rescind_core::MCP_2026_BODIES;

use super::mirror::Mirrors;
use super::mirrored_headers::{self, Message};
use crate::server::checks::HeadFields;

pub(crate) fn fits(headers: &HeaderMap, body: &[u8]) -> bool {
    let versions = [MCP_2026_BODIES.revision.to_owned()];
    Message::read(body, &MCP_2026_BODIES)
        .is_ok_and(|message| message.check(&HeadFields::of(headers), &versions, &Mirrors::default()).is_ok())
}

pub(crate) fn reads_agree(body: &[u8]) -> bool {
    Message::reads_agree(body, &MCP_2026_BODIES)
}

pub(crate) fn mirrored(body: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    Message::read(body, &MCP_2026_BODIES).ok()?.headers(&mut headers, &Mirrors::default());
    let _ = mirrored_headers::status_of(body);
    Some(headers)
}

pub(crate) fn encode_name(name: &str) -> String {
    mirrored_headers::encode(name)
}

pub(crate) fn decode_name(value: &str) -> Option<String> {
    mirrored_headers::decode(value).map(std::borrow::Cow::into_owned)
}
