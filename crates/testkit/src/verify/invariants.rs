//! What must hold after every step, whoever drives the machine.
//!
//! A [`Ledger`] keeps its own account of what was asked of a session and what the session had done, and holds the two against
//! each other. Each violation names the invariant.

use std::collections::BTreeMap;
use std::fmt;

use rescind_core::inspect::{CallState, Inspection, RequestState, TimerView};
use rescind_core::{
    CallNumber, CauseKind, InboundKey, Limits, OutboundKey, Output, ReplyBody, RequestId, Session, Settlement,
};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.invariant, self.what)
    }
}

impl std::error::Error for Broken {}

/// Says that an invariant is broken unless the condition holds.
pub(super) fn holds(
    condition: bool,
    invariant: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Broken> {
    if condition { Ok(()) } else { Err(Broken { invariant, what: what() }) }
}

/// What is known of a request of the peer that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Served {
    /// Its id.
    pub id: Option<RequestId>,
    /// It is the handshake.
    pub is_handshake: bool,
    /// Its handler was started.
    pub started: bool,
    /// Its handler has said how it ends.
    pub offered: bool,
    /// Its task was told to end.
    pub aborted: bool,
    /// Critical sections it is in.
    pub shields: u8,
    signalled: bool,
    answered: bool,
    /// With what its handler returned.
    by_handler: bool,
    silenced: bool,
}

impl Served {
    /// What becomes of it is decided.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.answered || self.silenced
    }
}

/// What is known of a call of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    /// Its number.
    pub number: CallNumber,
    /// The request it belongs to.
    pub parent: Option<InboundKey>,
    /// Its frame was written.
    pub written: bool,
    /// Its cancel: its number, and whether it was written.
    pub cancel: Option<(CallNumber, bool)>,
    /// A cancel was acknowledged.
    pub acked: bool,
    /// It has ended.
    pub settled: bool,
}

/// What was asked of a session and what it had done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The requests whose tasks or answers are still owed.
    pub served: BTreeMap<InboundKey, Served>,
    /// The calls that may still have something to come.
    pub made: BTreeMap<OutboundKey, Made>,
    /// Children on other connections, and the requests they belong to.
    pub foreign: BTreeMap<u64, InboundKey>,
    /// The connection is lost.
    pub lost: bool,
    /// `Close` was output.
    pub closed: bool,
}

impl Ledger {
    /// A request was accepted.
    pub fn accept(&mut self, key: InboundKey, id: RequestId, is_handshake: bool) -> Result<(), Broken> {
        let served = Served { id: Some(id), is_handshake, ..Served::default() };
        let before = self.served.insert(key, served);
        holds(before.is_none(), "I14", || format!("{key:?} was given out while it was in use"))
    }

    /// A call was staged.
    pub fn make(
        &mut self,
        key: OutboundKey,
        number: CallNumber,
        parent: Option<InboundKey>,
    ) -> Result<(), Broken> {
        if let Some(parent) = parent {
            let open =
                self.served.get(&parent).is_some_and(|parent| !parent.signalled && !parent.is_settled());
            holds(open, "I5", || format!("{key:?} was not born cancelled, though {parent:?} is"))?;
        }
        let made = Made { number, parent, written: false, cancel: None, acked: false, settled: false };
        let before = self.made.insert(key, made);
        holds(before.is_none_or(|before| before.settled), "I14", || {
            format!("{key:?} was given out while it was in use")
        })
    }

    fn of(&mut self, key: InboundKey) -> Result<&mut Served, Broken> {
        self.served
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }

    fn of_call(&mut self, key: OutboundKey) -> Result<&mut Made, Broken> {
        self.made
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }

