//! A [`Subject`] for any [`Library`], this one and the others: the operations are written once for all.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, Join};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;

use crate::clock;
use crate::subject::{
    BURST, BoxFuture, CancelSamples, Cascade, Echo, Ends, Saturated, Setup, Subject, Told, Tree, Which,
    in_flight, or_silent,
};

/// How many requests are sent before they are awaited, so that the library's queue does not grow because of the speed
/// of the benchmark.
const HASTE: usize = 64;

/// How many requests wait for a slot in W4.
const QUEUED: usize = 4;

/// Makes the texts of an echo with this many bytes, which stay.
pub fn prepare_text(bytes: usize) {
    let _ = <&'static str>::new(bytes);
    let _ = <&'static serde_json::value::RawValue>::new(bytes);
}

/// A library as a subject.
pub struct Driven<L: Library> {
    driver: Driver<L>,
    parked: Vec<L::Parked>,
    _tasks: Tasks,
}

/// A library, and the signals of its handlers.
struct Driver<L> {
    library: L,
    watch: Watch,
}

impl<L: Library> Driven<L> {
    /// Boxed for the harness. `watch`: the signals that the server's handlers got.
    pub fn boxed(library: L, watch: Watch, tasks: Tasks) -> Box<dyn Subject> {
        Box::new(Self { driver: Driver { library, watch }, parked: Vec::new(), _tasks: tasks })
    }

    /// The same for a server in another process, which serves when it echoes. `client`: the signals of handlers on
    /// this side.
    pub async fn of_far(library: L, server: u32, client: Arc<Signals>, tasks: Tasks) -> Box<dyn Subject> {
        library.echo(L::Text::new(1)).await;
        Self::boxed(library, Watch::far(server, client), tasks)
    }
}

impl<L: Library> Driver<L> {
    async fn echoed(&self, text: L::Text) {
        assert_eq!(self.library.echo(text).await, text.length(), "an echo has the length of what was sent");
    }

    /// Returns when the server has read everything that was sent before.
    async fn heard(&self) {
        self.echoed(L::Text::new(1)).await;
    }

    /// Sends one request, and waits for its handler.
    async fn waiting(&self) -> L::Parked {
        let before = self.watch.seen().await.waiting;
        let parked = self.library.park().await;
        self.watch.until_waiting(before + 1).await;
        parked
    }

    async fn cancel_one(&self, took: &mut CancelSamples) {
        let parked = self.waiting().await;
        // The handler has reported that it waits, but on another worker it may not wait yet.
        tokio::task::yield_now().await;
        let signalled = self.watch.seen().await.signalled;
        let begin = clock();
        let returned = self.library.cancel(parked).await;
        let to_caller = clock() - begin;
        let seen = self.watch.until_signalled(signalled + 1).await;
        took.to_handler.push(seen.last - begin);
        took.to_caller.push(to_caller);
        took.to_answer.extend(returned.answer_read.map(|read| read - begin));
        // Nothing of this one is left when the next one begins.
        self.heard().await;
        took.to_answer.extend(self.library.cancel_by_hand().await);
    }

    async fn saturate_all(&self, which: Which, count: usize, took: &mut Vec<u64>) -> Saturated {
        let (slots, refuses) = match self.library.slots() {
            Slots::Unlimited => return Saturated::NoLimit,
            Slots::Wait(slots) => (slots, false),
            Slots::Refuse(slots) => (slots, true),
        };
        if refuses && which == Which::Queued {
            return Saturated::Told;
        }
        let answered = self.cancel_saturated(which, count, slots, refuses, took).await;
        answered.map_or(Saturated::Never, |()| Saturated::Answered)
    }

    /// Returns `None` if the library is silent.
    async fn cancel_saturated(
        &self,
        which: Which,
        count: usize,
        slots: usize,
        refuses: bool,
        took: &mut Vec<u64>,
    ) -> Option<()> {
        let mut running = VecDeque::with_capacity(slots + 1);
        for _ in 0..slots {
            let parked = or_silent(self.waiting()).await?;
            running.push_back(parked);
        }
        let mut queued = VecDeque::with_capacity(QUEUED + 1);
        while !refuses && queued.len() < QUEUED {
            let parked = or_silent(self.library.park()).await?;
            queued.push_back(parked);
        }
        // So that the server has read them, even if it does nothing with them.
        for _ in 0..HASTE {
            tokio::task::yield_now().await;
        }
        for _ in 0..count {
            let before = or_silent(self.watch.seen()).await?;
            let of = if which == Which::Running { &mut running } else { &mut queued };
            let parked = of.pop_front()?;
            let begin = clock();
            or_silent(self.library.cancel(parked)).await?;
            took.push(clock() - begin);
            // A slot is free when its handler has its signal. A request that is sent before may be refused.
            if which == Which::Running {
                or_silent(self.watch.until_signalled(before.signalled + 1)).await?;
            }
            // As many as before run or wait.
            if which == Which::Running && !refuses {
                running.extend(queued.pop_front());
                or_silent(self.watch.until_waiting(before.waiting + 1)).await?;
            } else if which == Which::Running {
                let parked = or_silent(self.waiting()).await?;
                running.push_back(parked);
            }
            if !refuses {
                let parked = or_silent(self.library.park()).await?;
                queued.push_back(parked);
            }
        }
        for parked in running.into_iter().chain(queued) {
            or_silent(self.library.cancel(parked)).await?;
        }
        // A caller may return before its handler has its signal. The next turn begins with every slot free.
        or_silent(self.settled()).await?;
        Some(())
    }

