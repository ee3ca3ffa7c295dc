//! Calls of this side: the data of each, the names of their methods and their timeouts. How they start and end, also as
//! children of requests on other connections, is in `lifecycle`.

pub(crate) mod lifecycle;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::cause::Cancelled;
use crate::dialect::{Role, Rules};
use crate::driver::json_text::JsonText;
use crate::driver::notifications::{Inbox, Seq};
use crate::driver::request_log::{RequestKey, Stamp};
use crate::driver::task::TaskCall;
use crate::id::{CallNumber, ExchangeId, OutboundKey, SlotKey};
use crate::message::{AnswerBody, AnswerFault, ErrorObject};
use crate::sync::AbortHandle;
use crate::trace_context::TraceContext;

/// The span of a call. Cloning a [`tracing::Span`] calls the subscriber, which must not happen under the lock.
pub(crate) type CallSpan = Option<Arc<tracing::Span>>;

/// An action on another connection. It takes that connection's lock, so it runs without the lock of this one (D3).
pub(crate) type RemoteAction = Box<dyn FnOnce() + Send>;

/// A call of this side. There is one entry for each call in flight, so it is small.
pub(crate) struct CallEntry {
    pub(crate) key: OutboundKey,
    /// Its frame, until it is written or removed from the outbox.
    pub(crate) frame: Option<Box<StagedCall>>,
    /// How it ended, until its handle has read it.
    pub(crate) settled: Option<Box<Settled>>,
    /// Whether its request is sent on an exchange of its own, which its number identifies.
    pub(crate) own_exchange: bool,
    /// Whether it has ended.
    pub(crate) ended: bool,
    /// The users of the entry besides the call itself.
    pub(crate) users: EntryUsers,
    /// Its method, among those that the connection keeps.
    pub(crate) method: MethodIndex,
    /// When it was made.
    pub(crate) made: Stamp,
    pub(crate) waker: Option<Waker>,
    /// The data that only few calls have.
    pub(crate) extras: Option<Box<EntryExtras>>,
}

/// What needs the entry of a call besides the call itself: its handle, which will read how it ended, and the mark of its
/// cancel in the outbox. The machine has the details of the cancel. One byte, because there is an entry for each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryUsers(u8);

impl EntryUsers {
    /// Its handle alone.
    pub(crate) const HANDLE: Self = Self(1);
    /// The mark of its cancel alone.
    pub(crate) const CANCEL: Self = Self(2);

    pub(crate) const fn has(self, user: Self) -> bool {
        self.0 & user.0 != 0
    }

    pub(crate) const fn add(&mut self, user: Self) {
        self.0 |= user.0;
    }

    /// Returns whether it was one of them.
    pub(crate) const fn remove(&mut self, user: Self) -> bool {
        let was = self.has(user);
        self.0 &= !user.0;
        was
    }
}

/// The data that only few calls have.
#[derive(Default)]
pub(crate) struct EntryExtras {
    /// The exchange of its request, if that is the exchange of its parent.
    pub(crate) exchange: Option<ExchangeId>,
    /// Whether it opens the session.
    pub(crate) shakes: bool,
    pub(crate) acknowledged: Option<bool>,
    pub(crate) ack_waker: Option<Waker>,
    pub(crate) inbox: Option<Arc<Inbox>>,
    /// How progress changes its deadline.
    pub(crate) renewal: Option<Renewal>,
    /// Whether its handle gets the answer only after the notifications before the answer are handled.
    pub(crate) in_order: bool,
    /// How it ended, while the notifications before its answer are not handled.
    pub(crate) held_back: Option<Box<Settled>>,
    /// The readers that select notifications for it.
    pub(crate) readers: Vec<Seq>,
    pub(crate) span: CallSpan,
    /// The trace of its request, until the request is written.
    pub(crate) trace: Option<Arc<TraceContext>>,
    pub(crate) watches: Vec<AbortHandle>,
    /// The task to which it belongs.
    pub(crate) task: Option<TaskCall>,
    /// Releases its parent on another connection.
    pub(crate) release_parent: Option<RemoteAction>,
    /// The same parent.
    pub(crate) foreign_parent: Option<RequestKey>,
}

/// A call that was staged.
pub(crate) struct Started {
    pub(crate) slot_key: SlotKey,
    pub(crate) number: CallNumber,
    /// Its method, shared with other calls of that method.
    pub(crate) method: Arc<str>,
}

/// The frame of a staged call, not encoded yet.
pub(crate) struct StagedCall {
    pub(crate) method: Arc<str>,
    pub(crate) params: Option<Box<RawValue>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) progress: bool,
    pub(crate) partial: bool,
}

