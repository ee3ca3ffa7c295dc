//! The table of hosts and origins.

/// The configuration of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The default, on a loopback address.
    Default,
    /// The default, on every address of the machine.
    Everywhere,
    /// With lists: [`HOSTS`] and [`ORIGINS`].
    Listed,
    /// Any host, any origin.
    Any,
}

pub(crate) const POLICIES: [Policy; 4] = [Policy::Default, Policy::Everywhere, Policy::Listed, Policy::Any];

pub(crate) const HOSTS: [&str; 4] =
    ["agent.example", "Ports.Example:8443", "web.example:443", "[2001:db8:0::1]"];
pub(crate) const ORIGINS: [&str; 4] = [
    "https://app.example",
    "http://Tool.Example:8080",
    "https://plain.example:443",
    "vscode-webview://panel",
];

/// The relevant parts of a request: its target's authority (`:authority`, or the absolute form of HTTP/1.1), and its
/// `Host` and `Origin` lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub policy: Policy,
    pub target: Option<&'static str>,
    pub hosts: &'static [&'static str],
    pub origins: &'static [&'static str],
    /// The status of the refusal. `None`: the request passes.
    pub refused: Option<u16>,
}

const fn host(policy: Policy, host: &'static [&'static str], refused: Option<u16>) -> Case {
    Case { policy, target: None, hosts: host, origins: &[], refused }
}

const fn target(target: &'static str, hosts: &'static [&'static str], refused: Option<u16>) -> Case {
    Case { policy: Policy::Listed, target: Some(target), hosts, origins: &[], refused }
}

/// An origin, in a request to this host.
const fn page(
    policy: Policy,
    host: &'static [&'static str],
    origins: &'static [&'static str],
    refused: Option<u16>,
) -> Case {
    Case { policy, target: None, hosts: host, origins, refused }
}

use Policy::{Any, Default, Everywhere, Listed};

const PASSES: Option<u16> = None;
const BAD: Option<u16> = Some(400);
const FORBIDDEN: Option<u16> = Some(403);
const MISDIRECTED: Option<u16> = Some(421);

