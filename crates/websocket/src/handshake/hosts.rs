//! Which hosts we go by, and which pages may connect.

use std::net::IpAddr;

use http::Uri;
use http::uri::Authority;

/// The names a server goes by, as `Host` has them. A browser that was led here under another name (DNS rebinding) is
/// turned away.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    pub(super) names: Vec<String>,
    pub(super) others: OtherHosts,
}

/// What holds for a host that is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherHosts {
    /// `localhost` and the addresses of loopback.
    Loopback,
    /// Any address, and `localhost`: no name can be led to an address that is spelled out.
    Addresses,
    /// Any.
    Any,
}

impl Hosts {
    pub(super) fn allows(&self, host: &Authority) -> bool {
        let name = bare(host.host());
        self.names.iter().any(|allowed| is_same(allowed, host))
            || match self.others {
                OtherHosts::Loopback => is_loopback_name(name),
                OtherHosts::Addresses => is_loopback_name(name) || name.parse::<IpAddr>().is_ok(),
                OtherHosts::Any => true,
            }
    }
}

/// `allowed` is a name, or a name with a port.
fn is_same(allowed: &str, host: &Authority) -> bool {
    allowed.eq_ignore_ascii_case(host.as_str()) || bare(allowed).eq_ignore_ascii_case(bare(host.host()))
}

/// The pages that may connect. A request without `Origin` comes from no page.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins {
    pub(super) listed: Vec<String>,
    pub(super) any: bool,
}

impl Origins {
    /// Allowed are those listed, those of the host that is asked for, and those of loopback.
    pub(super) fn allows(&self, origin: &str, host: &Authority) -> bool {
        if self.any
            || self.listed.iter().any(|listed| listed.trim_end_matches('/').eq_ignore_ascii_case(origin))
        {
            return true;
        }
        // "null", as a sandboxed frame or a file sends it, has no host.
        let Ok(origin) = origin.parse::<Uri>() else { return false };
        let (Some(scheme), Some(from)) = (origin.scheme_str(), origin.host()) else { return false };
        matches!(scheme, "http" | "https")
            && (is_loopback_name(bare(from)) || bare(from).eq_ignore_ascii_case(bare(host.host())))
    }
}

/// Without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether a name can mean this machine only.
fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || bare(name).parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Authority {
        text.parse().unwrap()
    }

    #[test]
    fn a_host_is_allowed_by_list_or_by_kind() {
        let hosts = |others| Hosts { names: vec!["agent.example".into(), "[2001:db8::1]".into()], others };
        let table = [
            ("localhost", [true, true, true]),
            ("LOCALHOST:80", [true, true, true]),
            ("127.0.0.1:9", [true, true, true]),
            ("127.8.9.1", [true, true, true]),
            ("[::1]:9", [true, true, true]),
            ("[::ffff:127.0.0.1]:9", [true, true, true]),
            ("192.0.2.7:9", [false, true, true]),
            ("[2001:db8::2]", [false, true, true]),
            ("agent.example", [true, true, true]),
            ("Agent.Example:8080", [true, true, true]),
            ("[2001:db8::1]:9", [true, true, true]),
            ("evil.example", [false, false, true]),
            ("localhost.evil.example", [false, false, true]),
            ("127.0.0.1.evil.example", [false, false, true]),
            ("agent.example.evil.example", [false, false, true]),
        ];
        for (name, expected) in table {
            let kinds = [OtherHosts::Loopback, OtherHosts::Addresses, OtherHosts::Any];
            assert_eq!(kinds.map(|others| hosts(others).allows(&host(name))), expected, "{name}");
        }
    }

    #[test]
    fn an_origin_is_allowed_by_list_same_host_or_loopback() {
        let origins = Origins { listed: vec!["https://app.example/".into(), "null".into()], any: false };
        let here = host("agent.example:9000");
        for origin in [
            "https://app.example",
            "http://agent.example",
            "https://AGENT.example:3000",
            "http://localhost:5173",
            "http://127.0.0.1",
            "http://[::1]:3000",
            "null",
        ] {
            assert!(origins.allows(origin, &here), "{origin}");
        }
        let none = Origins::default();
        for origin in [
            "https://app.example",
            "http://app.example.evil.example",
            "http://evil.example/?http://localhost",
            "http://localhost.evil.example",
            "http://localhost@evil.example",
            "file://localhost",
            "chrome-extension://localhost",
            "null",
            "",
            "localhost",
        ] {
            assert!(!none.allows(origin, &here), "{origin}");
        }
        assert!(Origins { listed: vec![], any: true }.allows("null", &here));
    }
}
