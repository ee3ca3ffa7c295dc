//! The connection to NATS, its time limits and its errors, and the key-value buckets.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::context::{
    ContextBuilder, CreateStreamError, CreateStreamErrorKind, PublishErrorKind,
};
use async_nats::jetstream::stream::{
    self, Config, DiscardPolicy, LastRawMessageErrorKind, Republish, Stream,
};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, HeaderValue, ServerAddr};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use rescind_core::LogText;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::EngineError;

/// The most time of a command.
pub(super) const COMMAND_LIMIT: Duration = Duration::from_secs(3);
/// The time between two pings. After two that were not answered, the client connects again.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The time before the first attempt to connect again. It doubles up to `MAX_DELAY`.
const MIN_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(1);

/// How often a stream is opened again that another process creates, and the wait between.
const OPEN_ATTEMPTS: usize = 10;
const OPEN_WAIT: Duration = Duration::from_millis(50);

/// The connection.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) jetstream: jetstream::Context,
    /// The host and the port.
    address: Arc<str>,
}

/// What happens to the connection.
pub(super) type Changes = mpsc::UnboundedReceiver<Event>;

impl Server {
    pub(super) async fn connect(url: &str) -> Result<(Self, Changes), EngineError> {
        let invalid = |_| EngineError::Refused("this is not the URL of a NATS server".into());
        let with_password: ServerAddr = url.parse().map_err(invalid)?;
        let host = with_password.host();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let address: Arc<str> = format!("{host}:{}", with_password.port()).into();
        // The client logs its URL, so it gets one without the password.
        let url = format!("{}://{address}", with_password.scheme());
        let (sender, changes) = mpsc::unbounded_channel();
        let options = options(&with_password, sender);
        let failed = |text: String| format!("NATS at {address}: {}", LogText::text(text));
        let client = match timeout(COMMAND_LIMIT, options.connect(url)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let text = failed(error.to_string());
                return Err(match error.kind() {
                    ConnectErrorKind::Dns
                    | ConnectErrorKind::TimedOut
                    | ConnectErrorKind::Io
                    | ConnectErrorKind::MaxReconnects => EngineError::Away(text),
                    ConnectErrorKind::ServerParse
                    | ConnectErrorKind::Authentication
                    | ConnectErrorKind::AuthorizationViolation
                    | ConnectErrorKind::Tls => EngineError::Refused(text),
                });
            }
            Err(_) => return Err(EngineError::Away(failed("no answer in time".into()))),
        };
        let jetstream = ContextBuilder::new().timeout(COMMAND_LIMIT).build(client.clone());
        Ok((Self { client, jetstream, address }, changes))
    }

    /// Publishes, and waits until the server has stored it.
    pub(super) async fn put(
        &self,
        subject: String,
        headers: HeaderMap,
        value: Bytes,
    ) -> Result<Put, EngineError> {
        self.check_connected()?;
        let putting = async { self.jetstream.publish_with_headers(subject, headers, value).await?.await };
        match self.limited(putting).await? {
            Ok(_) => Ok(Put::Stored),
            Err(error) => match error.kind() {
                PublishErrorKind::WrongLastSequence => Ok(Put::Conflict),
                // While the server starts, it has no streams yet.
                PublishErrorKind::StreamNotFound
                | PublishErrorKind::TimedOut
                | PublishErrorKind::BrokenPipe
                | PublishErrorKind::MaxAckPending => Err(self.away(error)),
                PublishErrorKind::WrongLastMessageId
                | PublishErrorKind::MaxPayloadExceeded
                | PublishErrorKind::Other => Err(self.refused(error)),
            },
        }
    }

    /// Fails without a connection: what the client sends then waits for the next one.
    pub(super) fn check_connected(&self) -> Result<(), EngineError> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err(self.disconnected()),
        }
    }

    /// A command with its time limit.
    pub(super) async fn limited<F: IntoFuture>(&self, command: F) -> Result<F::Output, EngineError> {
        timeout(COMMAND_LIMIT, command).await.map_err(|_| self.silent())
    }

    pub(super) fn silent(&self) -> EngineError {
        self.away(format_args!("no answer within {COMMAND_LIMIT:?}"))
    }

    pub(super) fn disconnected(&self) -> EngineError {
        self.away("the connection is lost")
    }

    pub(super) fn away(&self, error: impl fmt::Display) -> EngineError {
        EngineError::Away(self.text(error))
    }

    pub(super) fn refused(&self, error: impl fmt::Display) -> EngineError {
        EngineError::Refused(self.text(error))
    }

    /// Opens a stream, or creates it. Another process may create the same one at that moment, which the server refuses as an
    /// overlap until it can be opened.
    pub(super) async fn stream(&self, config: Config) -> Result<Stream, EngineError> {
        for _ in 0..OPEN_ATTEMPTS {
            let opening = self.jetstream.get_or_create_stream(config.clone());
            match self.limited(opening).await? {
                Ok(stream) => return Ok(stream),
                Err(error) if is_overlap(&error) => tokio::time::sleep(OPEN_WAIT).await,
                Err(error) => return Err(self.stream_error(&error)),
            }
        }
        let opening = self.jetstream.get_or_create_stream(config);
        self.limited(opening).await?.map_err(|error| self.stream_error(&error))
    }

    fn stream_error(&self, error: &CreateStreamError) -> EngineError {
        match error.kind() {
            CreateStreamErrorKind::TimedOut => self.away(error),
            _ => self.refused(error),
        }
    }

    pub(super) const fn address(&self) -> &Arc<str> {
        &self.address
    }

    fn text(&self, error: impl fmt::Display) -> String {
        format!("NATS at {}: {}", self.address, LogText::text(error))
    }
}

