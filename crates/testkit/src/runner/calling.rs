//! A side that makes calls, as a subject: its frames go over a link, and the runner holds the other end.

use std::future::Future;
use std::time::{Duration, Instant};

use super::link::LinkSubject;
use super::subject::{Ended, Line, Seen, Subject, SubjectError};
use crate::step::{CallStep, CancelWord};
use crate::vector::Abilities;

/// Makes calls on request: a `Peer` of this library, or another client in this process.
pub trait Caller: Send {
    /// Makes a call and does not wait for it.
    fn call(&mut self, call: &CallStep) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Cancels a call and returns the canceller's result.
    fn cancel_call(
        &mut self,
        name: &str,
        reason: Option<&str>,
    ) -> impl Future<Output = Result<CancelWord, SubjectError>> + Send;

    /// Drops a call.
    fn drop_call(&mut self, name: &str) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Waits at most this long and returns how a call ended. `None`: it has not ended.
    fn outcome(
        &mut self,
        name: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Option<Ended>, SubjectError>> + Send;

    /// Starts the shutdown and does not wait for it.
    fn shutdown(&mut self) -> impl Future<Output = Result<(), SubjectError>> + Send;
}

/// A [`Caller`] and the runner's end of its connection. It is configured with the vector's options.
#[derive(Debug)]
pub struct CallingSubject<C> {
    wire: LinkSubject,
    caller: C,
}

impl<C: Caller> CallingSubject<C> {
    /// `wire` opens the runner's end of the connection whose other end `caller` holds.
    #[must_use]
    pub const fn new(wire: LinkSubject, caller: C) -> Self {
        Self { wire, caller }
    }
}

impl<C: Caller> Subject for CallingSubject<C> {
    fn abilities(&self) -> Abilities {
        Abilities { calls: true, options: true, ..self.wire.abilities() }
    }

    fn now(&self) -> Instant {
        self.wire.now()
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        self.wire.open().await
    }

    async fn send(&mut self, line: Line, frames: Vec<String>) -> Result<(), SubjectError> {
        self.wire.send(line, frames).await
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        self.wire.recv(line, within).await
    }

    async fn half_close(&mut self, line: Line) -> Result<(), SubjectError> {
        self.wire.half_close(line).await
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), SubjectError> {
        self.wire.disconnect(line).await
    }

    async fn pause(&mut self) {
        self.wire.pause().await;
    }

    async fn call(&mut self, _: Line, call: &CallStep) -> Result<(), SubjectError> {
        self.caller.call(call).await
    }

    async fn cancel_call(&mut self, name: &str, reason: Option<&str>) -> Result<CancelWord, SubjectError> {
        self.caller.cancel_call(name, reason).await
    }

    async fn drop_call(&mut self, name: &str) -> Result<(), SubjectError> {
        self.caller.drop_call(name).await
    }

    async fn outcome(&mut self, name: &str, within: Duration) -> Result<Option<Ended>, SubjectError> {
        self.caller.outcome(name, within).await
    }

    async fn shutdown(&mut self, _: Line) -> Result<(), SubjectError> {
        self.caller.shutdown().await
    }
}
