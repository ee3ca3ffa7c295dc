//! A ledger, kept next to a session, of its inputs and of its outputs.

use std::collections::BTreeMap;

use rescind_core::{AckStatus, CallNumber, CauseKind, InboundKey, OutboundKey, Principal, RequestId, Scope};

use super::invariants::{Broken, holds, holds_and_counts};

/// What is known of an accepted request of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they come in any order")]
pub struct Served {
    /// Its id, and the key by which a cancel names it.
    pub name: Option<Name>,
    /// Its kind.
    pub kind: Kind,
    /// Whether it was decided when another request arrived with the same cancel key. The key then belongs to that
    /// request.
    nameless: bool,
    /// Whether its handler was started.
    pub started: bool,
    /// Whether its handler has reported its result.
    pub offered: bool,
    /// Whether its task has ended. Only then are its id and its permit free.
    pub ended: bool,
    /// Whether its task was aborted.
    pub aborted: bool,
    /// The number of critical sections that it is in.
    pub shields: u8,
    /// The cause of its first cancel, if there is one.
    pub first: Option<CauseKind>,
    /// Whether its stream is lost, which cancels it after a grace.
    pub detached: bool,
    pub(super) signalled: bool,
    /// The status with which its cancel was acknowledged in this step. Its end must fit it.
    pub(super) reported: Option<AckStatus>,
    /// Whether a cancel took effect while it was in a critical section.
    held: bool,
    pub(super) settled: Option<Settled>,
}

/// The identity of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The scope in which its id and its key are unique.
    pub scope: Scope,
    /// The principal that sent it. Only this principal may cancel it.
    pub principal: Option<Principal>,
    /// Its id.
    pub id: RequestId,
    /// The key by which a cancel names it. It may differ from the id.
    pub key: RequestId,
}

impl Name {
    /// Whether one cancel could mean either.
    fn is_keyed_as(&self, other: &Self) -> bool {
        self.scope == other.scope && self.key == other.key
    }
}

impl From<RequestId> for Name {
    fn from(id: RequestId) -> Self {
        Self { scope: Scope::Session, principal: None, key: id.clone(), id }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request that can be cancelled.
    #[default]
    Work,
    /// A request that no cancel message can cancel.
    CancelExemption,
    /// The handshake.
    Handshake,
}

/// An acknowledgement that must be sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwedAck {
    /// Its id.
    pub(super) ack: RequestId,
    /// The key that the cancel named.
    pub(super) key: Option<RequestId>,
    pub(super) says: Says,
}

/// The required status of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Says {
    /// This status, in the step of the cancel.
    Now(AckStatus),
    /// The result of this request, in the step of its end.
    End(InboundKey),
    /// Some status, in the step of the cancel. The status is checked elsewhere.
    Something,
}

/// The started events of this side and of the transport that end all requests at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ending {
    /// Whether the input has ended.
    pub half_closed: bool,
    /// Whether this side shuts down.
    pub shutdown: bool,
}

/// How a request was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Settled {
    /// It was answered with the result of its handler.
    ByHandler,
    /// It was answered by the machine.
    ByMachine,
    Silenced,
}

impl Served {
    /// Whether its result is decided.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled.is_some()
    }
}

/// What is known of a call of this side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    /// Its number.
    pub number: CallNumber,
    /// The request it belongs to.
    pub parent: Option<InboundKey>,
    /// Whether its frame was written.
    pub written: bool,
    /// Its cancel: its number, and whether it was written.
    pub cancel: Option<(CallNumber, bool)>,
    /// Whether a cancel was acknowledged.
    pub acked: bool,
    /// Whether it has ended.
    pub settled: bool,
}

/// The inputs and outputs of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The requests whose tasks have not ended or whose answers are missing.
    pub served: BTreeMap<InboundKey, Served>,
    /// The calls that may still receive something.
    pub made: BTreeMap<OutboundKey, Made>,
    /// Children on other connections, and their requests.
    pub foreign: BTreeMap<u64, InboundKey>,
    /// The acknowledgements that must be sent.
    pub(super) acks: Vec<OwedAck>,
    /// The started ends.
    pub ending: Ending,
    /// Whether the connection is lost.
    pub lost: bool,
    /// Whether `Close` was output.
    pub closed: bool,
}

