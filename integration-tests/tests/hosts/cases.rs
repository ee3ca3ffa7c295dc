//! The table of hosts and origins, `cases.txt`.

use rescind_testkit::support::table;

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
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub policy: Policy,
    pub target: Option<&'static str>,
    pub hosts: Vec<String>,
    pub origins: Vec<String>,
    /// The status of the refusal. `None`: the request passes.
    pub refused: Option<u16>,
}

/// Reads the table: policy, target, hosts, origins, status.
pub(crate) fn cases() -> Vec<Case> {
    let rows = table(include_str!("cases.txt")).map(|[policy, target, hosts, origins, status]| Case {
        policy: *POLICIES.iter().find(|known| format!("{known:?}") == policy).unwrap(),
        target: Some(target).filter(|target| *target != "-"),
        hosts: serde_json::from_str(hosts).unwrap(),
        origins: serde_json::from_str(origins).unwrap(),
        refused: (status != "passes").then(|| status.parse().unwrap()),
    });
    let cases: Vec<_> = rows.collect();
    assert_eq!(cases.len(), 129, "the rows of the table");
    cases
}

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
