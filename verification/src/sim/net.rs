//! The network of a run: it makes the connections and disturbs them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::judge::{Judge, SimEvent, Tally};
use super::plan::{NetworkConditions, PerSide, Rng, Side};

/// All connections of a run.
#[derive(Clone, Debug)]
pub(super) struct Net(Arc<Mutex<NetState>>);

#[derive(Debug)]
struct NetState {
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
        Self(Arc::new(Mutex::new(NetState {
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

    fn lock(&self) -> MutexGuard<'_, NetState> {
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

// A byte stream within this process that behaves like a network: it splits and joins pieces, delays them, stalls one
// direction, and ends at any byte.

/// Both directions of one stream.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    directions: Arc<Mutex<PerSide<Direction>>>,
    /// It is informed of a cut when the cut happens.
    judge: Judge,
}

/// The bytes that one side writes and the other reads.
#[derive(Debug)]
struct Direction {
    rng: Rng,
    splits: Splits,
    piece: usize,
    room: usize,
    delay: u64,
    /// Bytes on their way with their arrival times, in the order in which they were sent.
    pieces: VecDeque<(Instant, VecDeque<u8>)>,
    held: usize,
    taken: usize,
    cut_at: Option<usize>,
    stalled_until: Option<Instant>,
    end: End,
    /// Whether the bytes of the writer are dropped without an error.
    deaf: bool,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Every byte that was accepted, for tests that read along.
    log: Option<Vec<u8>>,
    tally: Tally,
}

/// More than is ever on its way.
const WHOLE: usize = 1 << 20;

/// Whether a stream handles bytes according to its weather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    AsDrawn,
    /// Bytes that are written together arrive together.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// Nothing follows what is on its way.
    Ended,
    /// Reading fails after what is on its way.
    Reset,
}

impl Direction {
    fn new(weather: &NetworkConditions, mut rng: Rng, cut_at: Option<usize>) -> Self {
        Self {
            splits: Splits::AsDrawn,
            piece: weather.piece,
            room: weather.room,
            delay: weather.delay,
            pieces: VecDeque::new(),
            held: 0,
            taken: 0,
            cut_at,
            stalled_until: None,
            end: End::Open,
            deaf: false,
            reader_gone: false,
            reader: None,
            writer: None,
            log: None,
            tally: Tally::default(),
            rng: rng.fork(),
        }
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn stop(&mut self, end: End) {
        if self.end == End::Open {
            self.end = end;
        }
        self.wake();
    }

    /// Accepts some of these bytes. `None`: there is no room.
    fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.deaf {
            return Some(bytes.len());
        }
        let room = match self.splits {
            Splits::AsDrawn => self.room,
            Splits::Never => WHOLE,
        };
        let room = room.saturating_sub(self.held);
        if room == 0 {
            return None;
        }
        let piece = self.piece();
        let left = self.cut_at.map_or(usize::MAX, |at| at.saturating_sub(self.taken));
        let count = bytes.len().min(room).min(piece).min(left);
        if count < bytes.len() {
            self.tally.saw(SimEvent::Split);
        }
        let bytes = bytes.get(..count).unwrap_or_default();
        if let Some(log) = &mut self.log {
            log.extend_from_slice(bytes);
        }
        let delay = self.rng.below(self.delay + 1);
        if delay > 0 {
            self.tally.saw(SimEvent::Delayed);
        }
        let mut at = Instant::now() + Duration::from_millis(delay);
        if let Some((last, pieces)) = self.pieces.back_mut() {
            at = at.max(*last);
            if at == *last {
                pieces.extend(bytes);
                self.tally.saw(SimEvent::Joined);
            } else {
                self.pieces.push_back((at, bytes.iter().copied().collect()));
            }
        } else {
            self.pieces.push_back((at, bytes.iter().copied().collect()));
        }
        self.held += count;
        self.taken += count;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Some(count)
    }

    /// The most bytes at once, this time.
    fn piece(&mut self) -> usize {
        match self.splits {
            Splits::AsDrawn => self.rng.length(1, self.piece),
            Splits::Never => WHOLE,
        }
    }

    /// When there is something to read. `None`: nothing is on its way.
    fn next_at(&mut self) -> Option<Instant> {
        let (at, _) = self.pieces.front()?;
        let until = self.stalled_until.unwrap_or(*at);
        if until > Instant::now().max(*at) {
            self.tally.saw(SimEvent::Stalled);
        }
        Some(until.max(*at))
    }

    fn pop(&mut self, buffer: &mut ReadBuf<'_>) {
        let piece = self.piece();
        let Some((_, bytes)) = self.pieces.front_mut() else { return };
        let count = buffer.remaining().min(bytes.len()).min(piece);
        for byte in bytes.drain(..count) {
            buffer.put_slice(&[byte]);
        }
        if bytes.is_empty() {
            self.pieces.pop_front();
        }
        self.held -= count;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }
}

impl Pipe {
    /// Creates a stream.
    pub(super) fn new(
        weather: &NetworkConditions,
        rng: &mut Rng,
        cut_at: &PerSide<Option<usize>>,
        judge: &Judge,
    ) -> Self {
        let client = Direction::new(weather, rng.fork(), cut_at.client);
        let server = Direction::new(weather, rng.fork(), cut_at.server);
        Self { directions: Arc::new(Mutex::new(PerSide { client, server })), judge: judge.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, PerSide<Direction>> {
        self.directions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records every byte.
    pub(super) fn record(&self) {
        let mut state = self.lock();
        for side in Side::BOTH {
            state.of_mut(side).log = Some(Vec::new());
        }
    }

    /// Whether it splits and limits its bytes.
    pub(super) fn splits(&self, splits: Splits) {
        let mut state = self.lock();
        for side in Side::BOTH {
            state.of_mut(side).splits = splits;
        }
    }

    /// The disturbances of its bytes.
    pub(super) fn tally(&self) -> Tally {
        let state = self.lock();
        let mut tally = state.client.tally;
        tally.join(&state.server.tally);
        tally
    }

    /// Every byte that this side has written so far, if they are recorded.
    pub(super) fn recorded(&self, side: Side) -> Vec<u8> {
        self.lock().of(side).log.clone().unwrap_or_default()
    }

    /// One end, for this side.
    pub(super) fn end(&self, side: Side) -> PipeEnd {
        PipeEnd { pipe: self.clone(), side, timer: None }
    }

    /// What is on its way arrives, then both directions fail.
    pub(super) fn cut(&self) {
        let mut state = self.lock();
        for side in Side::BOTH {
            state.of_mut(side).stop(End::Reset);
        }
    }

    /// Nothing from this side arrives for this time.
    pub(super) fn stall(&self, side: Side, time: Duration) {
        let mut state = self.lock();
        let direction = state.of_mut(side);
        direction.stalled_until = Some(Instant::now() + time);
    }

    /// Ends the input of the other side. Bytes that this side writes from now on are lost.
    pub(super) fn half_close(&self, side: Side) {
        let mut state = self.lock();
        let direction = state.of_mut(side);
        if direction.end == End::Open {
            direction.tally.saw(SimEvent::HalfClosed);
        }
        direction.deaf = true;
        direction.stop(End::Ended);
    }
}

/// One end of a stream.
#[derive(Debug)]
pub(super) struct PipeEnd {
    pipe: Pipe,
    side: Side,
    timer: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for PipeEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let at = {
                let mut state = this.pipe.lock();
                let direction = state.of_mut(this.side.other());
                match (direction.next_at(), direction.end) {
                    (Some(at), _) if at <= Instant::now() => {
                        direction.pop(buffer);
                        return Poll::Ready(Ok(()));
                    }
                    (Some(at), _) => {
                        direction.reader = Some(cx.waker().clone());
                        at
                    }
                    (None, End::Ended) => return Poll::Ready(Ok(())),
                    (None, End::Reset) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    (None, End::Open) => {
                        direction.reader = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
            };
            let timer = match &mut this.timer {
                Some(timer) => {
                    if timer.deadline() != at {
                        timer.as_mut().reset(at);
                    }
                    timer
                }
                None => this.timer.insert(Box::pin(tokio::time::sleep_until(at))),
            };
            ready!(timer.as_mut().poll(cx));
        }
    }
}

impl AsyncWrite for PipeEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.pipe.lock();
        let direction = state.of_mut(self.side);
        if direction.reader_gone || (direction.end != End::Open && !direction.deaf) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let Some(count) = direction.push(bytes) else {
            direction.writer = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let cut = direction.cut_at.is_some_and(|at| direction.taken >= at);
        if cut {
            direction.tally.saw(SimEvent::CutAtByte);
            for side in Side::BOTH {
                state.of_mut(side).stop(End::Reset);
            }
            drop(state);
            self.pipe.judge.cut(&format!("a connection is cut behind a byte of the {}", self.side));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.lock().of_mut(self.side).stop(End::Ended);
        Poll::Ready(Ok(()))
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.of_mut(self.side).stop(End::Ended);
        let read = state.of_mut(self.side.other());
        read.reader_gone = true;
        read.wake();
    }
}
