//! The value of `Authorization`, which can change while a client is connected.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use rescind_core::{BoxFuture, TransportError};

use super::refused;
use crate::sync::Mutex;

/// The longest time that a refresh may take.
const REFRESH_TIME: Duration = Duration::from_secs(10);

type Hook = dyn Fn(Authorization) -> BoxFuture<'static, ()> + Send + Sync;

/// The value of the header `Authorization`, for [`HttpClient::authorization`](super::HttpClient::authorization). It can
/// change at any time, and each request sends the latest value. A clone is the same value. It is never logged.
///
/// ```
/// use rescind_http::{Authorization, HttpClient};
///
/// # fn main() -> Result<(), rescind_core::TransportError> {
/// let authorization = Authorization::new("Bearer first")?.refresh(|authorization| async move {
///     // A server has answered with 401. Fetch a new token here.
///     let _ = authorization.set("Bearer second");
/// });
/// let client = HttpClient::new("http://127.0.0.1:8000/mcp")?.authorization(&authorization);
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Authorization(Arc<Shared>);

struct Shared {
    value: Mutex<Version>,
    refresh: Option<Box<Hook>>,
    /// One refresh runs at a time.
    turn: tokio::sync::Mutex<()>,
}

/// A value, with the number of values before it.
#[derive(Clone)]
struct Version {
    number: u64,
    value: HeaderValue,
}

impl Authorization {
    /// A value, for example `Bearer TOKEN`.
    ///
    /// # Errors
    /// It is not valid in a header.
    pub fn new(value: &str) -> Result<Self, TransportError> {
        let value = Mutex::new(Version { number: 0, value: parse(value)? });
        Ok(Self(Arc::new(Shared { value, refresh: None, turn: tokio::sync::Mutex::default() })))
    }

    /// Calls this function when a server answers with 401. It may [`set`](Self::set) a new value: then the request that
    /// was refused is sent once more. It may take 10 s at most. If many requests are refused at once, it is called once
    /// for all of them. Call it before the value is given to a client: clones that exist already have no such function.
    #[must_use]
    pub fn refresh<F>(self, hook: impl Fn(Self) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let value = self.version();
        let refresh: Option<Box<Hook>> = Some(Box::new(move |this| Box::pin(hook(this))));
        Self(Arc::new(Shared { value: Mutex::new(value), refresh, turn: tokio::sync::Mutex::default() }))
    }

    /// Sends this value from the next request on.
    ///
    /// # Errors
    /// It is not valid in a header. The old value stays.
    pub fn set(&self, value: &str) -> Result<(), TransportError> {
        let value = parse(value)?;
        let mut current = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        if current.value != value {
            *current = Version { number: current.number + 1, value };
        }
        drop(current);
        Ok(())
    }

    /// The current value, and its number.
    pub(super) fn current(&self) -> (HeaderValue, u64) {
        let Version { number, value } = self.version();
        (value, number)
    }

    /// Called when the value with this number was refused. Returns whether there is another one now.
    ///
    /// # Cancel safety
    /// Dropping the future drops the refresh that runs.
    pub(super) async fn refreshed(&self, refused: u64) -> bool {
        let _turn = self.0.turn.lock().await;
        if self.version().number != refused {
            return true;
        }
        let Some(refresh) = &self.0.refresh else { return false };
        if tokio::time::timeout(REFRESH_TIME, refresh(self.clone())).await.is_err() {
            tracing::warn!("the refresh of an authorization did not end in time");
        }
        self.version().number != refused
    }

    fn version(&self) -> Version {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn parse(value: &str) -> Result<HeaderValue, TransportError> {
    let mut value: HeaderValue = value.parse().map_err(refused)?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_refusals_of_one_value_make_one_refresh() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let authorization = Authorization::new("Bearer a").unwrap().refresh(move |authorization| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                authorization.set("Bearer b").unwrap();
            }
        });
        let (_, refused) = authorization.current();
        let all = futures_util::future::join_all((0..100).map(|_| authorization.refreshed(refused))).await;
        assert!(all.into_iter().all(|changed| changed));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(authorization.current().0, "Bearer b");
        assert_eq!(
            format!("{authorization:?} {:?}", authorization.current()),
            "Authorization (Sensitive, 1)"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_that_changes_nothing_or_never_ends_leaves_the_value() {
        let same =
            Authorization::new("Bearer a").unwrap().refresh(async |same| same.set("Bearer a").unwrap());
        let hung = Authorization::new("Bearer a").unwrap().refresh(async |_| std::future::pending().await);
        let broken =
            Authorization::new("Bearer a").unwrap().refresh(async |own| assert!(own.set("\n").is_err()));
        for authorization in [same, hung, broken, Authorization::new("Bearer a").unwrap()] {
            assert!(!authorization.refreshed(0).await);
            assert_eq!(authorization.current().0, "Bearer a");
        }
    }
}
