//! What the kit, the checks and the command line know of a dialect besides its rules: one value for each dialect, and a
//! file for each family of protocols.
//!
//! Nothing outside this folder compares a dialect's name. A dialect from outside is played with a value of its own, in a
//! [`Scenario`](crate::Scenario) made by [`Scenario::new`](crate::Scenario::new).

mod abp;
mod acp;
mod lsp;
mod mcp;

use rescind_core::dialect::{CancelName, CancelledReply, Dialect, JsonRpc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::abp::ABP;
pub use self::acp::{ACP, ACP_DRAFT, ACP_V2};
pub use self::lsp::LSP;
pub use self::mcp::{MCP, MCP_2026};

/// Every dialect that comes with the library.
pub static ALL: [DialectFacts; 7] = [LSP, MCP, MCP_2026, ACP, ACP_V2, ACP_DRAFT, ABP];

/// What is known of a dialect.
#[derive(Clone, Debug)]
pub struct DialectFacts {
    /// Its rules and its codec.
    pub dialect: &'static Dialect,
    /// The form of its messages.
    pub envelope: Envelope,
    /// How a session is opened. `None`: there are no sessions, and only clients send requests.
    pub opening: Option<Opening>,
    /// The request by which a client asks what a server can do. `None`: the answer to the opening says it.
    pub discovery: Option<&'static str>,
    /// The request that every peer answers at once, with an empty object.
    pub ping: Option<&'static str>,
    /// The codes of errors that say that a request was cancelled or did not run to its end.
    pub cancelled_codes: &'static [i64],
    /// How a handler reports progress.
    pub progress: Progress,
    /// What its peers offer, and as what the fixture offers its actions besides those under `test/`.
    pub offers: Offers,
    /// Whether a handler that was cancelled may answer with what it has.
    pub partial_results: bool,
    /// The bindings over HTTP that carry it, the usual one first.
    pub bindings: &'static [HttpBinding],
    /// Whether its documents define the binding `streamable`: which message opens a session, and servers without
    /// sessions.
    pub defines_streamable: bool,
    /// Its document. It replaces `{document}` in statements.
    pub document: &'static str,
    /// What its documents say about the questions of the checks, as tables for [`statement`].
    pub statements: &'static [&'static str],
    /// The server's part in a check of a client. `None`: there is no such check.
    pub client_check: Option<&'static ClientCheck>,
}

/// The form of a dialect's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope {
    JsonRpc,
    /// JSON-RPC in which every request names the protocol's version.
    JsonRpcWithMeta,
    Abp,
}

/// How a session is opened, by [`Rules::handshake`](rescind_core::dialect::Rules::handshake).
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The params of a client, which names itself so.
    pub params: fn(client: &Value) -> Value,
    /// The result of a server, which names itself so.
    pub result: fn(server: &Value) -> Value,
    /// The result of the fixture, which names itself so, for these params.
    pub fixture_result: fn(server: &Value, params: &Value) -> Value,
    /// The notification that ends the opening.
    pub opened: Option<&'static str>,
}

/// How a handler reports progress.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The notification of the protocol's peers.
    pub method: &'static str,
    /// Its form.
    pub form: ProgressForm,
}

/// The form of a progress notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressForm {
    /// The protocol has no tokens. The fixture reports with `test/tick`.
    Tick,
    /// LSP's: with the token of the param `workDoneToken`. Without one the fixture reports with `test/tick`.
    WorkDone,
    /// MCP's: with the token in `_meta`, and nothing without one.
    MetaToken,
    /// ABP's: with the token, if there is one.
    AnyToken,
}

/// What the peers of a protocol offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// ACP's prompts, in sessions that `session/cancel` names.
    Prompts,
    /// MCP's tools.
    Tools,
    /// Requests about documents, which the answer to the opening declares.
    Documents,
    /// Capabilities, which the answer to the opening lists.
    Capabilities,
}

/// How HTTP carries a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpBinding {
    Streamable,
    Stateless,
    Acp,
    LegacySse,
}

