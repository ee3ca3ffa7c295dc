//! A key-value bucket. Its stream is what clients of the key-value store expect.

use std::sync::Arc;
use std::time::Duration;

use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::stream::{self, DiscardPolicy, LastRawMessageErrorKind, Republish, Stream};
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use futures_util::TryStreamExt as _;

use super::EngineError;
use super::server::Server;

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

/// A bucket.
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

    /// The keys, also those that were deleted.
    pub(super) async fn names(&self) -> Result<Vec<String>, EngineError> {
        self.server.check_connected()?;
        let prefix = format!("$KV.{}.", self.name);
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
