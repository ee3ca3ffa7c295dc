//! Where the server is, and the connection of the commands.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisError,
    RedisResult, ServerErrorKind,
};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::{COMMAND_LIMIT, EngineError, shown};

/// Opens connections.
#[derive(Clone)]
pub(super) struct Server {
    client: Client,
    /// The host and the port.
    pub(super) address: Arc<str>,
}

impl Server {
    pub(super) fn new(url: &str) -> Result<Self, EngineError> {
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
    pub(super) async fn open(&self) -> Result<MultiplexedConnection, EngineError> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        self.answer(timeout(COMMAND_LIMIT, opening).await)
    }

    /// A connection for doorbells.
    pub(super) async fn open_doorbells(&self) -> Result<PubSub, EngineError> {
        self.answer(timeout(COMMAND_LIMIT, self.client.get_async_pubsub()).await)
    }

    /// What the answer means to the cluster.
    pub(super) fn answer<T>(&self, answer: Result<RedisResult<T>, Elapsed>) -> Result<T, EngineError> {
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.error(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    /// The error of a server that did not answer in time.
    pub(super) fn silent(&self) -> EngineError {
        EngineError::Away(format!("Redis at {} did not answer within {COMMAND_LIMIT:?}", self.address))
    }

    /// The error without a connection.
    pub(super) fn disconnected(&self) -> EngineError {
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
pub(super) struct Commands {
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
    pub(super) fn new(server: Server) -> Self {
        Self { server, current: Mutex::new(None), opening: tokio::sync::Mutex::new(()) }
    }

    /// Runs these commands within the time limit, which includes the time to connect.
    pub(super) async fn run<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, EngineError> {
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
    pub(super) fn forget(&self) {
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
