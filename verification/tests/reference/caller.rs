//! The required outcomes of our callers, and the frames for them: a list of calls, and a few lines for each rule.

use std::time::Duration;

use rescind_core::{AfterCancel, AnswerKind, CancelResult, CauseKind};

use super::model::{BY_US, Seen};

/// How long a caller waits for the peer after its cancel.
pub(super) const PEER_WAIT: Duration = Duration::from_secs(5);

/// An event of the n-th call of this side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Own {
    /// A call is made: for the n-th request of the peer, with a deadline after this time, and with the caller's
    /// choice after a cancel.
    Call(Option<usize>, Option<Duration>, Option<AfterCancel>),
    /// Its frame is written.
    Write(usize),
    /// Its caller cancels it.
    Cancel(usize, Option<AfterCancel>),
    /// Its cancel is written.
    WriteCancel(usize),
    /// The peer answers it: early, in time, twice, or long after its caller has returned.
    Answer(usize, AnswerKind),
    /// The peer acknowledges its cancel, as effective or not.
    Ack(usize, bool),
}

/// The observable result of the n-th call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEvent {
    NotMade,
    /// It would be the child of a request that is cancelled or has ended.
    AlreadyCancelled,
    TakenBack(usize),
    CancelSent(usize),
    /// The result of the canceller.
    Canceller(CancelResult),
    Answered(usize, Option<CauseKind>),
    Cancelled {
        call: usize,
        cause: CauseKind,
        confirmed: bool,
    },
    Disconnected {
        call: usize,
        may_have_run: bool,
    },
    Acked(usize, bool),
    Unresponsive(usize),
    /// The frame is for a call that has ended.
    Late,
    /// The frame is for a call that was not sent yet.
    Unknown,
}

