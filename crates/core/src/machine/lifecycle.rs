//! How a connection ends: the end of input, loss, and the six steps of a shutdown. Then how its session opens: what both
//! sides declare in the handshake (`Agreement`), and LSP's `shutdown` and `exit` (`ExitState`).

use std::time::{Duration, Instant};

use crate::cause::{Cause, CauseKind};
use crate::dialect::{CapabilityGate, Handshake, HandshakePart, Role, Rules, ServerLifecycle};
use crate::id::InboundKey;
use crate::machine::interface::{CloseCause, DisconnectPolicy, Event, Output};
use crate::machine::request::RequestState;
use crate::machine::{Session, Timer, later};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// Both directions are open.
    Open,
    /// The input has ended. Requests that run may still be answered.
    HalfClosed,
    /// This side is shutting down.
    Shutdown(ShutdownStep),
    /// `Close` was output.
    Closed,
    /// Nothing can be sent any more.
    Lost,
}

/// The steps of a shutdown that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownStep {
    /// Handlers and calls may end without a cancel.
    Drain,
    /// Handlers are signalled and have a grace.
    Grace,
}

#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    state: ConnectionState,
    /// The time of the next step.
    due: Option<Instant>,
    /// What happens then, in `HalfClosed`.
    after_half_close: AfterHalfClose,
    /// Whether cancelled handlers have no grace, in dialects that wait for their values. It ends with the connection.
    waits_for_values: bool,
    /// Until when a shutdown waits for handlers to end without a cancel, also after the connection is lost.
    drained_by: Option<Instant>,
    /// That time has elapsed, or `Close` was output.
    ignores_shields: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterHalfClose {
    CancelAll,
    Close,
}

impl Lifecycle {
    pub(super) const fn new() -> Self {
        Self {
            state: ConnectionState::Open,
            due: None,
            after_half_close: AfterHalfClose::CancelAll,
            waits_for_values: true,
            drained_by: None,
            ignores_shields: false,
        }
    }

    pub(super) const fn waits_for_values(&self) -> bool {
        self.waits_for_values
    }

    pub(super) const fn state(&self) -> ConnectionState {
        self.state
    }

    /// A request that arrives now is answered as cancelled.
    pub(super) const fn refuses_requests(&self) -> bool {
        match self.state {
            ConnectionState::Open => false,
            ConnectionState::HalfClosed
            | ConnectionState::Shutdown(_)
            | ConnectionState::Closed
            | ConnectionState::Lost => true,
        }
    }

    /// Shields end at the deadline of a shutdown.
    pub(super) const fn ignores_shields(&self) -> bool {
        self.ignores_shields
    }

    /// The time of the next step, the end of the drain, whether shields are ignored, and whether values are waited for.
    #[cfg(feature = "verify")]
    pub(super) const fn inspect(&self) -> (Option<Instant>, Option<Instant>, bool, bool) {
        (self.due, self.drained_by, self.ignores_shields, self.waits_for_values)
    }
}

impl Session {
    /// The input has ended, and the output is still open. Requests that run may be answered for
    /// [`Limits::half_close_grace`](crate::Limits::half_close_grace), or for a shorter time that the dialect sets; then they are
    /// cancelled. Calls of this side are settled, because no answer can arrive.
    pub fn recv_half_close(&mut self, now: Instant) {
        match self.lifecycle.state {
            ConnectionState::Open => {
                self.lifecycle.state = ConnectionState::HalfClosed;
                self.lifecycle.after_half_close = AfterHalfClose::CancelAll;
                let limit = self.config.limits.half_close_grace;
                let grace = self.rules().half_close_at_most.map_or(limit, |most| most.min(limit));
                self.schedule(later(now, grace));
            }
            ConnectionState::Shutdown(_) => {}
            ConnectionState::HalfClosed | ConnectionState::Closed | ConnectionState::Lost => return,
        }
        self.lose_all_calls();
        self.advance(now);
    }

    /// The connection is lost, or its output is broken. No answer is written any more, and all calls of this side are
    /// settled. `lost` decides what happens to requests of the peer.
    pub fn recv_lost(&mut self, now: Instant, lost: DisconnectPolicy) {
        if self.lifecycle.state == ConnectionState::Lost {
            return;
        }
        self.lifecycle.state = ConnectionState::Lost;
        self.unschedule();
        self.lose_all_calls();
        let detached_until = match lost {
            DisconnectPolicy::CancelNow => {
                self.cancel_all(now, CauseKind::Disconnected);
                None
            }
            DisconnectPolicy::Detach => Some(later(now, self.config.limits.detach_grace)),
            DisconnectPolicy::Keep => None,
        };
        if let Some(at) = [detached_until, self.lifecycle.drained_by].into_iter().flatten().min() {
            self.schedule(at);
        }
        self.advance(now);
    }