/// The content of an answer.
#[derive(Debug)]
pub(crate) enum AnswerContent {
    Value(JsonText),
    Cancelled,
    Error(ErrorObject),
    Malformed(AnswerFault),
}

impl AnswerContent {
    /// Keeps the value without a copy: it shares the memory of its frame.
    pub(crate) fn of_answer(frame: &Bytes, body: AnswerBody<'_>) -> Self {
        match body {
            AnswerBody::Value(value) => Self::Value(JsonText::in_frame(frame, value)),
            AnswerBody::Cancelled => Self::Cancelled,
            AnswerBody::Error(error) => Self::Error(error),
            AnswerBody::Malformed(what) => Self::Malformed(what),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Settled {
    Value { value: JsonText, after_cancel: bool },
    Error(ErrorObject),
    Malformed(AnswerFault),
    Cancelled(Cancelled),
    Disconnected { may_have_run: bool },
}

impl CallEntry {
    pub(crate) fn extras(&mut self) -> &mut EntryExtras {
        self.extras.get_or_insert_default()
    }

    /// The exchange for the request of this call, which has this number.
    pub(crate) fn exchange(&self, number: CallNumber) -> ExchangeId {
        if self.own_exchange {
            return ExchangeId::of_call(number);
        }
        self.extras.as_ref().and_then(|extras| extras.exchange).unwrap_or(ExchangeId::NONE)
    }

    pub(crate) fn span(&self) -> CallSpan {
        self.extras.as_ref()?.span.clone()
    }

    /// Whether it opens the session.
    pub(crate) fn shakes(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.shakes)
    }

    /// Whether the entry is not needed any more.
    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.users == EntryUsers(0)
    }
}

// The names of the methods that this side calls. Each name is kept once, so that calls in flight share it.

/// The most names that are kept. A program that generates names has no use for them.
const MAX_NAMES: usize = 256;
/// The most bytes of a name that is kept.
const MAX_NAME_BYTES: usize = 256;

#[derive(Default)]
pub(crate) struct Interner(HashMap<Arc<str>, MethodIndex>);

/// A kept name. The last one that is kept has the index of a name that is not kept, so that an index is one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodIndex(u8);

impl MethodIndex {
    const NONE: Self = Self(u8::MAX);
}

impl Interner {
    /// The kept name that is equal to this one, or this one.
    pub(crate) fn share(&mut self, name: Arc<str>) -> (Arc<str>, MethodIndex) {
        if let Some((known, index)) = self.0.get_key_value(&name) {
            return (Arc::clone(known), *index);
        }
        let mut index = MethodIndex::NONE;
        if self.0.len() < MAX_NAMES && name.len() <= MAX_NAME_BYTES {
            index = u8::try_from(self.0.len()).map_or(MethodIndex::NONE, MethodIndex);
            self.0.insert(Arc::clone(&name), index);
        }
        (name, index)
    }

    /// The kept name of this index. It looks at all names: only views of a connection ask it.
    pub(crate) fn at(&self, index: MethodIndex) -> Option<Arc<str>> {
        let mut kept = self.0.iter().filter(|(_, known)| **known == index && index != MethodIndex::NONE);
        kept.next().map(|(name, _)| Arc::clone(name))
    }
}

// How long calls of this side may take.

/// The settings of the connection, for calls without settings of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) call: Setting,
    pub(crate) max: Setting,
}

/// A time that may be left to the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Setting {
    #[default]
    Default,
    Never,
    After(Duration),
}

impl Setting {
    pub(crate) fn of(time: Option<Duration>) -> Self {
        time.map_or(Self::Never, Self::After)
    }

    pub(crate) fn or(self, default: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Default => default,
            Self::Never => None,
            Self::After(time) => Some(time),
        }
    }
}

/// The settings of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallTime {
    pub(crate) timeout: Setting,
    pub(crate) max: Setting,
    /// Whether progress restarts the timeout.
    pub(crate) is_renewed: bool,
}

/// The times of a call that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallTimes {
    pub(crate) timeout: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) renewal: Option<Renewal>,
}

/// How progress changes the deadline of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    by: Duration,
    until: Option<Instant>,
}

impl Renewal {
    /// The deadline after progress that arrives now.
    pub(crate) fn deadline(self, now: Instant) -> Option<Instant> {
        now.checked_add(self.by).into_iter().chain(self.until).min()
    }
}

