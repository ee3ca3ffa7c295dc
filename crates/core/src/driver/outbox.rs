//! Frames that wait to be written, in two lanes. Each lane is limited.
//!
//! - **Control** overtakes data. Acknowledgements and refusals come first and use the reserve. Then come cancels. A
//!   pending cancel is a mark here, with its details in the slot of its call. It is encoded when it is written and
//!   needs no room. A cascade may add any number of cancels, so after [`MAX_CANCELS_IN_ROW`] of them in a row one data
//!   frame is written.
//! - **Data** keeps its order. A staged call waits in its slot, and the limit on calls bounds it. A notification or the
//!   value of a handler needs room and is not accepted without room. An answer of the machine itself is in the data
//!   lane too, after everything that its request wrote before, and uses the reserve.
//!
//! When the reserve is used up, the peer sends and does not read. A frame that is removed leaves an empty place. The
//! places are swept when they are more than the frames that wait, so both lanes stay within twice their limits (I11).

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::dialect::Refusal;
use crate::failpoint::{self, Failpoint};
use crate::id::{ExchangeId, InboundKey, RequestId, SlotKey};
use crate::machine::{Limits, Reply};
use crate::message::{AckStatus, ErrorObject};
use crate::transport::{ExchangeEnd, Lane};

/// The approximate size of an envelope without the body in it, in bytes.
const ENVELOPE_BYTES: usize = 128;

/// The most places that a lane keeps when it is empty.
const MAX_IDLE_CAPACITY: usize = 1024;

/// The most cancels in a row before a data frame is written, and in one turn of the writer. They are fewer than the
/// other side reads in one turn, so they do not fill the transport, and a full transport gets room for data again.
pub(crate) const MAX_CANCELS_IN_ROW: usize = 8;

/// The answer of a handler.
#[derive(Debug)]
pub(crate) enum Answer {
    Value(Box<RawValue>),
    Error(ErrorObject),
    Refused(Refusal),
}

impl Answer {
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Value(value) => ENVELOPE_BYTES + value.get().len(),
            Self::Error(error) => {
                ENVELOPE_BYTES + error.message.len() + error.data.as_ref().map_or(0, |data| data.get().len())
            }
            Self::Refused(_) => ENVELOPE_BYTES,
        }
    }
}

/// A frame of the control lane.
#[derive(Debug)]
pub(crate) enum Control {
    /// The cancel of a call. Its details are in the call's slot.
    Cancel(SlotKey),
    Refuse {
        to: Option<(RequestId, u8)>,
        exchange: ExchangeId,
        why: Refusal,
    },
    RefuseCancelled {
        id: RequestId,
        tag: u8,
        server_cancellable: bool,
        exchange: ExchangeId,
        graceful: Option<&'static str>,
        cause: Cause,
    },
    Ack {
        ack: RequestId,
        key: Option<RequestId>,
        exchange: ExchangeId,
        status: AckStatus,
    },
    /// The handler of the request on this exchange has started, in a later step than the one that received the request.
    Begin(ExchangeId),
    /// The handler of the request on this exchange awaits something.
    Waiting(ExchangeId),
    /// The end of an exchange without a frame.
    ExchangeEnd {
        exchange: ExchangeId,
        how: ExchangeEnd,
    },
}

/// A frame of the data lane.
#[derive(Debug)]
pub(crate) enum DataFrame {
    /// A staged call. Its frame is in the call's slot.
    Call(SlotKey),
    Answer {
        reply: Reply,
        answer: Option<Answer>,
    },
    Notification(Notification),
    /// A place whose frame was dropped.
    Dropped,
}

/// A notification of this side.
#[derive(Debug)]
pub(crate) struct Notification {
    /// The request to which it belongs. It is never written after that request's answer.
    pub(crate) owner: Option<InboundKey>,
    pub(crate) exchange: ExchangeId,
    pub(crate) method: Arc<str>,
    pub(crate) params: Option<Box<RawValue>>,
}

impl Notification {
    pub(crate) fn weight(&self) -> usize {
        ENVELOPE_BYTES + self.method.len() + self.params.as_ref().map_or(0, |params| params.get().len())
    }
}

/// The room that a waiting frame needs, in bytes.
#[derive(Clone, Copy)]
enum Charge {
    Nothing,
    Room(usize),
    Reserve(usize),
}

