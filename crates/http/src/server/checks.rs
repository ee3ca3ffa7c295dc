//! Who may ask, for which host, in which form: looked at before a body is read.

use std::net::{IpAddr, Ipv6Addr};

use http::header::{ACCEPT, CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, Uri};

use super::refusal::Refused;
use crate::names::{BOTH, EVENT_STREAM, JSON};

/// Which names may be used.
#[derive(Clone, Debug, Default)]
pub(crate) enum Names {
    /// The loopback ones alone.
    #[default]
    Loopback,
    /// The loopback ones, and these, in lower case.
    Also(Vec<String>),
    /// Any.
    Any,
}

impl Names {
    pub(crate) fn add(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        match self {
            Self::Loopback => *self = Self::Also(vec![name]),
            Self::Also(names) => names.push(name),
            Self::Any => {}
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Loopback => false,
            Self::Also(names) => names.iter().any(|known| known.eq_ignore_ascii_case(name)),
            Self::Any => true,
        }
    }
}

/// The hosts a server goes by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    pub(crate) names: Names,
    others: Others,
}

/// What holds for a host that is not listed.
#[derive(Clone, Copy, Debug, Default)]
enum Others {
    /// None but loopback.
    #[default]
    Refused,
    /// Any address is a host: no name can be led to one that is spelled out.
    Addresses,
}

impl Hosts {
    /// The server listens on this address: beyond loopback it has addresses it cannot know.
    pub(crate) fn bound_to(&mut self, address: IpAddr) {
        if !address.to_canonical().is_loopback() {
            self.others = Others::Addresses;
        }
    }

    fn has(&self, authority: &str) -> bool {
        let Some(name) = without_port(authority) else { return false };
        let by_kind = match self.others {
            Others::Refused => false,
            Others::Addresses => name.parse::<IpAddr>().is_ok(),
        };
        by_kind || is_loopback(name) || self.names.has(name) || self.names.has(authority)
    }
}

/// Refuses a host this server is not (DNS rebinding): 400 without a host, else 421.
pub(crate) fn host(uri: &Uri, headers: &HeaderMap, allowed: &Hosts) -> Result<(), Refused> {
    let mut values = headers.get_all(HOST).iter();
    let value = match (uri.authority(), values.next()) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(value)) => value.to_str().map_err(|_| Refused::bad("the Host is unreadable"))?,
        (None, None) => return Err(Refused::bad("a Host is required")),
    };
    if values.next().is_some() {
        return Err(Refused::bad("there is more than one Host"));
    }
    if allowed.has(value) { Ok(()) } else { Err(Refused::misdirected()) }
}

/// Refuses a browser's page of another origin: 403. What is no browser sends no Origin. An origin that is the host
/// itself, which was checked before, passes.
pub(crate) fn origin(uri: &Uri, headers: &HeaderMap, allowed: &Names) -> Result<(), Refused> {
    let mut values = headers.get_all(ORIGIN).iter();
    let Some(value) = values.next() else { return Ok(()) };
    if matches!(allowed, Names::Any) {
        return Ok(());
    }
    let Ok(value) = value.to_str() else { return Err(Refused::origin()) };
    let Some((scheme, authority)) = value.split_once("://") else { return Err(Refused::origin()) };
    let own = uri.authority().map(http::uri::Authority::as_str);
    let own = own.or_else(|| headers.get(HOST).and_then(|host| host.to_str().ok()));
    let is_page = matches!(scheme, "http" | "https");
    let is_own = is_page && own.is_some_and(|own| own.eq_ignore_ascii_case(authority));
    let is_near = is_page && without_port(authority).is_some_and(is_loopback);
    if values.next().is_none() && (is_own || is_near || allowed.has(value)) {
        return Ok(());
    }
    Err(Refused::origin())
}

/// Refuses a body that is not JSON in UTF-8: 415.
pub(crate) fn content_type(headers: &HeaderMap) -> Result<(), Refused> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let value = values.next().and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_alone = values.next().is_none();
    if value == JSON && is_alone {
        return Ok(());
    }
    let mut parts = value.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(JSON));
    let is_utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        Some(_) | None => true,
    });
    if is_json && is_utf8 && is_alone { Ok(()) } else { Err(Refused::media_type()) }
}