impl CallTime {
    /// The defaults of the dialect apply to clients only, and not to requests that are meant to stay open.
    pub(crate) fn begin(
        self,
        now: Instant,
        connection: Timeouts,
        rules: &Rules,
        role: Role,
        method: &str,
    ) -> CallTimes {
        let stays_open = rules.peer_may_end.contains(&method);
        let of_client = |time: Option<Duration>| time.filter(|_| role == Role::Client);
        let by_default = connection.call.or(of_client(rules.call_timeout)).filter(|_| !stays_open);
        let timeout = self.timeout.or(by_default);
        // A default maximum never shortens a timeout that the caller set.
        let max_by_default = connection.max.or(of_client(rules.max_call_timeout)).filter(|_| self.is_renewed);
        let max = self.max.or(max_by_default.map(|max| timeout.map_or(max, |timeout| max.max(timeout))));
        let until = max.and_then(|max| now.checked_add(max));
        let renewal = timeout.filter(|_| self.is_renewed).map(|by| Renewal { by, until });
        let timeout = timeout.into_iter().chain(max).min();
        CallTimes { timeout, deadline: timeout.and_then(|timeout| now.checked_add(timeout)), renewal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{ACP, MCP, MCP_2026};

    #[test]
    fn a_call_in_flight_takes_little() {
        let bytes = size_of::<CallEntry>();
        assert!(bytes <= 56, "W8: a call's entry takes {bytes} bytes");
    }

    #[test]
    fn a_name_is_interned_once_and_the_interner_is_bounded() {
        let mut methods = Interner::default();
        let (first, index) = methods.share(Arc::from("work"));
        assert!(Arc::ptr_eq(&first, &methods.share(Arc::from("work")).0));
        for made_up in 0..10_000 {
            methods.share(Arc::from(format!("made/up/{made_up}")));
        }
        methods.share(Arc::from("x".repeat(MAX_NAME_BYTES + 1)));
        assert_eq!(methods.0.len(), MAX_NAMES, "I11: names are not bounded");
        assert!(Arc::ptr_eq(&first, &methods.share(Arc::from("work")).0));
        assert_eq!(methods.at(index), Some(first), "a name is found by its index");
        let (_, second) = methods.share(Arc::from("made/up/0"));
        assert_eq!(methods.at(second).as_deref(), Some("made/up/0"));
        for unkept in ["made/up/254", "made/up/9999"] {
            let (_, index) = methods.share(Arc::from(unkept));
            assert_eq!((index, methods.at(index)), (MethodIndex::NONE, None), "{unkept}");
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const UNSET: Timeouts = Timeouts { call: Setting::Default, max: Setting::Default };

    fn timeout(
        call: CallTime,
        connection: Timeouts,
        rules: &Rules,
        role: Role,
        method: &str,
    ) -> Option<Duration> {
        call.begin(Instant::now(), connection, rules, role, method).timeout
    }

    #[test]
    fn only_clients_of_mcp_have_a_timeout_by_default() {
        let call = CallTime::default();
        assert_eq!(timeout(call, UNSET, MCP.rules(), Role::Client, "tools/call"), Some(60 * SECOND));
        assert_eq!(timeout(call, UNSET, MCP.rules(), Role::Server, "elicitation/create"), None);
        assert_eq!(timeout(call, UNSET, MCP_2026.rules(), Role::Client, "subscriptions/listen"), None);
        assert_eq!(timeout(call, UNSET, ACP.rules(), Role::Client, "session/prompt"), None);
        let never = Timeouts { call: Setting::Never, ..UNSET };
        assert_eq!(timeout(call, never, MCP.rules(), Role::Client, "tools/call"), None);
        let short = Timeouts { call: Setting::After(SECOND), ..UNSET };
        assert_eq!(timeout(call, short, ACP.rules(), Role::Server, "a"), Some(SECOND));
        let own = CallTime { timeout: Setting::Never, ..call };
        assert_eq!(timeout(own, short, ACP.rules(), Role::Server, "a"), None);
    }

    #[test]
    fn a_default_maximum_does_not_shorten_an_explicit_timeout() {
        let now = Instant::now();
        let long =
            CallTime { timeout: Setting::After(3600 * SECOND), is_renewed: true, ..CallTime::default() };
        let given = long.begin(now, UNSET, MCP.rules(), Role::Client, "a");
        assert_eq!(given.timeout, Some(3600 * SECOND));
        assert_eq!(given.renewal.and_then(|renewal| renewal.until), now.checked_add(3600 * SECOND));
        let capped = CallTime { max: Setting::After(SECOND), ..long };
        assert_eq!(capped.begin(now, UNSET, MCP.rules(), Role::Client, "a").timeout, Some(SECOND));
    }
}