    /// Takes in one output.
    pub fn take(&mut self, session: &Session, output: &Output) -> Result<(), Broken> {
        match output {
            Output::Start(key) => {
                let request = self.of(*key)?;
                let fresh = !request.started && !request.is_settled();
                request.started = true;
                holds(fresh, "I1", || format!("{key:?} was started twice, or when it was settled"))
            }
            Output::Signal { key, cause } => {
                let (closing, request) = (cause_ends_all(cause.kind()), self.of(*key)?);
                let (fresh, started) = (!request.signalled, request.started);
                let late = request.by_handler;
                request.signalled = true;
                holds(fresh, "I5", || format!("{key:?} was signalled twice"))?;
                holds(started, "I5", || format!("{key:?} was signalled before it was started"))?;
                holds(!late, "I6", || format!("{key:?} was signalled after its answer"))?;
                let spared = request.is_handshake && !closing;
                holds(!spared, "I9", || format!("the handshake was cancelled: {cause:?}"))
            }
            Output::Abort(key) => {
                let request = self.of(*key)?;
                let (started, fresh) = (request.started, !request.aborted);
                request.aborted = true;
                holds(started && fresh, "L1", || {
                    format!("{key:?} was aborted twice, or before it was started")
                })
            }
            Output::Reply(reply) => {
                let lost = self.lost;
                let request = self.of(reply.key)?;
                let (fresh, offered) = (!request.is_settled(), request.offered);
                request.answered = true;
                let by_handler = matches!(reply.body, ReplyBody::Handler);
                request.by_handler = by_handler;
                let key = reply.key;
                holds(fresh, "I1", || format!("{key:?} was answered twice"))?;
                holds(!lost, "I1", || format!("{key:?} was answered on a lost connection"))?;
                holds(request.id.as_ref() == Some(&reply.id), "I4", || {
                    format!("{key:?} was answered as {:?}", reply.id)
                })?;
                holds(!by_handler || offered, "I6", || format!("{key:?} had nothing to answer with"))?;
                holds(!session.may_notify(key), "I2", || {
                    format!("{key:?} may still write, behind its answer")
                })
            }
            Output::Silence { key, .. } => {
                let owed = session.dialect().rules().peer_cancelled
                    == rescind_core::dialect::CancelledReply::Silence;
                let lost = self.lost;
                let request = self.of(*key)?;
                let fresh = !request.is_settled();
                request.silenced = true;
                holds(fresh, "I1", || format!("{key:?} was silenced after its answer"))?;
                let by_peer = session.request_cause(*key).is_none_or(|cause| cause.kind() == CauseKind::Peer);
                holds(lost || (owed && by_peer), "I1", || {
                    format!("{key:?} is owed an answer, and was silenced")
                })?;
                holds(!session.may_notify(*key), "I2", || {
                    format!("{key:?} may still write, though it is silenced")
                })
            }
            Output::Gone(key) => {
                let (lost, request) = (self.lost, self.of(*key)?.clone());
                self.served.remove(key);
                holds(lost || request.is_settled(), "I1", || format!("{key:?} is gone without an answer"))?;
                let view =
                    |key: &InboundKey| session.request_cause(*key).is_none() && !session.may_notify(*key);
                holds(view(key), "I3", || format!("{key:?} is gone and still known"))
            }
            Output::SendCancel { call, number, cancel, .. } => {
                let made = self.of_call(*call)?;
                let (fresh, written) = (made.cancel.is_none(), made.written);
                made.cancel = Some((*cancel, false));
                holds(written, "I12", || format!("the cancel of {call:?} goes before its request"))?;
                holds(fresh, "I5", || format!("{call:?} was cancelled twice"))?;
                holds(made.number == *number, "I4", || format!("the cancel of {call:?} names {number:?}"))
            }
            Output::TakeBack(call) => {
                let made = self.of_call(*call)?;
                holds(!made.written, "I12", || format!("{call:?} was taken back after it was written"))
            }
            Output::Acked { call, .. } => {
                let made = self.of_call(*call)?;
                let fresh = !made.acked && made.cancel.is_some();
                made.acked = true;
                holds(fresh, "I7", || format!("the cancel of {call:?} was acknowledged twice, or never sent"))
            }
            Output::Settle { call, settlement } => {
                let made = self.of_call(*call)?;
                let fresh = !made.settled;
                made.settled = true;
                holds(fresh, "I13", || format!("{call:?} was settled twice"))?;
                let written = made.written;
                let unwritten_answer = matches!(settlement, Settlement::Answered { .. }) && !written;
                holds(!unwritten_answer, "I12", || format!("{call:?} was answered before it was written"))?;
                let may_have_run = matches!(settlement, Settlement::Disconnected { may_have_run: true });
                holds(!may_have_run || written, "I13", || {
                    format!("{call:?} was never written, and may have run")
                })
            }
            Output::CancelForeign(child) => {
                let known = self.foreign.remove(&child.0).is_some();
                holds(known, "I5", || format!("the child {child:?} elsewhere was cancelled twice"))
            }
            Output::Close(_) => {
                let fresh = !self.closed;
                self.closed = true;
                holds(fresh, "I13", || "the connection was closed twice".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Holds the session against the account, when all outputs of a step were taken in.
    pub fn check(&mut self, session: &Session, seen: &Inspection) -> Result<(), Broken> {
        self.made.retain(|key, made| session.call_number(*key).is_some() || !made.settled);
        for (key, made) in &self.made {
            let known = session.call_number(*key).is_some();
            holds(known, "I13", || format!("{key:?} is forgotten, and its caller waits: {made:?}"))?;
        }
        self.check_residue(seen)?;
        self.check_children(session, seen)?;
        for (key, request) in &self.served {
            let is_open = request.started && !request.is_settled();
            let wrong = session.may_notify(*key) && request.is_settled();
            holds(!wrong, "I2", || format!("{key:?} may write, and is settled"))?;
            let tracked = seen.requests.iter().any(|view| view.key == *key);
            holds(tracked || !is_open, "I3", || format!("{key:?} runs and has no slot"))?;
        }
        let alive = self.served.values().filter(|request| request.started).count();
        let running = seen
            .requests
            .iter()
            .filter(|view| !matches!(view.state, RequestState::Queued | RequestState::Ended))
            .count();
        let out = seen.permits.0 + seen.permits.1;
        holds(out == running, "I10", || format!("{out} permits are out, and {running} tasks run"))?;
        holds(out <= alive, "I10", || format!("{out} permits are out, and {alive} tasks were started"))?;
        check_bounds(session.limits(), seen)
    }

    /// I3: nothing refers to what is gone.
    fn check_residue(&self, seen: &Inspection) -> Result<(), Broken> {
        let request = |key: &InboundKey| seen.requests.iter().find(|view| view.key == *key);
        let call = |key: &OutboundKey| seen.calls.iter().any(|view| view.key == *key);
        for (_, timer) in &seen.timers {
            let known = match timer {
                TimerView::Queue(key) => request(key).is_some_and(|view| view.state == RequestState::Queued),
                TimerView::Grace(key) | TimerView::Shield(key) | TimerView::Detach(key) => {
                    request(key).is_some()
                }
                TimerView::Deadline(key) | TimerView::PeerWait(key) => call(key),
                TimerView::Lifecycle => true,
            };
            holds(known, "I3", || format!("a timer is left: {timer:?}"))?;
        }
        for key in &seen.queue {
            let queued = request(key).is_some_and(|view| view.state == RequestState::Queued);
            holds(queued, "I3", || format!("{key:?} is in the queue and does not wait"))?;
        }
        let waits = seen.requests.iter().filter(|view| view.state == RequestState::Queued).count();
        holds(waits == seen.queue.len(), "I3", || {
            format!("{waits} wait, and the queue has {}", seen.queue.len())
        })?;
        let links = seen.exchanges.iter().map(|(_, key)| key);
        let links = links.chain(seen.cancel_keys.iter().map(|(_, _, key)| key)).chain(&seen.cascades);
        for key in links.chain(seen.foreign.iter().map(|(key, _)| key)) {
            holds(request(key).is_some(), "I3", || format!("something refers to {key:?}, which is gone"))?;
        }
        let alive = seen.requests.iter().filter(|view| view.state != RequestState::Ended).count();
        holds(seen.indexed.0 == alive, "I3", || {
            format!("{} ids are taken by {alive} requests", seen.indexed.0)
        })?;
        holds(seen.indexed.1 == seen.calls.len(), "I3", || {
            format!("{} numbers are taken by {} calls", seen.indexed.1, seen.calls.len())
        })?;
        let open = seen.calls.iter().filter(|view| view.state != CallState::Leaving).count();
        holds(seen.open_calls == open, "I3", || {
            format!("{} calls are said to be open: {open}", seen.open_calls)
        })?;
        for (number, key) in &seen.cancels {
            holds(call(key), "I3", || format!("the cancel {number:?} is kept for {key:?}, which is gone"))?;
        }
        Ok(())
    }

    /// I5: a live child has a live parent, unless a cascade is on its way to it.
    fn check_children(&self, session: &Session, seen: &Inspection) -> Result<(), Broken> {
        for view in &seen.requests {
            for child in &view.children {
                let back = seen.calls.iter().find(|call| call.key == *child).and_then(|call| call.parent);
                holds(back == Some(view.key), "I3", || {
                    format!("{child:?} is a child of {:?} and {back:?}", view.key)
                })?;
            }
        }
        for call in &seen.calls {
            let Some(parent) = call.parent else { continue };
            let parent = seen.requests.iter().find(|view| view.key == parent);
            let listed = parent.is_some_and(|parent| parent.children.contains(&call.key));
            holds(listed, "I3", || format!("{:?} has a parent that does not know it", call.key))?;
            let live = parent.is_some_and(|parent| {
                matches!(parent.state, RequestState::Queued | RequestState::Running | RequestState::Held)
            });
            holds(live || session.has_work(), "I5", || {
                format!("{:?} outlives its cancelled parent", call.key)
            })?;
        }
        Ok(())
    }
}

const fn cause_ends_all(kind: CauseKind) -> bool {
    matches!(kind, CauseKind::Shutdown | CauseKind::Disconnected)
}

/// I11: every map and queue is bounded.
fn check_bounds(limits: &Limits, seen: &Inspection) -> Result<(), Broken> {
    let bounds = [
        ("the queue", seen.queue.len(), limits.queued),
        ("early cancels", seen.parked.len(), limits.parked),
        ("remembered ids", seen.remembered.len(), limits.remembered),
        ("calls", seen.calls.len(), limits.calls),
        ("permits", seen.permits.0 + seen.permits.1, limits.running),
        ("held acknowledgements", seen.requests.iter().map(|view| view.held_acks).sum(), limits.parked),
    ];
    for (what, is, may) in bounds {
        holds(is <= may, "I11", || format!("{what}: {is}, where {may} may be"))?;
    }
    Ok(())
}
