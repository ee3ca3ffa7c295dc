//! Which request reports under which progress token, where the peer can cancel by that (LSP).

use std::collections::HashMap;

use crate::id::{InboundKey, RequestId};

/// So many progress tokens are remembered of one request. It may report under more, but a cancel by one of those does not find it.
const MOST: usize = 8;

/// The tokens that requests report under, each the first one's that did.
#[derive(Debug, Default)]
pub(crate) struct Reported(HashMap<RequestId, InboundKey>);

impl Reported {
    pub(crate) fn request(&self, token: &RequestId) -> Option<InboundKey> {
        self.0.get(token).copied()
    }

    /// A request reports under this token; `tokens` are those that it reported under before.
    pub(crate) fn add(&mut self, key: InboundKey, tokens: &mut Vec<RequestId>, token: RequestId) {
        if tokens.len() < MOST && !self.0.contains_key(&token) {
            tokens.push(token.clone());
            self.0.insert(token, key);
        }
    }

    /// The request is gone.
    pub(crate) fn forget(&mut self, key: InboundKey, tokens: &[RequestId]) {
        for token in tokens {
            if self.0.get(token) == Some(&key) {
                self.0.remove(token);
            }
        }
    }
}