    /// Returns when every cancelled handler has its signal, including those that started after their cancel.
    async fn settled(&self) {
        self.watch.until_all_signalled().await;
        self.heard().await;
        self.watch.until_all_signalled().await;
    }

    async fn cascade(&self, tree: Tree, meanwhile: bool) -> Result<Cascade, Told> {
        let before = self.watch.seen().await;
        let all = tree.requests() + 1;
        let root = self.library.root(tree).ok_or(Told::None)?.await;
        while self.watch.seen().await.waiting < before.waiting + all {
            // A library without room for all of it stops reading.
            or_silent(self.heard()).await.ok_or(Told::Never)?;
        }
        let begin = clock();
        let returned = async {
            self.library.cancel(root).await;
            clock() - begin
        };
        let beside = async {
            let mut took = Vec::new();
            while self.watch.seen().await.signalled < before.signalled + all {
                let asked = clock();
                if meanwhile {
                    self.heard().await;
                } else {
                    tokio::task::yield_now().await;
                }
                took.push(clock() - asked);
            }
            took
        };
        let (to_caller, meanwhile) = join(returned, beside).await;
        Ok(Cascade { to_last: self.watch.seen().await.last - begin, to_caller, meanwhile })
    }

    async fn cancel_all(&self, parked: impl IntoIterator<Item = L::Parked>) {
        let mut cancels: FuturesUnordered<_> =
            parked.into_iter().map(|parked| self.library.cancel(parked)).collect();
        while cancels.next().await.is_some() {}
    }
}

impl<L: Library> Subject for Driven<L> {
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        let (driver, text) = (&self.driver, L::Text::new(echo.bytes));
        Box::pin(in_flight(echo, took, move || driver.echoed(text)))
    }

    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        if !L::CANCELS {
            return Box::pin(async { Told::None });
        }
        Box::pin(async move {
            for _ in 0..count {
                if or_silent(self.driver.cancel_one(took)).await.is_none() {
                    return Told::Never;
                }
            }
            Told::Measured
        })
    }

    fn saturate<'a>(
        &'a mut self,
        which: Which,
        count: usize,
        took: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Saturated> {
        if !L::CANCELS {
            return Box::pin(async { Saturated::None });
        }
        Box::pin(self.driver.saturate_all(which, count, took))
    }

    fn park(&mut self, requests: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            let begin = self.driver.watch.seen().await.waiting;
            self.parked.reserve_exact(requests);
            for sent in 1..=requests {
                self.parked.push(self.driver.library.park().await);
                if (sent.is_multiple_of(HASTE) || sent == requests)
                    && or_silent(self.driver.watch.until_waiting(begin + sent)).await.is_none()
                {
                    return Told::Never;
                }
            }
            Told::Measured
        })
    }

    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let parked = std::mem::take(&mut self.parked);
            if !L::CANCELS {
                return self.driver.library.let_go(parked).await;
            }
            self.driver.cancel_all(parked).await;
            self.driver.watch.until_all_signalled().await;
        })
    }

    fn pairs(&mut self, count: usize) -> BoxFuture<'_, Told> {
        if !L::CANCELS {
            return Box::pin(async { Told::None });
        }
        Box::pin(async move {
            for _ in 0..count / BURST {
                let burst = or_silent(async {
                    let mut parked = Vec::with_capacity(BURST);
                    for _ in 0..BURST {
                        parked.push(self.driver.library.park().await);
                    }
                    self.driver.heard().await;
                    self.driver.cancel_all(parked).await;
                    self.driver.watch.until_all_signalled().await;
                });
                if burst.await.is_none() {
                    return Told::Never;
                }
            }
            Told::Measured
        })
    }

    fn unknown_cancels(&mut self, count: usize) -> BoxFuture<'_, Told> {
        Box::pin(self.driver.library.unknown_cancels(count))
    }

    fn cascade(&mut self, tree: Tree, meanwhile: bool) -> BoxFuture<'_, Result<Cascade, Told>> {
        Box::pin(self.driver.cascade(tree, meanwhile))
    }

    fn deadlines<'a>(
        &'a mut self,
        count: usize,
        after: Duration,
        late: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let allowed = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            let mut open = FuturesUnordered::new();
            for sent in 1..=count {
                let due = clock() + allowed;
                let Some(started) = self.driver.library.deadline(after) else { return Told::None };
                let Due(returned) = started.await;
                open.push(async move {
                    returned.await;
                    clock().saturating_sub(due)
                });
                if sent.is_multiple_of(HASTE) {
                    tokio::task::yield_now().await;
                }
            }
            while let Some(nanos) = open.next().await {
                late.push(nanos);
            }
            Told::Measured
        })
    }
}