/// Refuses a client that does not take both JSON and event streams: 406.
pub(crate) fn accepts_both(headers: &HeaderMap) -> Result<(), Refused> {
    let is_usual = headers.get(ACCEPT).is_some_and(|value| value.as_bytes() == BOTH.as_bytes());
    if is_usual || (accepts(headers, JSON) && accepts(headers, EVENT_STREAM)) {
        return Ok(());
    }
    Err(Refused::not_acceptable("Accept must list application/json and text/event-stream"))
}

/// Refuses a client that does not take event streams: 406.
pub(crate) fn accepts_events(headers: &HeaderMap) -> Result<(), Refused> {
    if accepts(headers, EVENT_STREAM) {
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

/// The name in `name`, `name:port`, `[v6]` or `[v6]:port`; `None`: it is none of these, so nobody's.
fn without_port(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(inner) => inner.split_once(']').filter(|(name, _)| name.parse::<Ipv6Addr>().is_ok())?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

fn is_loopback(name: &str) -> bool {
    name == "127.0.0.1"
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, Uri};

    use super::*;

    fn with(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    fn path() -> Uri {
        Uri::from_static("/mcp")
    }

    #[test]
    fn only_loopback_hosts_and_listed_ones_are_served() {
        let loopback = Hosts::default();
        let named = |names| Hosts { names, ..Hosts::default() };
        let (listed, any) = (named(Names::Also(vec!["agent.example".to_owned()])), named(Names::Any));
        let bound = |address: &str| {
            let mut hosts = Hosts::default();
            hosts.bound_to(address.parse().unwrap());
            hosts
        };
        for (value, hosts, passes) in [
            ("localhost", &loopback, true),
            ("LOCALHOST:80", &loopback, true),
            ("127.0.0.1:8080", &loopback, true),
            ("[::1]:8080", &loopback, true),
            ("[::ffff:127.0.0.1]:8080", &loopback, true),
            ("192.0.2.7:8080", &loopback, false),
            ("192.0.2.7:8080", &bound("127.0.0.1"), false),
            ("192.0.2.7:8080", &bound("0.0.0.0"), true),
            ("[2001:db8::2]", &bound("::"), true),
            ("[::]:8080", &bound("::"), true),
            ("localhost", &bound("::"), true),
            ("evil.example", &bound("::"), false),
            ("192.0.2.7.evil.example", &bound("192.0.2.7"), false),
            ("evil.example", &loopback, false),
            ("[::1]evil.example", &loopback, false),
            ("[::1", &loopback, false),
            ("[127.0.0.1]", &loopback, false),
            ("localhost:evil.example", &loopback, false),
            ("localhost:80@evil.example", &loopback, false),
            ("127.0.0.1:", &loopback, true),
            ("localhost.evil.example", &loopback, false),
            ("127.0.0.1.evil.example", &loopback, false),
            ("agent.example:443", &listed, true),
            ("other.example", &listed, false),
            ("other.example", &any, true),
        ] {
            assert_eq!(host(&path(), &with(HOST, value), hosts).is_ok(), passes, "{value} {hosts:?}");
        }
        assert!(host(&path(), &HeaderMap::new(), &any).is_err());
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let listed = Names::Also(vec!["https://app.example".to_owned()]);
        for (value, names, passes) in [
            ("http://localhost:3000", &Names::Loopback, true),
            ("https://[::1]", &Names::Loopback, true),
            ("http://evil.example", &Names::Loopback, false),
            ("null", &Names::Loopback, false),
            ("file://localhost", &Names::Loopback, false),
            ("http://localhost:80@evil.example", &Names::Loopback, false),
            ("http://[::1]evil.example", &Names::Loopback, false),
            ("https://app.example", &listed, true),
            ("http://app.example", &listed, false),
            ("null", &Names::Any, true),
        ] {
            assert_eq!(origin(&path(), &with(ORIGIN, value), names).is_ok(), passes, "{value}");
        }
        let mut own = with(ORIGIN, "https://agent.example");
        own.insert(HOST, HeaderValue::from_static("agent.example"));
        assert!(origin(&path(), &own, &Names::Loopback).is_ok());
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
            assert_eq!(content_type(&with(CONTENT_TYPE, value)).is_ok(), passes, "{value}");
        }
        let mut two = with(CONTENT_TYPE, JSON);
        two.append(CONTENT_TYPE, HeaderValue::from_static(JSON));
        assert!(content_type(&two).is_err(), "one is meant");
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
            assert_eq!(accepts_both(&headers).is_ok(), both, "{value}");
            assert_eq!(accepts_events(&headers).is_ok(), events, "{value}");
        }
    }
}
