//! Frames that are taken out of the outbox, and the inputs of the machine about them.

use std::sync::Arc;
use std::time::Instant;

use crate::cause::Cause;
use crate::driver::call_table::entry::{StagedCall, Users};
use crate::driver::effects::Effects;
use crate::driver::outbox::{Answer, Control, DataFrame, Notification};
use crate::driver::state::State;
use crate::id::{CallNumber, ExchangeId, OutboundKey};
use crate::machine::Reply;
use crate::trace_context::TraceContext;
use crate::transport::Lane;

/// A frame that was taken out of the outbox: it counts as written (T4).
pub(crate) enum Outgoing {
    Call {
        key: OutboundKey,
        number: CallNumber,
        exchange: ExchangeId,
        call: Box<StagedCall>,
        trace: Option<Arc<TraceContext>>,
    },
    Cancel {
        key: OutboundKey,
        number: CallNumber,
        exchange: ExchangeId,
        cancel: CallNumber,
        cause: Cause,
    },
    Control(Control),
    Answer {
        reply: Reply,
        answer: Option<Answer>,
    },
    Notification(Notification),
}

impl State {
    /// The lane of the next frame.
    pub(crate) fn next_lane(&mut self) -> Option<Lane> {
        let calls = &self.calls;
        self.outbox.skip_empty(|slot_key| calls.get(slot_key.0).is_some_and(|entry| entry.frame.is_some()));
        self.outbox.next_lane()
    }

    /// Takes the next frame of a lane, and tells the machine that it is written.
    pub(crate) fn take(&mut self, lane: Lane, now: Instant, effects: &mut Effects) -> Option<Outgoing> {
        let taken = match lane {
            Lane::Control => self.take_control(now),
            Lane::Data => self.take_data(now),
        };
        self.give_room(effects);
        taken
    }

    fn take_control(&mut self, now: Instant) -> Option<Outgoing> {
        match self.outbox.pop_control()? {
            Control::Cancel(slot_key) => {
                let entry = self.calls.get_mut(slot_key.0)?;
                let key = entry.key;
                if !entry.users.remove(Users::CANCEL) {
                    return None;
                }
                let settled = entry.ended;
                // An answer may have disarmed it.
                let outgoing = self.session.waiting_cancel(key).map(|(number, cancel, cause)| {
                    let (exchange, cause) = (entry.exchange(number), cause.clone());
                    Outgoing::Cancel { key, number, exchange, cancel, cause }
                });
                if outgoing.is_some() {
                    self.session.local_cancel_written(now, key);
                }
                if settled {
                    self.outbound.remove(key.0);
                    self.free_call(slot_key);
                }
                outgoing
            }
            control => Some(Outgoing::Control(control)),
        }
    }

    fn take_data(&mut self, now: Instant) -> Option<Outgoing> {
        match self.outbox.pop_data()? {
            DataFrame::Call(slot_key) => {
                let taken = self.calls.get_mut(slot_key.0).and_then(|entry| {
                    let call = entry.frame.take()?;
                    let number = self.session.call_number(entry.key)?;
                    let trace = entry.extras.as_mut().and_then(|extras| extras.trace.take());
                    Some((call, entry.key, number, entry.exchange(number), trace))
                });
                let Some((call, key, number, exchange, trace)) = taken else {
                    self.outbox.found_empty();
                    return None;
                };
                self.session.local_written(now, key);
                Some(Outgoing::Call { key, number, exchange, call, trace })
            }
            DataFrame::Answer { reply, answer } => Some(Outgoing::Answer { reply, answer }),
            DataFrame::Notification(frame) => {
                if let Some(slot) = frame.owner.and_then(|owner| self.inbound.get_mut(owner.0)) {
                    slot.remove_frame();
                }
                Some(Outgoing::Notification(frame))
            }
            DataFrame::Dropped => {
                self.outbox.found_empty();
                None
            }
        }
    }
}