// The trait that an adapter implements for its library. `Driven` makes a subject of it.

/// The most handlers that run at once, and how a request above the limit is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// It waits for a slot.
    Wait(usize),
    /// It is refused immediately.
    Refuse(usize),
    /// There is no such limit.
    Unlimited,
}

/// The result of a caller whose request was cancelled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Returned {
    /// When a client that reads frames by hand received the answer.
    pub answer_read: Option<u64>,
}

/// The text of an echo. It is made once, so that a caller need not copy it for each request.
pub trait Text: Copy + Send + Sync + 'static {
    /// A text of this many bytes, which is never freed.
    fn new(bytes: usize) -> Self;

    /// Its length, which the answer must have too.
    fn length(self) -> usize;
}

type Made<T> = std::sync::Mutex<BTreeMap<usize, T>>;

fn once<T: Copy>(made: &Made<T>, bytes: usize, make: impl FnOnce() -> T) -> T {
    *made.lock().unwrap_or_else(PoisonError::into_inner).entry(bytes).or_insert_with(make)
}

/// Serialized and parsed for each request.
impl Text for &'static str {
    fn new(bytes: usize) -> Self {
        static MADE: Made<&str> = Made::new(BTreeMap::new());
        once(&MADE, bytes, || "x".repeat(bytes).leak())
    }

    fn length(self) -> usize {
        self.len()
    }
}

/// Already JSON.
impl Text for &'static RawValue {
    fn new(bytes: usize) -> Self {
        static MADE: Made<&RawValue> = Made::new(BTreeMap::new());
        once(&MADE, bytes, || Box::leak(super::params(bytes)))
    }

    fn length(self) -> usize {
        self.get().len()
    }
}

/// Completes when the caller of a request with an expired deadline returns.
pub struct Due(pub BoxFuture<'static, ()>);

/// A connected library: a client and its server.
pub trait Library: Send + Sync + 'static {
    /// The text of its echoes.
    type Text: Text;

    /// A request whose handler waits for its cancel, as the caller holds it. A future that must be polled is boxed:
    /// no smaller type can hold a future that has started.
    type Parked: Send + 'static;

    /// Whether a caller can cancel a request so that its handler gets a signal.
    const CANCELS: bool = true;

    /// The limit in force.
    fn slots(&self) -> Slots;

    /// Makes one round trip, and returns the length of the answered text.
    fn echo(&self, text: Self::Text) -> impl Future<Output = usize> + Send;

    /// Sends a request whose handler waits. Returns when the library has accepted it.
    fn park(&self) -> impl Future<Output = Self::Parked> + Send;

    /// Cancels it with the first poll. Returns when its caller does.
    fn cancel(&self, parked: Self::Parked) -> impl Future<Output = Returned> + Send;

    /// Ends waiting requests if [`CANCELS`](Self::CANCELS) is false: the handlers end, and their callers return.
    fn let_go(&self, parked: Vec<Self::Parked>) -> impl Future<Output = ()> + Send {
        drop(parked);
        async {}
    }

    /// The time from a cancel that is written by hand to the received answer, if [`cancel`](Self::cancel) does not
    /// return it.
    fn cancel_by_hand(&self) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Sends this many cancels of unknown requests, and waits until the server has read them.
    fn unknown_cancels(&self, count: usize) -> impl Future<Output = Told> + Send {
        let _ = count;
        async { Told::None }
    }

    /// Starts a request whose handler starts this tree of requests and then waits for its cancel, as all handlers in
    /// the tree do. `None` if the library does not pass a cancel on to the children.
    fn root(&self, tree: Tree) -> Option<impl Future<Output = Self::Parked> + Send> {
        let _ = tree;
        None::<std::future::Ready<Self::Parked>>
    }

    /// Starts a request that waits, with its own deadline. `None` if requests have no deadlines.
    fn deadline(&self, after: Duration) -> Option<impl Future<Output = Due> + Send> {
        let _ = after;
        None::<std::future::Ready<Due>>
    }
}

