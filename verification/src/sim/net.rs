//! The network of a run: makes its connections and does to them what befalls them.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};

use super::both::{Both, Side};
use super::judge::Judge;
use super::pipe::{Pipe, PipeEnd, Splits};
use super::plan::Weather;
use super::rng::Rng;
use super::tally::Tally;

/// All connections of a run.
#[derive(Clone, Debug)]
pub(super) struct Net(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    weather: Weather,
    judge: Judge,
    rng: Rng,
    pipes: Vec<Pipe>,
    /// No connection can be made any more.
    down: bool,
    records: bool,
    splits: Splits,
    /// Where the server's ends of connections go that the network makes by itself.
    server: Option<Server>,
}

/// Takes the server's end of a connection.
struct Server(Arc<dyn Fn(PipeEnd) + Send + Sync>);

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Net {
    pub(super) fn new(weather: &Weather, judge: &Judge) -> Self {
        let (weather, rng) = (weather.clone(), weather.seed.clone());
        Self(Arc::new(Mutex::new(State {
            weather,
            judge: judge.clone(),
            rng,
            pipes: Vec::new(),
            down: false,
            records: false,
            splits: Splits::AsDrawn,
            server: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps every byte of each connection made from now on.
    pub(super) fn record(&self) {
        self.lock().records = true;
    }

    /// Whether connections split and narrow what goes over them, those there are and those to come.
    pub(super) fn splits(&self, splits: Splits) {
        self.lock().splits = splits;
        self.pipes().iter().for_each(|pipe| pipe.splits(splits));
    }

    /// What the client sends may come to this server twice from now on.
    pub(super) fn repeat_to(&self, server: impl Fn(PipeEnd) + Send + Sync + 'static) {
        self.lock().server = Some(Server(Arc::new(server)));
    }

    /// Sends what was sent on a connection once more, on one of its own, and reads whatever comes.
    async fn repeat(self, pipe: Pipe, after: u64, server: Arc<dyn Fn(PipeEnd) + Send + Sync>) {
        sleep(Duration::from_millis(after)).await;
        let bytes = pipe.recorded(Side::Client);
        let other = {
            let mut state = self.lock();
            if state.down {
                return;
            }
            let mut rng = state.rng.fork();
            let other = Pipe::new(&state.weather, &mut rng, &Both::default(), &state.judge);
            state.pipes.push(other.clone());
            other
        };
        server(other.end(Side::Server));
        let mut end = other.end(Side::Client);
        let talk = async {
            end.write_all(&bytes).await?;
            tokio::io::copy(&mut end, &mut tokio::io::sink()).await
        };
        // Its sender has gone by then, and what it asked for is given up.
        drop(timeout(Duration::from_millis(after * 4), talk).await);
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
        let pipe = Pipe::new(&state.weather, &mut rng, &cut_at, &state.judge);
        let repeats = state.weather.repeat_some > 0 && {
            let share = state.weather.repeat_some;
            state.rng.percent(share)
        };
        if state.records || repeats {
            pipe.record();
        }
        pipe.splits(state.splits);
        if let (true, Some(Server(server))) = (repeats, &state.server) {
            let server = Arc::clone(server);
            let after = state.rng.pick(1, &[5, 50, 500]);
            tokio::spawn(self.clone().repeat(pipe.clone(), after, server));
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

    /// What befell the bytes of all connections.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.pipes().iter().for_each(|pipe| tally.join(&pipe.tally()));
        tally
    }

    pub(super) fn half_close(&self, side: Side) {
        self.pipes().iter().for_each(|pipe| pipe.half_close(side));
    }

    /// What this side wrote on the first connection, if it is kept.
    pub(super) fn recorded(&self, side: Side) -> Vec<u8> {
        self.pipes().first().map(|pipe| pipe.recorded(side)).unwrap_or_default()
    }
}
