//! Several dialects on one connection, until its first message decides.

use super::{Dialect, ReplyTo};
use crate::dialect::rules::Refusal;
use crate::message::{BadMessage, Incoming};

/// Offers several dialects. The first one in the list that recognises the first message is chosen.
///
/// A single dialect is chosen without a message.
pub fn negotiate(dialects: impl IntoIterator<Item = Dialect>) -> Negotiation {
    Negotiation { offered: dialects.into_iter().collect() }
}

/// The dialects that a connection may use. A message that none of them recognises is refused and decides nothing: the
/// next message is examined in the same way.
///
/// ```
/// use rescind_core::dialect::{ACP, MCP, negotiate};
///
/// let negotiation = negotiate([ACP, MCP]);
/// assert!(negotiation.settled().is_none());
///
/// let params = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;
/// let hello = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
/// assert_eq!(negotiation.recognise(hello.as_bytes()).map(|dialect| dialect.name()), Ok("mcp"));
///
/// // An unknown first message is refused, and the next one may decide.
/// let frame = br#"{"jsonrpc":"2.0","id":1,"method":"hello"}"#;
/// let why = negotiation.recognise(frame).unwrap_err();
/// let mut refusal = Vec::new();
/// assert!(negotiation.refuse(&mut refusal, frame, why));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Negotiation {
    offered: Vec<Dialect>,
}

impl Negotiation {
    /// The offered dialects, in order.
    #[must_use]
    pub fn offered(&self) -> &[Dialect] {
        &self.offered
    }

    /// The dialect, if only one is offered.
    #[must_use]
    pub fn settled(&self) -> Option<&Dialect> {
        match self.offered.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The dialect to which the first message belongs.
    ///
    /// # Errors
    /// [`BadMessage::UnknownDialect`] if no dialect recognises the message. If the message is invalid in all of them
    /// for the same reason, that reason.
    pub fn recognise(&self, frame: &[u8]) -> Result<&Dialect, BadMessage> {
        if let Some(only) = self.settled() {
            return Ok(only);
        }
        let known = self.offered.iter().find(|dialect| dialect.codec().recognises(dialect.rules(), frame));
        known.ok_or_else(|| self.fault(frame))
    }

    /// Writes the refusal of a first message, in the form of the first dialect that has such a message. The refusal has
    /// the id of the message if the message is a request. `false`: no dialect has such a message.
    pub fn refuse(&self, out: &mut Vec<u8>, frame: &[u8], why: BadMessage) -> bool {
        self.offered.iter().any(|dialect| {
            let (codec, rules) = (dialect.codec(), dialect.rules());
            match codec.decode(frame) {
                Incoming::Request(request) => {
                    let to = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
                    codec.encode_refusal(rules, out, Some(&to), Refusal::Bad(why))
                }
                _ => codec.encode_refusal(rules, out, None, Refusal::Bad(why)),
            }
        })
    }

    /// The fault of a frame that no dialect recognised: the one on which all dialects agree, for example that it is not
    /// JSON, else [`BadMessage::UnknownDialect`].
    fn fault(&self, frame: &[u8]) -> BadMessage {
        let faults = self.offered.iter().map(|dialect| match dialect.codec().decode(frame) {
            Incoming::Bad(why) | Incoming::BadRequest { why, .. } => why,
            _ => BadMessage::UnknownDialect,
        });
        faults
            .reduce(|first, next| if first == next { first } else { BadMessage::UnknownDialect })
            .unwrap_or(BadMessage::UnknownDialect)
    }
}

impl From<Dialect> for Negotiation {
    fn from(dialect: Dialect) -> Self {
        negotiate([dialect])
    }
}
