//! Redis 7 or Valkey: one primary, with or without replicas. Redis Cluster is not supported.
//!
//! With the prefix `rescind`:
//!
//! | what | where |
//! |---|---|
//! | the record of a signal | the key `rescind:signal:<name>`, with a time to live |
//! | the doorbell of a signal | the channel `rescind:signal:<name>`; the message is the value |
//! | the entry of a node | the key `rescind:node:<name>`, with a time to live |
//! | the names of nodes | the set `rescind:nodes` |
//! | jobs | the list `rescind:jobs`: added on the left, taken on the right |
//!
//! 1. A record is written before its doorbell rings, by one script. A signal that could not be recorded does not ring.
//! 2. Commands, doorbells and jobs have connections of their own, so that none waits for another.
//! 3. Each command has a time limit. A connection that exceeds it is not used again.
//! 4. Messages name the server by its host and port, never by its URL, which may hold a password.

mod doorbells;
mod server;

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline};
use rescind_core::LogText;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::doorbells::Doorbells;
use self::server::{Commands, Server};
use super::takes::{JOB_WAIT, Takes, Taking};
use super::{Answer, Beat, Engine, EngineError, EngineEvents};

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
            for batch in names.chunks(doorbells::BATCH) {
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