pub(crate) const CASES: &[Case] = &[
    // Loopback names, in any case, with any port. A trailing dot is the same name.
    host(Default, &["localhost"], PASSES),
    host(Default, &["LocalHost:80"], PASSES),
    host(Default, &["localhost.:9"], PASSES),
    host(Default, &["127.0.0.1:9"], PASSES),
    host(Default, &["127.0.0.1:"], PASSES),
    host(Default, &["127.8.9.1"], PASSES),
    host(Default, &["[::1]:9"], PASSES),
    host(Default, &["[0:0:0:0:0:0:0:1]"], PASSES),
    host(Default, &["[::ffff:127.0.0.1]:9"], PASSES),
    host(Default, &["192.0.2.7"], MISDIRECTED),
    host(Default, &["0.0.0.0"], MISDIRECTED),
    host(Default, &["[2001:db8::1]"], MISDIRECTED),
    host(Default, &["agent.example"], MISDIRECTED),
    host(Default, &["localhost.evil.example"], MISDIRECTED),
    host(Default, &["127.0.0.1.evil.example"], MISDIRECTED),
    host(Default, &["127.0.0.1."], MISDIRECTED),
    host(Default, &["0127.0.0.1"], MISDIRECTED),
    host(Default, &["127.1"], MISDIRECTED),
    host(Default, &["localhost.."], MISDIRECTED),
    // Invalid hosts, and more than one host.
    host(Default, &[], BAD),
    host(Default, &[""], BAD),
    host(Default, &["localhost", "localhost"], BAD),
    host(Default, &["localhost, localhost"], BAD),
    host(Default, &["user@localhost"], BAD),
    host(Default, &["localhost:80@evil.example"], BAD),
    host(Default, &["localhost:evil.example"], BAD),
    host(Default, &["localhost:65536"], BAD),
    host(Default, &["localhost:-1"], BAD),
    host(Default, &["localhost/"], BAD),
    host(Default, &["http://localhost"], BAD),
    host(Default, &["::1"], BAD),
    host(Default, &["[::1"], BAD),
    host(Default, &["[::1]evil.example"], BAD),
    host(Default, &["[127.0.0.1]"], BAD),
    host(Default, &["[::1%25eth0]"], BAD),
    host(Default, &["local host"], BAD),
    host(Default, &[".localhost"], BAD),
    // A server on every address accepts addresses, but no names.
    host(Everywhere, &["192.0.2.7:9"], PASSES),
    host(Everywhere, &["[2001:db8::2]"], PASSES),
    host(Everywhere, &["[::]:9"], PASSES),
    host(Everywhere, &["localhost"], PASSES),
    host(Everywhere, &["evil.example"], MISDIRECTED),
    host(Everywhere, &["192.0.2.7.evil.example"], MISDIRECTED),
    // Listed names, with a port or without.
    host(Listed, &["agent.example"], PASSES),
    host(Listed, &["Agent.Example:8080"], PASSES),
    host(Listed, &["agent.example.:8080"], PASSES),
    host(Listed, &["ports.example:8443"], PASSES),
    host(Listed, &["ports.example:8444"], MISDIRECTED),
    host(Listed, &["ports.example"], MISDIRECTED),
    host(Listed, &["web.example"], PASSES),
    host(Listed, &["web.example:443"], PASSES),
    host(Listed, &["web.example:80"], MISDIRECTED),
    host(Listed, &["[2001:db8::1]:9"], PASSES),
    host(Listed, &["[2001:DB8:0:0::1]"], PASSES),
    host(Listed, &["[2001:db8::2]"], MISDIRECTED),
    host(Listed, &["localhost"], PASSES),
    host(Listed, &["other.example"], MISDIRECTED),
    host(Listed, &["agent.example.evil.example"], MISDIRECTED),
    host(Any, &["other.example:1"], PASSES),
    host(Any, &[], BAD),
    host(Any, &["a@b"], BAD),
    host(Any, &["one.example", "two.example"], BAD),
    // The target and `Host` name the same host.
    target("agent.example", &["agent.example"], PASSES),
    target("agent.example", &["AGENT.example:80"], PASSES),
    target("agent.example:8080", &["agent.example:8080"], PASSES),
    target("agent.example:8080", &["agent.example:8081"], BAD),
    target("agent.example", &["localhost"], BAD),
    target("localhost", &["evil.example"], BAD),
    target("evil.example", &["evil.example"], MISDIRECTED),
    // A page of the same host and port.
    page(Listed, &["agent.example:9000"], &["http://agent.example:9000"], PASSES),
    page(Listed, &["agent.example:9000"], &["https://AGENT.example:9000"], PASSES),
    page(Listed, &["agent.example:9000"], &["http://agent.example:9001"], FORBIDDEN),
    page(Listed, &["agent.example:9000"], &["http://agent.example"], FORBIDDEN),
    page(Listed, &["agent.example"], &["https://agent.example:3000"], FORBIDDEN),
    page(Listed, &["agent.example"], &["http://agent.example"], PASSES),
    page(Listed, &["agent.example"], &["https://agent.example"], PASSES),
    page(Listed, &["agent.example"], &["https://agent.example:443"], PASSES),
    page(Listed, &["agent.example:443"], &["https://agent.example"], PASSES),
    page(Listed, &["agent.example:80"], &["https://agent.example"], FORBIDDEN),
    page(Listed, &["agent.example:80"], &["http://agent.example"], PASSES),
    page(Listed, &["agent.example"], &["https://agent.example."], FORBIDDEN),
    page(Listed, &["agent.example"], &["ftp://agent.example"], FORBIDDEN),
    page(Listed, &["[2001:db8::1]:9000"], &["http://[2001:db8:0::1]:9000"], PASSES),
    page(Listed, &["[2001:db8::1]:9000"], &["http://[2001:db8::1]"], FORBIDDEN),
    page(Everywhere, &["192.0.2.7:9000"], &["http://192.0.2.7:9000"], PASSES),
    page(Everywhere, &["192.0.2.7:9000"], &["http://192.0.2.7:3000"], FORBIDDEN),
    page(Everywhere, &["192.0.2.7:9000"], &["http://192.0.2.8:9000"], FORBIDDEN),
    // Pages of loopback, on any port.
    page(Default, &["localhost:9"], &["http://localhost:5173"], PASSES),
    page(Default, &["localhost:9"], &["http://127.0.0.1"], PASSES),
    page(Default, &["localhost:9"], &["https://[::1]:3000"], PASSES),
    page(Default, &["localhost:9"], &["HTTP://LOCALHOST"], PASSES),
    page(Everywhere, &["192.0.2.7:9000"], &["http://localhost:5173"], PASSES),
    page(Default, &["localhost:9"], &["http://localhost.evil.example"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://localhost@evil.example"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://localhost:80@evil.example"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://evil.example/?http://localhost"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://user@localhost"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://localhost/"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://[::1]evil.example"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://localhost:99999"], FORBIDDEN),
    page(Default, &["localhost:9"], &["file://localhost"], FORBIDDEN),
    page(Default, &["localhost:9"], &["chrome-extension://localhost"], FORBIDDEN),
    page(Default, &["localhost:9"], &["://localhost"], FORBIDDEN),
    page(Default, &["localhost:9"], &["localhost"], FORBIDDEN),
    page(Default, &["localhost:9"], &[""], FORBIDDEN),
    page(Default, &["localhost:9"], &["null"], FORBIDDEN),
    page(Default, &["localhost:9"], &["https://evil.example"], FORBIDDEN),
    page(Default, &["localhost:9"], &["http://localhost", "http://localhost"], FORBIDDEN),
    // Listed origins: scheme, host and port.
    page(Listed, &["localhost:9"], &["https://app.example"], PASSES),
    page(Listed, &["localhost:9"], &["HTTPS://App.Example"], PASSES),
    page(Listed, &["localhost:9"], &["https://app.example:443"], PASSES),
    page(Listed, &["localhost:9"], &["https://app.example:8443"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["http://app.example"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["http://app.example:443"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["https://app.example/"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["https://app.example."], FORBIDDEN),
    page(Listed, &["localhost:9"], &["https://user@app.example"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["https://app.example.evil.example"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["http://tool.example:8080"], PASSES),
    page(Listed, &["localhost:9"], &["http://tool.example"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["https://plain.example"], PASSES),
    page(Listed, &["localhost:9"], &["vscode-webview://panel"], PASSES),
    page(Listed, &["localhost:9"], &["vscode-webview://other"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["null"], FORBIDDEN),
    page(Listed, &["localhost:9"], &["https://app.example", "https://app.example"], FORBIDDEN),
    page(Any, &["other.example"], &["https://evil.example"], PASSES),
    page(Any, &["other.example"], &["null"], PASSES),
    page(Any, &["other.example"], &["https://one.example", "https://two.example"], FORBIDDEN),
    // The host is checked first.
    page(Default, &["evil.example"], &["http://evil.example"], MISDIRECTED),
];

/// Values that are invalid in a list of origins.
pub(crate) const NO_ORIGINS: &[&str] = &[
    "null",
    "NULL",
    "https://app.example/",
    "https://app.example/path",
    "https://user@app.example",
    "https://app.example?x",
    "app.example",
    "https://",
    "https://*",
    "https://app.example:port",
    "",
    "*",
];

/// Values that are invalid in a list of hosts.
pub(crate) const NO_HOSTS: &[&str] =
    &["", "https://agent.example", "agent.example/", "a@agent.example", "::1", "agent.example:x", "*", "a b"];