/// The state of the only cancel of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelFrame {
    None,
    Waits,
    Written,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Call {
    parent: Option<usize>,
    returns_at_once: bool,
    deadline: Option<Duration>,
    pub(super) written: bool,
    pub(super) settled: bool,
    /// The first cause.
    cancelled: Option<CauseKind>,
    waits_until: Option<Duration>,
    pub(super) cancel: CancelFrame,
    acked: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Caller {
    may_cancel: bool,
    returns_at_once: bool,
    pub(super) hears_acks: bool,
    pub(super) calls: Vec<Call>,
}

impl Caller {
    pub(super) const fn new(may_cancel: bool, returns_at_once: bool, hears_acks: bool) -> Self {
        Self { may_cancel, returns_at_once, hears_acks, calls: Vec::new() }
    }

    /// The number of calls that have not ended.
    pub(super) fn open(&self) -> usize {
        self.calls.iter().filter(|call| !call.settled).count()
    }

    pub(super) fn happen(&mut self, own: Own, now: Duration, lost: bool, seen: &mut Vec<Seen>) {
        match own {
            Own::Call(..) if lost => seen.push(Seen::CallEvent(CallEvent::NotMade)),
            Own::Call(parent, time, after) => self.calls.push(Call {
                parent,
                returns_at_once: after.map_or(self.returns_at_once, |after| after == AfterCancel::ReturnNow),
                deadline: time.map(|time| now + time),
                written: false,
                settled: false,
                cancelled: None,
                waits_until: None,
                cancel: CancelFrame::None,
                acked: false,
            }),
            Own::Write(number) => self.calls[number].written = true,
            Own::Cancel(number, after) => {
                let result = self.cancel(number, now, BY_US, after, seen);
                seen.push(Seen::CallEvent(CallEvent::Canceller(result)));
            }
            Own::WriteCancel(number) => self.calls[number].cancel = CancelFrame::Written,
            Own::Answer(number, kind) => self.answer(number, kind, seen),
            Own::Ack(number, cancelled) => self.ack(number, cancelled, seen),
        }
    }

    fn settle(&mut self, number: usize, reported: CallEvent, seen: &mut Vec<Seen>) {
        self.calls[number].settled = true;
        seen.push(Seen::CallEvent(reported));
    }

    fn settle_cancelled(&mut self, call: usize, cause: CauseKind, confirmed: bool, seen: &mut Vec<Seen>) {
        self.settle(call, CallEvent::Cancelled { call, cause, confirmed }, seen);
    }

    fn cancel(
        &mut self,
        number: usize,
        now: Duration,
        cause: CauseKind,
        after: Option<AfterCancel>,
        seen: &mut Vec<Seen>,
    ) -> CancelResult {
        let call = &mut self.calls[number];
        let returns = after.map_or(call.returns_at_once, |after| after == AfterCancel::ReturnNow);
        match *call {
            Call { settled: true, .. } => CancelResult::AlreadySettled,
            // The first cause is the one that is reported.
            Call { cancelled: Some(first), .. } => {
                if returns {
                    self.settle_cancelled(number, first, false, seen);
                }
                CancelResult::AlreadySettled
            }
            Call { written: false, .. } => {
                seen.push(Seen::CallEvent(CallEvent::TakenBack(number)));
                self.settle_cancelled(number, cause, true, seen);
                CancelResult::TakenBack
            }
            _ if !self.may_cancel => {
                self.settle_cancelled(number, cause, false, seen);
                CancelResult::NotSupported
            }
            _ => {
                call.cancelled = Some(cause);
                call.cancel = CancelFrame::Waits;
                call.waits_until = Some(now + PEER_WAIT);
                seen.push(Seen::CallEvent(CallEvent::CancelSent(number)));
                if returns {
                    self.settle_cancelled(number, cause, false, seen);
                }
                CancelResult::Sent
            }
        }
    }

    fn answer(&mut self, number: usize, kind: AnswerKind, seen: &mut Vec<Seen>) {
        let call = &mut self.calls[number];
        if !call.written && !call.settled {
            seen.push(Seen::CallEvent(CallEvent::Unknown));
            return;
        }
        // The answer has arrived, so a cancel that was not written is dropped.
        if call.cancel == CancelFrame::Waits {
            call.cancel = CancelFrame::None;
        }
        let asked = call.cancelled;
        match kind {
            _ if call.settled => seen.push(Seen::CallEvent(CallEvent::Late)),
            AnswerKind::Value | AnswerKind::Error => {
                self.settle(number, CallEvent::Answered(number, asked), seen);
            }
            AnswerKind::Cancelled => {
                self.settle_cancelled(number, asked.unwrap_or(CauseKind::Peer), true, seen);
            }
        }
    }

    fn ack(&mut self, number: usize, cancelled: bool, seen: &mut Vec<Seen>) {
        let call = &mut self.calls[number];
        if call.settled || call.acked {
            seen.push(Seen::CallEvent(CallEvent::Late));
            return;
        }
        call.acked = true;
        // Its answer is then on its way, and only its own deadline ends the wait.
        if !cancelled && call.cancelled != Some(CauseKind::Deadline) {
            call.waits_until =
                call.deadline.map(|deadline| deadline.max(call.waits_until.unwrap_or(deadline)));
        }
        seen.push(Seen::CallEvent(CallEvent::Acked(number, cancelled)));
    }

    /// The effects of the passage of time.
    pub(super) fn pass(&mut self, now: Duration, seen: &mut Vec<Seen>) {
        for number in 0..self.calls.len() {
            let call = self.calls[number];
            match (call.settled, call.cancelled) {
                (true, _) => {}
                (false, None) => {
                    if call.deadline.is_some_and(|deadline| deadline <= now) {
                        self.cancel(number, now, CauseKind::Deadline, None, seen);
                    }
                }
                (false, Some(cause)) => {
                    if call.waits_until.is_some_and(|until| until <= now) {
                        seen.push(Seen::CallEvent(CallEvent::Unresponsive(number)));
                        self.settle_cancelled(number, cause, false, seen);
                    }
                }
            }
        }
    }

    /// A request is cancelled or has ended, and its children with it. Each is reported once.
    pub(super) fn cascade(&mut self, parent: usize, now: Duration, seen: &mut Vec<Seen>) {
        for number in 0..self.calls.len() {
            if self.calls[number].parent.take_if(|of| *of == parent).is_some() {
                self.cancel(number, now, CauseKind::Parent, None, seen);
            }
        }
    }

    /// The connection is gone: no answer can arrive any more.
    pub(super) fn lose(&mut self, seen: &mut Vec<Seen>) {
        for number in 0..self.calls.len() {
            let call = &mut self.calls[number];
            if call.cancel == CancelFrame::Waits {
                call.cancel = CancelFrame::None;
            }
            let Call { settled, written, cancelled, .. } = *call;
            if settled {
                continue;
            }
            if !written {
                seen.push(Seen::CallEvent(CallEvent::TakenBack(number)));
            }
            match cancelled {
                Some(cause) => self.settle_cancelled(number, cause, false, seen),
                None => {
                    self.settle(
                        number,
                        CallEvent::Disconnected { call: number, may_have_run: written },
                        seen,
                    );
                }
            }
        }
    }
}
