//! Cancels requests by their keys, from any process.

use std::sync::Arc;
use std::time::Duration;

use rescind_core::{Cause, CauseKind};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::engine::EngineError;
use crate::names::SignedName;
use crate::process::Process;
use crate::secret::Purpose;
use crate::signals::Watch;

/// How long a recorded cancel is kept, for a worker that begins late.
pub(crate) const KEEP: Duration = Duration::from_secs(3600);

/// Cancels requests by their [keys](rescind_core::CallContext::cluster_key), wherever they run.
///
/// A cancel is recorded in the engine for an hour, and then its doorbell rings. So it reaches a watcher that comes later,
/// and one whose connection to the engine is lost for a while. A cancel that comes early, late or twice changes nothing
/// for any other request: a key is never used again.
#[derive(Clone, Debug)]
pub struct CancelBus(pub(crate) Arc<Process>);

/// Why a cancel was not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// No node of this cluster made the key, or the secret of this process is not the cluster's.
    #[error("this is no key of a request of this cluster: the key or the secret is wrong")]
    UnknownKey,
    /// The engine has not recorded it. It may be tried again.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The value of a recorded cancel. Programs in other languages read and write it: docs/cluster.md.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    #[serde(default)]
    cause: String,
    #[serde(default)]
    reason: Option<String>,
}

impl CancelBus {
    /// Cancels the request with this key. When it returns `Ok`, the cancel is recorded, and every process that watches the
    /// key was rung. Its caller is answered with an error that names the cause, as for any cancel that is not its own.
    ///
    /// # Errors
    /// [`CancelError::UnknownKey`], or [`CancelError::Engine`] if the engine did not confirm it.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the cancel may or may not be recorded.
    pub async fn cancel(&self, key: &str, cause: &Cause) -> Result<(), CancelError> {
        let key = self.known(key)?;
        let recorded =
            Recorded { cause: cause.kind().name().to_owned(), reason: cause.reason().map(str::to_owned) };
        let value = serde_json::to_string(&recorded).unwrap_or_default();
        self.0.engine.signal(&cancelled(key.text()), &value, KEEP).await?;
        Ok(())
    }

    /// Watches a key until the result is dropped.
    ///
    /// # Errors
    /// [`CancelError::UnknownKey`].
    pub fn watch(&self, key: &str) -> Result<CancelWatch, CancelError> {
        let key = self.known(key)?;
        Ok(CancelWatch::new(self.0.signals.watch(&cancelled(key.text()).into())))
    }

    /// Whether a watched key is cancelled: one look-up in this process. A key that nobody watches in this process is not.
    #[must_use]
    pub fn is_cancelled(&self, key: &str) -> bool {
        self.0.signals.has_come(&cancelled(key))
    }

    fn known(&self, key: &str) -> Result<SignedName, CancelError> {
        SignedName::parse(Purpose::Key, &self.0.secret, key).ok_or(CancelError::UnknownKey)
    }
}

/// A watched key. Dropping it ends the watch, which a bare token could not.
#[derive(Debug)]
#[must_use = "dropping it ends the watch"]
pub struct CancelWatch(Watch);

impl CancelWatch {
    pub(crate) const fn new(watch: Watch) -> Self {
        Self(watch)
    }

    /// A token that is cancelled with the request.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.0.token().clone()
    }

    /// Waits until the request is cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) -> Cause {
        cause_of(&self.0.come().await)
    }

    /// The cause, if the request is cancelled.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.0.value().map(|value| cause_of(&value))
    }
}

/// The name of the signal of a cancel.
pub(crate) fn cancelled(key: &str) -> String {
    format!("cancelled.{key}")
}

/// The cause in a recorded cancel. One that cannot be read is an operator's: whoever can write to the engine is one.
fn cause_of(value: &str) -> Cause {
    let recorded: Option<Recorded> = serde_json::from_str(value).ok();
    let known = [
        CauseKind::Deadline,
        CauseKind::Parent,
        CauseKind::Disconnected,
        CauseKind::Shutdown,
        CauseKind::Limit,
        CauseKind::Local,
    ];
    let kind = recorded
        .as_ref()
        .and_then(|recorded| known.into_iter().find(|kind| kind.name() == recorded.cause))
        .unwrap_or(CauseKind::Operator);
    match recorded.and_then(|recorded| recorded.reason) {
        Some(reason) => Cause::new(kind).with_reason(&reason),
        None => Cause::new(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_cannot_be_read_is_an_operator() {
        for (value, kind, reason) in [
            (r#"{"cause":"deadline"}"#, CauseKind::Deadline, None),
            (r#"{"cause":"operator","reason":"too dear"}"#, CauseKind::Operator, Some("too dear")),
            // The caller's own cancel comes over its own connection.
            (r#"{"cause":"peer","reason":"x"}"#, CauseKind::Operator, Some("x")),
            ("1", CauseKind::Operator, None),
            ("", CauseKind::Operator, None),
        ] {
            let cause = cause_of(value);
            assert_eq!((cause.kind(), cause.reason()), (kind, reason), "{value}");
        }
    }
}