/// Sends these cancels of unknown requests one after another, with an echo after every few, so that the library's
/// queue does not grow because of the speed of the benchmark.
pub(crate) async fn one_by_one<L: Library, F: Future<Output = ()>>(
    library: &L,
    count: usize,
    mut cancel: impl FnMut() -> F,
) -> Told {
    let text = L::Text::new(1);
    for sent in 1..=count {
        cancel().await;
        if sent.is_multiple_of(HASTE) {
            library.echo(text).await;
        }
    }
    library.echo(text).await;
    Told::Measured
}

/// Polls a future once, because it starts with its first poll. The runtime makes a task yield after a number of
/// operations, which would leave the request unsent, and nothing polls it again before its cancel.
#[cfg(feature = "peers")]
pub(crate) async fn begun<F: Future + Unpin>(mut future: F) -> F {
    std::future::poll_fn(|cx| {
        let polled = std::pin::pin!(tokio::task::unconstrained(&mut future)).poll(cx);
        assert!(polled.is_pending(), "a parked request is not answered by itself");
        std::task::Poll::Ready(())
    })
    .await;
    future
}

// What the handlers of a server report to the measuring side, in this process or from another.

/// Counts the handlers that wait for their cancel, and those that got it. The server owns it.
#[derive(Debug, Default)]
pub struct Signals {
    waiting: AtomicUsize,
    signalled: AtomicUsize,
    last: AtomicU64,
    changed: Notify,
}

/// The counts of [`Signals`] so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The total number of handlers that began to wait.
    pub waiting: usize,
    /// The total number of handlers that were signalled.
    pub signalled: usize,
    /// The time of the last signal, on [`clock`].
    pub last: u64,
}

