//! Redis 7 or Valkey: one primary, with or without replicas. Redis Cluster is not supported.
//!
//! With the prefix `rescind`:
//!
//! | what | where |
//! |---|---|
//! | the record of a signal | the key `rescind:signal:<name>`, with a time to live |
//! | the doorbell of a signal | the channel `rescind:signal:<name>`; the message is the value |
//! | the ids of a principal's tasks | the set `rescind:tasks:<signature>`, with the longest time to live of them |
//! | the entry of a node | the key `rescind:node:<name>`, with a time to live |
//! | the names of nodes | the set `rescind:nodes` |
//! | jobs | the list `rescind:jobs`: added on the left, taken on the right |
//!
//! 1. A record is written before its doorbell rings, by one script. A signal that could not be recorded does not ring.
//! 2. Commands, doorbells and jobs have connections of their own, so that none waits for another.
//! 3. Each command has a time limit. A connection that exceeds it is not used again.
//! 4. Messages name the server by its host and port, never by its URL, which may hold a password.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use futures_util::{FutureExt as _, StreamExt as _};
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo, Msg, Pipeline, RedisError,
    RedisResult, ServerErrorKind,
};
use rescind_core::LogText;
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Answer, Beat, Engine, EngineError, EngineEvents, JOB_WAIT, Takes, Taking};

/// The most time of a command.
const COMMAND_LIMIT: Duration = Duration::from_secs(3);

/// Records a signal, then rings. A record that is refused, because memory is full, does not ring. `NX` that finds a record
/// is no error: the first value stays.
const SIGNAL: &str = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
redis.call('PUBLISH', KEYS[1], ARGV[1])
return false";

/// Writes or renews the entry of a node. Returns the entry of another holder, or nothing. An entry is renewed also when
/// memory is full.
const BEAT: &str = "local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return false
end
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
return false";

/// Records a value, and returns the one that was there before.
const KEEP: &str = "local held = redis.call('GET', KEYS[1])
if not held then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return held";

/// Adds an item to a set, which stays for its longest time.
const ENLIST: &str = "redis.call('SADD', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return false";

/// Removes the entry of a node if it is this one.
const LEAVE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SREM', KEYS[2], ARGV[2])
return redis.call('DEL', KEYS[1])";

