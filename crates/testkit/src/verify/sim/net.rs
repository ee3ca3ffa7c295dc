//! The network of a run: makes its connections and does to them what befalls them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::both::{Both, Side};
use super::pipe::{Pipe, PipeEnd};
use super::plan::Weather;
use super::rng::Rng;

/// All connections of a run.
#[derive(Clone, Debug)]
pub(super) struct Net(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    weather: Weather,
    rng: Rng,
    pipes: Vec<Pipe>,
    /// No connection can be made any more.
    down: bool,
    records: bool,
}

impl Net {
    pub(super) fn new(weather: &Weather) -> Self {
        let (weather, rng) = (weather.clone(), weather.seed.clone());
        Self(Arc::new(Mutex::new(State { weather, rng, pipes: Vec::new(), down: false, records: false })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps every byte of each connection made from now on.
    pub(super) fn record(&self) {
        self.lock().records = true;
    }

    /// A new connection: the client's end and the server's.
    pub(super) fn connect(&self) -> io::Result<Both<PipeEnd>> {
        let mut state = self.lock();
        if state.down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let mut cut_at = state.weather.cut_at.clone();
        let share = state.weather.cut_some;
        for side in Side::BOTH {
            if state.rng.percent(share) {
                *cut_at.of_mut(side) = Some(state.rng.length(1, 1_500));
            }
        }
        let mut rng = state.rng.fork();
        let pipe = Pipe::new(&state.weather, &mut rng, &cut_at);
        if state.records {
            pipe.record();
        }
        let ends = Both { client: pipe.end(Side::Client), server: pipe.end(Side::Server) };
        state.pipes.push(pipe);
        Ok(ends)
    }

    fn pipes(&self) -> Vec<Pipe> {
        self.lock().pipes.clone()
    }

    /// Cuts every connection, and lets none be made again.
    pub(super) fn cut(&self) {
        self.lock().down = true;
        self.pipes().iter().for_each(Pipe::cut);
    }

    /// Nothing from this side arrives for so long, on the connections there are.
    pub(super) fn stall(&self, side: Side, time: Duration) {
        self.pipes().iter().for_each(|pipe| pipe.stall(side, time));
    }

    pub(super) fn half_close(&self, side: Side) {
        self.pipes().iter().for_each(|pipe| pipe.half_close(side));
    }

    /// What this side wrote on the first connection, if it is kept.
    pub(super) fn recorded(&self, side: Side) -> Vec<u8> {
        self.pipes().first().map(|pipe| pipe.recorded(side)).unwrap_or_default()
    }
}
