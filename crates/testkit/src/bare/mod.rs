//! The bare machine as a subject: `Session`, codec and a model of the fixture, under virtual time.
//!
//! It has no runtime, no driver and no I/O: frames in, frames out. Nothing takes time. When the runner waits and
//! nothing is ready, time advances to the next timer. A vector that breaks here shows an error in the machine or in
//! the vector.

mod connection;
mod handler;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rescind_core::dialect::{Dialect, Role};
use rescind_core::{DisconnectPolicy, SessionConfig};

use self::connection::Connection;
use crate::dialects::DialectFacts;
use crate::options::Options;
use crate::runner::{
    Abilities, Ended, Failure, Line, Played, Seen, Settings, Subject, SubjectError, Verdict, play,
};
use crate::vector::{CallStep, CancelWord, Part, Scenario};

/// The bare machine, configured for one vector.
#[derive(Debug)]
pub struct BareMachine {
    dialect: Dialect,
    facts: &'static DialectFacts,
    role: Role,
    options: Options,
    now: Instant,
    connections: Vec<Connection>,
    /// The connection on which each named call was made.
    calls: BTreeMap<String, usize>,
}

impl BareMachine {
    /// Creates a machine that uses `dialect`, configured for `scenario`.
    #[must_use]
    pub fn new(dialect: &Dialect, scenario: &Scenario) -> Self {
        let role = match scenario.vector.role {
            Part::Serve => Role::Server,
            Part::Call => Role::Client,
        };
        let options = scenario.vector.options.clone();
        let dialect = options.apply_to(dialect);
        let facts = scenario.facts;
        let (connections, calls) = (Vec::new(), BTreeMap::new());
        Self { dialect, facts, role, options, now: Instant::now(), connections, calls }
    }

    /// Plays a vector against a new bare machine, without waiting.
    #[must_use]
    pub fn play(dialect: &Dialect, scenario: &Scenario) -> Played {
        let mut machine = Self::new(dialect, scenario);
        let settings = Settings::default();
        let played = pin!(play(scenario, &mut machine, &settings));
        match played.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(played) => played,
            // Nothing here waits for an external event.
            Poll::Pending => Played::unplayed(Verdict::Broke {
                failure: Failure::Subject,
                why: "the bare machine waited".to_owned(),
                step: 0,
            }),
        }
    }

    fn connection(&mut self, line: Line) -> Result<&mut Connection, SubjectError> {
        self.connections
            .get_mut(line.0)
            .ok_or_else(|| SubjectError::Failed("this connection was never opened".to_owned()))
    }

    fn call_of(&mut self, name: &str) -> Result<&mut Connection, SubjectError> {
        let line = self.calls.get(name).copied();
        line.and_then(|line| self.connections.get_mut(line))
            .ok_or_else(|| SubjectError::Failed(format!("no call is named `{name}`")))
    }

    /// Passes the counters of all connections to each of them.
    fn share_stats(&mut self) {
        let all: Vec<_> = self.connections.iter().map(Connection::own_stats).collect();
        for connection in &mut self.connections {
            connection.all_stats.clone_from(&all);
        }
    }

    /// Advances time to the next timer, at most to `limit`. Returns `false` if there is no timer before that.
    fn jump(&mut self, limit: Instant) -> bool {
        let next = self.connections.iter().filter_map(Connection::next_timeout).min();
        let Some(next) = next.filter(|next| *next <= limit) else {
            self.now = self.now.max(limit);
            return false;
        };
        self.now = self.now.max(next);
        for connection in &mut self.connections {
            connection.time_passed(self.now);
        }
        self.share_stats();
        true
    }
}

impl Subject for BareMachine {
    fn abilities(&self) -> Abilities {
        Abilities {
            many_lines: true,
            half_close: true,
            calls: true,
            options: true,
            ordered: true,
            batches: true,
            bare: true,
            exchange_scoped: false,
            tasks: false,
        }
    }

    fn now(&self) -> Instant {
        self.now
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        let mut config = SessionConfig::new(self.dialect.clone(), self.role);
        config.limits = self.options.limits.over_defaults();
        config.handles_cancels = self.options.declares_cancel();
        let number = self.connections.len() + 1;
        self.connections.push(Connection::new(number, self.facts, config, &self.options));
        self.share_stats();
        Ok(Line(self.connections.len() - 1))
    }

    async fn send(&mut self, line: Line, frames: Vec<String>) -> Result<(), SubjectError> {
        let now = self.now;
        for frame in frames {
            self.share_stats();
            self.connection(line)?.recv(now, frame.as_bytes());
        }
        Ok(())
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        let limit = self.now + within;
        loop {
            match self.connection(line).map(Connection::pop) {
                Ok(Some(seen)) => return seen,
                Ok(None) if self.jump(limit) => {}
                Ok(None) => return Seen::Nothing,
                Err(_) => return Seen::Closed(None),
            }
        }
    }

    async fn half_close(&mut self, line: Line) -> Result<(), SubjectError> {
        let now = self.now;
        self.connection(line)?.half_close(now);
        Ok(())
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), SubjectError> {
        let now = self.now;
        self.connection(line)?.lose(now, DisconnectPolicy::CancelNow);
        Ok(())
    }

    async fn pause(&mut self) {
        let limit = self.now + Duration::from_millis(10);
        self.jump(limit);
    }

    async fn call(&mut self, line: Line, call: &CallStep) -> Result<(), SubjectError> {
        let now = self.now;
        self.calls.insert(call.name.clone(), line.0);
        self.connection(line)?.call(now, call)
    }

    async fn cancel_call(&mut self, name: &str, reason: Option<&str>) -> Result<CancelWord, SubjectError> {
        let now = self.now;
        Ok(self.call_of(name)?.cancel_call(now, name, reason))
    }

    async fn drop_call(&mut self, name: &str) -> Result<(), SubjectError> {
        let now = self.now;
        self.call_of(name)?.drop_call(now, name);
        Ok(())
    }

    async fn outcome(&mut self, name: &str, within: Duration) -> Result<Option<Ended>, SubjectError> {
        let limit = self.now + within;
        loop {
            if let Some(ended) = self.call_of(name)?.take_outcome(name) {
                return Ok(Some(ended));
            }
            if !self.jump(limit) {
                return Ok(None);
            }
        }
    }

    async fn shutdown(&mut self, line: Line) -> Result<(), SubjectError> {
        let now = self.now;
        self.connection(line)?.shutdown(now);
        Ok(())
    }
}