/// Returns names and entries in turn, and removes the names that have no entry any more. One script, so that a node
/// that beats meanwhile is not removed.
const MEMBERS: &str = "local found = {}
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    local entry = redis.call('GET', ARGV[1] .. name)
    if entry then
        found[#found + 1] = name
        found[#found + 1] = entry
    else
        redis.call('SREM', KEYS[1], name)
    end
end
return found";

/// Redis as the engine.
pub(crate) struct RedisEngine {
    prefix: String,
    commands: Arc<Commands>,
    doorbells: Arc<Doorbells>,
    reader: JoinHandle<()>,
    takes: Takes,
    server: Server,
}

impl RedisEngine {
    /// Connects. `url`: `redis://[[user]:password@]host[:port][/database]`.
    pub(crate) async fn connect(
        url: &str,
        prefix: &str,
        events: Arc<dyn EngineEvents>,
    ) -> Result<Self, EngineError> {
        let server = Server::new(url)?;
        let commands = Arc::new(Commands::new(server.clone()));
        let mut ping = redis::pipe();
        ping.cmd("PING");
        let _: redis::Value = commands.run(&ping).await?;
        let signals = format!("{prefix}:signal:");
        let doorbells = Arc::new(Doorbells::new(server.clone(), signals, Arc::clone(&commands), events));
        let connection = server.open_doorbells().await?;
        let open = doorbells.open(connection).await?;
        let reader = tokio::spawn(Arc::clone(&doorbells).run(open));
        Ok(Self { prefix: prefix.into(), commands, doorbells, reader, takes: Takes::default(), server })
    }

    async fn run<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, EngineError> {
        self.commands.run(commands).await
    }

    fn signal_key(&self, name: &str) -> String {
        format!("{}:signal:{name}", self.prefix)
    }

    fn node_key(&self, name: &str) -> String {
        format!("{}:node:{name}", self.prefix)
    }

    fn tasks_key(&self, list: &str) -> String {
        format!("{}:tasks:{list}", self.prefix)
    }

    fn nodes_key(&self) -> String {
        format!("{}:nodes", self.prefix)
    }

    fn jobs_key(&self) -> String {
        format!("{}:jobs", self.prefix)
    }

    /// Takes a job on a connection of its own, because the command blocks it.
    fn begin_take(&self) -> Taking {
        let (server, key) = (self.server.clone(), self.jobs_key());
        Box::pin(async move {
            let mut connection = server.open().await?;
            let mut take = redis::cmd("BRPOP");
            take.arg(key).arg(JOB_WAIT.as_secs());
            let taken = timeout(JOB_WAIT + COMMAND_LIMIT, take.query_async(&mut connection)).await;
            let taken: Option<(String, String)> = server.answer(taken)?;
            Ok(taken.map(|(_, job)| job))
        })
    }
}

impl Drop for RedisEngine {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Engine for RedisEngine {
    fn signal<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let key = self.signal_key(name);
            let mut signal = redis::pipe();
            signal.cmd("EVAL").arg(SIGNAL).arg(1).arg(key).arg(value).arg(milliseconds(keep)).ignore();
            self.run(&signal).await
        })
    }

    fn subscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(self.doorbells.subscribe(names))
    }

    fn unsubscribe<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(self.doorbells.unsubscribe(names))
    }

    fn look<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, Vec<Option<String>>> {
        Box::pin(async move {
            let mut values = Vec::with_capacity(names.len());
            for batch in names.chunks(BATCH) {
                let mut look = redis::pipe();
                look.cmd("MGET");
                for name in batch {
                    look.arg(self.signal_key(name));
                }
                let (found,): (Vec<Option<String>>,) = self.run(&look).await?;
                values.extend(found);
            }
            Ok(values)
        })
    }

    fn keep<'a>(&'a self, name: &'a str, value: &'a str, keep: Duration) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            let mut kept = redis::pipe();
            kept.cmd("EVAL").arg(KEEP).arg(1).arg(self.signal_key(name)).arg(value).arg(milliseconds(keep));
            let (other,): (Option<String>,) = self.run(&kept).await?;
            Ok(other.filter(|other| other != value))
        })
    }

    fn forget<'a>(&'a self, names: &'a [Arc<str>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut forget = redis::pipe();
            forget.cmd("DEL");
            for name in names {
                forget.arg(self.signal_key(name));
            }
            self.run(forget.ignore()).await
        })
    }

    fn enlist<'a>(&'a self, list: &'a str, item: &'a str, keep: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut enlist = redis::pipe();
            enlist
                .cmd("EVAL")
                .arg(ENLIST)
                .arg(1)
                .arg(self.tasks_key(list))
                .arg(item)
                .arg(milliseconds(keep))
                .ignore();
            self.run(&enlist).await
        })
    }

    fn strike<'a>(&'a self, list: &'a str, item: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut strike = redis::pipe();
            strike.cmd("SREM").arg(self.tasks_key(list)).arg(item).ignore();
            self.run(&strike).await
        })
    }

    fn enlisted<'a>(&'a self, list: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            let mut enlisted = redis::pipe();
            enlisted.cmd("SMEMBERS").arg(self.tasks_key(list));
            let (items,): (Vec<String>,) = self.run(&enlisted).await?;
            Ok(items)
        })
    }

    fn beat<'a>(&'a self, node: &'a str, entry: &'a str, keep: Duration) -> Answer<'a, Beat> {
        Box::pin(async move {
            let mut beat = redis::pipe();
            beat.cmd("EVAL").arg(BEAT).arg(2).arg(self.node_key(node)).arg(self.nodes_key());
            beat.arg(entry).arg(milliseconds(keep)).arg(node);
            let (holder,): (Option<String>,) = self.run(&beat).await?;
            Ok(holder.map_or(Beat::Held, Beat::Taken))
        })
    }

    fn leave<'a>(&'a self, node: &'a str, entry: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut leave = redis::pipe();
            leave.cmd("EVAL").arg(LEAVE).arg(2).arg(self.node_key(node)).arg(self.nodes_key());
            leave.arg(entry).arg(node).ignore();
            self.run(&leave).await
        })
    }

    fn members(&self) -> Answer<'_, Vec<(String, String)>> {
        Box::pin(async move {
            let mut members = redis::pipe();
            members.cmd("EVAL").arg(MEMBERS).arg(1).arg(self.nodes_key()).arg(self.node_key(""));
            let (members,): (Vec<(String, String)>,) = self.run(&members).await?;
            Ok(members)
        })
    }

    fn push_job<'a>(&'a self, job: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut push = redis::pipe();
            push.cmd("LPUSH").arg(self.jobs_key()).arg(job).ignore();
            self.run(&push).await
        })
    }

    /// # Cancel safety
    ///
    /// A job that the server gave away while no caller waited is for the next caller. Two callers take turns. A job is
    /// lost if its process dies between the server's answer and the end of the work: Redis has no acknowledgement here.
    fn take_job(&self) -> Answer<'_, Option<String>> {
        Box::pin(self.takes.next(|| self.begin_take()))
    }
}

