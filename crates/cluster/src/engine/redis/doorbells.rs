//! The connection of the doorbells.
//!
//! 1. A name is in the set from its `subscribe` to its `unsubscribe`, also while the connection is lost: a new connection
//!    subscribes to the whole set before `restored` is reported.
//! 2. The set changes and the command enters the queue of the connection under one lock. So the last command of a name
//!    agrees with the set.
//! 3. A subscription that the server did not confirm in time ends its connection, so that `restored` follows.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{Msg, RedisResult};
use rescind_core::LogText;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::server::{Commands, Server};
use super::{COMMAND_LIMIT, EngineError, EngineEvents};

/// The most names of one command.
pub(super) const BATCH: usize = 512;
/// The time between two pings, by which a server that is silent is found.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The time before the first attempt to connect again. It doubles up to `MAX_DELAY`.
const MIN_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The subscriptions, and their connection.
pub(super) struct Doorbells {
    server: Server,
    /// What comes before the name in a channel.
    prefix: String,
    /// Their connection is lost with this one, as a rule.
    commands: Arc<Commands>,
    events: Arc<dyn EngineEvents>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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
pub(super) struct Open {
    sender: Sender,
    messages: PubSubStream,
}

/// A command in the queue of its connection.
type Sent = Pin<Box<MaybeDone<BoxFuture<'static, RedisResult<()>>>>>;

impl Doorbells {
    pub(super) fn new(
        server: Server,
        prefix: String,
        commands: Arc<Commands>,
        events: Arc<dyn EngineEvents>,
    ) -> Self {
        Self { server, prefix, commands, events, state: Mutex::default() }
    }

    /// Returns when the server has confirmed all names. After `Away` the names stay in the set, and `restored` is
    /// reported when they are subscribed. After `Refused` they do not.
    pub(super) async fn subscribe(&self, names: &[Arc<str>]) -> Result<(), EngineError> {
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
    pub(super) async fn unsubscribe(&self, names: &[Arc<str>]) -> Result<(), EngineError> {
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
    pub(super) async fn open(&self, connection: PubSub) -> Result<Open, EngineError> {
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
    pub(super) async fn run(self: Arc<Self>, mut open: Open) {
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

    fn state(&self) -> MutexGuard<'_, State> {
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
