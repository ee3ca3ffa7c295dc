//! The names of nodes, and the signed names of what belongs to a node: sessions and requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::secret::{Purpose, Secret};

/// The most bytes of a node's name.
const MAX_NAME_BYTES: usize = 32;

/// The name of a node: 1 to 32 letters, digits, `-` and `_`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

/// This is not the name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a node has 1 to {MAX_NAME_BYTES} letters, digits, - and _")]
pub struct InvalidNodeName;

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = InvalidNodeName;

    fn from_str(name: &str) -> Result<Self, InvalidNodeName> {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_usual) {
            return Err(InvalidNodeName);
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeName({})", self.0)
    }
}

/// One life of a node: a process that starts again under the same name has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Incarnation(u64);

impl Incarnation {
    /// A new life. `None`: the operating system gave no random bytes.
    pub(crate) fn new() -> Option<Self> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).ok()?;
        Some(Self(u64::from_be_bytes(bytes)))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Incarnation {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// The name of a session or a request: `<node>.<incarnation>.<128 random bits>.<signature>`. The node and its incarnation say
/// where it is, the random bits make it unguessable, and the signature shows that a node of this cluster made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedName {
    pub(crate) node: NodeName,
    pub(crate) incarnation: Incarnation,
    text: Arc<str>,
}

impl SignedName {
    /// A new name. `None`: the operating system gave no random bytes.
    pub(crate) fn new(
        purpose: Purpose,
        secret: &Secret,
        node: &NodeName,
        incarnation: Incarnation,
    ) -> Option<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let unsigned = format!("{node}.{incarnation}.{:032x}", u128::from_be_bytes(random));
        let signature = secret.sign(purpose, &[unsigned.as_bytes()]);
        let text = format!("{unsigned}.{signature}").into();
        Some(Self { node: node.clone(), incarnation, text })
    }

    /// Reads a name that a client or another program gave. `None`: no node of this cluster made it.
    pub(crate) fn parse(purpose: Purpose, secret: &Secret, text: &str) -> Option<Self> {
        let (unsigned, signature) = text.rsplit_once('.')?;
        if !secret.is_signed(purpose, &[unsigned.as_bytes()], signature) {
            return None;
        }
        let mut parts = unsigned.split('.');
        let (node, incarnation) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { node, incarnation, text: text.into() })
    }

    pub(crate) const fn text(&self) -> &Arc<str> {
        &self.text
    }
}

/// What the names of signals that belong to no node begin with. Those of other signals have the name of a node in the second
/// place.
pub(crate) const SHARED: &str = "shared.";

/// Whether a signal belongs to no node.
pub(crate) fn is_shared(signal: &str) -> bool {
    signal.starts_with(SHARED)
}

/// The names of the records of a task: of its end, and of its begin.
pub(crate) fn task_records(id: &str) -> [Arc<str>; 2] {
    [format!("task-ended.{id}").into(), format!("task.{id}").into()]
}

#[cfg(feature = "nats")]
pub(crate) fn is_task_record(name: &str) -> bool {
    name.starts_with("task-ended.") || name.starts_with("task.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_node_and_cannot_be_made_by_others() {
        let (secret, other) = (Secret::new(*b"0123456789abcdef").unwrap(), Secret::of_loopback());
        let (node, life) = ("n-1".parse().unwrap(), Incarnation::new().unwrap());
        let name = SignedName::new(Purpose::Session, &secret, &node, life).unwrap();
        let text = name.text().to_string();
        assert_eq!(SignedName::parse(Purpose::Session, &secret, &text), Some(name.clone()));
        assert_eq!((name.node, name.incarnation), (node, life));
        assert_eq!(SignedName::parse(Purpose::Key, &secret, &text), None, "a session is no request");
        assert_eq!(SignedName::parse(Purpose::Session, &other, &text), None);
        let forged = text.replacen("n-1", "n-2", 1);
        assert_eq!(SignedName::parse(Purpose::Session, &secret, &forged), None);
        for text in ["", ".", "...", "n-1.7.1.", &text[1..], &text[..text.len() - 1]] {
            assert_eq!(SignedName::parse(Purpose::Session, &secret, text), None, "{text}");
        }
    }

    #[test]
    fn names_of_nodes_have_no_dots() {
        for name in ["n1", "a", "A_b-9", &"n".repeat(32)] {
            assert!(name.parse::<NodeName>().is_ok(), "{name}");
        }
        for name in ["", "a.b", "a b", "a:b", "é", "a/b", &"n".repeat(33)] {
            assert_eq!(name.parse::<NodeName>(), Err(InvalidNodeName), "{name}");
        }
    }
}