/// Redis refuses a time to live of zero.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Text of the server, for our messages.
fn shown(text: impl std::fmt::Display) -> String {
    LogText::text(text).to_string()
}

// The connection of the doorbells.
//
// 1. A name is in the set from its `subscribe` to its `unsubscribe`, also while the connection is lost: a new connection
//    subscribes to the whole set before `restored` is reported.
// 2. The set changes and the command enters the queue of the connection under one lock. So the last command of a name
//    agrees with the set.
// 3. A subscription that the server did not confirm in time ends its connection, so that `restored` follows.

/// The most names of one command.
const BATCH: usize = 512;
/// The time between two pings, by which a server that is silent is found.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The time before the first attempt to connect again. It doubles up to `MAX_DELAY`.
const MIN_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The subscriptions, and their connection.
struct Doorbells {
    server: Server,
    /// What comes before the name in a channel.
    prefix: String,
    /// Their connection is lost with this one, as a rule.
    commands: Arc<Commands>,
    events: Arc<dyn EngineEvents>,
    state: Mutex<RedisState>,
}

#[derive(Default)]
struct RedisState {
    names: HashSet<Arc<str>>,
    /// `None`: the connection is lost.
    sender: Option<Sender>,
}

/// The end of a connection that sends.
#[derive(Clone)]
struct Sender {
    commands: PubSubSink,
    /// Ends the connection.
    end: CancellationToken,
}

/// A connection that is subscribed to the whole set.
struct Open {
    sender: Sender,
    messages: PubSubStream,
}

/// A command in the queue of its connection.
type Sent = Pin<Box<MaybeDone<BoxFuture<'static, RedisResult<()>>>>>;

impl Doorbells {
    fn new(server: Server, prefix: String, commands: Arc<Commands>, events: Arc<dyn EngineEvents>) -> Self {
        Self { server, prefix, commands, events, state: Mutex::default() }
    }

    /// Returns when the server has confirmed all names. After `Away` the names stay in the set, and `restored` is
    /// reported when they are subscribed. After `Refused` they do not.
    async fn subscribe(&self, names: &[Arc<str>]) -> Result<(), EngineError> {
        let (sender, sent) = {
            let mut state = self.state();
            state.names.extend(names.iter().cloned());
            let sender = state.sender.clone().ok_or_else(|| self.server.disconnected())?;
            let sent = self.send_subscribe(&sender, names);
            (sender, sent)
        };
        let confirmed = self.confirm(&sender, sent).await;
        if let Err(EngineError::Refused(_)) = &confirmed {
            let mut state = self.state();
            for name in names {
                state.names.remove(name);
            }
        }
        confirmed
    }

    /// Returns when the server has confirmed it. Without a connection there is nothing to end.
    async fn unsubscribe(&self, names: &[Arc<str>]) -> Result<(), EngineError> {
        let (sender, sent) = {
            let mut state = self.state();
            for name in names {
                state.names.remove(name);
            }
            let Some(sender) = state.sender.clone() else { return Ok(()) };
            let send_batch = |batch: &[Arc<str>]| {
                let (mut commands, channels) = (sender.commands.clone(), self.channels(batch));
                send(async move { commands.unsubscribe(channels).await }.boxed())
            };
            let sent = names.chunks(BATCH).map(send_batch).collect();
            (sender, sent)
        };
        self.confirm(&sender, sent).await
    }

