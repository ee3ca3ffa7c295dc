//! A dialect as a value: an envelope codec, and the rules the machine reads.
//!
//! Nothing in the machine or the driver asks which dialect it has; it reads [`Rules`]. A dialect of your own is made
//! with [`Dialect::builder`].

mod codec;
mod rules;

use std::fmt;
use std::sync::Arc;

pub use codec::{CallFrame, Codec, Handshake, HandshakePart, ReplyTo, Role};
pub use rules::{
    AckStyle, AnswerAfterCancel, CancelFrom, CancelledError, CancelledReply, DecidedBy, DefaultFraming,
    EarlyCancel, Gate, LostStream, Refusal, RefusalStyle, Rules, SettledMemory,
};

/// A protocol's envelope and rules. Cheap to clone; never a type parameter.
#[derive(Clone)]
pub struct Dialect(Inner);

#[derive(Clone)]
enum Inner {
    Static(&'static Rules, &'static dyn Codec),
    Shared(Arc<Rules>, Arc<dyn Codec>),
}

impl Dialect {
    /// A dialect whose parts live as long as the program.
    #[must_use]
    pub const fn from_static(rules: &'static Rules, codec: &'static dyn Codec) -> Self {
        Self(Inner::Static(rules, codec))
    }

    pub(crate) fn from_parts(rules: Rules, codec: Arc<dyn Codec>) -> Self {
        Self(Inner::Shared(Arc::new(rules), codec))
    }

    /// The name scripts use: `acp`, `mcp-2026`, ...
    #[must_use]
    pub fn name(&self) -> &str {
        self.rules().name
    }

    /// What the machine reads.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        match &self.0 {
            Inner::Static(rules, _) => rules,
            Inner::Shared(rules, _) => rules,
        }
    }

    /// What reads and writes frames.
    #[must_use]
    pub fn codec(&self) -> &dyn Codec {
        match &self.0 {
            Inner::Static(_, codec) => *codec,
            Inner::Shared(_, codec) => &**codec,
        }
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialect").field(&self.name()).finish()
    }
}
