//! Parent and child on two connections, as in a gateway.
//!
//! The machine of the parent identifies the child by a number. The driver of the parent keeps, for that number, the
//! action that cancels the child. The locks of two connections are never held together (D3), so the child is registered
//! in three steps. A cancel that arrives between them is found by the last step.

use std::sync::{Arc, Weak};

use crate::cause::{Cause, CauseKind};
use crate::driver::call_table::entry::RemoteAction;
use crate::driver::state::ConnectionInner;
use crate::id::{InboundKey, SlotKey};
use crate::machine::{CallRefused, ForeignChild};

/// A parent on another connection.
pub(crate) struct ForeignParent {
    connection: Weak<ConnectionInner>,
    key: InboundKey,
    child: ForeignChild,
}

impl ForeignParent {
    /// The first step: makes the parent expect a child, if it may have one.
    pub(crate) fn adopt(connection: &Arc<ConnectionInner>, key: InboundKey) -> Result<Self, CallRefused> {
        connection.step(|state, now, _| {
            let child = ForeignChild(state.next_foreign);
            state.session.local_adopt(now, key, child)?;
            state.next_foreign += 1;
            state.foreign.insert(child.0, None);
            Ok(Self { connection: Arc::downgrade(connection), key, child })
        })
    }

    pub(crate) const fn child(&self) -> ForeignChild {
        self.child
    }

    /// Releases the parent: the child has ended, or was not started.
    pub(crate) fn into_release(self) -> RemoteAction {
        Box::new(move || {
            if let Some(connection) = self.connection.upgrade() {
                connection.step(|state, _, _| {
                    state.foreign.remove(&self.child.0);
                    state.session.local_release(self.key, self.child);
                });
            }
        })
    }
}

/// The last step: passes the action that cancels the child to the parent's connection. If the parent is cancelled
/// already, the child is cancelled at once. If the child has ended, that has no effect.
pub(crate) fn place_child(
    parent: &ConnectionInner,
    child: ForeignChild,
    connection: &Arc<ConnectionInner>,
    call: SlotKey,
) {
    let connection = Arc::downgrade(connection);
    let cancel: RemoteAction = Box::new(move || {
        if let Some(connection) = connection.upgrade() {
            connection.step(|state, now, _| {
                let _ = state.cancel_call(now, call, Cause::new(CauseKind::Parent), None);
            });
        }
    });
    let missed = {
        let mut state = parent.lock();
        match state.foreign.get_mut(&child.0) {
            Some(known) => known.replace(cancel),
            None => Some(cancel),
        }
    };
    if let Some(cancel) = missed {
        cancel();
    }
}
