//! Subscriptions: the messages of a listen request name it by its id (MCP 2026-07-28, "Receiving Notifications"), and each side of a
//! bridge has its own id for it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rescind_core::dialect::Dialect;
use rescind_core::{CallContext, RequestId};
use serde_json::value::RawValue;

type Members<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// The listen requests of the downstream side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriptions(Arc<Mutex<ListenRequests>>);

#[derive(Debug, Default)]
struct ListenRequests {
    /// The open ones, by the ids that they have upstream.
    open: HashMap<RequestId, CallContext>,
    /// The highest of these ids that there was.
    newest: i64,
}

/// The subscription to which a notification belongs.
pub(crate) enum SubscriptionOf {
    /// None.
    None,
    /// That of this request, with params that name it by the id that it has downstream.
    Open(CallContext, Box<RawValue>),
    /// One that has ended. Downstream its id may be that of another one.
    Ended,
}

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
            kept.newest = kept.newest.max(upstream.as_number().unwrap_or(0));
            kept.open.insert(upstream.clone(), request.clone());
            Subscription { all: self.clone(), upstream, member }
        });
        Ok((call, subscription))
    }

    /// The subscription to which a notification belongs.
    pub(crate) fn subscription_of(&self, dialect: &Dialect, params: &RawValue) -> SubscriptionOf {
        let named = member(dialect).and_then(|member| named(member, params));
        let Some((id, part)) = named.and_then(|part| Some((RequestId::from_json(part.get()).ok()?, part)))
        else {
            return SubscriptionOf::None;
        };
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(request) = kept.open.get(&id).cloned() else {
            let was_given = id.as_number().is_some_and(|id| (1..=kept.newest).contains(&id));
            return if was_given { SubscriptionOf::Ended } else { SubscriptionOf::None };
        };
        drop(kept);
        match replaced(params, part, request.request_id()) {
            Some(params) => SubscriptionOf::Open(request, params),
            None => SubscriptionOf::None,
        }
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
        let removed = self.all.0.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&self.upstream);
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