impl HttpBinding {
    pub const ALL: [Self; 4] = [Self::Streamable, Self::Stateless, Self::Acp, Self::LegacySse];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Streamable => "streamable",
            Self::Stateless => "stateless",
            Self::Acp => "acp",
            Self::LegacySse => "legacy-sse",
        }
    }

    /// The wire's name in reports.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::Streamable => "http-streamable",
            Self::Stateless => "http-stateless",
            Self::Acp => "http-acp",
            Self::LegacySse => "http-legacy-sse",
        }
    }
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

/// How much the documents demand where this question is asked, and the sentence: from the first of these tables that has
/// the question. A row has the demand, the names of questions, and the sentence, with tabs between them.
#[must_use]
pub fn statement(tables: &[&'static str], question: &str) -> Option<(Demand, &'static str)> {
    tables.iter().flat_map(|table| table.lines()).find_map(|row| {
        let mut columns = row.splitn(3, '\t');
        let (demand, questions, sentence) = (columns.next()?, columns.next()?, columns.next()?);
        let demand = match demand {
            "must" => Demand::Must,
            "should" => Demand::Should,
            _ => Demand::Open,
        };
        questions.split(' ').any(|name| name == question).then_some((demand, sentence))
    })
}

/// The server's part in a check of a client: which requests are slow and quick, and what it answers.
#[derive(Debug)]
pub struct ClientCheck {
    /// The method of the slow and of the quick request.
    pub method: &'static str,
    /// The params of the request that this word names.
    pub params: fn(word: &str) -> Value,
    /// The word in such params.
    pub word: fn(params: &Value) -> Option<&Value>,
    /// The result of another request. `sessions`: how many were opened. `None`: the usual one for the opening, and a
    /// refusal for the rest.
    pub result: fn(method: &str, params: &Value, sessions: &mut usize) -> Option<Value>,
    /// The normal result of the request that this word names.
    pub normal: fn(word: &str) -> Value,
    /// The notification that shows that a request with these params runs, if they ask for it.
    pub progress: fn(params: &Value) -> Option<(&'static str, Value)>,
    /// The server's own request, in this session.
    pub own_request: fn(session: &Value) -> (&'static str, Value),
    /// Whether an id may not be used again in a session, even after its request was answered.
    pub never_reuses_ids: bool,
}

impl DialectFacts {
    /// What is known of the built-in dialect of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|facts| facts.name() == name)
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.dialect.name()
    }

    /// Whether this binding carries it over HTTP.
    #[must_use]
    pub fn is_carried_by(&self, binding: HttpBinding) -> bool {
        self.bindings.contains(&binding)
    }

    /// The binding that carries it unless another is set.
    #[must_use]
    pub fn usual_binding(&self) -> HttpBinding {
        self.bindings.first().copied().unwrap_or(HttpBinding::Streamable)
    }

    /// Whether a request that its peer cancelled must not be answered.
    #[must_use]
    pub fn owes_silence(&self) -> bool {
        matches!(self.dialect.rules().peer_cancelled, CancelledReply::Silence)
    }

    /// Whether its messages are those of JSON-RPC.
    #[must_use]
    pub const fn is_json_rpc(&self) -> bool {
        matches!(self.envelope, Envelope::JsonRpc | Envelope::JsonRpcWithMeta)
    }

    /// The spelling of its cancels, if they are notifications of JSON-RPC.
    #[must_use]
    pub fn cancel_name(&self) -> Option<CancelName> {
        self.json_rpc().map(|codec| codec.cancel)
    }

    /// Whether a notification with this method is a cancel, here or in a built-in dialect.
    #[must_use]
    pub fn is_cancel(&self, method: &str) -> bool {
        let mut known = ALL.iter().chain([self]).filter_map(Self::cancel_name);
        known.any(|name| name.method == method)
    }

    /// The members of a cancel's params that may name its request, here or in a built-in dialect.
    #[must_use]
    pub fn cancel_keys(&self) -> [&'static str; 3] {
        ["requestId", "id", self.cancel_name().map_or("id", |name| name.key)]
    }

    pub(crate) fn json_rpc(&self) -> Option<&JsonRpc> {
        self.dialect.codec().as_json_rpc()
    }
}

/// How a program of the kit names itself.
pub(crate) fn program(name: &str) -> Value {
    json!({ "name": name, "version": env!("CARGO_PKG_VERSION") })
}

/// The name of the checks in their answers.
fn checker() -> Value {
    program("rescind-check")
}
