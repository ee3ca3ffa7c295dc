//! A scenario as data: what is sent, what must come, and which sentence of a source it proves.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::runner::Abilities;
use crate::step::Step;

/// One scenario in one dialect. `vectors/README.md` describes the file format.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Vector {
    /// The scenario's name, the same in every dialect it makes sense in; the file's name.
    pub name: String,
    /// What happens, as a sentence.
    pub title: String,
    /// The rows of `COVERAGE.md` and the invariants it is evidence for.
    pub covers: Vec<String>,
    /// The sentence it proves, in our words, after its origin: the number of a document, a protocol, or `ours`.
    pub source: String,
    /// Who is tested for what.
    pub role: Part,
    /// Why two plays may end otherwise, where what happens is a race by nature: its outcomes are not compared between
    /// wires (I15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub race: Option<String>,
    /// What the fixture is told beforehand. A foreign peer cannot be told.
    #[serde(default, skip_serializing_if = "Options::is_default")]
    pub options: Options,
    /// What it asks of the wire it is played over; it is not asked on others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Need>,
    /// What the documents leave open, where it shows a decision of our own: a foreign peer may have decided otherwise,
    /// and is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<String>,
    /// What a foreign peer must have declared to be asked: a dotted path into its answer to `initialize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<String>,
    /// How the session is opened.
    #[serde(default, skip_serializing_if = "HandshakeMode::is_default")]
    pub handshake: HandshakeMode,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// What the subject is tested as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The subject serves: it is the fixture agent, or a foreign one. The vector plays its client.
    Serve,
    /// The subject calls: it opens the session and makes calls. The vector plays its server.
    Call,
}

/// What a vector asks of what it is played over: where protocols themselves demand or allow another course.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Need {
    /// Frames keep their order, so that a cancel for an unknown id is for nothing and the first of two requests is
    /// served first.
    Order,
    /// Frames may overtake one another, so that a cancel may wait for its request.
    Disorder,
    /// Ids mean something beyond their exchange, so that a message can cancel.
    SessionIds,
    /// They do not: closing a request's exchange is its cancel.
    ExchangeIds,
    /// Batches may be received.
    Batches,
}

impl Need {
    /// Why a vector with this need is not asked where it is not met.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandshakeMode {
    /// As the dialect usually does it; the runner knows how.
    #[default]
    Default,
    /// Not at all: the steps begin on a fresh connection.
    None,
    /// By these steps.
    Steps(Vec<Step>),
}

impl HandshakeMode {
    fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// A vector file that breaks the format.
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
    /// The dialect, by the name scripts use.
    pub dialect: &'static str,
    /// The vector.
    pub vector: Vector,
}

/// The vectors compiled into this crate, by dialect and name.
///
/// # Errors
/// The first file that breaks the format. A test of this crate holds that none does.
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
    // `every_file_is_read` holds that none is left out.
    READ.get_or_init(|| read_embedded().unwrap_or_default())
}

/// The vectors of one dialect.
pub fn scenarios_of(dialect: &str) -> impl Iterator<Item = &'static Scenario> {
    scenarios().iter().filter(move |scenario| scenario.dialect == dialect)
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