fn options(address: &ServerAddr, changes: mpsc::UnboundedSender<Event>) -> ConnectOptions {
    let options = ConnectOptions::new()
        .name("rescind")
        .connection_timeout(COMMAND_LIMIT)
        .request_timeout(Some(COMMAND_LIMIT))
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(delay)
        .event_callback(move |event| {
            let _ = changes.send(event);
            async {}
        });
    match (address.username().map(decoded), address.password().map(decoded)) {
        (Some(user), Some(password)) => options.user_and_password(user, password),
        (Some(token), None) => options.token(token),
        (None, _) => options,
    }
}

fn delay(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(8);
    (MIN_DELAY * 2_u32.pow(doublings)).min(MAX_DELAY)
}

/// The text behind the `%XX` of a URL. What is no such escape stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escape = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = escape.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a stream was not created because another one has its subjects.
fn is_overlap(error: &CreateStreamError) -> bool {
    matches!(error.kind(), CreateStreamErrorKind::JetStream(why) if why.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP)
}

/// The header of a record that says that its key was deleted.
pub(super) const OPERATION: &str = "KV-Operation";

/// What became of a put.
pub(super) enum Put {
    Stored,
    /// The key has another revision.
    Conflict,
}

/// The last record of a key.
pub(super) struct Record {
    /// `None`: the key was deleted.
    pub(super) value: Option<String>,
    pub(super) revision: u64,
}

/// A key-value bucket. Its stream is what clients of the key-value store expect.
#[derive(Clone)]
pub(super) struct Bucket {
    server: Server,
    name: Arc<str>,
    stream: Arc<Stream>,
}

impl Bucket {
    /// Opens it, or creates it with this time to live. `doorbell`: what comes before the key in the subject to which
    /// the server republishes each record.
    pub(super) async fn open(
        server: &Server,
        name: String,
        max_age: Duration,
        doorbell: Option<&str>,
    ) -> Result<Self, EngineError> {
        let republish = doorbell.map(|doorbell| Republish {
            source: format!("$KV.{name}.>"),
            destination: format!("{doorbell}>"),
            headers_only: false,
        });
        let config = stream::Config {
            name: format!("KV_{name}"),
            subjects: vec![format!("$KV.{name}.>")],
            max_messages_per_subject: 1,
            max_age,
            republish: republish.clone(),
            discard: DiscardPolicy::New,
            allow_rollup: true,
            deny_delete: true,
            // Replicas may be behind.
            allow_direct: false,
            ..stream::Config::default()
        };
        let stream = server.stream(config).await?;
        if stream.cached_info().config.republish != republish {
            let text =
                format!("the bucket {name} exists, but does not republish its records to their doorbells");
            return Err(server.refused(text));
        }
        Ok(Self { server: server.clone(), name: name.into(), stream: Arc::new(stream) })
    }

