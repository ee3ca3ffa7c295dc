//! Parent and child on two connections, as in a gateway.
//!
//! The parent's machine knows the child by a number; the parent's driver knows where that number leads. Neither
//! connection's lock is taken under the other's (D3), so the child is registered in three steps, and a cancel that
//! falls between them is found by the last.

use std::sync::{Arc, Weak};

use super::request::Request;
use super::shared::{ConnectionInner, State};
use super::slots::SlotKey;
use crate::cause::{Cause, CauseKind};
use crate::id::InboundKey;
use crate::machine::{CallRefused, ForeignChild};

/// A call on another connection.
pub(super) struct ForeignCall {
    connection: Weak<ConnectionInner>,
    ticket: SlotKey,
}

impl ForeignCall {
    /// The parent is cancelled.
    pub(super) fn cancel_for_parent(self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.step(|state, now, _| {
                let _ = state.cancel_call(now, self.ticket, Cause::new(CauseKind::Parent), None);
            });
        }
    }
}

/// A parent on another connection.
pub(super) struct ForeignParent {
    connection: Weak<ConnectionInner>,
    key: InboundKey,
    child: ForeignChild,
}

impl ForeignParent {
    /// First: makes the parent expect a child, if it may have one.
    pub(super) fn adopt(request: &Request) -> Result<Self, CallRefused> {
        request.shared.step(|state, now, _| {
            let child = ForeignChild(state.next_foreign);
            state.session.local_adopt(now, request.key, child)?;
            state.next_foreign += 1;
            state.foreign.insert(child.0, None);
            Ok(Self { connection: Arc::downgrade(&request.shared), key: request.key, child })
        })
    }

    pub(super) const fn child(&self) -> ForeignChild {
        self.child
    }

    /// The child has ended, or was not made after all.
    pub(super) fn release(self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.step(|state, _, _| {
                state.foreign.remove(&self.child.0);
                state.session.local_release(self.key, self.child);
            });
        }
    }
}

impl Request {
    /// Last: tells the parent where its child is. If it is cancelled already, or the child has ended, nobody asks.
    pub(super) fn place_child(
        &self,
        child: ForeignChild,
        connection: &Arc<ConnectionInner>,
        ticket: SlotKey,
    ) {
        let call = ForeignCall { connection: Arc::downgrade(connection), ticket };
        let missed = {
            let mut state = self.shared.lock();
            match state.foreign.get_mut(&child.0) {
                Some(place) => place.replace(call),
                None => Some(call),
            }
        };
        if let Some(call) = missed {
            call.cancel_for_parent();
        }
    }
}

impl State {
    /// The machine cancels a child on another connection. `None`: it is not placed yet, and will find itself gone.
    pub(super) fn take_foreign(&mut self, child: ForeignChild) -> Option<ForeignCall> {
        self.foreign.remove(&child.0).flatten()
    }
}
