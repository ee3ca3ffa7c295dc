//! The machine's data of a request of the peer, how a request is found by its id, and whether it is admitted.
//!
//! There is one for each request in flight, so it is small: data that only few requests need is in a box.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::cause::{Cause, CauseKind};
use crate::collections::Pool;
use crate::dialect::{CancelledReply, EarlyCancel, Refusal, SettledMemory};
use crate::failpoint::{self, Failpoint};
use crate::id::{ClientNumber, ExchangeId, InboundKey, OutboundKey, Principal, RequestId, Scope};
use crate::machine::interface::{Event, InboundRequest, Origin, Output, Work};
use crate::machine::limits::control_handlers;
use crate::machine::remembered_ids::{Name, Settled};
use crate::machine::{Session, lifecycle};
use crate::message::{CancelExemption, CancelKey};

/// A request of the peer.
#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct Request {
    pub(super) id: RequestId,
    /// The origin of its message. `None`: a byte stream without an auth hook.
    origin: Option<Box<Origin>>,
    extras: Option<Box<RequestExtras>>,
    key: CancelKeyKind,
    pub(super) tag: u8,
    pub(super) server_cancellable: bool,
    pub(super) cancellability: Cancellability,
    pub(super) work: Work,
    pub(super) state: RequestState,
    /// Its task was aborted.
    pub(super) aborted: bool,
    /// It waits for something that can be asked for again, so it is cancelled soon after its stream is lost.
    pub(super) ends_with_stream: bool,
}

/// The data that only few requests need.
#[derive(Debug, Default)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct RequestExtras {
    /// The key by which a cancel names it, if that is not its id.
    name: Option<RequestId>,
    /// The fixed result that may replace the cancelled answer.
    pub(super) fixed: Option<FixedResult>,
    /// The first accepted cancel. Set in `CancelPending` and `Cancelling`, and in `Draining` if a cancel settled it.
    pub(super) cause: Option<Cause>,
    /// When it was accepted. It decides nothing: views of the request show it.
    pub(super) cancelled_at: Option<Instant>,
    /// Acknowledgements that wait for the end of a shield.
    pub(super) held_acks: Vec<(RequestId, ExchangeId)>,
    /// The critical sections that it has entered and not left.
    pub(super) shields: u32,
    pub(super) alarms: Alarms,
    /// Its children among the calls of this connection: the oldest and the youngest of a linked list.
    pub(super) first_child: Option<OutboundKey>,
    pub(super) last_child: Option<OutboundKey>,
    /// Whether a cascade over its children is queued.
    pub(super) has_cascade: bool,
}

/// A result that replaces the cancelled answer of a method, and when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FixedResult {
    /// Whenever this side ends the request.
    TornDown(&'static str),
    /// When the peer or code of this side cancels it.
    CalledOff(&'static str),
}

impl FixedResult {
    pub(super) const fn for_cause(self, cause: CauseKind) -> Option<&'static str> {
        let (result, is_called_off) = match self {
            Self::TornDown(result) => (result, false),
            Self::CalledOff(result) => (result, true),
        };
        let applies = match cause {
            CauseKind::Local => true,
            CauseKind::Peer => is_called_off,
            CauseKind::Caller
            | CauseKind::Dropped
            | CauseKind::Deadline
            | CauseKind::Parent
            | CauseKind::Disconnected
            | CauseKind::Shutdown
            | CauseKind::Limit
            | CauseKind::Operator => !is_called_off,
        };
        if applies { Some(result) } else { None }
    }
}

/// The extras of a request without extras.
static NO_EXTRAS: RequestExtras = RequestExtras {
    name: None,
    fixed: None,
    cause: None,
    cancelled_at: None,
    held_acks: Vec::new(),
    shields: 0,
    alarms: Alarms { queue: None, grace: None, shield: None, lost_stream: None },
    first_child: None,
    last_child: None,
    has_cascade: false,
};

static STREAM: Origin = Origin::STREAM;

/// When the timers of a request fire, so that they can be removed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alarms {
    pub(super) queue: Option<Instant>,
    pub(super) grace: Option<Instant>,
    pub(super) shield: Option<Instant>,
    pub(super) lost_stream: Option<Instant>,
}

/// The key by which a cancel names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CancelKeyKind {
    Id,
    Named,
    Nothing,
}

