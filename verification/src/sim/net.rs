//! The network of a run: it makes the connections and disturbs them.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};

use super::judge::Judge;
use super::pipe::{Pipe, PipeEnd, Splits};
use super::plan::NetworkConditions;
use super::rng::Rng;
use super::sides::{PerSide, Side};
use super::tally::Tally;

/// All connections of a run.
#[derive(Clone, Debug)]
pub(super) struct Net(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    weather: NetworkConditions,
    judge: Judge,
    rng: Rng,
    pipes: Vec<Pipe>,
    /// Whether no more connections can be made.
    down: bool,
    records: bool,
    splits: Splits,
    /// The receiver of the server's ends of connections that the network itself makes.
    server: Option<Server>,
}

/// Receives the server's end of a connection.
struct Server(Arc<dyn Fn(PipeEnd) + Send + Sync>);

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Net {
    pub(super) fn new(weather: &NetworkConditions, judge: &Judge) -> Self {
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

    /// Records every byte of each connection that is made from now on.
    pub(super) fn record(&self) {
        self.lock().records = true;
    }

    /// Whether existing and later connections split and limit their bytes.
    pub(super) fn splits(&self, splits: Splits) {
        self.lock().splits = splits;
        self.pipes().iter().for_each(|pipe| pipe.splits(splits));
    }

    /// From now on, what the client sends may arrive at this server twice.
    pub(super) fn repeat_to(&self, server: impl Fn(PipeEnd) + Send + Sync + 'static) {
        self.lock().server = Some(Server(Arc::new(server)));
    }

    /// Sends the bytes of a connection again, on a separate connection, and reads what arrives.
    async fn repeat(self, pipe: Pipe, after: u64, server: Arc<dyn Fn(PipeEnd) + Send + Sync>) {
        sleep(Duration::from_millis(after)).await;
        let bytes = pipe.recorded(Side::Client);
        let other = {
            let mut state = self.lock();
            if state.down {
                return;
            }
            let mut rng = state.rng.fork();
            let other = Pipe::new(&state.weather, &mut rng, &PerSide::default(), &state.judge);
            state.pipes.push(other.clone());
            other
        };
        server(other.end(Side::Server));
        let mut end = other.end(Side::Client);
        let talk = async {
            end.write_all(&bytes).await?;
            tokio::io::copy(&mut end, &mut tokio::io::sink()).await
        };
        // Its sender is gone by then, and its requests are cancelled.
        drop(timeout(Duration::from_millis(after * 4), talk).await);
    }

    /// A new connection: the client's end and the server's.
    pub(super) fn connect(&self) -> io::Result<PerSide<PipeEnd>> {
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
        let ends = PerSide { client: pipe.end(Side::Client), server: pipe.end(Side::Server) };
        state.pipes.push(pipe);
        Ok(ends)
    }

    fn pipes(&self) -> Vec<Pipe> {
        self.lock().pipes.clone()
    }

    /// Cuts every connection and prevents new ones.
    pub(super) fn cut(&self) {
        self.lock().down = true;
        self.pipes().iter().for_each(Pipe::cut);
    }

    /// On the existing connections, nothing from this side arrives for this time.
    pub(super) fn stall(&self, side: Side, time: Duration) {
        self.pipes().iter().for_each(|pipe| pipe.stall(side, time));
    }

    /// The disturbances of the bytes of all connections.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.pipes().iter().for_each(|pipe| tally.join(&pipe.tally()));
        tally
    }

    pub(super) fn half_close(&self, side: Side) {
        self.pipes().iter().for_each(|pipe| pipe.half_close(side));
    }

    /// The bytes that this side wrote on the first connection, if they are recorded.
    pub(super) fn recorded(&self, side: Side) -> Vec<u8> {
        self.pipes().first().map(|pipe| pipe.recorded(side)).unwrap_or_default()
    }
}
