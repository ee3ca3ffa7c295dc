//! Several dialects on one connection, until its first message says which.

use super::{Dialect, ReplyTo};
use crate::dialect::rules::Refusal;
use crate::message::{BadMessage, Incoming};

/// Offers several dialects; the first listed that recognises the first message wins.
///
/// One dialect alone needs no recognising: it has won already.
pub fn negotiate(dialects: impl IntoIterator<Item = Dialect>) -> Negotiation {
    Negotiation { offered: dialects.into_iter().collect() }
}

/// The dialects a connection may turn out to speak. A message none of them recognises is refused and settles
/// nothing: the next one is looked at anew.
#[derive(Clone, Debug)]
#[must_use]
pub struct Negotiation {
    offered: Vec<Dialect>,
}

impl Negotiation {
    /// What is offered, in order.
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

    /// The dialect the first message belongs to.
    ///
    /// # Errors
    /// [`BadMessage::UnknownDialect`] if no dialect recognises the message; what is wrong with it, if it is none in
    /// any of them.
    pub fn recognise(&self, frame: &[u8]) -> Result<&Dialect, BadMessage> {
        if let Some(only) = self.settled() {
            return Ok(only);
        }
        let known = self.offered.iter().find(|dialect| dialect.codec().recognises(dialect.rules(), frame));
        known.ok_or_else(|| self.fault(frame))
    }

    /// Writes the refusal of a first message as the first dialect does that has such a message, under the message's
    /// id where it is a request with one. `false`: none has.
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

    /// What is wrong with a frame nobody recognised: if all agree that it is not even JSON, that.
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
