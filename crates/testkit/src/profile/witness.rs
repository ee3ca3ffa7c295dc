//! Where a foreign peer shows that work stopped.

use serde::Deserialize;
use serde_json::Value;

/// The request that returns what is running.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Witness {
    /// The request.
    pub method: String,
    /// Its params.
    pub params: Value,
    /// Dotted path in its result to the number of running handlers.
    pub running: Option<String>,
    /// Dotted path in its result to the number of cancelled handlers.
    pub cancelled: Option<String>,
}

/// `[witness]`: a request, a command, or both.
#[derive(Default, Deserialize)]
#[serde(try_from = "Members")]
pub(super) struct WitnessTable {
    pub(super) request: Option<Witness>,
    pub(super) command: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Members {
    #[serde(default)]
    method: Option<String>,
    #[serde(default = "super::empty")]
    params: Value,
    #[serde(default)]
    running: Option<String>,
    #[serde(default)]
    cancelled: Option<String>,
    #[serde(default)]
    command: Option<Vec<String>>,
}

impl TryFrom<Members> for WitnessTable {
    type Error = &'static str;

    fn try_from(members: Members) -> Result<Self, &'static str> {
        let Members { method, params, running, cancelled, command } = members;
        if method.is_none() && command.is_none() {
            return Err("a witness has a `method`, a `command`, or both");
        }
        if command.as_ref().is_some_and(Vec::is_empty) {
            return Err("a witness's `command` names a program");
        }
        let request = method.map(|method| Witness { method, params, running, cancelled });
        Ok(Self { request, command: command.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::Profile;

    #[test]
    fn a_witness_is_a_request_or_a_command_or_both() {
        let read =
            |members: &str| Profile::from_toml(&format!("name = \"x\"\n[witness]\n{members}")).unwrap();
        let command = read("command = [\"cat\", \"counter.txt\"]");
        assert_eq!(command.witness_command, ["cat", "counter.txt"]);
        assert!(command.witness.is_none());
        let both = read("command = [\"count\"]\nmethod = \"stats\"\nrunning = \"a.b\"");
        assert_eq!(both.witness_command, ["count"]);
        let request = both.witness.unwrap();
        assert_eq!((request.method.as_str(), request.running.as_deref()), ("stats", Some("a.b")));
        assert!(read("method = \"stats\"").witness_command.is_empty());
    }
}