    /// Subscribes a new connection to the whole set.
    async fn open(&self, connection: PubSub) -> Result<Open, EngineError> {
        let (commands, messages) = connection.split();
        let sender = Sender { commands, end: CancellationToken::new() };
        let sent = {
            let mut state = self.state();
            state.sender = Some(sender.clone());
            let names: Vec<_> = state.names.iter().cloned().collect();
            self.send_subscribe(&sender, &names)
        };
        let confirmed = self.confirm(&sender, sent).await;
        if let Err(error) = confirmed {
            self.state().sender = None;
            return Err(error);
        }
        Ok(Open { sender, messages })
    }

    /// Reads the messages of one connection after the other.
    async fn run(self: Arc<Self>, mut open: Open) {
        loop {
            self.listen(open).await;
            self.state().sender = None;
            self.commands.forget();
            tracing::warn!(server = %LogText::name(&self.server.address), "lost the connection to Redis");
            open = self.reopen().await;
            tracing::info!(server = %LogText::name(&self.server.address), "connected to Redis again");
            self.events.restored();
        }
    }

    /// Returns when the connection is lost.
    async fn listen(&self, mut open: Open) {
        let silence = silence(open.sender.commands);
        tokio::pin!(silence);
        loop {
            tokio::select! {
                message = open.messages.next() => match message {
                    Some(message) => self.recv(&message),
                    None => return,
                },
                () = open.sender.end.cancelled() => return,
                () = &mut silence => return,
            }
        }
    }