impl Ledger {
    /// Records that a request was accepted.
    ///
    /// # Errors
    /// If its key or its id is in use.
    pub fn accept(&mut self, key: InboundKey, name: Name, kind: Kind) -> Result<(), Broken> {
        let owner = self.owner(&name);
        holds(owner.is_none(), "I4", || format!("{key:?} got the id {:?}, which {owner:?} has", name.id))?;
        for other in self.served.values_mut() {
            other.nameless |= other.name.as_ref().is_some_and(|other| other.is_keyed_as(&name));
        }
        let served = Served { name: Some(name), kind, ..Served::default() };
        let before = self.served.insert(key, served);
        let is_again = key.0.generation > 0;
        holds_and_counts(is_again, before.is_none(), "I14", || {
            format!("{key:?} was given out while it was in use")
        })
    }

    /// The request with the id of this name.
    pub(super) fn owner(&self, asked: &Name) -> Option<(InboundKey, &Served)> {
        let has = |name: &Name| name.scope == asked.scope && name.id == asked.id;
        self.alive().find(|(_, served)| served.name.as_ref().is_some_and(has))
    }

    /// The request that a cancel with the key of this name means.
    pub(super) fn named(&self, asked: &Name) -> Option<(InboundKey, &Served)> {
        let has = |served: &Served| served.name.as_ref().is_some_and(|name| name.is_keyed_as(asked));
        self.alive().find(|(_, served)| has(served) && !served.nameless)
    }

    fn alive(&self) -> impl Iterator<Item = (InboundKey, &Served)> {
        self.served.iter().filter(|(_, served)| !served.ended).map(|(key, served)| (*key, served))
    }

    /// Records a cancel that must be acknowledged with this id, in its step. The status is checked elsewhere.
    pub fn owe_ack(&mut self, ack: RequestId, key: Option<RequestId>) {
        self.acks.push(OwedAck { ack, key, says: Says::Something });
    }

    /// Records that a call was staged.
    ///
    /// # Errors
    /// If its key is in use, or its parent is cancelled.
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
        let is_again = key.0.generation > 0;
        holds_and_counts(is_again, before.is_none_or(|before| before.settled), "I14", || {
            format!("{key:?} was given out while it was in use")
        })
    }

    /// Records a cancel of a request. The first one takes effect, while the result is not decided. A critical section
    /// may delay its signal.
    pub fn cancel(&mut self, key: InboundKey, cause: CauseKind) {
        let Some(served) = self.served.get_mut(&key) else { return };
        // A request with a reported result has nothing to cancel, but its answer is not sent on a lost connection.
        let is_decided = served.is_settled() || served.offered || served.ended;
        if served.kind != Kind::Handshake && !is_decided && served.first.is_none() {
            served.first = Some(cause);
            served.held |= served.started && served.shields > 0 && !served.signalled;
        }
    }

    /// Records that the stream of a request is lost, if that cancels it. A silent end is not reported to a lost
    /// connection.
    pub(super) fn cancel_by_stream(&mut self, key: InboundKey, silent: bool) {
        let was_held = self.served.get(&key).is_some_and(|served| served.held);
        self.cancel(key, CauseKind::Peer);
        let is_untold = self.lost && silent && !was_held;
        if let Some(served) = self.served.get_mut(&key).filter(|served| is_untold && served.held) {
            served.settled.get_or_insert(Settled::Silenced);
        }
    }

    /// Whether the end of its critical section must deliver the signal.
    pub(super) fn owes_signal(&self, key: InboundKey) -> bool {
        self.served.get(&key).is_some_and(|served| {
            let runs = !served.offered && !served.ended;
            served.held && !served.signalled && runs && served.settled != Some(Settled::ByHandler)
        })
    }

    /// Records that the task of a request has ended.
    pub fn end(&mut self, key: InboundKey) {
        if let Some(served) = self.served.get_mut(&key) {
            served.ended = true;
        }
    }

    pub(super) fn of(&mut self, key: InboundKey) -> Result<&mut Served, Broken> {
        self.served
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }

    pub(super) fn of_call(&mut self, key: OutboundKey) -> Result<&mut Made, Broken> {
        self.made
            .get_mut(&key)
            .ok_or_else(|| Broken { invariant: "I14", what: format!("an output for {key:?}, which is gone") })
    }
}
