//! Dialects: for each protocol an envelope codec and the rules of its cancellation, as a value.
//!
//! The machine and the driver read [`Rules`] and never compare a dialect's name. The built-in dialects are constants,
//! which [`ALL`] lists. [`Dialect::to_builder`] makes a changed copy of one, and [`Dialect::builder`] a dialect of your
//! own. [`negotiate`] chooses among several on one connection.

mod abp;
mod acp;
mod builder;
mod json;
mod jsonrpc;
mod lsp;
mod mcp;
mod rules;
#[cfg(feature = "tokio")]
pub(crate) mod tasks;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use abp::ABP;
pub use acp::{ACP, ACP_BODIES, ACP_DRAFT, ACP_V2};
pub use builder::DialectBuilder;
pub use builder::{Negotiation, negotiate};
pub use jsonrpc::{CancelName, Declaration, FirstMessage, JsonRpc, Progress, ReasonField, TokenField};
pub use lsp::LSP;
pub use mcp::{MCP, MCP_2026, MCP_2026_BODIES, MCP_CANCEL, MCP_OPENING, MCP_RENEWAL};
pub use rules::{
    AckStyle, AnswerAfterCancel, CancelFrom, CancelledError, CancelledReply, CapabilityGate, DecidedBy,
    EarlyCancel, LostStream, ProgressMembers, Refusal, RefusalStyle, Rules, ServerLifecycle, SettledMemory,
    ShownMembers, TaskForm, TaskStatus,
};
pub use rules::{CallFrame, Codec, Handshake, HandshakePart, ReplyTo, Role};
pub use rules::{CancelBodies, MirroredBodies, RenewalBodies, SessionBodies};

/// Every dialect that comes with the library.
pub static ALL: [Dialect; 7] = [ACP, ACP_V2, ACP_DRAFT, LSP, MCP, MCP_2026, ABP];

/// The envelope codec and the rules of a protocol. Cheap to clone.
#[derive(Clone)]
pub struct Dialect(Inner);

/// A dialect is a list of one dialect, so that builders take one or several.
impl IntoIterator for Dialect {
    type Item = Self;
    type IntoIter = std::iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

#[derive(Clone)]
enum Inner {
    Static(&'static Rules, &'static dyn Codec),
    Shared(Arc<Rules>, CodecHandle),
}

/// A codec: static or shared.
#[derive(Clone, Debug)]
enum CodecHandle {
    Static(&'static dyn Codec),
    Shared(Arc<dyn Codec>),
}

impl CodecHandle {
    fn as_codec(&self) -> &dyn Codec {
        match self {
            Self::Static(codec) => *codec,
            Self::Shared(codec) => &**codec,
        }
    }
}

impl Dialect {
    /// A dialect of static parts.
    #[must_use]
    pub const fn from_static(rules: &'static Rules, codec: &'static dyn Codec) -> Self {
        Self(Inner::Static(rules, codec))
    }

    fn from_parts(rules: Rules, codec: CodecHandle) -> Self {
        Self(Inner::Shared(Arc::new(rules), codec))
    }

    /// The built-in dialect of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        ALL.iter().find(|dialect| dialect.name() == name).cloned()
    }

    /// The name, as the command line writes it: `acp`, `mcp-2026`, ...
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.rules().name
    }

    /// The rules that the machine reads.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        match &self.0 {
            Inner::Static(rules, _) => rules,
            Inner::Shared(rules, _) => rules,
        }
    }

    /// The codec that reads and writes frames.
    #[must_use]
    pub fn codec(&self) -> &dyn Codec {
        match &self.0 {
            Inner::Static(_, codec) => *codec,
            Inner::Shared(_, codec) => codec.as_codec(),
        }
    }

    fn codec_handle(&self) -> CodecHandle {
        match &self.0 {
            Inner::Static(_, codec) => CodecHandle::Static(*codec),
            Inner::Shared(_, codec) => codec.clone(),
        }
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialect").field(&self.name()).finish()
    }
}