    /// Starts the shutdown, which is the same on every transport:
    /// 1. Requests and top-level calls are refused. Cancels and answers are still read.
    /// 2. Handlers may end without a cancel, for `drain`, except those of tasks, which are cancelled at once.
    /// 3. Handlers that still run are cancelled, and their child calls with them.
    /// 4. After [`Limits::cancel_grace`](crate::Limits::cancel_grace) they are aborted.
    /// 5. Calls of this side are settled with `Shutdown`, without waiting for the peer.
    /// 6. `Close`: flush for at most [`Limits::flush_timeout`](crate::Limits::flush_timeout), then close.
    ///
    /// Handlers that outlived their connection are cancelled at the same deadline. A second shutdown may shorten the
    /// drain of the first: the earlier deadline counts.
    pub fn local_shutdown(&mut self, now: Instant, drain: Duration) {
        let drained_by = later(now, drain);
        if self.lifecycle.drained_by.is_some_and(|earlier| earlier <= drained_by) {
            return;
        }
        match self.lifecycle.state {
            ConnectionState::Open
            | ConnectionState::HalfClosed
            | ConnectionState::Shutdown(ShutdownStep::Drain) => {
                self.lifecycle.state = ConnectionState::Shutdown(ShutdownStep::Drain);
                self.schedule(drained_by);
            }
            // Handlers that outlived their connection have the same time; their own grace may end earlier.
            ConnectionState::Lost => {
                self.schedule(self.lifecycle.due.map_or(drained_by, |due| due.min(drained_by)));
            }
            // They outlive it. Their shields end at this deadline.
            ConnectionState::Closed if self.stats.tasks > 0 => {}
            ConnectionState::Shutdown(ShutdownStep::Grace) | ConnectionState::Closed => return,
        }
        self.lifecycle.drained_by = Some(drained_by);
        self.cancel_tasks(now);
        self.advance(now);
    }

    /// The connection was idle for too long: it is counted and shut down.
    pub fn local_idle(&mut self, now: Instant) {
        self.emit(Event::LimitReached("idle"));
        self.local_shutdown(now, Duration::ZERO);
    }

    /// Whether a request or a call is in flight.
    #[must_use]
    pub fn has_requests_or_calls(&self) -> bool {
        self.requests.len() > 0 || self.open_calls > 0
    }