    /// The bucket keeps all its records for the same time.
    pub(super) fn check_keep(&self, keep: Duration) -> Result<(), EngineError> {
        let max_age = self.stream.cached_info().config.max_age;
        if keep <= max_age || max_age.is_zero() {
            return Ok(());
        }
        let text = format_args!("the bucket {} keeps records for {max_age:?}, not for {keep:?}", self.name);
        Err(self.server.refused(text))
    }

    /// Writes this value if the last revision of the key is this one. 0: the key has none.
    pub(super) async fn put(&self, key: &str, value: &str, revision: u64) -> Result<Put, EngineError> {
        self.server.put(self.subject(key)?, expected(revision), value.to_owned().into()).await
    }

    /// Deletes the key if its last revision is this one.
    pub(super) async fn delete(&self, key: &str, revision: u64) -> Result<Put, EngineError> {
        let mut headers = expected(revision);
        headers.insert(OPERATION, "DEL");
        self.server.put(self.subject(key)?, headers, Bytes::new()).await
    }

    /// Removes the key without a trace: a deleted one stays in [`names`](Self::names).
    pub(super) async fn purge(&self, key: &str) -> Result<(), EngineError> {
        self.server.check_connected()?;
        let purging = self.stream.purge().filter(self.subject(key)?);
        let purged = self.server.limited(purging).await?;
        purged.map(drop).map_err(|error| self.server.away(error))
    }

    pub(super) async fn read(&self, key: &str) -> Result<Option<Record>, EngineError> {
        self.server.check_connected()?;
        let subject = self.subject(key)?;
        let message = match self.server.limited(self.stream.get_last_raw_message_by_subject(&subject)).await?
        {
            Ok(message) => message,
            Err(error) => {
                return match error.kind() {
                    LastRawMessageErrorKind::NoMessageFound => Ok(None),
                    LastRawMessageErrorKind::Other => Err(self.server.away(error)),
                    LastRawMessageErrorKind::InvalidSubject | LastRawMessageErrorKind::JetStream(_) => {
                        Err(self.server.refused(error))
                    }
                };
            }
        };
        let value = if message.headers.get(OPERATION).is_some() {
            None
        } else {
            let value = String::from_utf8(message.payload.to_vec());
            Some(value.map_err(|error| self.server.refused(error))?)
        };
        Ok(Some(Record { value, revision: message.sequence }))
    }

    /// What follows this in the keys that begin with it, also in those that were deleted.
    pub(super) async fn names(&self, under: &str) -> Result<Vec<String>, EngineError> {
        self.server.check_connected()?;
        let prefix = format!("$KV.{}.{under}", self.name);
        let listing = async {
            let subjects = self.stream.info_with_subjects(format!("{prefix}>")).await;
            let subjects = subjects.map_err(|error| self.server.away(error))?;
            let subjects: Vec<(String, usize)> =
                subjects.try_collect().await.map_err(|error| self.server.away(error))?;
            Ok(subjects)
        };
        let subjects = self.server.limited(listing).await??;
        Ok(subjects.iter().filter_map(|(subject, _)| subject.strip_prefix(&prefix).map(Into::into)).collect())
    }

    pub(super) fn too_busy(&self) -> EngineError {
        self.server.refused(format_args!("a key of the bucket {} changes too often", self.name))
    }

    /// The subject of a key. A key from outside must not become a wildcard.
    fn subject(&self, key: &str) -> Result<String, EngineError> {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_token = |token: &str| !token.is_empty() && token.bytes().all(is_usual);
        if key.split('.').all(is_token) {
            return Ok(format!("$KV.{}.{key}", self.name));
        }
        Err(self.server.refused("a key has letters, digits, - and _, and single dots between them"))
    }
}

fn expected(revision: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(revision));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_escapes() {
        for (text, expected) in
            [("p%40ss", "p@ss"), ("plain", "plain"), ("%", "%"), ("100%zz", "100%zz"), ("%c3%a9%", "é%")]
        {
            assert_eq!(decoded(text), expected);
        }
    }

    #[test]
    fn the_time_between_attempts_doubles_up_to_a_second() {
        let delays: Vec<_> = [1, 2, 3, 5, 6, 100].map(|attempt| delay(attempt).as_millis()).into();
        assert_eq!(delays, [50, 100, 200, 800, 1000, 1000]);
    }
}