/// Frames that wait and their bytes, for one kind of charge.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    frames: usize,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    control: VecDeque<Control>,
    cancels: VecDeque<SlotKey>,
    /// Cancels that overtook the next data frame.
    in_a_row: usize,
    data: VecDeque<DataFrame>,
    room: Amount,
    reserve: Amount,
    /// Places in `data` whose frame was removed.
    empty: usize,
    /// A frame was queued since the writer looked last.
    news: bool,
    /// The transport accepts no frame of the next lane now, so more frames of data do not wake the writer.
    pub(crate) blocked: bool,
}

impl Outbox {
    pub(crate) const fn new() -> Self {
        Self {
            control: VecDeque::new(),
            cancels: VecDeque::new(),
            in_a_row: 0,
            data: VecDeque::new(),
            room: Amount { frames: 0, bytes: 0 },
            reserve: Amount { frames: 0, bytes: 0 },
            empty: 0,
            news: false,
            blocked: false,
        }
    }

    /// Whether a value or a notification of this size may be queued. An empty outbox accepts one of any size.
    pub(crate) fn has_room(&self, limits: &Limits, weight: usize) -> bool {
        self.takes_any()
            || (self.room.frames < limits.max_outbox_frames
                && self.room.bytes + weight <= limits.max_outbox_bytes)
    }

    /// Whether no value and no notification waits.
    pub(crate) const fn takes_any(&self) -> bool {
        self.room.frames == 0
    }

    /// Whether so much was written that the tasks that wait for room may try again.
    pub(crate) fn has_room_again(&self, limits: &Limits) -> bool {
        self.room.frames <= limits.max_outbox_frames - limits.max_outbox_frames / 4
            && self.room.bytes <= limits.max_outbox_bytes - limits.max_outbox_bytes / 4
    }

    /// The frames that use the reserve.
    pub(crate) const fn reserved(&self) -> usize {
        self.reserve.frames
    }

    /// Whether the reserve is used up: the peer sends and does not read.
    pub(crate) fn reserve_is_spent(&self, limits: &Limits) -> bool {
        self.reserve.frames > limits.max_reserve_frames || self.reserve.bytes > limits.max_reserve_bytes
    }

    pub(crate) fn push_control(&mut self, frame: Control) {
        self.charge(charge_of_control(&frame), true);
        match frame {
            Control::Cancel(call) => self.cancels.push_back(call),
            frame => self.control.push_back(frame),
        }
        self.news |= !failpoint::active(Failpoint::LostWakeup);
    }

    pub(crate) fn push_data(&mut self, frame: DataFrame) {
        self.charge(charge_of_data(&frame), true);
        self.data.push_back(frame);
        self.news |= !self.blocked && !failpoint::active(Failpoint::LostWakeup);
    }

    pub(crate) fn pop_control(&mut self) -> Option<Control> {
        let Some(frame) = self.control.pop_front() else {
            let call = self.cancels.pop_front()?;
            self.in_a_row = if self.data.is_empty() { 0 } else { self.in_a_row + 1 };
            if self.cancels.is_empty() && self.cancels.capacity() > MAX_IDLE_CAPACITY {
                self.cancels.shrink_to(0);
            }
            return Some(Control::Cancel(call));
        };
        self.charge(charge_of_control(&frame), false);
        Some(frame)
    }

    pub(crate) fn pop_data(&mut self) -> Option<DataFrame> {
        let frame = self.data.pop_front()?;
        self.in_a_row = 0;
        self.charge(charge_of_data(&frame), false);
        self.shrink_data();
        Some(frame)
    }

    fn shrink_data(&mut self) {
        if self.data.is_empty() && self.data.capacity() > MAX_IDLE_CAPACITY {
            self.data.shrink_to(0);
        }
    }

    /// The lane of the next frame.
    pub(crate) fn next_lane(&self) -> Option<Lane> {
        let data = (!self.data.is_empty()).then_some(Lane::Data);
        let row_is_over = self.in_a_row >= MAX_CANCELS_IN_ROW && data.is_some();
        if !self.control.is_empty() || (!self.cancels.is_empty() && !row_is_over) {
            return Some(Lane::Control);
        }
        data
    }

    /// The data lane is next, and the transport has no room for it. `true`: cancels wait, and the next of them may be
    /// written.
    pub(crate) fn pass_turn(&mut self) -> bool {
        self.in_a_row = 0;
        !self.cancels.is_empty()
    }

