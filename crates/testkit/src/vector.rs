//! A scenario as data: what is sent, what must be received, and which sentence of a source it proves.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::step::Step;

/// One scenario in one dialect. `vectors/README.md` describes the file format.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Vector {
    /// The scenario's name, which is also the file's name. It is the same in every dialect that has the scenario.
    pub name: String,
    /// What happens, in one sentence.
    pub title: String,
    /// The rows of `COVERAGE.md` and the invariants that it proves.
    pub covers: Vec<String>,
    /// The sentence that it proves, in our words, after its origin: the number of a document, a protocol, or `ours`.
    pub source: String,
    /// The role in which the subject is tested.
    pub role: Part,
    /// How much that sentence demands. Only what breaks a "must" is a fault of a foreign peer.
    #[serde(default)]
    pub demand: Demand,
    /// What shows that it holds. A foreign peer is asked only if that can be seen of it.
    #[serde(default)]
    pub shown_by: ShownBy,
    /// Why two plays may end differently, for a scenario that is a race by nature. Its outcomes are not compared
    /// between transports (I15).
    pub race: Option<String>,
    /// The options of the fixture. A foreign peer has no such options.
    #[serde(default)]
    pub options: Options,
    /// What it needs of its transport. It is not played on others.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// A decision of this library where the documents leave a choice. A foreign peer may have decided differently and
    /// is not asked.
    pub ours: Option<String>,
    /// What a foreign peer must declare for this vector: a dotted path in its answer to `initialize`.
    pub declared: Option<String>,
    /// How the session is opened.
    #[serde(default)]
    pub handshake: HandshakeMode,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// What shows that a scenario holds. Counters of the fixture are read in addition, where there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownBy {
    /// The frames that come.
    #[default]
    Frames,
    /// An answer that does not come, though its request would have ended meanwhile without the cancel. A peer that ignores the
    /// cancel is silent too until then.
    Silence,
    /// Only a witness that sees the work stop.
    Work,
}

/// The role in which the subject is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The subject serves: it is the fixture agent or a foreign one. The vector acts as its client.
    Serve,
    /// The subject calls: it opens the session and makes calls. The vector acts as its server.
    Call,
}

/// What a vector needs of its transport, because the protocols require or allow different behaviour there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Need {
    /// Frames keep their order, so that a cancel for an unknown id has no effect and the first of two requests is
    /// served first.
    Order,
    /// Frames may overtake one another, so that a cancel may wait for its request.
    Disorder,
    /// Ids are valid beyond their exchange, so that a message can cancel.
    SessionIds,
    /// Ids are valid only in their exchange: closing a request's exchange is its cancel.
    ExchangeIds,
    /// Batches may be received.
    Batches,
}

impl Need {
    /// Why a vector with this need is not played with these abilities. `None`: the need is met.
    pub(crate) const fn unmet(self, abilities: Abilities) -> Option<&'static str> {
        match self {
            Self::Order if !abilities.ordered => Some(
                "on this wire frames may overtake one another, and an early cancel waits for its request",
            ),
            Self::Disorder if abilities.ordered => {
                Some("this wire keeps the order of frames, and an early cancel is for nothing")
            }
            Self::SessionIds if abilities.exchange_scoped => Some(
                "on this wire closing a request's stream is its cancel, and nothing is answered after it",
            ),
            Self::ExchangeIds if !abilities.exchange_scoped => {
                Some("on this wire ids belong to the session, and a message cancels")
            }
            Self::Batches if !abilities.batches => Some("no batches are carried over this wire"),
            Self::Order | Self::Disorder | Self::SessionIds | Self::ExchangeIds | Self::Batches => None,
        }
    }
}

/// How the session is opened.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandshakeMode {
    /// As usual in the dialect.
    #[default]
    Default,
    /// No handshake: the steps begin on a new connection.
    None,
    /// With these steps.
    Steps(Vec<Step>),
}

/// A vector file that does not follow the format.
#[derive(Debug, thiserror::Error)]
#[error("the vector {dialect}/{name} breaks the format: {source}")]
pub struct BadVector {
    dialect: String,
    name: String,
    source: serde_json::Error,
}

static EMBEDDED: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/vectors.rs"));

/// A vector together with the dialect it is written in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scenario {
    /// The dialect's name on the command line.
    pub dialect: &'static str,
    /// The vector.
    pub vector: Vector,
}

/// The vectors compiled into this crate, by dialect and name.
///
/// # Errors
/// The first file that does not follow the format. A test of this crate checks that there is none.
pub fn read_embedded() -> Result<Vec<Scenario>, BadVector> {
    let read =
        |&(dialect, name, text): &(&'static str, &str, &str)| {
            serde_json::from_str(text)
                .map(|vector| Scenario { dialect, vector })
                .map_err(|source| BadVector { dialect: dialect.to_owned(), name: name.to_owned(), source })
        };
    EMBEDDED.iter().map(read).collect()
}

/// The vectors compiled into this crate, read once.
#[must_use]
pub fn scenarios() -> &'static [Scenario] {
    static READ: OnceLock<Vec<Scenario>> = OnceLock::new();
    // `every_file_is_read` checks that none is left out.
    READ.get_or_init(|| read_embedded().unwrap_or_default())
}

/// The vectors of one dialect.
pub fn scenarios_of(dialect: &str) -> impl Iterator<Item = &'static Scenario> {
    scenarios().iter().filter(move |scenario| scenario.dialect == dialect)
}

/// How much the documents demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demand {
    /// A "must", or a rule of JSON-RPC. Breaking it is a fault.
    #[default]
    Must,
    /// A recommendation. A peer that does not follow it has no fault.
    Should,
    /// The documents leave it open. A peer has no fault either way.
    Open,
}

/// What a subject supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent abilities, each named where it is set")]
pub struct Abilities {
    /// Whether more than one connection to the same fixture can be open.
    pub many_lines: bool,
    /// Whether its input can be ended while its output stays open.
    pub half_close: bool,
    /// Whether it makes calls on request (role `call`).
    pub calls: bool,
    /// Whether it is configured with the vector's options.
    pub options: bool,
    /// Whether its transport keeps the order of frames.
    pub ordered: bool,
    /// Whether its transport may carry batches.
    pub batches: bool,
    /// Whether any frame can be sent on a new connection. Otherwise the dialect's usual opening must come first.
    pub bare: bool,
    /// Whether its ids belong to an exchange, so that closing the exchange is the cancel.
    pub exchange_scoped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read() {
        let read = read_embedded().unwrap();
        assert_eq!(read.len(), EMBEDDED.len());
        for (scenario, (_, name, _)) in read.iter().zip(EMBEDDED) {
            assert_eq!(
                scenario.vector.name, *name,
                "{}: the file is named after its vector",
                scenario.dialect
            );
        }
    }

    #[test]
    fn a_vector_with_an_unknown_member_is_refused() {
        let text = r#"{"name":"a","title":"b","covers":[],"source":"c","role":"serve","steps":[],"more":1}"#;
        assert!(serde_json::from_str::<Vector>(text).is_err());
    }
}
