//! The checks of host, media types and `Accept`, before a body is read.

use http::header::{ACCEPT, CONTENT_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};
use rescind_core::{HostPolicy, HostRefusal, RequestHost};

use super::head_fields::{Field, HeadFields};
use super::refusal::Refused;
use crate::headers::{BOTH, EVENT_STREAM, JSON};

/// Refuses a host that this server does not serve (DNS rebinding): 400 unless exactly one valid host is named, else
/// 421.
pub(crate) fn host<'a>(
    uri: &'a Uri,
    fields: &HeadFields<'a>,
    policy: &HostPolicy,
) -> Result<RequestHost<'a>, Refused> {
    let target = uri.authority().map(Authority::as_str);
    let host = match fields.host {
        Field::Several(_) => Err(HostRefusal::Several),
        Field::Absent | Field::Once(_) => {
            policy.check(target, fields.host.first().map(HeaderValue::as_bytes))
        }
    };
    host.map_err(|why| match why {
        HostRefusal::Missing | HostRefusal::Several | HostRefusal::Malformed => Refused::bad(why.to_string()),
        HostRefusal::NotServed => Refused::misdirected(policy.advice()),
    })
}

/// Refuses an encoded body: 415.
pub(crate) fn content_encoding(fields: &HeadFields<'_>) -> Result<(), Refused> {
    if fields.content_encoding.is_absent() {
        return Ok(());
    }
    let values = fields.headers.get_all(CONTENT_ENCODING).into_iter();
    let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let is_plain = |coding: &[u8]| {
        let coding = coding.trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    };
    if codings.all(is_plain) { Ok(()) } else { Err(Refused::encoded()) }
}

/// Refuses a body that is not JSON in UTF-8: 415.
pub(crate) fn content_type(fields: &HeadFields<'_>) -> Result<(), Refused> {
    let Field::Once(value) = fields.content_type else { return Err(Refused::media_type()) };
    if value.as_bytes() == JSON.as_bytes() {
        return Ok(());
    }
    let mut parts = value.to_str().unwrap_or_default().split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(JSON));
    let is_utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        Some(_) | None => true,
    });
    if is_json && is_utf8 { Ok(()) } else { Err(Refused::media_type()) }
}

/// Refuses a client that does not accept both JSON and event streams: 406.
pub(crate) fn accepts_both(fields: &HeadFields<'_>) -> Result<(), Refused> {
    let is_usual = fields.accept.first().is_some_and(|value| value.as_bytes() == BOTH.as_bytes());
    if is_usual || (accepts(fields.headers, JSON) && accepts(fields.headers, EVENT_STREAM)) {
        return Ok(());
    }
    Err(Refused::not_acceptable("Accept must list application/json and text/event-stream"))
}

/// Refuses a client that does not accept event streams: 406.
pub(crate) fn accepts_events(fields: &HeadFields<'_>) -> Result<(), Refused> {
    if accepts(fields.headers, EVENT_STREAM) {
        return Ok(());
    }
    Err(Refused::not_acceptable("Accept must list text/event-stream"))
}

/// Whether a media type is listed in `Accept`, by name or by range, and not with a weight of zero.
pub(crate) fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let group = media.split('/').next().unwrap_or_default();
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let named = name == "*/*"
                || name.eq_ignore_ascii_case(media)
                || name.split_once('/').is_some_and(|(of, any)| any == "*" && of.eq_ignore_ascii_case(group));
            named && !parts.any(is_zero_weight)
        })
}

fn is_zero_weight(parameter: &str) -> bool {
    let Some((name, weight)) = parameter.split_once('=') else { return false };
    name.trim().eq_ignore_ascii_case("q") && weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use http::header::CONTENT_TYPE;

    use super::*;

    fn with(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_body_is_json_in_utf8_or_refused() {
        for (value, passes) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"", true),
            ("application/json; charset=latin1", false),
            ("application/jsonx", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(content_type(&HeadFields::of(&with(CONTENT_TYPE, value))).is_ok(), passes, "{value}");
        }
        let mut two = with(CONTENT_TYPE, JSON);
        two.append(CONTENT_TYPE, HeaderValue::from_static(JSON));
        assert!(content_type(&HeadFields::of(&two)).is_err(), "one is meant");
    }

    #[test]
    fn accept_lists_both_or_is_refused() {
        for (value, both, events) in [
            ("application/json, text/event-stream", true, true),
            ("text/event-stream;q=0.5 , application/json;q=1", true, true),
            ("*/*", true, true),
            ("application/*, text/*", true, true),
            ("application/json", false, false),
            ("text/event-stream", false, true),
            ("application/json, text/event-stream;q=0", false, false),
        ] {
            let headers = with(ACCEPT, value);
            let fields = HeadFields::of(&headers);
            assert_eq!(accepts_both(&fields).is_ok(), both, "{value}");
            assert_eq!(accepts_events(&fields).is_ok(), events, "{value}");
        }
    }
}
