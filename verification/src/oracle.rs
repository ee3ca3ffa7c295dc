//! An account, kept beside a session, of what was asked of it and what it had done.

use std::collections::BTreeMap;

use rescind_core::{AckStatus, CallNumber, CauseKind, InboundKey, OutboundKey, Principal, RequestId, Scope};

use super::invariants::{Broken, holds, holds_and_counts};

/// What is known of a request of the peer that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they come in any order")]
pub struct Served {
    /// Its id, and what a cancel names it by.
    pub name: Option<Name>,
    /// What it is.
    pub kind: Kind,
    /// It was decided when another came under what cancels name it by: that is the other's now.
    nameless: bool,
    /// Its handler was started.
    pub started: bool,
    /// Its handler has said how it ends.
    pub offered: bool,
    /// Its task is gone: only now are its id and its permit free.
    pub ended: bool,
    /// Its task was told to end.
    pub aborted: bool,
    /// Critical sections it is in.
    pub shields: u8,
    /// Why it was cancelled first, if it was.
    pub first: Option<CauseKind>,
    /// Its stream is lost, which cancels it after a grace.
    pub detached: bool,
    pub(super) signalled: bool,
    /// Its cancel was acknowledged so, in this step: its end has to be of that kind.
    pub(super) told: Option<AckStatus>,
    /// A cancel counted while it was in a critical section.
    held: bool,
    pub(super) settled: Option<Settled>,
}

/// What a request is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The space its id and its key are unique in.
    pub scope: Scope,
    /// Who asks it: nobody else cancels it.
    pub principal: Option<Principal>,
    /// Its id.
    pub id: RequestId,
    /// What a cancel names it by; the two need not be the same.
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

/// What a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anything that can be cancelled.
    #[default]
    Work,
    /// What no cancel message reaches.
    CancelExemption,
    /// The handshake.
    Handshake,
}

/// An acknowledgement that is owed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwedAck {
    /// What it goes under.
    pub(super) ack: RequestId,
    /// What the cancel named.
    pub(super) key: Option<RequestId>,
    pub(super) says: Says,
}

/// What an acknowledgement has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Says {
    /// This, in the step of the cancel.
    Now(AckStatus),
    /// What becomes of this request, in the step of its end.
    End(InboundKey),
    /// Something, in the step of the cancel: with what, is told elsewhere.
    Something,
}

/// What this side and the wire have begun that ends all requests sooner or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ending {
    /// The input has ended.
    pub half_closed: bool,
    /// This side shuts down.
    pub shutdown: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Settled {
    /// It was answered with what its handler returned.
    ByHandler,
    /// It was answered by the machine.
    ByMachine,
    Silenced,
}

impl Served {
    /// What becomes of it is decided.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled.is_some()
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
    /// The acknowledgements that are owed.
    pub(super) acks: Vec<OwedAck>,
    /// What has begun to end.
    pub ending: Ending,
    /// The connection is lost.
    pub lost: bool,
    /// `Close` was output.
    pub closed: bool,
}

impl Ledger {
    /// A request was accepted.
    ///
    /// # Errors
    /// Its key or its id is in use.
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

    /// The request that has the id of this name.
    pub(super) fn owner(&self, asked: &Name) -> Option<(InboundKey, &Served)> {
        let has = |name: &Name| name.scope == asked.scope && name.id == asked.id;
        self.alive().find(|(_, served)| served.name.as_ref().is_some_and(has))
    }

    /// The request that a cancel of the key of this name is about.
    pub(super) fn named(&self, asked: &Name) -> Option<(InboundKey, &Served)> {
        let has = |served: &Served| served.name.as_ref().is_some_and(|name| name.is_keyed_as(asked));
        self.alive().find(|(_, served)| has(served) && !served.nameless)
    }

    fn alive(&self) -> impl Iterator<Item = (InboundKey, &Served)> {
        self.served.iter().filter(|(_, served)| !served.ended).map(|(key, served)| (*key, served))
    }

    /// A cancel came that is acknowledged under this id, in its step: with what, is held against something else.
    pub fn owe_ack(&mut self, ack: RequestId, key: Option<RequestId>) {
        self.acks.push(OwedAck { ack, key, says: Says::Something });
    }

    /// A call was staged.
    ///
    /// # Errors
    /// Its key is in use, or its parent is cancelled.
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

    /// A cancel of a request came. The first counts, while nothing is decided; a critical section may hold its signal off.
    pub fn cancel(&mut self, key: InboundKey, cause: CauseKind) {
        let Some(served) = self.served.get_mut(&key) else { return };
        // One that has said how it ends has nothing left to stop, though a lost connection is told nothing of it.
        let is_decided = served.is_settled() || served.offered || served.ended;
        if served.kind != Kind::Handshake && !is_decided && served.first.is_none() {
            served.first = Some(cause);
            served.held |= served.started && served.shields > 0 && !served.signalled;
        }
    }

    /// The stream of a request is lost, where that cancels it. Silence, where it is owed, is not told to a lost connection.
    pub(super) fn cancel_by_stream(&mut self, key: InboundKey, silent: bool) {
        let was_held = self.served.get(&key).is_some_and(|served| served.held);
        self.cancel(key, CauseKind::Peer);
        let is_untold = self.lost && silent && !was_held;
        if let Some(served) = self.served.get_mut(&key).filter(|served| is_untold && served.held) {
            served.settled.get_or_insert(Settled::Silenced);
        }
    }

    /// Whether the end of its critical section has to bring the signal.
    pub(super) fn owes_signal(&self, key: InboundKey) -> bool {
        self.served.get(&key).is_some_and(|served| {
            let runs = !served.offered && !served.ended;
            served.held && !served.signalled && runs && served.settled != Some(Settled::ByHandler)
        })
    }

    /// The task of a request is gone.
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