/// The state of a request. Each transition is in one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// It waits for a permit. Its handler has not started.
    Queued,
    /// Its handler runs, and nothing is decided.
    Running,
    /// A cancel was accepted while a shield delays it: there is neither a signal nor a decision.
    CancelPending,
    /// Its handler was signalled and decides the answer.
    Cancelling,
    /// It is answered with the handle of a task, and its handler does the task's work. Its id and its exchange are free.
    Task,
    /// It is settled. The task of its handler has not ended.
    Draining {
        /// The handler must still be signalled, at the end of its shield.
        owes_signal: bool,
    },
    /// Its task has ended, and its id and its permit are free. Its children must still be unlinked.
    Ended,
}

impl RequestState {
    /// Whether its answer is not decided.
    pub(super) const fn is_open(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::CancelPending | Self::Cancelling => true,
            Self::Task | Self::Draining { .. } | Self::Ended => false,
        }
    }
}

/// By what a request can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancellability {
    /// By everything.
    All,
    /// By everything except a cancel message (MCP: task-augmented requests).
    NoMessage,
    /// Only by a shutdown and a disconnect (I9).
    Handshake,
}

impl Request {
    /// A request that waits for its start.
    pub(super) fn new(
        arrival: InboundRequest<'_>,
        cancellability: Cancellability,
        fixed: Option<FixedResult>,
        spares: &mut Pool<RequestExtras>,
    ) -> Self {
        let (key, name) = match arrival.cancel_key {
            CancelKey::SameAsId => (CancelKeyKind::Id, None),
            CancelKey::Named(name) => (CancelKeyKind::Named, Some(name)),
            CancelKey::None => (CancelKeyKind::Nothing, None),
        };
        let Origin { scope, exchange, principal, client } = &arrival.origin;
        let is_stream = *scope == Scope::Session
            && *exchange == ExchangeId::NONE
            && principal.is_none()
            && client.is_none();
        let mut request = Self {
            id: arrival.id,
            origin: (!is_stream).then(|| Box::new(arrival.origin)),
            extras: None,
            key,
            tag: arrival.tag,
            server_cancellable: arrival.server_cancellable,
            cancellability,
            work: arrival.work,
            state: RequestState::Queued,
            aborted: false,
            ends_with_stream: arrival.ends_with_stream,
        };
        if name.is_some() || fixed.is_some() {
            let extras = request.extras_mut(spares);
            (extras.name, extras.fixed) = (name, fixed);
        }
        request
    }

    pub(super) fn origin(&self) -> &Origin {
        self.origin.as_deref().unwrap_or(&STREAM)
    }

    pub(super) fn client(&self) -> Option<ClientNumber> {
        self.origin().client
    }

    pub(super) fn principal(&self) -> Option<&Principal> {
        self.origin().principal.as_ref()
    }

    pub(super) fn extras(&self) -> &RequestExtras {
        self.extras.as_deref().unwrap_or(&NO_EXTRAS)
    }

    pub(super) fn extras_mut(&mut self, spares: &mut Pool<RequestExtras>) -> &mut RequestExtras {
        self.extras.get_or_insert_with(|| spares.take())
    }

    /// Its extras, if it has any.
    pub(super) fn extras_if_any(&mut self) -> Option<&mut RequestExtras> {
        self.extras.as_deref_mut()
    }

    /// Its extras, when the request is not needed any more.
    pub(super) fn into_extras(self) -> Option<Box<RequestExtras>> {
        self.extras
    }

    pub(super) fn cause(&self) -> Option<&Cause> {
        self.extras().cause.as_ref()
    }

    /// Takes the time of one of its timers.
    pub(super) fn take_alarm(
        &mut self,
        which: impl FnOnce(&mut Alarms) -> &mut Option<Instant>,
    ) -> Option<Instant> {
        which(&mut self.extras_if_any()?.alarms).take()
    }

    pub(super) fn take_alarms(&mut self) -> Alarms {
        self.extras_if_any().map(|extras| std::mem::take(&mut extras.alarms)).unwrap_or_default()
    }

    pub(super) fn take_held_acks(&mut self) -> Vec<(RequestId, ExchangeId)> {
        self.extras_if_any().map(|extras| std::mem::take(&mut extras.held_acks)).unwrap_or_default()
    }

    /// Ends all its shields. `true`: it had one.
    pub(super) fn drop_shields(&mut self) -> bool {
        self.extras_if_any().is_some_and(|extras| std::mem::take(&mut extras.shields) > 0)
    }

    /// Its id and the scope of the id.
    pub(super) fn scoped_id(&self) -> (Scope, &RequestId) {
        (self.origin().scope, &self.id)
    }