    /// The connection is lost, and nothing is left of it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.lifecycle.state == ConnectionState::Lost && self.requests.len() == 0 && self.calls.len() == 0
    }

    pub(super) fn lifecycle_over(&mut self, now: Instant) {
        self.lifecycle.due = None;
        match (self.lifecycle.state, self.lifecycle.after_half_close) {
            (ConnectionState::Open | ConnectionState::Closed, _) => {}
            (ConnectionState::HalfClosed, AfterHalfClose::CancelAll) => {
                self.lifecycle.after_half_close = AfterHalfClose::Close;
                self.schedule(later(now, self.config.limits.cancel_grace));
                self.cancel_all(now, CauseKind::Disconnected);
            }
            (ConnectionState::HalfClosed, AfterHalfClose::Close) => {
                self.end_all(now);
                self.close(CloseCause::InputEnded);
            }
            (ConnectionState::Lost, _) => match self.lifecycle.drained_by {
                Some(drained_by) if drained_by <= now => {
                    self.lifecycle.ignores_shields = true;
                    self.cancel_all(now, CauseKind::Shutdown);
                }
                later => {
                    self.cancel_all(now, CauseKind::Disconnected);
                    if let Some(drained_by) = later {
                        self.schedule(drained_by);
                    }
                }
            },
            (ConnectionState::Shutdown(ShutdownStep::Drain), _) => {
                self.lifecycle.state = ConnectionState::Shutdown(ShutdownStep::Grace);
                self.lifecycle.ignores_shields = true;
                self.schedule(later(now, self.config.limits.cancel_grace));
                self.cancel_all(now, CauseKind::Shutdown);
            }
            (ConnectionState::Shutdown(ShutdownStep::Grace), _) => {
                self.end_all(now);
                self.close_shutdown(now);
            }
        }
    }

    /// Continues what waited for the end of something. Each input does this last, unless the connection is open.
    pub(super) fn after_end(&mut self, now: Instant) {
        match self.lifecycle.state {
            ConnectionState::Open | ConnectionState::Closed => {}
            ConnectionState::Lost => {
                if self.requests.len() == 0 {
                    self.unschedule();
                }
            }
            ConnectionState::HalfClosed => {
                if self.has_only_tasks() {
                    self.close(CloseCause::InputEnded);
                }
            }
            ConnectionState::Shutdown(ShutdownStep::Drain) => {
                if self.has_idle_handlers() && self.open_calls == 0 {
                    self.close_shutdown(now);
                }
            }
            ConnectionState::Shutdown(ShutdownStep::Grace) => {
                if self.has_idle_handlers() {
                    self.close_shutdown(now);
                }
            }
        }
    }

    fn close_shutdown(&mut self, now: Instant) {
        self.cancel_all_calls(now, CauseKind::Shutdown);
        self.close(CloseCause::Shutdown);
    }

    fn close(&mut self, cause: CloseCause) {
        self.unschedule();
        self.lifecycle.state = ConnectionState::Closed;
        self.lifecycle.ignores_shields = true;
        self.push(Output::Close(cause));
    }

    /// Cancels the tasks, at the beginning of a shutdown: their results would be lost, because nobody could ask for them.
    fn cancel_tasks(&mut self, now: Instant) {
        if self.stats.tasks == 0 {
            return;
        }
        for key in self.requests.keys().into_iter().map(InboundKey) {
            if self.is_task(key) {
                self.cancel_task(now, key, Cause::new(CauseKind::Shutdown));
            }
        }
    }

    /// Cancels all requests of the peer, including the handshake, and no tasks.
    fn cancel_all(&mut self, now: Instant, kind: CauseKind) {
        self.lifecycle.waits_for_values = false;
        for key in self.requests.keys().into_iter().map(InboundKey) {
            if self.lifecycle.ignores_shields() {
                self.drop_shields(now, key);
            }
            if matches!(self.state_of(key), Some(RequestState::Queued | RequestState::Running)) {
                self.accept_cancel(now, key, Cause::new(kind), None);
            } else {
                self.start_missing_grace(now, key);
            }
        }
    }

    /// Settles and aborts the requests that still run, also shielded ones: nothing can be answered after `Close`.
    fn end_all(&mut self, now: Instant) {
        for key in self.requests.keys().into_iter().map(InboundKey) {
            self.drop_shields(now, key);
            self.grace_over(now, key);
        }
    }

    fn drop_shields(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.drop_shields() {
            self.lift_shield(now, key);
        }
    }

    /// Whether no handler runs and no request waits.
    fn has_idle_handlers(&self) -> bool {
        self.permits.held() == 0 && self.queue.len() == 0
    }

    /// The same, except for handlers of tasks, which outlive the connection.
    fn has_only_tasks(&self) -> bool {
        self.permits.held() as u64 == self.stats.tasks && self.queue.len() == 0
    }

    fn schedule(&mut self, at: Instant) {
        self.unschedule();
        self.lifecycle.due = Some(at);
        self.timers.set(at, Timer::Lifecycle);
    }

    fn unschedule(&mut self) {
        self.timers.clear(self.lifecycle.due.take(), Timer::Lifecycle);
    }
}

/// The declarations of both sides so far.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    role: Role,
    ours: bool,
    peers: bool,
    handshake: HandshakeState,
    batches: bool,
    /// [`Handshake::exempting`] of each side.
    ours_exempting: Option<Vec<String>>,
    peers_exempting: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeState {
    Pending,
    Done,
}

impl Agreement {
    pub(super) const fn new(role: Role, handles_cancels: bool) -> Self {
        Self {
            role,
            ours: handles_cancels,
            peers: false,
            handshake: HandshakeState::Pending,
            batches: false,
            ours_exempting: None,
            peers_exempting: None,
        }
    }

