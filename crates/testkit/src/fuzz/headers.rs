//! The head of a request and what is read of its body before it is handed on.

use std::net::{IpAddr, Ipv6Addr};

use rescind_http::verify::{Asked, decode_name, encode_name};
use serde_json::Value;

/// A target, lines of headers, an empty line, a body.
pub(super) fn check(data: &[u8]) {
    let Some((target, fields, body)) = parts(data) else { return };
    let Some(asked) = Asked::new(target, &fields, body) else { return };
    let of = |name: &str| -> Vec<&[u8]> {
        let own = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        own.map(|(_, value)| *value).collect()
    };
    let host = asked.authority().map(str::as_bytes).or_else(|| of("host").first().copied());
    let host = host.and_then(|host| std::str::from_utf8(host).ok());
    if asked.is_for_us() {
        assert!(host.is_some_and(is_loopback), "{host:?} is taken for this machine");
        assert!(of("host").len() <= 1, "two hosts pass");
    }
    if asked.is_for_an_address() {
        assert!(
            host.is_some_and(|host| is_loopback(host) || address(host).is_some()),
            "{host:?} is no address"
        );
    }
    if asked.origin_passes() {
        check_origin(&of("origin"), host);
    }
    if asked.says_json() {
        let types = of("content-type");
        let first = types.first().map(|value| value.to_ascii_lowercase()).unwrap_or_default();
        assert!(types.len() == 1 && first.trim_ascii().starts_with(b"application/json"), "{types:?} is JSON");
    }
    let (both, events) = asked.accepts();
    assert!(!both || events, "what takes both takes event streams");
    assert!(!events || !of("accept").is_empty(), "nothing was said");
    check_body(&asked, body);
    if let Ok(name) = std::str::from_utf8(body) {
        let value = encode_name(name);
        assert!(value.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{value:?} fits no header");
        assert_eq!(decode_name(&value).as_deref(), Some(name), "a name does not come back");
        let _ = decode_name(name);
    }
}

/// The target, the fields and the body.
type Parts<'a> = (&'a str, Vec<(&'a str, &'a [u8])>, &'a [u8]);

fn parts(data: &[u8]) -> Option<Parts<'_>> {
    let line = |rest: &[u8]| rest.iter().position(|byte| *byte == b'\n');
    let (target, mut rest) = data.split_at(line(data)?);
    let mut fields = Vec::new();
    loop {
        rest = rest.get(1..)?;
        let (field, after) = rest.split_at(line(rest).unwrap_or(rest.len()));
        if field.is_empty() {
            return Some((std::str::from_utf8(target).ok()?, fields, after.get(1..).unwrap_or_default()));
        }
        let (name, value) = field.split_at(field.iter().position(|byte| *byte == b':')?);
        fields.push((std::str::from_utf8(name).ok()?, value.get(1..).unwrap_or_default().trim_ascii()));
        rest = after;
    }
}

/// The name before a port of digits, without the brackets of an IPv6 address; `None`: it is nothing of the kind.
fn name(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (address, port) = inner.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    is_port.then_some(name)
}

fn address(authority: &str) -> Option<IpAddr> {
    name(authority)?.parse().ok()
}

fn is_loopback(authority: &str) -> bool {
    name(authority).is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
        || address(authority).is_some_and(|address| address.to_canonical().is_loopback())
}

fn check_origin(origins: &[&[u8]], host: Option<&str>) {
    let origin = match origins {
        [] => return,
        [origin] => std::str::from_utf8(origin).unwrap_or_default(),
        _ => panic!("two origins pass"),
    };
    let Some((scheme, authority)) = origin.split_once("://") else { panic!("{origin:?} is no origin") };
    assert!(matches!(scheme, "http" | "https"), "{origin:?} is no page's");
    let is_own = host.is_some_and(|host| host.eq_ignore_ascii_case(authority));
    assert!(is_own || is_loopback(authority), "{origin:?} is taken for a page of this machine");
}

/// What a binding reads of a body, it reads out of an object, and finds there.
fn check_body(asked: &Asked, body: &[u8]) {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let has = |name: &str| value.as_ref().is_none_or(|value| value.get(name).is_some());
    let peeked = asked.peeked();
    if peeked.opens || peeked.asks {
        assert!(has("id") && (has("method") || has("type")), "{peeked:?} of no request");
    }
    assert!(!peeked.opens || peeked.asks, "what opens a session asks for something");
    assert!(!peeked.answers_one || peeked.answers, "{peeked:?}");
    if peeked.answers {
        assert!(has("result") || has("error") || has("type"), "{peeked:?} of no answer");
    }
    if let Some(peeked) = asked.acp() {
        assert!(!peeked.opens || peeked.is_request, "{peeked:?}");
        assert!(!(peeked.is_request && peeked.is_answer), "{peeked:?}");
        assert!(!peeked.is_request || (has("id") && has("method")), "{peeked:?} of no request");
        if let (Some(session), Some(value)) = (&peeked.session, &value) {
            let named = value.get("params").and_then(|params| params.get("sessionId"));
            assert_eq!(named.and_then(Value::as_str), Some(session.as_str()), "the session");
        }
    }
    let fits = asked.headers_fit();
    assert!(!fits || (has("method") && has("jsonrpc")), "headers that fit what is no message");
    // The headers a client makes for a message are never what its server refuses.
    if let Some(mirrored) = asked.mirrored().filter(|_| fits) {
        assert!(mirrored.headers_fit(), "the headers made for a message do not fit it");
    }
}