    /// The id by which a cancel names it, if there is one.
    pub(super) fn cancel_id(&self) -> Option<&RequestId> {
        match self.key {
            CancelKeyKind::Id => Some(&self.id),
            CancelKeyKind::Named => self.extras().name.as_ref(),
            CancelKeyKind::Nothing => None,
        }
    }

    /// Whether a cancel names it by another key than its id.
    pub(super) fn is_named(&self) -> bool {
        self.key == CancelKeyKind::Named
    }

    /// The key by which a cancel names it, if there is one, and the scope of the key.
    pub(super) fn cancel_name(&self) -> Option<Name> {
        Some((self.origin().scope, self.cancel_id()?.clone()))
    }
}

impl Session {
    /// The request with this id, in its scope.
    pub(super) fn request_named(&self, scope: Scope, id: &RequestId) -> Option<(InboundKey, &Request)> {
        self.request_hashed(self.ids.hash(&(scope, id)), scope, id)
    }

    /// The request with this name, whose hash is known.
    pub(super) fn request_hashed(
        &self,
        hash: u64,
        scope: Scope,
        id: &RequestId,
    ) -> Option<(InboundKey, &Request)> {
        let name = (scope, id);
        let is = |slot| self.requests.at(slot).is_some_and(|(_, request)| request.scoped_id() == name);
        let (key, request) = self.requests.at(self.ids.find_hashed(hash, is)?)?;
        Some((InboundKey(key), request))
    }
}

/// The limits of one client on a connection that carries several clients, in addition to those of
/// [`Limits`](crate::Limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientLimits {
    /// The most handlers of the client that run at once. Its further requests wait for one of its own permits.
    pub running: usize,
    /// The most blocking handlers of the client that run at once.
    pub blocking: usize,
    /// The most requests of the client that wait. Further ones are refused.
    pub queued: usize,
}

impl ClientLimits {
    /// Limits with these values.
    #[must_use]
    pub const fn new(running: usize, blocking: usize, queued: usize) -> Self {
        Self { running, blocking, queued }
    }
}

/// What each client uses. A client that uses nothing is not in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    most: Option<ClientLimits>,
    used: BTreeMap<ClientNumber, ClientUse>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClientUse {
    tasks: usize,
    blocking: usize,
    control: usize,
    queued: usize,
    /// Its handlers that do the work of tasks. They have a permit, too.
    became_tasks: usize,
}

impl Shares {
    pub(super) fn new(most: Option<ClientLimits>) -> Self {
        Self { most, used: BTreeMap::new() }
    }

    pub(super) fn has_room(&self, client: Option<ClientNumber>, work: Work) -> bool {
        let (Some(most), Some(client)) = (self.most, client) else { return true };
        let used = self.used.get(&client).copied().unwrap_or_default();
        let all = used.tasks + used.blocking;
        match work {
            Work::Task => all < most.running,
            Work::Blocking => all < most.running && used.blocking < most.blocking,
            Work::Control => used.control < control_handlers(most.running),
        }
    }

    pub(super) fn may_wait(&self, client: Option<ClientNumber>) -> bool {
        let (Some(most), Some(client)) = (self.most, client) else { return true };
        self.used.get(&client).is_none_or(|used| used.queued < most.queued)
    }

    pub(super) fn starts(&mut self, client: Option<ClientNumber>, work: Work) {
        self.change(client, |used| *used.permits(work) += 1);
    }

    pub(super) fn ends(&mut self, client: Option<ClientNumber>, work: Work) {
        self.change(client, |used| *used.permits(work) -= 1);
    }

    /// A running request becomes a task. `false`: half of the handlers of its client do the work of tasks.
    pub(super) fn begins_task(&mut self, client: Option<ClientNumber>) -> bool {
        let (Some(most), Some(client)) = (self.most, client) else { return true };
        let used = self.used.entry(client).or_default();
        let has_room = used.became_tasks < (most.running / 2).max(1);
        used.became_tasks += usize::from(has_room);
        has_room
    }

    pub(super) fn ends_task(&mut self, client: Option<ClientNumber>) {
        self.change(client, |used| used.became_tasks -= 1);
    }

    pub(super) fn waits(&mut self, client: Option<ClientNumber>) {
        self.change(client, |used| used.queued += 1);
    }

    pub(super) fn waited(&mut self, client: Option<ClientNumber>) {
        self.change(client, |used| used.queued -= 1);
    }