impl Signals {
    /// Records that a handler begins to wait. If the drop of its future is the only signal, the returned guard is
    /// dropped with it.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
        Waiting(Arc::clone(self))
    }

    fn seen(&self) -> Seen {
        Seen {
            waiting: self.waiting.load(Ordering::Acquire),
            signalled: self.signalled.load(Ordering::Acquire),
            last: self.last.load(Ordering::Acquire),
        }
    }

    /// Answers a [`Watch`] in another process on request. Nothing is sent without a request, so that a measured
    /// handler writes only to its own transport.
    ///
    /// # Panics
    /// If this process serves twice.
    pub fn answer(self: Arc<Self>) {
        let listener = UnixListener::bind(socket(std::process::id())).expect("a name of this process's own");
        tokio::spawn(async move {
            let Ok((mut asked, _)) = listener.accept().await else { return };
            while asked.read_u8().await.is_ok() {
                let Seen { waiting, signalled, last } = self.seen();
                let told = [waiting as u64, signalled as u64, last].map(u64::to_le_bytes);
                if asked.write_all(told.as_flattened()).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// A name without a file.
fn socket(process: u32) -> String {
    format!("\0rescind-benchmark-{process}")
}

/// A waiting handler. Its drop records the signal.
#[derive(Debug)]
pub struct Waiting(Arc<Signals>);

impl Drop for Waiting {
    fn drop(&mut self) {
        // The clock is read first, because the rest is not part of the library. Other handlers may be signalled on
        // other workers.
        self.0.last.fetch_max(clock(), Ordering::AcqRel);
        self.0.signalled.fetch_add(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

/// The measuring side's view of a server's [`Signals`].
#[derive(Debug)]
pub enum Watch {
    /// The server is in this process.
    Here(Arc<Signals>),
    /// The server is in another process, and is queried on a separate socket, which is opened when it is needed. The client here
    /// may have handlers too.
    Far(u32, Mutex<Option<UnixStream>>, Arc<Signals>),
}

impl Watch {
    /// The view of the server in this process, which [answers](Signals::answer) one such view, and of the client here.
    #[must_use]
    pub fn far(process: u32, client: Arc<Signals>) -> Self {
        Self::Far(process, Mutex::new(None), client)
    }

    /// The counts so far.
    ///
    /// # Panics
    /// If the server does not answer, or its process ended.
    pub async fn seen(&self) -> Seen {
        match self {
            Self::Here(signals) => signals.seen(),
            Self::Far(process, server, client) => {
                let mut server = server.lock().await;
                if server.is_none() {
                    *server = Some(UnixStream::connect(socket(*process)).await.expect("the server listens"));
                }
                let server = server.as_mut().expect("it is open");
                server.write_all(b"?").await.expect("the server is asked");
                let mut told = [0; 3];
                for number in &mut told {
                    *number = server.read_u64_le().await.expect("the server tells");
                }
                let ([waiting, signalled, last], here) = (told, client.seen());
                Seen {
                    waiting: waiting as usize + here.waiting,
                    signalled: signalled as usize + here.signalled,
                    last: last.max(here.last),
                }
            }
        }
    }

    /// Returns when this many handlers have begun to wait.
    pub async fn until_waiting(&self, handlers: usize) -> Seen {
        self.until(|seen| seen.waiting >= handlers).await
    }

    /// Returns when this many handlers were signalled.
    pub async fn until_signalled(&self, handlers: usize) -> Seen {
        self.until(|seen| seen.signalled >= handlers).await
    }

    /// Returns when every waiting handler was signalled.
    pub async fn until_all_signalled(&self) -> Seen {
        let waiting = self.seen().await.waiting;
        self.until_signalled(waiting).await
    }

    async fn until(&self, done: impl Fn(Seen) -> bool) -> Seen {
        loop {
            // It receives every change from here on, even if it is not polled yet.
            let changed = match self {
                Self::Here(signals) => Some(signals.changed.notified()),
                Self::Far(..) => None,
            };
            let seen = self.seen().await;
            if done(seen) {
                return seen;
            }
            if let Some(changed) = changed {
                changed.await;
            }
        }
    }
}

// A library that works over any byte stream: its server's half and its client's, connected in memory or with pipes.

/// The buffer in each direction in memory, as large as that of a system's pipe.
const BUFFER: usize = 64 << 10;

/// One end of a byte stream.
pub trait End: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// For a library with separate readers and writers.
    fn split(self) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static);
}

impl End for DuplexStream {
    fn split(self) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static) {
        tokio::io::split(self)
    }
}

impl End for Join<pipe::Receiver, pipe::Sender> {
    fn split(self) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static) {
        self.into_inner()
    }
}

/// The two halves of a library in one configuration.
pub trait Halves: Copy + Send + Sync + 'static {
    /// The buffer in each direction in memory, in bytes.
    const BUFFER: usize = BUFFER;

    /// Serves at this end until its client disconnects.
    fn serve<E: End>(
        self,
        end: E,
        slots: usize,
        signals: Arc<Signals>,
    ) -> impl Future<Output = ()> + Send + 'static;

    /// A client at this end, and the tasks that drive it.
    fn connect<E: End>(self, end: E, slots: usize) -> impl Future<Output = (impl Library, Tasks)> + Send;
}

/// Opens both halves in this process, or a client of a server in another process.
pub async fn open<H: Halves>(halves: H, setup: Setup) -> Box<dyn Subject> {
    match setup.ends {
        Ends::Memory => {
            let signals = Arc::new(Signals::default());
            let (near, far) = tokio::io::duplex(H::BUFFER);
            let mut serving = Tasks::default();
            serving.spawn(halves.serve(far, setup.slots, Arc::clone(&signals)));
            let (client, tasks) = halves.connect(near, setup.slots).await;
            Driven::boxed(client, Watch::Here(signals), serving.and(tasks))
        }
        Ends::Pipes { input, output, server } => {
            let (client, tasks) = halves.connect(pipes(input, output), setup.slots).await;
            Driven::of_far(client, server, Arc::default(), tasks).await
        }
    }
}

fn pipes(input: OwnedFd, output: OwnedFd) -> Join<pipe::Receiver, pipe::Sender> {
    tokio::io::join(
        pipe::Receiver::from_owned_fd(input).expect("a pipe to read"),
        pipe::Sender::from_owned_fd(output).expect("a pipe to write"),
    )
}

/// Serves a client in another process.
pub async fn serve<H: Halves>(halves: H, setup: Setup) {
    if let Ends::Pipes { input, output, .. } = setup.ends {
        let signals = Arc::new(Signals::default());
        Arc::clone(&signals).answer();
        halves.serve(pipes(input, output), setup.slots, signals).await;
    }
}

/// Tasks that are aborted when their subject is dropped.
#[derive(Debug, Default)]
pub struct Tasks(Vec<AbortHandle>);

impl Tasks {
    /// Both lists of tasks.
    #[must_use]
    pub fn and(mut self, mut those: Self) -> Self {
        self.0.append(&mut those.0);
        self
    }

    /// Spawns a task.
    pub fn spawn<F>(&mut self, task: F)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.push(tokio::spawn(task).abort_handle());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}
