//! Subscriptions: the messages of a listen request name it by its id (MCP 2026-07-28, "Receiving Notifications"), and each side of a
//! bridge has its own id for it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rescind_core::dialect::Dialect;
use rescind_core::{CallContext, RequestId};
use serde_json::value::RawValue;

type Members<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// The open listen requests of the downstream side, by the ids that they have upstream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriptions(Arc<Mutex<HashMap<RequestId, CallContext>>>);

/// A listen request, until it ends.
pub(crate) struct Subscription {
    all: Subscriptions,
    upstream: RequestId,
    /// The member of `_meta` that names it.
    member: &'static str,
}

impl Subscriptions {
    /// Starts the call of a request, and keeps the request if it is a listen request. `id`: the id of the call upstream.
    pub(crate) fn start<T, E>(
        &self,
        request: &CallContext,
        dialect: &Dialect,
        start: impl FnOnce() -> Result<T, E>,
        id: impl FnOnce(&T) -> Option<RequestId>,
    ) -> Result<(T, Option<Subscription>), E> {
        let listens = dialect.rules().graceful.iter().any(|(method, _)| *method == request.method());
        let Some(member) = member(dialect).filter(|_| listens) else { return Ok((start()?, None)) };
        // No message of the subscription is passed on before it is kept.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let call = start()?;
        let subscription = id(&call).map(|upstream| {
            kept.insert(upstream.clone(), request.clone());
            Subscription { all: self.clone(), upstream, member }
        });
        Ok((call, subscription))
    }

    /// The listen request to which a notification belongs, and its params with the id that this request has downstream.
    pub(crate) fn told(&self, dialect: &Dialect, params: &RawValue) -> Option<(CallContext, Box<RawValue>)> {
        let member = member(dialect)?;
        let named = named(member, params)?;
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let request = kept.get(&RequestId::from_json(named.get()).ok()?)?.clone();
        drop(kept);
        let params = replaced(params, named, request.request_id())?;
        Some((request, params))
    }
}

impl Subscription {
    /// The answer that ends the subscription, with the id that the request has downstream.
    pub(crate) fn answered(&self, request: &CallContext, answer: Box<RawValue>) -> Box<RawValue> {
        let own = named(self.member, &answer)
            .filter(|id| RequestId::from_json(id.get()).is_ok_and(|id| id == self.upstream));
        own.and_then(|id| replaced(&answer, id, request.request_id())).unwrap_or(answer)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let removed = self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.upstream);
        drop(removed);
    }
}

fn member(dialect: &Dialect) -> Option<&'static str> {
    dialect.codec().as_json_rpc()?.graceful_id
}

/// The id in the `_meta` of a message.
fn named<'a>(member: &str, message: &'a RawValue) -> Option<&'a RawValue> {
    if !message.get().contains(member) {
        return None;
    }
    let members: Members<'a> = serde_json::from_str(message.get()).ok()?;
    let meta: Members<'a> = serde_json::from_str(members.get("_meta")?.get()).ok()?;
    meta.get(member).copied()
}

/// A message with another id in the place of a part of its text. All other bytes are kept.
fn replaced(message: &RawValue, part: &RawValue, id: &RequestId) -> Option<Box<RawValue>> {
    let whole = message.get();
    let begin = part.get().as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let (before, after) = (whole.get(..begin)?, whole.get(begin + part.get().len()..)?);
    let mut text = before.as_bytes().to_vec();
    id.write_json(&mut text);
    text.extend_from_slice(after.as_bytes());
    RawValue::from_string(String::from_utf8(text).ok()?).ok()
}