    fn change(&mut self, client: Option<ClientNumber>, change: impl FnOnce(&mut ClientUse)) {
        let (Some(_), Some(client)) = (self.most, client) else { return };
        let used = self.used.entry(client).or_default();
        change(used);
        if *used == ClientUse::default() {
            self.used.remove(&client);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }
}

impl ClientUse {
    const fn permits(&mut self, work: Work) -> &mut usize {
        match work {
            Work::Task => &mut self.tasks,
            Work::Blocking => &mut self.blocking,
            Work::Control => &mut self.control,
        }
    }
}

// Admission: whether a request is admitted, and how it is refused.

/// Why a request gets no slot.
pub(super) enum NotAdmitted {
    /// The connection is gone. Nothing is sent.
    Lost,
    /// Refused with its own id.
    Refused(Refusal),
    /// Refused without an id: its id belongs to a request that is not answered yet.
    DuplicateId,
    /// Answered as cancelled, without a start.
    Cancelled(Cause),
}

impl Session {
    /// Admits it, or returns why not. `hash`: the hash of its name.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        arrival: &InboundRequest<'_>,
        hash: u64,
    ) -> Result<(), NotAdmitted> {
        let refused = |refusal| Err(NotAdmitted::Refused(refusal));
        if self.lifecycle.state() == lifecycle::ConnectionState::Lost {
            return Err(NotAdmitted::Lost);
        }
        let first = self.request_hashed(hash, arrival.origin.scope, &arrival.id);
        if let Some((_, first)) = first.filter(|_| !failpoint::active(Failpoint::OverwriteDuplicate)) {
            let open = first.state.is_open();
            self.emit(Event::DuplicateId);
            // I4: the first request is not affected. While it is open the peer would take a refusal with its id for its
            // answer.
            return if open {
                Err(NotAdmitted::DuplicateId)
            } else {
                refused(Refusal::Overloaded("draining"))
            };
        }
        let cancel_name = cancel_name(arrival);
        if let (CancelKey::Named(_), Some(name)) = (&arrival.cancel_key, &cancel_name) {
            let holder = self.cancel_keys.get(name).and_then(|key| self.requests.get(key.0));
            if holder.is_some_and(|holder| holder.state.is_open()) {
                self.emit(Event::DuplicateId);
                return refused(Refusal::DuplicateKey);
            }
        }
        let early = self.take_early(now, arrival, cancel_name.as_ref());
        let rules = self.rules();
        if rules.reserved_prefix.is_some_and(|prefix| arrival.method.starts_with(prefix)) {
            return refused(Refusal::MethodNotFound);
        }
        if self.cancellability_of(arrival) != Cancellability::Handshake && !self.serves() {
            return refused(Refusal::NotInitialized);
        }
        if self.exit_state.shut_down {
            return refused(Refusal::ShutDown);
        }
        if self.lifecycle.refuses_requests() {
            return Err(NotAdmitted::Cancelled(Cause::new(CauseKind::Shutdown)));
        }
        if let Some(cause) = early {
            return Err(NotAdmitted::Cancelled(cause));
        }
        if let Err(limit) = arrival.admission {
            self.emit(Event::LimitReached(limit));
            return refused(Refusal::Overloaded(limit));
        }
        let limits = &self.config.limits;
        if !self.has_room(arrival.origin.client, arrival.work) {
            let full = if self.queue.len() >= limits.max_queued_requests {
                Some("queued")
            } else if self.shares.may_wait(arrival.origin.client) {
                None
            } else {
                Some("client_queued")
            };
            if let Some(limit) = full {
                self.emit(Event::LimitReached(limit));
                return refused(Refusal::Overloaded(limit));
            }
        }
        Ok(())
    }

    /// The early cancel that waits for this request. It is removed in any case, so that it cannot cancel a later
    /// request with the same id. It has an effect unless the request is not cancellable by messages.
    fn take_early(
        &mut self,
        now: Instant,
        arrival: &InboundRequest<'_>,
        name: Option<&Name>,
    ) -> Option<Cause> {
        let cause = self.early_cancels.take(now, name?, arrival.origin.principal.as_ref())?;
        match self.cancellability_of(arrival) {
            Cancellability::All => Some(cause),
            Cancellability::NoMessage | Cancellability::Handshake => {
                self.emit(Event::IgnoredCancel);
                None
            }
        }
    }