    /// Reads one part. The result ends the handshake: for the server when the machine accepts it, for the client when
    /// it has received it (ACPDRAFT-20).
    pub(super) fn read_declaration(&mut self, rules: &Rules, part: HandshakePart, declared: &Handshake) {
        let ours = matches!(
            (part, self.role),
            (HandshakePart::Params, Role::Client) | (HandshakePart::Result, Role::Server)
        );
        if ours {
            self.ours = declared.handles_cancels.unwrap_or(false);
            self.ours_exempting.clone_from(&declared.exempting);
        } else {
            self.peers = declared.handles_cancels.unwrap_or(false);
            self.peers_exempting.clone_from(&declared.exempting);
        }
        match part {
            HandshakePart::Params => {}
            HandshakePart::Result => {
                self.handshake = HandshakeState::Done;
                self.batches =
                    rules.batch_revision.is_some() && declared.revision.as_deref() == rules.batch_revision;
            }
        }
    }

    /// Whether the result of the handshake was read.
    pub(super) fn is_handshake_done(&self) -> bool {
        self.handshake == HandshakeState::Done
    }

    /// Whether cancels of the peer are handled.
    pub(super) fn hears_cancels(&self, rules: &Rules) -> bool {
        match rules.gate {
            CapabilityGate::None => true,
            CapabilityGate::Declared => self.is_handshake_done() && self.ours,
        }
    }

    /// Whether a cancel may be sent to the peer.
    pub(super) fn may_send_cancels(&self, rules: &Rules) -> bool {
        match rules.gate {
            CapabilityGate::None => true,
            CapabilityGate::Declared => self.is_handshake_done() && self.peers,
        }
    }

    /// Whether the params of a request of the peer may make it uncancellable.
    pub(super) fn exempts(&self, method: &str) -> bool {
        lists(self.ours_exempting.as_deref(), method)
    }

    /// Whether this side declared any method whose requests may be uncancellable, or has sent no declaration.
    pub(super) fn declares_exemptions(&self) -> bool {
        self.ours_exempting.as_ref().is_none_or(|methods| !methods.is_empty())
    }

    /// Whether the params of a call of this side may make it uncancellable.
    pub(super) fn peer_exempts(&self, method: &str) -> bool {
        lists(self.peers_exempting.as_deref(), method)
    }

    pub(super) const fn allows_batches(&self) -> bool {
        self.batches
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> (bool, bool, bool) {
        (self.ours, self.peers, self.is_handshake_done())
    }
}

fn lists(exempting: Option<&[String]>, method: &str) -> bool {
    exempting.is_none_or(|methods| methods.iter().any(|listed| listed == method))
}

/// Which of these messages the client has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExitState {
    /// The request of the handshake.
    pub(super) begun: bool,
    /// The request of the shutdown.
    pub(super) shut_down: bool,
    /// The notification that ends the process, with this exit code.
    pub(super) exit: Option<u8>,
}

impl Session {
    /// Whether a notification of the peer is accepted. `false`: it arrived before the session was open, and is dropped
    /// and counted.
    #[must_use]
    pub fn hears_notification(&mut self, method: &str) -> bool {
        let Some(lifecycle) = self.server_lifecycle() else { return true };
        let is_heard = self.exit_state.begun || method == lifecycle.exit;
        if !is_heard {
            self.emit(Event::EarlyNotification);
        }
        is_heard
    }

    /// Receives a notification of the peer. The one that ends a server's process shuts the connection down: requests
    /// that run are cancelled at once, and answers that wait are still written.
    pub fn recv_notification(&mut self, now: Instant, method: &str) {
        let Some(lifecycle) = self.server_lifecycle() else { return };
        if method == lifecycle.exit {
            let code = u8::from(!self.exit_state.shut_down);
            self.exit_state.exit.get_or_insert(code);
            self.local_shutdown(now, Duration::ZERO);
        }
    }

    /// The exit code of this process, once the peer has requested its end: 0 after a shutdown, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> Option<u8> {
        self.exit_state.exit
    }

    /// Whether requests and cancels are served yet.
    pub(super) fn serves(&self) -> bool {
        let is_open = !self.rules().session_required || self.agreement.is_handshake_done();
        is_open && (self.exit_state.begun || self.server_lifecycle().is_none())
    }

    /// A request was admitted: before the handshake no other request is, and after a shutdown none is.
    pub(super) fn note_request(&mut self, method: &str) {
        self.exit_state.begun |= self.rules().handshake == Some(method);
        if self.server_lifecycle().is_some_and(|lifecycle| lifecycle.shutdown == method) {
            self.exit_state.shut_down = true;
        }
    }

    fn server_lifecycle(&self) -> Option<ServerLifecycle> {
        self.rules().lifecycle.filter(|_| self.config.role == Role::Server)
    }
}