    async fn reopen(&self) -> Open {
        let mut delay = MIN_DELAY;
        loop {
            sleep(delay).await;
            let opened = match self.server.open_doorbells().await {
                Ok(connection) => self.open(connection).await,
                Err(error) => Err(error),
            };
            match opened {
                Ok(open) => return open,
                Err(error) => tracing::debug!(error = %LogText::text(error), "could not connect to Redis"),
            }
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    fn recv(&self, message: &Msg) {
        let name = message.get_channel_name().strip_prefix(&self.prefix);
        let value = std::str::from_utf8(message.get_payload_bytes());
        let (Some(name), Ok(value)) = (name, value) else {
            tracing::debug!("ignored a message of Redis that is no doorbell");
            return;
        };
        self.events.rung(name, value);
    }

    fn send_subscribe(&self, sender: &Sender, names: &[Arc<str>]) -> Vec<Sent> {
        let send = |batch: &[Arc<str>]| {
            let (mut commands, channels) = (sender.commands.clone(), self.channels(batch));
            send(async move { commands.subscribe(channels).await }.boxed())
        };
        names.chunks(BATCH).map(send).collect()
    }

    async fn confirm(&self, sender: &Sender, sent: Vec<Sent>) -> Result<(), EngineError> {
        for mut command in sent {
            let answer = timeout(COMMAND_LIMIT, command.as_mut()).await;
            let answer = answer.map(|()| command.as_mut().take_output().unwrap_or(Ok(())));
            let confirmed = self.server.answer(answer);
            if let Err(EngineError::Away(_)) = &confirmed {
                sender.end.cancel();
            }
            confirmed?;
        }
        Ok(())
    }

    fn channels(&self, names: &[Arc<str>]) -> Vec<String> {
        names.iter().map(|name| format!("{}{name}", self.prefix)).collect()
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first poll puts the command into the queue of its connection.
fn send(command: BoxFuture<'static, RedisResult<()>>) -> Sent {
    let mut command = Box::pin(maybe_done(command));
    let _ = command.as_mut().now_or_never();
    command
}

/// Returns when the server does not answer a ping.
async fn silence(mut commands: PubSubSink) {
    loop {
        sleep(PING_INTERVAL).await;
        let answer = timeout(COMMAND_LIMIT, commands.ping::<redis::Value>()).await;
        if !matches!(answer, Ok(Ok(_))) {
            return;
        }
    }
}

// Where the server is, and the connection of the commands.

/// Opens connections.
#[derive(Clone)]
struct Server {
    client: Client,
    /// The host and the port.
    address: Arc<str>,
}

impl Server {
    fn new(url: &str) -> Result<Self, EngineError> {
        let invalid = |error: RedisError| {
            // Its text is one of the client's own, without the URL.
            EngineError::Refused(format!("this is not the URL of a Redis server: {}", shown(error)))
        };
        let info = url.into_connection_info().map_err(invalid)?;
        // A small command must not wait for the acknowledgement of the one before it.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let address = info.addr().to_string().into();
        Ok(Self { client: Client::open(info).map_err(invalid)?, address })
    }

    /// A connection for commands. It sets no time limit to its answers.
    async fn open(&self) -> Result<MultiplexedConnection, EngineError> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        self.answer(timeout(COMMAND_LIMIT, opening).await)
    }

    /// A connection for doorbells.
    async fn open_doorbells(&self) -> Result<PubSub, EngineError> {
        self.answer(timeout(COMMAND_LIMIT, self.client.get_async_pubsub()).await)
    }

    /// What the answer means to the cluster.
    fn answer<T>(&self, answer: Result<RedisResult<T>, Elapsed>) -> Result<T, EngineError> {
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.error(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    /// The error of a server that did not answer in time.
    fn silent(&self) -> EngineError {
        EngineError::Away(format!("Redis at {} did not answer within {COMMAND_LIMIT:?}", self.address))
    }

    /// The error without a connection.
    fn disconnected(&self) -> EngineError {
        EngineError::Away(format!("the connection to Redis at {} is lost", self.address))
    }

    fn error(&self, error: &RedisError) -> EngineError {
        let text = format!("Redis at {}: {}", self.address, shown(error));
        match error.kind() {
            // A server that starts answers `LOADING`.
            ErrorKind::Io
            | ErrorKind::Server(
                ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::TryAgain,
            ) => EngineError::Away(text),
            ErrorKind::AuthenticationFailed => EngineError::Refused(text),
            _ if error.is_unrecoverable_error() => EngineError::Away(text),
            _ => EngineError::Refused(text),
        }
    }
}

/// The connection of the commands. It is opened with the first command, and again with the first one after a failure.
struct Commands {
    server: Server,
    current: Mutex<Option<Connection>>,
    /// Held while a connection is opened, so that many commands open only one.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Connection {
    commands: MultiplexedConnection,
    /// The same for all clones of a connection, and for no other connection.
    identity: Arc<()>,
}

impl Commands {
    fn new(server: Server) -> Self {
        Self { server, current: Mutex::new(None), opening: tokio::sync::Mutex::new(()) }
    }

    /// Runs these commands within the time limit, which includes the time to connect.
    async fn run<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, EngineError> {
        let mut used = None;
        let running = async {
            let mut connection = self.connection().await?;
            used = Some(Arc::clone(&connection.identity));
            let answer = commands.query_async(&mut connection.commands).await;
            self.server.answer(Ok(answer))
        };
        let answer = timeout(COMMAND_LIMIT, running).await.unwrap_or_else(|_| Err(self.server.silent()));
        if let (Err(EngineError::Away(_)), Some(used)) = (&answer, used) {
            self.forget_if(|connection| Arc::ptr_eq(&connection.identity, &used));
        }
        answer
    }

    /// The next command opens a new connection.
    fn forget(&self) {
        self.forget_if(|_| true);
    }

    fn forget_if(&self, is_lost: impl FnOnce(&Connection) -> bool) {
        let mut current = self.current();
        if current.as_ref().is_some_and(is_lost) {
            *current = None;
        }
    }

    async fn connection(&self) -> Result<Connection, EngineError> {
        let current = || self.current().clone();
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let _only = self.opening.lock().await;
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let connection = Connection { commands: self.server.open().await?, identity: Arc::new(()) };
        *self.current() = Some(connection.clone());
        Ok(connection)
    }

    fn current(&self) -> MutexGuard<'_, Option<Connection>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