    /// By what a request can be cancelled.
    pub(super) fn cancellability_of(&self, arrival: &InboundRequest<'_>) -> Cancellability {
        let rules = self.rules();
        if rules.handshake == Some(arrival.method) && !failpoint::active(Failpoint::HandshakeCancelled) {
            Cancellability::Handshake
        } else if (arrival.exempt == CancelExemption::FromCancelMessages
            && self.agreement.exempts(arrival.method))
            || rules.uncancellable.contains(&arrival.method)
        {
            Cancellability::NoMessage
        } else {
            Cancellability::All
        }
    }

    pub(super) fn refuse(&mut self, now: Instant, arrival: InboundRequest<'_>, why: NotAdmitted) {
        if let Some(name) = cancel_name(&arrival) {
            if let Some(settled) = self.settled_by_refusal(now, &arrival, &name, &why) {
                self.remember_at(now, Some(name), arrival.origin.principal.clone(), settled);
            }
        }
        let exchange = arrival.origin.exchange;
        let to = Some((arrival.id.clone(), arrival.tag));
        match why {
            NotAdmitted::Lost => {}
            NotAdmitted::Refused(why) => self.push(Output::Refuse { to, exchange, why }),
            NotAdmitted::DuplicateId => {
                self.push(Output::Refuse { to: None, exchange, why: Refusal::DuplicateId });
            }
            NotAdmitted::Cancelled(cause) => {
                let silent =
                    cause.kind() == CauseKind::Peer && self.rules().peer_cancelled == CancelledReply::Silence;
                if !silent {
                    let graceful =
                        self.fixed_result(arrival.method).and_then(|fixed| fixed.for_cause(cause.kind()));
                    let InboundRequest { id, tag, server_cancellable, .. } = arrival;
                    self.push(Output::RefuseCancelled {
                        id,
                        tag,
                        server_cancellable,
                        exchange,
                        graceful,
                        cause,
                    });
                } else if exchange != ExchangeId::NONE {
                    self.push(Output::ExchangeEnd { exchange, silent: true });
                }
            }
        }
    }

    /// How the key of a refused request is remembered: a refusal is an answer too, and a cancel after it is late.
    /// `None`: the key belongs to another request.
    fn settled_by_refusal(
        &mut self,
        now: Instant,
        arrival: &InboundRequest<'_>,
        name: &Name,
        why: &NotAdmitted,
    ) -> Option<Settled> {
        let settled = match why {
            NotAdmitted::Lost | NotAdmitted::DuplicateId => return None,
            NotAdmitted::Refused(_) => Settled::Completed,
            NotAdmitted::Cancelled(_) => Settled::Cancelled,
        };
        match arrival.cancel_key {
            CancelKey::Named(_) if self.cancel_keys.contains_key(name) => None,
            // Its handler only drains: its result is remembered again (I7).
            CancelKey::SameAsId if self.request_named(name.0, &name.1).is_some() => {
                let known = self.settled.recall(now, name, arrival.origin.principal.as_ref());
                Some(known.unwrap_or(settled))
            }
            CancelKey::Named(_) | CancelKey::SameAsId | CancelKey::None => Some(settled),
        }
    }

    /// Whether an early cancel may wait for its request here.
    pub(super) fn parks_early_cancels(&self) -> bool {
        let by_dialect = match self.rules().early {
            EarlyCancel::Never => false,
            EarlyCancel::WhereUnordered => !self.config.ordered,
            EarlyCancel::Always => true,
        };
        by_dialect && !self.config.exchange_scoped
    }

    /// Remembers the result of a key, if the dialect needs it.
    pub(super) fn remember_at(
        &mut self,
        now: Instant,
        name: Option<Name>,
        principal: Option<Principal>,
        settled: Settled,
    ) {
        let asked = match self.rules().settled_memory {
            SettledMemory::ForAcks => true,
            SettledMemory::ForParking => self.parks_early_cancels(),
        };
        if let (true, Some(name)) = (asked, name) {
            self.settled.record(now, name, principal, settled);
        }
    }

    /// The state of a request. `None`: it has no slot any more.
    pub(super) fn state_of(&self, key: InboundKey) -> Option<RequestState> {
        self.requests.get(key.0).map(|request| request.state)
    }
}

/// The key by which a cancel names a request, if there is one.
fn cancel_name(arrival: &InboundRequest<'_>) -> Option<Name> {
    match &arrival.cancel_key {
        CancelKey::SameAsId => Some((arrival.origin.scope, arrival.id.clone())),
        CancelKey::Named(key) => Some((arrival.origin.scope, key.clone())),
        CancelKey::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_flight_takes_little() {
        let bytes = size_of::<Request>();
        assert!(bytes <= 40, "W8: a request's slot takes {bytes} bytes");
    }
}
