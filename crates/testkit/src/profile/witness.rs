//! Where a foreign peer shows that work stopped.

use serde::Deserialize;
use serde_json::Value;

/// The request that returns what is running, or a command that prints how much work was done.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "WitnessTable")]
#[non_exhaustive]
pub struct Witness {
    /// The request. Empty: the command is the witness.
    pub method: String,
    /// A program of the user and its arguments. It prints how much work was done so far, as a number.
    pub command: Vec<String>,
    /// The params of the request.
    pub params: Value,
    /// Dotted path in its result to the number of running handlers.
    pub running: Option<String>,
    /// Dotted path in its result to the number of cancelled handlers.
    pub cancelled: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WitnessTable {
    method: Option<String>,
    #[serde(default = "super::empty")]
    params: Value,
    running: Option<String>,
    cancelled: Option<String>,
    command: Option<Vec<String>>,
}

impl TryFrom<WitnessTable> for Witness {
    type Error = &'static str;

    fn try_from(table: WitnessTable) -> Result<Self, &'static str> {
        let WitnessTable { method, params, running, cancelled, command } = table;
        if method.is_none() && command.is_none() {
            return Err("a witness has a `method`, a `command`, or both");
        }
        if command.as_ref().is_some_and(Vec::is_empty) {
            return Err("a witness's `command` names a program");
        }
        let (method, command) = (method.unwrap_or_default(), command.unwrap_or_default());
        Ok(Self { method, command, params, running, cancelled })
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::Profile;

    #[test]
    fn a_witness_is_a_request_or_a_command_or_both() {
        let read = |members: &str| {
            let text = format!("name = \"x\"\n[witness]\n{members}");
            Profile::from_toml(&text).unwrap().witness.unwrap()
        };
        let command = read("command = [\"cat\", \"counter.txt\"]");
        assert_eq!(command.command, ["cat", "counter.txt"]);
        assert!(command.method.is_empty());
        let both = read("command = [\"count\"]\nmethod = \"stats\"\nrunning = \"a.b\"");
        assert_eq!(both.command, ["count"]);
        assert_eq!((both.method.as_str(), both.running.as_deref()), ("stats", Some("a.b")));
        assert!(read("method = \"stats\"").command.is_empty());
    }
}
