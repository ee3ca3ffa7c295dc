//! Which request reports under which progress token, where the peer can cancel by that (LSP).

use std::collections::HashMap;

use super::shared::State;
use crate::id::{InboundKey, RequestId};

/// So many progress tokens are remembered of one request. It may report under more, but a cancel by one of those does not find it.
const MOST: usize = 8;

/// The tokens that requests report under, each the first one's that did.
#[derive(Debug, Default)]
pub(super) struct Reported(HashMap<RequestId, InboundKey>);

impl Reported {
    pub(super) fn request(&self, token: &RequestId) -> Option<InboundKey> {
        self.0.get(token).copied()
    }

    /// The request is gone.
    pub(super) fn forget(&mut self, key: InboundKey, tokens: &[RequestId]) {
        for token in tokens {
            if self.0.get(token) == Some(&key) {
                self.0.remove(token);
            }
        }
    }
}

impl State {
    /// A handler reports under this token.
    pub(super) fn report_under(&mut self, key: InboundKey, token: RequestId) {
        let Some(slot) = self.inbound.get_mut(key.0) else { return };
        let tokens = &mut slot.extras().tokens;
        if tokens.len() < MOST && !self.reported.0.contains_key(&token) {
            tokens.push(token.clone());
            self.reported.0.insert(token, key);
        }
    }
}
