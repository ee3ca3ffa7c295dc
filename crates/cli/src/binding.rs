//! The bindings of HTTP: which dialects each carries.

use clap::ValueEnum;

/// How HTTP carries a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binding {
    Streamable,
    Stateless,
    Acp,
    LegacySse,
}

impl Binding {
    pub(crate) fn of_dialect(dialect: &str) -> Self {
        match dialect {
            "mcp-2026" => Self::Stateless,
            "acp" | "acp-v2" | "acp-draft" => Self::Acp,
            _ => Self::Streamable,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Streamable => "streamable",
            Self::Stateless => "stateless",
            Self::Acp => "acp",
            Self::LegacySse => "legacy-sse",
        }
    }

    /// Whether it carries this dialect.
    pub(crate) fn carries(self, dialect: &str) -> bool {
        match self {
            Self::Streamable => dialect != "mcp-2026",
            Self::Stateless => dialect == "mcp-2026",
            Self::Acp => Self::of_dialect(dialect) == Self::Acp,
            Self::LegacySse => dialect == "mcp",
        }
    }

    /// The wire's name in reports.
    pub(crate) const fn wire(self) -> &'static str {
        match self {
            Self::Streamable => "http-streamable",
            Self::Stateless => "http-stateless",
            Self::Acp => "http-acp",
            Self::LegacySse => "http-legacy-sse",
        }
    }
}
