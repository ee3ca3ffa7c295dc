//! The progress tokens of the requests that are being passed on, so that progress returns with the request that asked
//! for it. That matters on transports on which each request has a stream of its own (HTTP).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rescind_core::CallContext;
use rescind_core::dialect::{Dialect, Progress};
use serde_json::value::RawValue;

/// The requests of one side that asked for progress, by their tokens as the side wrote them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressTokens(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    requests: HashMap<Box<str>, (u64, CallContext)>,
    next: u64,
}

/// The token of one request, until the request ends.
pub(crate) struct Registered {
    tokens: ProgressTokens,
    token: Box<str>,
    number: u64,
}

impl ProgressTokens {
    /// Remembers the request's token. `None`: it has none.
    pub(crate) fn register(&self, request: &CallContext) -> Option<Registered> {
        let token: Box<str> = request.progress_token()?.get().into();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.next += 1;
        let number = known.next;
        let replaced = known.requests.insert(token.clone(), (number, request.clone()));
        drop(known);
        drop(replaced);
        Some(Registered { tokens: self.clone(), token, number })
    }

    /// The request whose progress a notification reports.
    pub(crate) fn reported(&self, dialect: &Dialect, method: &str, params: &RawValue) -> Option<CallContext> {
        let Progress { notification, token_key, .. } = dialect.codec().as_json_rpc()?.progress?;
        if method != notification {
            return None;
        }
        let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(params.get()).ok()?;
        let token = members.get(token_key)?.get();
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.requests.get(token).map(|(_, request)| request.clone())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut known = self.tokens.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A later request of the same side may have the same token.
        let own = known.requests.get(&self.token).is_some_and(|(number, _)| *number == self.number);
        let removed = if own { known.requests.remove(&self.token) } else { None };
        drop(known);
        drop(removed);
    }
}
