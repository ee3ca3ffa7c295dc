//! Parents and children: the calls of a handler belong to the request that it serves.
//!
//! A cascade unlinks the children of a request one by one, the oldest first, at most
//! [`Limits::max_cancels_per_step`](crate::Limits) in a step, and cancels each. So none is signalled twice (I5), and no
//! step is long. It needs no recursion: the children of a child are on the peer's side, which receives the child's
//! cancel.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::Session;
use super::input::CallRefused;
use super::output::{ForeignChild, Output};
use super::request::{Request, State};
use crate::cause::{Cause, CauseKind};
use crate::failpoint::{self, Failpoint};
use crate::id::{InboundKey, OutboundKey};
use crate::machine::outbound::{Call, Extras};

/// The cascades in progress, and the children on other connections.
#[derive(Debug, Default)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(super) struct Cascades {
    parents: VecDeque<InboundKey>,
    foreign: BTreeSet<(InboundKey, ForeignChild)>,
}

impl Cascades {
    pub(super) fn has_foreign(&self, parent: InboundKey) -> bool {
        !self.foreign.is_empty() && self.first_foreign(parent).is_some()
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = InboundKey> {
        self.parents.iter().copied()
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect_foreign(&self) -> impl Iterator<Item = (InboundKey, u64)> {
        self.foreign.iter().map(|(parent, child)| (*parent, child.0))
    }

    /// Removes an ended request whose children are all unlinked (I3).
    pub(super) fn forget(&mut self, parent: InboundKey) {
        if self.parents.front() == Some(&parent) {
            self.parents.pop_front();
        } else {
            self.parents.retain(|known| *known != parent);
        }
    }

    fn first_foreign(&self, parent: InboundKey) -> Option<ForeignChild> {
        let from = (parent, ForeignChild(0));
        let to = (parent, ForeignChild(u64::MAX));
        self.foreign.range(from..=to).next().map(|(_, child)| *child)
    }
}

impl Session {
    /// The call continues when its parent is cancelled or ends.
    pub fn local_detach(&mut self, call: OutboundKey) {
        self.unlink_child(call);
    }

    /// Makes a call on another connection a child of a request on this one.
    ///
    /// # Errors
    /// The errors of [`local_call`](Self::local_call), except that this connection may have ended.
    pub fn local_adopt(
        &mut self,
        _now: Instant,
        parent: InboundKey,
        child: ForeignChild,
    ) -> Result<(), CallRefused> {
        // The other connection may be open when this one has ended.
        if !self.may_have_children(parent) {
            return Err(CauseKind::Parent.into());
        }
        if self.tree.foreign.len() >= self.config.limits.max_calls {
            return Err(CallRefused::TooMany);
        }
        self.tree.foreign.insert((parent, child));
        Ok(())
    }

    /// A child on another connection has ended.
    pub fn local_release(&mut self, parent: InboundKey, child: ForeignChild) {
        self.tree.foreign.remove(&(parent, child));
        self.free_if_childless(parent);
    }

    /// Whether a cascade has descendants left to cancel.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.tree.parents.is_empty()
    }

    /// Cancels one slice of the cascades in progress.
    pub(super) fn walk(&mut self, now: Instant) {
        #[cfg(feature = "failpoints")]
        if failpoint::active(Failpoint::RecursiveCascade) {
            self.walk_by_itself(now);
        }
        // A slice of zero would never end (L4).
        for _ in 0..self.config.limits.max_cancels_per_step.max(1) {
            let Some(parent) = self.tree.parents.front().copied() else { return };
            let child = self.requests.get(parent.0).and_then(|request| request.extras().first_child);
            if let Some(child) = child {
                self.unlink_child(child);
                let _ = self.cancel_call(now, child, Cause::new(CauseKind::Parent), None);
            } else if let Some(child) = self.tree.first_foreign(parent) {
                self.tree.foreign.remove(&(parent, child));
                self.push(Output::CancelForeign(child));
            } else {
                self.tree.parents.pop_front();
                if let Some(extras) = self.requests.get_mut(parent.0).and_then(Request::extras_if_any) {
                    extras.is_walked = false;
                }
                self.free_if_childless(parent);
            }
        }
    }

    /// A planted bug: it uses stack for each child.
    #[cfg(feature = "failpoints")]
    fn walk_by_itself(&mut self, now: Instant) {
        let Some(parent) = self.tree.parents.front().copied() else { return };
        let first = self.requests.get(parent.0).and_then(|request| request.extras().first_child);
        let Some(child) = first else { return };
        self.unlink_child(child);
        self.walk_by_itself(now);
        let _ = self.cancel_call(now, child, Cause::new(CauseKind::Parent), None);
    }

    /// Queues a cascade over the children of a request that was signalled or settled, unless one is queued already.
    pub(super) fn begin_cascade(&mut self, parent: InboundKey) {
        let has_foreign = self.tree.has_foreign(parent);
        let Some(request) = self.requests.get_mut(parent.0) else { return };
        let extras = request.extras();
        if extras.is_walked || (extras.first_child.is_none() && !has_foreign) {
            return;
        }
        request.extras_mut(&mut self.request_extras).is_walked = true;
        self.tree.parents.push_back(parent);
    }

    /// A request that is signalled or settled gets no new children: they start cancelled (I5).
    pub(super) fn may_have_children(&self, parent: InboundKey) -> bool {
        match self.state_of(parent) {
            Some(State::Queued | State::Running | State::CancelPending) => true,
            Some(State::Cancelling) => failpoint::active(Failpoint::NotBornCancelled),
            Some(State::Draining { .. } | State::Ended) | None => false,
        }
    }

    pub(super) fn link_child(&mut self, parent: InboundKey, child: OutboundKey) {
        let Some(request) = self.requests.get_mut(parent.0) else { return };
        let extras = request.extras_mut(&mut self.request_extras);
        let previous = extras.last_child.replace(child);
        extras.first_child.get_or_insert(child);
        if let Some(call) = self.calls.get_mut(child.0) {
            let extras = call.extras_mut(&mut self.call_extras);
            extras.parent = Some(parent);
            extras.previous = previous;
        }
        self.link(previous, |extras| extras.next = Some(child));
    }

    pub(super) fn unlink_child(&mut self, child: OutboundKey) {
        let Some(extras) = self.calls.get_mut(child.0).and_then(Call::extras_if_any) else { return };
        let Some(parent) = extras.parent.take() else { return };
        let (previous, next) = (extras.previous.take(), extras.next.take());
        self.link(next, |extras| extras.previous = previous);
        self.link(previous, |extras| extras.next = next);
        if let Some(extras) = self.requests.get_mut(parent.0).and_then(Request::extras_if_any) {
            if previous.is_none() {
                extras.first_child = next;
            }
            if next.is_none() {
                extras.last_child = previous;
            }
        }
        self.free_if_childless(parent);
    }

    /// Changes the links of a child, if there is one.
    fn link(&mut self, child: Option<OutboundKey>, change: impl FnOnce(&mut Extras)) {
        if let Some(extras) = child.and_then(|child| self.calls.get_mut(child.0)?.extras_if_any()) {
            change(extras);
        }
    }
}
