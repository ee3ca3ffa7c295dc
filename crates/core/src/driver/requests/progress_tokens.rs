//! Which request reports with which progress token, in dialects where the peer can cancel by token (LSP).

use std::collections::HashMap;

use crate::id::{InboundKey, RequestId};

/// The most progress tokens that are kept for one request. It may report with more, but a cancel by one of those does
/// not find it.
const MAX_TOKENS: usize = 8;

/// The tokens with which requests report. A token belongs to the first request that used it.
#[derive(Debug, Default)]
pub(crate) struct ProgressTokens(HashMap<RequestId, InboundKey>);

impl ProgressTokens {
    pub(crate) fn request(&self, token: &RequestId) -> Option<InboundKey> {
        self.0.get(token).copied()
    }

    /// A request reports with this token. `tokens`: the tokens with which it reported before.
    pub(crate) fn add(&mut self, key: InboundKey, tokens: &mut Vec<RequestId>, token: RequestId) {
        if tokens.len() < MAX_TOKENS && !self.0.contains_key(&token) {
            tokens.push(token.clone());
            self.0.insert(token, key);
        }
    }

    /// The request has ended.
    pub(crate) fn forget(&mut self, key: InboundKey, tokens: &[RequestId]) {
        for token in tokens {
            if self.0.get(token) == Some(&key) {
                self.0.remove(token);
            }
        }
    }
}