    /// Whether a frame was queued since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Drops every frame of a request that must not be answered (I2).
    pub(crate) fn silence(&mut self, request: InboundKey) {
        if failpoint::active(Failpoint::SilenceLeavesFrames) {
            return;
        }
        for entry in &mut self.data {
            let owned = matches!(entry, DataFrame::Notification(frame) if frame.owner == Some(request));
            if owned {
                let charge = charge_of_data(entry);
                *entry = DataFrame::Dropped;
                match charge {
                    Charge::Room(bytes) => {
                        self.room.frames -= 1;
                        self.room.bytes -= bytes;
                    }
                    Charge::Reserve(_) | Charge::Nothing => {}
                }
                self.empty += 1;
            }
        }
        self.sweep(|_| true);
    }

    /// A staged call was removed. `is_staged` returns which of the other calls are still staged.
    pub(crate) fn took_back(&mut self, is_staged: impl Fn(SlotKey) -> bool) {
        self.empty += 1;
        self.sweep(is_staged);
    }

    /// Removes the empty places before the next data frame. An empty place has no turn and does not wait for the
    /// transport.
    pub(crate) fn skip_empty(&mut self, is_staged: impl Fn(SlotKey) -> bool) {
        while self.empty > 0 {
            match self.data.front() {
                Some(DataFrame::Dropped) => {}
                Some(DataFrame::Call(slot_key)) if !is_staged(*slot_key) => {}
                _ => return,
            }
            self.data.pop_front();
            self.found_empty();
            self.shrink_data();
        }
    }

    /// An empty place was taken from the lane.
    pub(crate) fn found_empty(&mut self) {
        self.empty = self.empty.saturating_sub(1);
    }

    fn sweep(&mut self, is_staged: impl Fn(SlotKey) -> bool) {
        if self.empty < 64 || self.empty * 2 < self.data.len() {
            return;
        }
        let before = self.data.len();
        self.data.retain(|entry| match entry {
            DataFrame::Call(slot_key) => is_staged(*slot_key),
            DataFrame::Dropped => false,
            DataFrame::Answer { .. } | DataFrame::Notification(_) => true,
        });
        // A caller that does not know which calls are staged keeps the places of removed calls, and they still count.
        self.empty = self.empty.saturating_sub(before - self.data.len());
    }

    /// Drops everything that waits: the connection is gone.
    pub(crate) fn clear(&mut self) -> impl Sized + use<> {
        let dropped = (
            std::mem::take(&mut self.control),
            std::mem::take(&mut self.cancels),
            std::mem::take(&mut self.data),
        );
        *self = Self::new();
        dropped
    }

    /// Frames that wait, in both lanes.
    pub(crate) fn frames(&self) -> usize {
        self.control.len() + self.cancels.len() + self.data.len() - self.empty.min(self.data.len())
    }

    /// The approximate bytes that wait.
    pub(crate) const fn bytes(&self) -> usize {
        self.room.bytes + self.reserve.bytes
    }

    fn charge(&mut self, charge: Charge, add: bool) {
        let (load, bytes) = match charge {
            Charge::Nothing => return,
            Charge::Room(bytes) => (&mut self.room, bytes),
            Charge::Reserve(bytes) => (&mut self.reserve, bytes),
        };
        if add {
            load.frames += 1;
            load.bytes += bytes;
        } else {
            load.frames -= 1;
            load.bytes -= bytes;
        }
    }
}

fn weight_of_id(id: &RequestId) -> usize {
    id.as_text().map_or(20, str::len)
}

fn charge_of_control(frame: &Control) -> Charge {
    match frame {
        Control::Cancel(_) => Charge::Nothing,
        Control::Refuse { to, .. } => {
            Charge::Reserve(ENVELOPE_BYTES + to.as_ref().map_or(0, |(id, _)| weight_of_id(id)))
        }
        Control::RefuseCancelled { id, .. } => Charge::Reserve(ENVELOPE_BYTES + weight_of_id(id)),
        Control::Ack { ack, key, .. } => {
            Charge::Reserve(ENVELOPE_BYTES + weight_of_id(ack) + key.as_ref().map_or(0, weight_of_id))
        }
        Control::ExchangeEnd { .. } | Control::Begin(_) | Control::Waiting(_) => Charge::Reserve(16),
    }
}

fn charge_of_data(frame: &DataFrame) -> Charge {
    match frame {
        DataFrame::Call(_) | DataFrame::Dropped => Charge::Nothing,
        DataFrame::Answer { answer: Some(Answer::Refused(_)) | None, reply } => {
            Charge::Reserve(ENVELOPE_BYTES + weight_of_id(&reply.id))
        }
        DataFrame::Answer { answer: Some(answer), reply } => {
            Charge::Room(answer.weight() + weight_of_id(&reply.id))
        }
        DataFrame::Notification(frame) => Charge::Room(frame.weight()),
    }
}

#[cfg(test)]
mod tests;
